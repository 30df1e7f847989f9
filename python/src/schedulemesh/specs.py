"""A task as a value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class SimpleTaskSpec:
    """What ``SimpleScheduler.submit`` takes, as a value that can be kept, changed and submitted again.

    Attributes:
        task_id: unique among live tasks of the scheduler.
        pool: that is charged.
        actor_class: a class that takes ``name, labels`` first.
        resources: ``cpu``, ``gpu``, ``memory`` in MiB, anything else as Ray knows it.
        priority: higher goes first.
        labels: what label rules look at.
        actor_args: further positional arguments of the class.
        actor_kwargs: further named arguments of the class.
        agent_name: made up when left out.
        estimated_duration: seconds it will run.
        ray_options: ``name`` and ``namespace`` are used as they are.
        options: whatever else ``submit`` takes.
    """

    task_id: str
    pool: str
    actor_class: Any
    resources: dict[str, float]
    priority: float = 5.0
    labels: dict[str, str] = field(default_factory=dict)
    actor_args: list[Any] = field(default_factory=list)
    actor_kwargs: dict[str, Any] = field(default_factory=dict)
    agent_name: str | None = None
    estimated_duration: float | None = None
    ray_options: dict[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def as_arguments(self) -> dict[str, Any]:
        """The arguments of ``submit``."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "options"}
        return {**found, **self.options}
