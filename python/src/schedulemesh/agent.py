"""An agent as the schedulers give it out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Agent(dict[str, Any]):
    """An agent: a dict with ``name``, ``handle``, ``resources``, ``labels``, ``pool``, ``task_id``,
    ``state``, ``actor_name``, ``ray_namespace`` and ``node_id``, whose keys are attributes too.

    What it has not itself is asked of the handle, so that ``agent.process.remote(…)`` calls the actor.
    """

    @classmethod
    def of_task(cls, task: Mapping[str, Any], resources: Mapping[str, float] | None = None) -> Agent:
        """The agent of a submitted task, with a live handle while it runs."""
        found = task["agent"]
        return cls(
            name=found["name"],
            handle=handle_of(found) if task["state"] == "running" else None,
            resources=dict(resources if resources is not None else task["resources"]),
            labels={"pool": task["pool"], **task["labels"]},
            pool=task["pool"],
            task_id=task["task_id"],
            state=task["state"],
            actor_name=found["actor_name"],
            ray_namespace=found["ray_namespace"],
            node_id=found["node_id"],
        )

    @classmethod
    def of_agent(cls, agent: Mapping[str, Any], with_handle: bool = False) -> Agent:
        """An agent of the server's list; its handle is looked up when it is asked for."""
        out = cls(agent)
        out["labels"] = {"pool": agent["pool"], **agent["labels"]}
        out["task_id"] = next(iter(agent["task_ids"]), None)
        if with_handle:
            out["handle"] = handle_of(agent)
        return out

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self:
            return self[name]
        if name == "handle":
            self["handle"] = handle_of(self)
            return self["handle"]
        handle = self.handle
        if handle is None:
            raise AttributeError(f"agent {self.get('name')!r} has no {name}: it is not running")
        return getattr(handle, name)


def handle_of(agent: Mapping[str, Any]) -> Any:
    """Ray's handle of an agent's actor; None when the actor is gone or not there yet."""
    import ray

    if not agent.get("actor_name"):
        return None
    try:
        return ray.get_actor(agent["actor_name"], namespace=agent["ray_namespace"] or None)
    except ValueError:
        return None
