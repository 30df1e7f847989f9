"""A way back to the scheduler that can be handed to actors."""

from __future__ import annotations

import logging
import queue
import threading
from typing import Any

log = logging.getLogger("schedulemesh")

# Reports that wait to be sent; when more come, the oldest go.
_WAITING = 64


class Supervisor:
    """What ``scheduler.supervisor_handle()`` gives: small, picklable, and safe to hand to any actor.

    Inside a ScheduleMesh agent its reports go the agent's own way; elsewhere they are sent to the server from
    a thread. It carries no token: where it is used, it looks for one as every client does.

    Args:
        url: of the server.
        namespace: of the scheduler.
    """

    def __init__(self, url: str, namespace: str) -> None:
        self.url = url
        self.namespace = namespace
        self._queue: queue.Queue[tuple[str, dict[str, Any]]] | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.url, self.namespace))

    def __repr__(self) -> str:
        return f"Supervisor({self.url!r}, {self.namespace!r})"

    def report_metrics(self, agent_name: str, metrics: dict[str, Any]) -> bool:
        """Report an agent's figures, a JSON object. Returns at once; True when they were handed on."""
        from schedulemesh.core.reporting import report_metrics

        if report_metrics(metrics):
            return True
        with self._lock:
            if self._queue is None:
                self._queue = queue.Queue(_WAITING)
                threading.Thread(
                    target=self._send, args=(self._queue,), name="schedulemesh-reports", daemon=True
                ).start()
            waiting = self._queue
        while True:
            try:
                waiting.put_nowait((agent_name, dict(metrics)))
                return True
            except queue.Full:
                try:
                    waiting.get_nowait()
                except queue.Empty:
                    continue

    def _send(self, waiting: queue.Queue[tuple[str, dict[str, Any]]]) -> None:
        from schedulemesh._sync.client import Client
        from schedulemesh.errors import ScheduleMeshError

        client: Client | None = None
        while True:
            agent_name, metrics = waiting.get()
            try:
                client = client or Client(self.url, namespace=self.namespace)
                client.report_metrics(agent_name, metrics)
            except ScheduleMeshError as error:
                log.warning("figures of %s were not reported: %s", agent_name, error)
