"""What a state handler is told of the task whose state it keeps.

This module travels to workers that have none of our packages installed: it may import the standard
library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TaskState:
    """A task at the moment it makes way, as a pool's preserver gets it.

    Args:
        task_id: the task.
        agent_name: the agent it ran on, which need not be one of ours.
        pool_name: the pool it ran in.
        priority: higher matters more.
        labels: the task's labels.
        payload: what was submitted or registered with it; ``None`` for nothing.
        estimated_duration: how long it was expected to run, in seconds; ``None`` when nobody said.
        started_at: when this attempt began to run, in seconds since the epoch; ``None`` when it never did.
        attempt: 1 for the first.
    """

    task_id: str
    agent_name: str = ""
    pool_name: str = ""
    priority: float = 0.0
    labels: dict[str, str] = field(default_factory=dict)
    payload: Any = None
    estimated_duration: float | None = None
    started_at: float | None = None
    attempt: int = 1


def __getattr__(name: str) -> Any:
    # Here for those who look for it beside TaskState; workers never ask for it.
    if name == "PreemptionPolicy":
        from schedulemesh.core.policy import PreemptionPolicy

        return PreemptionPolicy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
