"""Agents that report how they are doing."""

from __future__ import annotations

import threading
import time
from typing import Any

from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.core.reporting import report_metrics

__all__ = ["AgentActor", "MetricsReportingAgent"]


class MetricsReportingAgent(AgentActor):
    """An agent whose figures reach the scheduler while it works.

    Args:
        name: the agent's name.
        labels: the labels it was made with.
        supervisor: what ``scheduler.supervisor_handle()`` gave; needed only where the class runs as a plain
            Ray actor, outside of ScheduleMesh's agents.
        report_interval: seconds between reports; more frequent ones are left out. 0 sends all.
        **kwargs: kept as ``self.options``.
    """

    def __init__(
        self,
        name: str,
        labels: dict[str, str] | None = None,
        supervisor: Any = None,
        report_interval: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(name, labels, **kwargs)
        self.supervisor = supervisor
        self.report_interval = report_interval
        self._reported_at = 0.0
        self._report_lock = threading.Lock()

    def report_metrics(self, metrics: dict[str, Any] | None = None, **more: Any) -> bool:
        """Report figures, for example ``report_metrics(step=10, loss=0.5)``. It returns at once: a loop that
        trains never waits for it.

        Args:
            metrics: a JSON object; numpy numbers are fine.
            **more: further figures.

        Returns:
            Whether it was handed on: False within ``report_interval`` of the last one, and where nobody
            listens.

        Raises:
            ValueError: a figure is not JSON, for example NaN.
        """
        figures = {**(metrics or {}), **more}
        with self._report_lock:
            now = time.monotonic()
            if self._reported_at and now - self._reported_at < self.report_interval:
                return False
            self._reported_at = now
        if report_metrics(figures):
            return True
        if self.supervisor is None:
            return False
        return bool(self.supervisor.report_metrics(self.name, figures))
