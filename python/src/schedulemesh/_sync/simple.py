# Generated from schedulemesh/_async by python/unasync.py; edit that.
"""SimpleScheduler: the few calls most scripts need."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from schedulemesh import types
from schedulemesh._sync.scheduler import RayScheduler
from schedulemesh.agent import Agent
from schedulemesh.specs import SimpleTaskSpec


class SimpleScheduler:
    """A scheduler for scripts: make a pool, submit tasks, see who made way.

    It answers whatever :class:`RayScheduler` does as well; that is ``.scheduler``.

    Args:
        name: what it is called; schedulers of different names see nothing of each other.
        detached: it outlives this process, and others may attach. Otherwise it starts empty and, at the end
            of this process at the latest, leaves nothing.
        state_path: a directory in which saved states are mirrored as files.
        namespace: the Ray namespace of its agents.

    Raises:
        ServerNotFound: no server was found, and none could be started.
        RayUnavailable: there is no Ray cluster, or another one than the server's.
        SchedulerInUse: another process has a scheduler of this name.
    """

    def __init__(
        self,
        name: str = "simple-scheduler",
        *,
        detached: bool = False,
        state_path: str | os.PathLike[str] | None = None,
        namespace: str | None = None,
    ) -> None:
        self.scheduler = RayScheduler(name, detached=detached, state_path=state_path, namespace=namespace)

    def start(self) -> None:
        """Connect. Further calls do nothing."""
        self.scheduler.start()

    @classmethod
    def attach(
        cls, name: str, *, state_path: str | os.PathLike[str] | None = None, namespace: str | None = None
    ) -> SimpleScheduler:
        """A scheduler that exists already. Raises :class:`~schedulemesh.errors.SchedulerNotFound`."""
        found = cls.__new__(cls)
        found.scheduler = RayScheduler.attach(name, state_path=state_path, namespace=namespace)
        return found

    def __enter__(self) -> SimpleScheduler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __getattr__(self, name: str) -> Any:
        """Whatever else a RayScheduler has."""
        if name == "scheduler" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.scheduler, name)

    def ensure_pool(
        self,
        name: str,
        labels: Mapping[str, str] | None = None,
        resources: Mapping[str, float] | None = None,
        target_agents: int | None = None,
        **options: Any,
    ) -> types.Pool:
        """Make a pool, or change the one of this name; see :meth:`RayScheduler.create_pool`."""
        return self.scheduler.create_pool(name, labels, resources, target_agents, **options)

    def configure_preemption(self, **fields: Any) -> dict[str, Any]:
        """Change the policy; see :meth:`RayScheduler.update_preemption_policy`."""
        return self.scheduler.update_preemption_policy(**fields)

    def submit(
        self,
        task_id: str | None = None,
        pool: str | None = None,
        actor_class: Any = None,
        resources: Mapping[str, float] | None = None,
        priority: float = 5.0,
        labels: Mapping[str, str] | None = None,
        actor_args: Sequence[Any] | None = None,
        actor_kwargs: Mapping[str, Any] | None = None,
        agent_name: str | None = None,
        estimated_duration: float | None = None,
        ray_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Run a task, with preemption if need be; see :meth:`RayScheduler.submit_task_with_preemption`.

        Returns:
            ``{"success": True, "agent": {"name", "handle", "resources", "labels"}, …}``, or
            ``{"success": False, "error", "reason"}``.
        """
        return self.scheduler.submit_task_with_preemption(
            task_id=task_id,
            pool_name=pool,
            resources=resources,
            actor_class=actor_class,
            priority=priority,
            labels=labels,
            actor_args=actor_args,
            actor_kwargs=actor_kwargs,
            agent_name=agent_name,
            estimated_duration=estimated_duration,
            ray_options=ray_options,
            **options,
        )

    def submit_spec(self, spec: SimpleTaskSpec) -> dict[str, Any]:
        """Run a task that is described by a value; see :meth:`submit`."""
        return self.submit(**spec.as_arguments())

    def submit_with_pg_preemption(self, *args: Any, **arguments: Any) -> dict[str, Any]:
        """As :meth:`submit`, in a placement group of the pool; when the pool lacks quota it answers
        ``success: False`` unless ``preempt_for_quota=True``."""
        chosen = {"preempt_for_quota": False, **arguments, "use_placement_group": True}
        return self.submit(*args, **chosen)

    def pg_pool_stats(self, pool_name: str | None = None) -> dict[str, Any]:
        """Placement groups of one pool, or of all that have any; see :meth:`RayScheduler.pg_pool_stats`."""
        return self.scheduler.pg_pool_stats(pool_name)

    def complete(self, task_id: str) -> dict[str, Any]:
        """End a task as done; its quota is back when this returns. ``{"success", "task_id", "state"}``."""
        return self.scheduler.complete(task_id)

    def wait(self, task_id: str, timeout: float | None = None) -> types.Task:
        """The task once it is over; see :meth:`RayScheduler.wait`."""
        return self.scheduler.wait(task_id, timeout)

    def delete_agent(self, name: str, force: bool = False, destroy_pg: bool = True) -> dict[str, Any]:
        """Stop an agent, found by its name or its task's id, and wait until it is gone."""
        return self.scheduler.delete_agent(name, force=force, destroy_pg=destroy_pg)

    def list_agents(self, pool: str | None = None) -> list[Agent]:
        """Live agents with what runs on them."""
        return self.scheduler.list_agents(pool)

    def list_pools(self) -> list[types.Pool]:
        """All pools."""
        return self.scheduler.list_pools()

    def register_state_handlers(
        self,
        pool_name: str,
        preserver: Callable[..., Any] | None = None,
        restorer: Callable[..., Any] | None = None,
    ) -> dict[str, Any]:
        """Say how states of a pool's tasks are saved and restored."""
        return self.scheduler.register_state_handlers(pool_name, preserver, restorer)

    def stats(self) -> dict[str, Any]:
        """Everything at a glance: the figures of ``get_preemption_stats``, ``pools`` by name with quota, what
        is free, how many tasks run and wait, and ``agents``, the count of live ones."""
        figures = self.scheduler.get_preemption_stats()
        pools = self.scheduler.list_pools()
        agents = self.scheduler.list_agents()
        return {
            **figures,
            "pools": {
                pool["name"]: {
                    "resources": pool["resources"],
                    "available": pool["available"],
                    "running": pool["running"],
                    "queued": pool["queued"],
                    "labels": pool["labels"],
                }
                for pool in pools
            },
            "agents": len(agents),
        }

    def shutdown(self) -> None:
        """Let go of everything; see :meth:`RayScheduler.shutdown`."""
        self.scheduler.shutdown()
