"""Test state handlers. The Go fake knows each of them by its name and behaves the same."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from typing import Any

from schedulemesh.core.actors.control.preemption_controller import TaskState

FOREVER = 3600.0


def keep(task: TaskState) -> dict[str, Any]:
    """All that is known of the task, and that it was a TaskState."""
    return {**dataclasses.asdict(task), "kept_by": "keep", "type": type(task).__name__}


async def keep_async(task: TaskState) -> dict[str, Any]:
    await asyncio.sleep(0.01)
    return {"kept_by": "keep_async", "payload": task.payload}


def raising(_: Any) -> dict[str, Any]:
    raise ValueError("told to raise")


def hanging(_: Any) -> dict[str, Any]:
    time.sleep(FOREVER)
    return {}


def exiting(_: Any) -> dict[str, Any]:
    os._exit(1)


def listing(_: Any) -> Any:
    return [1, 2]


def nan(_: Any) -> dict[str, Any]:
    return {"deep": {"loss": float("nan")}}


def unordered(_: Any) -> dict[str, Any]:
    return {"seen": {1, 2}}


def raw(_: Any) -> dict[str, Any]:
    return {"weights": b"\0\1"}


def large(_: Any) -> dict[str, Any]:
    """Twenty megabytes."""
    return {"weights": "x" * 20_000_000}


def restore(state: dict[str, Any]) -> dict[str, Any]:
    """What it was given."""
    return {"restored": state}


def restore_nothing(_: dict[str, Any]) -> None:
    """As most restorers do, it returns nothing."""


def refuse(_: dict[str, Any]) -> dict[str, Any]:
    return {"success": False, "error": "the checkpoint is gone"}


#: Not a callable.
NUMBER = 7
