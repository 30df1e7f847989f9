"""The base class of agents.

It is a plain class: ScheduleMesh runs it inside an actor of its own, and it works under
``ray.remote(AgentActor)`` too. Nothing here imports Ray.
"""

from __future__ import annotations

import threading
import time
from typing import Any

#: How long, in seconds, a simulated task goes on before it looks whether it was cancelled.
STEP = 0.01

# Cancelled ids are remembered so that a cancel that overtakes its task still counts; only the latest.
_REMEMBERED = 1024


class AgentActor:
    """An agent: it processes tasks, can be cancelled at any moment, and can save and restore its state.

    Subclasses override what they need. ``cancel``, ``save_state`` and ``ping`` are called from another
    thread while a task runs, so what they share with it needs no more than simple attributes, or a lock.

    Args:
        name: the agent's name.
        labels: the labels it was made with.
        **kwargs: kept as ``self.options``; a subclass may take its own arguments instead.
    """

    def __init__(self, name: str, labels: dict[str, str] | None = None, **kwargs: Any) -> None:
        self.name = name
        self.labels: dict[str, str] = dict(labels or {})
        self.options: dict[str, Any] = kwargs
        self.restored_state: dict[str, Any] | None = None
        self._lock = threading.Lock()
        self._running: dict[str | None, threading.Event] = {}
        self._cancelled: dict[str, None] = {}
        self._processed = 0

    def process(
        self, payload: Any, task_id: str | None = None, simulated_duration: float = 0.0
    ) -> dict[str, Any]:
        """Process one task.

        Args:
            payload: anything; it comes back in the answer.
            task_id: what ``cancel`` knows the task by.
            simulated_duration: seconds to work, in small steps.

        Returns:
            ``{"status": "completed" | "cancelled", "task_id", "agent", "payload", "elapsed"}``,
            ``elapsed`` in seconds.
        """
        stop = self._begin(task_id)
        started = time.monotonic()
        try:
            end = started + simulated_duration
            while (left := end - time.monotonic()) > 0 and not stop.wait(min(left, STEP)):
                pass
            status = "cancelled" if stop.is_set() else "completed"
        finally:
            self._end(task_id)
        return {
            "status": status,
            "task_id": task_id,
            "agent": self.name,
            "payload": payload,
            "elapsed": time.monotonic() - started,
        }

    def cancel(self, task_id: str) -> dict[str, Any]:
        """Stop a task at its next step.

        Cancelling a task that does not run succeeds as well; if it starts later, it stops at once.

        Returns:
            ``{"success": True, "task_id", "agent", "was_running"}``.
        """
        with self._lock:
            self._cancelled[task_id] = None
            while len(self._cancelled) > _REMEMBERED:
                del self._cancelled[next(iter(self._cancelled))]
            # A task that was started without an id can only be meant by this too.
            running = [self._running[key] for key in (task_id, None) if key in self._running]
        for stop in running:
            stop.set()
        return {"success": True, "task_id": task_id, "agent": self.name, "was_running": bool(running)}

    def is_cancelled(self, task_id: str | None = None) -> bool:
        """Whether ``cancel`` was called for this task: for loops of your own to look at. Without an id:
        whether it was called at all, for an agent with one task whose id it need not know."""
        with self._lock:
            return bool(self._cancelled) if task_id is None else task_id in self._cancelled

    def save_state(self) -> dict[str, Any]:
        """The agent's state as a JSON object. The base class saves its name, labels and count of tasks."""
        with self._lock:
            return {"agent": self.name, "labels": dict(self.labels), "processed": self._processed}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Take over a state that ``save_state`` returned; called before the agent is ready."""
        self.restored_state = dict(state)
        self._processed = int(state.get("processed", 0))

    def ping(self) -> str:
        """Answers ``"pong"``."""
        return "pong"

    def _begin(self, task_id: str | None) -> threading.Event:
        stop = threading.Event()
        with self._lock:
            self._running[task_id] = stop
            if task_id is not None and task_id in self._cancelled:
                stop.set()
        return stop

    def _end(self, task_id: str | None) -> None:
        with self._lock:
            self._running.pop(task_id, None)
            if task_id is not None:
                self._cancelled.pop(task_id, None)
            self._processed += 1
