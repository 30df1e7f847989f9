"""Test agents. The Go fake knows each of them by its path and behaves the same."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from typing import Any

from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.core.reporting import report_metrics

FOREVER = 3600.0


class Counter:
    """Counts steps until told to stop; its state is the step it reached."""

    def __init__(self, name: str, labels: dict[str, str], start: int = 0) -> None:
        self.name = name
        self.labels = labels
        self.step = start
        self.extra: dict[str, Any] = {}
        self.stop = threading.Event()

    def run(self, steps: int = 0, step_seconds: float = 0.01) -> dict[str, Any]:
        """Count up to ``steps`` (0: without end), a step every ``step_seconds`` seconds."""
        self.step += 1
        while not self.stop.is_set() and (steps == 0 or self.step < steps):
            self.stop.wait(step_seconds)
            self.step += 1
        return {"status": "cancelled" if self.stop.is_set() else "completed", "step": self.step}

    def cancel(self, task_id: str) -> dict[str, Any]:
        self.stop.set()
        return {"success": True, "task_id": task_id}

    def save_state(self) -> dict[str, Any]:
        return {**self.extra, "step": self.step}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.extra = state
        self.step = int(state["step"])


class AsyncAgent:
    """A :class:`Counter` of coroutines."""

    def __init__(self, name: str, labels: dict[str, str]) -> None:
        self.step = 0
        self.stop = asyncio.Event()

    async def run(self, steps: int = 0, step_seconds: float = 0.01) -> dict[str, Any]:
        self.step += 1
        while not self.stop.is_set() and (steps == 0 or self.step < steps):
            await asyncio.sleep(step_seconds)
            self.step += 1
        return {"status": "cancelled" if self.stop.is_set() else "completed", "step": self.step}

    async def cancel(self, task_id: str) -> dict[str, Any]:
        self.stop.set()
        return {"success": True, "task_id": task_id}

    async def save_state(self) -> dict[str, Any]:
        return {"step": self.step}

    async def restore_state(self, state: dict[str, Any]) -> None:
        self.step = int(state["step"])


class Echo:
    """Returns what it was given. It has neither ``cancel`` nor ``save_state``."""

    def __init__(self, name: str, labels: dict[str, str], **options: Any) -> None:
        self.name = name
        self.labels = labels

    def run(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {"name": self.name, "labels": self.labels, "args": list(args), "kwargs": kwargs}


class Failing(Counter):
    """Its entry raises ``ValueError``."""

    def run(self, steps: int = 0, step_seconds: float = 0.01) -> dict[str, Any]:
        raise ValueError("told to fail")


class Printer(Counter):
    """Prints lines."""

    def run(self, lines: list[str], stream: str = "stdout") -> dict[str, Any]:  # type: ignore[override]
        out = sys.stdout if stream == "stdout" else sys.stderr
        for line in lines:
            print(line, file=out, flush=True)
        return {"printed": len(lines)}


class Reporting(Counter):
    """Its entry reports metrics and goes on."""

    def run(self, steps: int = 0, step_seconds: float = 0.01) -> dict[str, Any]:
        report_metrics({"step": 1, "loss": 0.5})
        return super().run(steps, step_seconds)


class Exiting(Counter):
    """Its worker process ends in the middle of the entry."""

    def run(self, steps: int = 0, step_seconds: float = 0.01) -> dict[str, Any]:
        os._exit(3)


class Busy(Counter):
    """Its entry holds the agent for ``seconds`` and looks at nothing meanwhile; ``cancel`` answers."""

    def run(self, seconds: float = FOREVER) -> dict[str, Any]:  # type: ignore[override]
        time.sleep(seconds)
        return {"status": "completed", "step": self.step}


class RaisingConstructor(Counter):
    """Its constructor raises."""

    def __init__(self, name: str, labels: dict[str, str]) -> None:
        raise RuntimeError("told to raise")


class HangingConstructor(Counter):
    """Its constructor never returns."""

    def __init__(self, name: str, labels: dict[str, str]) -> None:
        time.sleep(FOREVER)


class BadSignature:
    """It takes neither name nor labels."""

    def __init__(self) -> None:
        pass


NotAClass = "a string"


class HangingCancel(Counter):
    """Its ``cancel`` never returns."""

    def cancel(self, task_id: str) -> dict[str, Any]:
        time.sleep(FOREVER)
        return {}


class RaisingCancel(Counter):
    """Its ``cancel`` raises."""

    def cancel(self, task_id: str) -> dict[str, Any]:
        raise RuntimeError("told to raise")


class OverriddenCancel(AgentActor):
    """An :class:`AgentActor` with a ``cancel`` and a busy entry of its own."""

    def __init__(self, name: str, labels: dict[str, str]) -> None:
        super().__init__(name, labels)
        self.stop = threading.Event()

    def run(self) -> dict[str, Any]:
        self.stop.wait(FOREVER)
        return {"status": "cancelled"}

    def cancel(self, task_id: str) -> dict[str, Any]:
        self.stop.set()
        return {**super().cancel(task_id), "overridden": True}


class HangingSave(Counter):
    """Its ``save_state`` never returns."""

    def save_state(self) -> dict[str, Any]:
        time.sleep(FOREVER)
        return {}


class RaisingSave(Counter):
    """Its ``save_state`` raises."""

    def save_state(self) -> dict[str, Any]:
        raise RuntimeError("told to raise")


class NanSave(Counter):
    """Its state is not JSON."""

    def save_state(self) -> dict[str, Any]:
        return {"loss": float("nan")}


class RaisingRestore(Counter):
    """Its ``restore_state`` raises."""

    def restore_state(self, state: dict[str, Any]) -> None:
        raise RuntimeError("told to raise")
