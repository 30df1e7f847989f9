"""The agent of most examples: it estimates pi, can be stopped at any moment, and goes on where it stopped."""

from __future__ import annotations

from typing import Any

import numpy as np

from schedulemesh.core.agents import MetricsReportingAgent

BATCH = 100_000  # points, some 2 ms on one core


class PiAgent(MetricsReportingAgent):
    """Throws points at a square and counts those within the circle.

    Args:
        name: the agent's name.
        labels: its labels.
        batches: how many times :data:`BATCH` points make the whole; by default it never ends by itself.
        state: what an earlier one saved, to go on from.
    """

    def __init__(
        self,
        name: str,
        labels: dict[str, str] | None = None,
        batches: int = 10**9,
        state: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(name, labels, report_interval=0.1)
        self.batches = batches
        self.done = (0, 0)  # batches, and points within: one value, since it may be saved at any moment
        self.went_on_from = 0
        if state is not None:
            self.restore_state(state)

    def run(self, task_id: str | None = None) -> dict[str, Any]:
        """Throw until the work is done or cancelled."""
        rng = np.random.default_rng()
        while self.done[0] < self.batches and not self.is_cancelled(task_id):
            x, y = rng.random((2, BATCH))
            self.done = (self.done[0] + 1, self.done[1] + int(np.count_nonzero(x * x + y * y < 1)))
            self.report_metrics(self.estimate())  # never waits
        return {**self.estimate(), "went_on_from": self.went_on_from}

    def estimate(self) -> dict[str, Any]:
        """How far it is, and pi so far."""
        batches, inside = self.done
        return {"batches": batches, "pi": 4 * inside / max(1, batches * BATCH)}

    def save_state(self) -> dict[str, Any]:
        batches, inside = self.done
        return {**super().save_state(), "batches": batches, "inside": inside}

    def restore_state(self, state: dict[str, Any]) -> None:
        super().restore_state(state)
        self.done = (state["batches"], state["inside"])
        self.went_on_from = state["batches"]
