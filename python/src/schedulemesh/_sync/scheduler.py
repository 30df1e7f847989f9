# Generated from schedulemesh/_async by python/unasync.py; edit that.
"""RayScheduler: pools, agents, tasks and preemption, with the calls scripts know."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from schedulemesh import types
from schedulemesh._sync.client import Client
from schedulemesh._sync.waiting import INTERRUPTIONS, blocking, sleep
from schedulemesh.agent import Agent
from schedulemesh.config.policy import PreemptionAggressiveness
from schedulemesh.core.policy import PreemptionPolicy
from schedulemesh.errors import (
    InvalidArgument,
    PoolExists,
    RayUnavailable,
    ScheduleMeshError,
    SchedulerClosed,
    SchedulerInUse,
    SchedulerNotFound,
    ServerError,
    ServerNotFound,
    ServerUnavailable,
    UnknownAgent,
    UnknownNamespace,
)

if TYPE_CHECKING:
    from schedulemesh._sync.client import Client
    from schedulemesh.finding import Found
    from schedulemesh.mirror import Mirror
    from schedulemesh.session import Session
    from schedulemesh.supervisor import Supervisor

log = logging.getLogger("schedulemesh")

#: For so long one call waits for a task that is on its way before it asks again, in seconds.
_TURN = 30.0
_ENDED = ("completed", "failed", "cancelled", "preempted")

#: What a submission with nobody to make way is answered with.
NO_CANDIDATES = "Insufficient resources and no available preemption candidates"
_NO_ROOM = ("insufficient_resources",)


class RayScheduler:
    """A scheduler of Ray actors: quota in pools, priorities, and preemption.

    It finds the server by itself: the one SCHEDULEMESH_URL names, else the one that has claimed the Ray
    cluster this process is on, else one on this machine; and starts one when there is none, as ``ray.init()``
    starts a cluster.

    Args:
        name: what it is called; schedulers of different names see nothing of each other.
        detached: it outlives this process, and others may ``attach``. Otherwise it starts empty and, at the
            end of this process at the latest, leaves nothing.
        state_path: a directory in which saved states are mirrored as files; the server keeps them anyway.
        namespace: the Ray namespace of its agents; each has a name of its own in the server's when left out.

    Raises:
        ServerNotFound: no server was found, and none could be started.
        RayUnavailable: there is no Ray cluster, or another one than the server's.
        SchedulerInUse: another process has a scheduler of this name.
        InvalidArgument: the name, or ``state_path``, cannot be used.
    """

    def __init__(
        self,
        name: str,
        *,
        detached: bool = False,
        state_path: str | os.PathLike[str] | None = None,
        namespace: str | None = None,
        _attach: bool = False,
    ) -> None:
        if not isinstance(name, str) or not name.strip():
            raise InvalidArgument(f"the name of a scheduler is {name!r}; give text of 1 to 200 characters")
        self.name = name
        self.detached = detached
        self.namespace = namespace
        self._state_path = state_path
        self._attach = _attach
        self._found: Found | None = None
        self._open_client: Client | None = None
        self._session: Session | None = None
        self._mirror: Mirror | None = None
        self._closed = ""
        self._reasons: dict[str, str] = {}  # of the candidates of the last evaluation
        self._warned: set[str] = set()  # about the policy; each is said once
        self.start()

    def start(self) -> None:
        """Connect. Further calls do nothing."""
        if self._open_client is not None or self._closed:
            return
        from schedulemesh import finding, logs
        from schedulemesh.mirror import Mirror

        logs.show()
        if self._state_path is not None:
            self._mirror = Mirror(self._state_path, self.name)
        keep, attach = self.detached or self._attach, self._attach
        try:
            found = blocking(lambda: finding.connect(keep, start=not attach))
        except (ServerNotFound, RayUnavailable) as error:
            if not attach:
                raise
            raise SchedulerNotFound(f"there is no scheduler {self.name!r} to attach to: {error}") from None
        client = Client(found.url, found.token, self.name)
        try:
            if self._attach:
                client.get_namespace()
            elif self.detached:
                client.open_namespace(detached=True)
            else:
                self._session = blocking(lambda: self._new_session(found))
        except BaseException as error:
            client.close()
            blocking(lambda: finding.release(found))
            if isinstance(error, UnknownNamespace):
                raise SchedulerNotFound(
                    f"there is no scheduler {self.name!r} on the server at {found.url}: make one with "
                    f"RayScheduler({self.name!r}, detached=True) first"
                ) from None
            if isinstance(error, ServerError) and error.status == 409:
                raise SchedulerInUse(str(error)) from None
            raise
        self._found, self._open_client = found, client
        if self._mirror is not None:
            mirror, follower = self._mirror, self._sync_client(found)
            blocking(lambda: mirror.follow(follower))

    def _mirror_states(self) -> None:
        if self._mirror is not None:
            blocking(self._mirror.update)

    def _sync_client(self, found: Found) -> Client:
        from schedulemesh._sync.client import Client

        return Client(found.url, found.token, self.name)

    def _new_session(self, found: Found) -> Session:
        from schedulemesh.session import Session

        return Session(self._sync_client(found))

    @classmethod
    def attach(
        cls, name: str, *, state_path: str | os.PathLike[str] | None = None, namespace: str | None = None
    ) -> RayScheduler:
        """A scheduler that exists already, made by this or another process.

        Raises:
            SchedulerNotFound: there is none of this name.
        """
        found = cls(name, state_path=state_path, namespace=namespace, _attach=True)
        found.start()
        return found

    def __enter__(self) -> RayScheduler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    @property
    def client(self) -> Client:
        """The REST client of this scheduler.

        Raises:
            SchedulerClosed: it was shut down, or its session has ended.
        """
        if self._session is not None and self._session.lost:
            raise SchedulerClosed(f"scheduler {self.name!r} has ended: {self._session.lost}")
        if self._open_client is None:
            why = self._closed or "was not started: its start(), or use it in `with`"
            raise SchedulerClosed(f"scheduler {self.name!r} {why}")
        return self._open_client

    def shutdown(self) -> None:
        """Let go of the server. One that is not detached stops and removes everything it made; what was
        started for it (a server, a Ray cluster) ends as well. Further calls do nothing."""
        if self._closed:
            return
        self._closed = "was shut down"
        client, found, session = self._open_client, self._found, self._session
        self._open_client = None
        if client is None or found is None:
            return
        from schedulemesh import finding

        try:
            if self._mirror is not None:
                blocking(self._mirror.close)
            if session is not None:
                blocking(session.close)
        finally:
            client.close()
            blocking(lambda: finding.release(found))

    # Pools.

    def create_pool(
        self,
        name: str,
        labels: Mapping[str, str] | None = None,
        resources: Mapping[str, float] | None = None,
        target_agents: int | None = None,
        placement_strategy: str | None = None,
        pg_pool_config: Mapping[str, Any] | None = None,
        max_runtime: float | None = None,
    ) -> types.Pool:
        """Make a pool, or change the one of this name to what is given.

        Args:
            name: of the pool.
            labels: for people and policies.
            resources: its quota: ``cpu``, ``gpu``, ``memory`` in MiB, anything else as Ray knows it.
            target_agents: an agent that names no resources gets the quota divided by this.
            placement_strategy: of its agents, as Ray calls it.
            pg_pool_config: placement groups to keep.
            max_runtime: seconds any of its tasks may run.
        """
        fields = {
            "labels": None if labels is None else dict(labels),
            "resources": None if resources is None else dict(resources),
            "target_agents": target_agents,
            "placement_strategy": placement_strategy,
            "pg_pool_config": None if pg_pool_config is None else dict(pg_pool_config),
            "max_runtime": max_runtime,
        }
        fields = {key: value for key, value in fields.items() if value is not None}
        try:
            return self.client.create_pool(name, **fields)
        except PoolExists:
            return self.client.update_pool(name, **fields)

    def get_pool(self, name: str) -> types.Pool:
        """One pool: its quota (``resources``), what is free (``available``), balances and loans."""
        return self.client.pool(name)

    def list_pools(self) -> list[types.Pool]:
        """All pools."""
        return self.client.pools()

    # Agents.

    def create_agent(
        self,
        name: str,
        pool: str,
        actor_class: Any,
        resources: Mapping[str, float] | None = None,
        labels: Mapping[str, str] | None = None,
        actor_args: Sequence[Any] | None = None,
        actor_kwargs: Mapping[str, Any] | None = None,
        ray_options: Mapping[str, Any] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        timeout: float = 60.0,
    ) -> Agent:
        """Make an agent that holds quota and waits for work, and return it once it is ready.

        Args:
            name: of the agent, and the first argument of its class.
            pool: that is charged.
            actor_class: see :meth:`submit_task_with_preemption`.
            resources: the pool's quota divided by its ``target_agents`` when left out.
            labels: the second argument of the class.
            actor_args: further positional arguments.
            actor_kwargs: further named arguments.
            ray_options: ``name`` and ``namespace`` are used as they are.
            runtime_env: Ray's runtime environment of its worker.
            timeout: seconds until it must be ready.

        Raises:
            ServerError: there is no room, no such pool, or the agent did not come up.
        """
        body = _without_none(
            {
                "name": name,
                "pool": pool,
                "resources": None if resources is None else dict(resources),
                "labels": None if labels is None else dict(labels),
                "runtime_env": None if runtime_env is None else dict(runtime_env),
                "launch_timeout": timeout,
            }
        )
        body |= self._launch(actor_class, actor_args, actor_kwargs, ray_options)
        try:
            found = self.client.create_agent(body, wait=timeout + 5)
        except INTERRUPTIONS:
            self.delete_agent(name, force=True)
            raise
        if found["state"] != "running":
            raise ServerError(
                {
                    "code": found["code"] or found["state"],
                    "status": 409,
                    "detail": f"agent {name!r} is {found['state']}: {found['reason'] or 'not ready in time'}",
                }
            )
        return blocking(lambda: Agent.of_agent(found, with_handle=True))

    def list_agents(self, pool: str | None = None) -> list[Agent]:
        """Live agents with what runs on them, of one pool or of all."""
        found = []
        for agent in self.client.agents():
            if pool is None or agent["pool"] == pool:
                found.append(Agent.of_agent(agent))
        return found

    def delete_agent(
        self, name: str, force: bool = False, destroy_pg: bool = True, timeout: float = 60.0
    ) -> dict[str, Any]:
        """Stop an agent and wait until it is gone and its quota is back.

        Args:
            name: of the agent, or the id of a task on it.
            force: also when a task runs on it.
            destroy_pg: remove the placement group it sat in; False keeps that for the next agent.
            timeout: seconds to wait for its end.

        Returns:
            ``{"success", "agent_name", "error", "reason"}``; one that is gone already is a success.
        """
        answer: dict[str, Any] = {"agent_name": name}
        try:
            self.client.delete_agent(name, force=force, destroy_pg=destroy_pg)
            end, pause = time.monotonic() + timeout, 0.005
            while time.monotonic() < end:
                if (self.client.agent(name))["state"] in _ENDED:
                    return {"success": True, **answer}
                sleep(pause)
                pause = min(2 * pause, 0.25)
        except UnknownAgent:
            return {"success": True, **answer}
        except ScheduleMeshError as error:
            return _failure(error) | answer
        return {
            "success": False,
            "error": f"agent {name!r} was told to stop, but is not gone after {timeout:g} s",
            "reason": "timeout",
            **answer,
        }

    def update_agent_metrics(self, agent_name: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Keep figures as an agent's latest: ``{"success", "agent_name"}``."""
        try:
            self.client.report_metrics(agent_name, dict(metrics))
        except ScheduleMeshError as error:
            return _failure(error) | {"agent_name": agent_name}
        return {"success": True, "agent_name": agent_name}

    def ensure_agent_health(self, timeout: float = 120.0, recreate: bool = True) -> types.Health:
        """Ask every agent for a sign of life and replace those that give none.

        Args:
            timeout: seconds after which an agent that is still starting counts as unhealthy.
            recreate: make unhealthy ones anew; False only tells.

        Returns:
            Names in ``healthy``, ``starting``, ``removed``, ``recreated``; ``unhealthy`` with reasons.
        """
        return self.client.ensure_health(timeout=timeout, recreate=recreate)

    def supervisor_handle(self) -> Supervisor:
        """A small picklable way back to this scheduler, for actors: it has ``report_metrics``."""
        from schedulemesh.supervisor import Supervisor

        return Supervisor(self.client.url, self.name)

    # Submission.

    def submit_task_with_preemption(
        self,
        task_id: str | None = None,
        pool_name: str | None = None,
        resources: Mapping[str, float] | None = None,
        actor_class: Any = None,
        priority: float = 5.0,
        labels: Mapping[str, str] | None = None,
        actor_args: Sequence[Any] | None = None,
        actor_kwargs: Mapping[str, Any] | None = None,
        agent_name: str | None = None,
        estimated_duration: float | None = None,
        ray_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Run a task: take room that is free, or else the room of whoever may be preempted for it, make an
        agent there, and return once it is ready. All of it happens, or nothing.

        Args:
            task_id: unique among live tasks of the scheduler.
            pool_name: that is charged.
            resources: ``cpu``, ``gpu``, ``memory`` in MiB, anything else as Ray knows it.
            actor_class: a class that takes ``name, labels`` first, decorated with ``@ray.remote`` or not,
                defined anywhere; or its import path ``"module:Class"``.
            priority: higher goes first.
            labels: what label rules look at; the agent gets them, and its ``pool``.
            actor_args: further positional arguments of the class.
            actor_kwargs: further named arguments of the class.
            agent_name: made up when left out.
            estimated_duration: seconds it will run; a task with more left is likelier to make way.
            ray_options: ``name`` and ``namespace`` are used as they are.
            **options: ``payload``, ``entry`` (a method's name, or ``{"method", "args", "kwargs"}``, called
                after each launch), ``runtime_env``, ``max_runtime`` and ``queue_timeout`` (seconds),
                ``on_insufficient`` (``fail``, ``queue``), ``on_preempted`` and ``on_failure`` (``stop``,
                ``requeue``), ``max_attempts``, ``retry_backoff`` and ``launch_timeout`` (seconds),
                ``use_placement_group``.

        Returns:
            ``{"success": True, "task_id", "state", "agent", "preempted", "task"}``, where ``agent`` is an
            :class:`~schedulemesh.agent.Agent` (``name``, a live ``handle``, ``resources``, ``labels``) and
            ``preempted`` lists the tasks that made way; or ``{"success": False, "error", "reason"}``.
            With ``on_insufficient="queue"`` one that waits is a success with state ``queued``, without agent.

        Raises:
            KeyboardInterrupt: interrupted meanwhile; the task was cancelled.
        """
        try:
            body = self._task_body(
                {
                    "task_id": task_id,
                    "pool": pool_name,
                    "resources": resources,
                    "priority": priority,
                    "labels": labels,
                    "agent_name": agent_name,
                    "estimated_duration": estimated_duration,
                },
                options,
            )
            body |= self._launch(actor_class, actor_args, actor_kwargs, ray_options)
            task, preempted = self._submit(body)
        except SchedulerClosed:
            raise
        except ScheduleMeshError as error:
            return self._refused(task_id, pool_name, error)
        if task["state"] == "failed":
            return {
                "success": False,
                "error": task["reason"] or f"task {task_id} failed",
                "reason": task["code"] or "failed",
                "task_id": task["task_id"],
                "preempted": preempted,
                "task": task,
            }
        agent = None
        if task["state"] != "queued":
            agent = blocking(lambda: Agent.of_task(task, resources))
        return {
            "success": True,
            "task_id": task["task_id"],
            "state": task["state"],
            "agent": agent,
            "preempted": preempted,
            "task": task,
        }

    def submit_task_with_pg_preemption(
        self, *args: Any, preempt_for_quota: bool = False, **kwargs: Any
    ) -> dict[str, Any]:
        """As :meth:`submit_task_with_preemption`, in a placement group of the pool.

        That is an idle one of the right tier (reserved ones from the pool's ``high_priority_threshold`` on),
        else a new dynamic one, else the one of somebody who makes way, taken over in place.

        Args:
            *args: as there.
            preempt_for_quota: also preempt when the pool lacks quota rather than a group; by default that
                is a refusal, after which a plain submission may preempt.
            **kwargs: as there.
        """
        return self.submit_task_with_preemption(
            *args, **{**kwargs, "use_placement_group": True, "preempt_for_quota": preempt_for_quota}
        )

    def pg_pool_stats(self, pool_name: str | None = None) -> dict[str, Any]:
        """Placement groups of one pool, or of all that have any, by the pool's name.

        Returns:
            For each pool ``total_pgs``, ``high_priority_pgs``, ``dynamic_pgs``, ``available_pgs``,
            ``allocated_pgs``, ``total_reuse_count``, ``created``, ``removed``, ``waits`` (tasks in line for
            one), ``tiers`` with the same for each, and ``items``, the groups themselves.
        """
        names = [pool_name] if pool_name else [pool["name"] for pool in self.client.pools()]
        found = {name: self.client.placement_groups(name) for name in names}
        return {
            name: groups
            for name, groups in found.items()
            if pool_name or groups["enabled"] or groups["items"]
        }

    def scale_to_cluster(self, specs: Any, needed: Mapping[str, float] | None = None) -> Any:
        """Specs made smaller in proportion when the cluster has less; see
        :func:`schedulemesh.scaling.scale_to_cluster`."""
        from schedulemesh.scaling import scale_to_cluster

        return blocking(lambda: scale_to_cluster(specs, needed))

    def _submit(self, body: dict[str, Any]) -> tuple[types.Task, list[dict[str, Any]]]:
        """Submit and wait until the task runs, waits in line, or is over."""
        client = self.client
        sent = False
        try:
            task = client.submit(body)
            sent = True
            preempted: list[dict[str, Any]] = []
            if task["phase"]:
                preempted = self._victims(task)
            while task["state"] not in ("running", "queued", *_ENDED):
                task = client.task(body["task_id"], wait=_TURN)
            if preempted:
                self._mirror_states()
            return task, preempted
        except INTERRUPTIONS:
            self._take_back(body, sent)
            raise

    def _take_back(self, body: dict[str, Any], sent: bool) -> None:
        """Cancel a submission that was interrupted; whether it had arrived may not be known."""
        try:
            if not sent:
                # The same body again is the same task, whichever of the two arrives first.
                self.client.submit(body)
            self.client.cancel(body["task_id"])
            self.client.task(body["task_id"], wait=10.0)
        except ScheduleMeshError as error:
            if sent or isinstance(error, ServerUnavailable):
                log.warning("task %s may still be there after the interruption: %s", body["task_id"], error)

    def _victims(self, task: types.Task) -> list[dict[str, Any]]:
        """Who makes way for a task, said in the log as well."""
        found = []
        for item in self.client.preemptions(limit=50):
            if item["preemptor_uid"] == task["uid"]:
                found.append(item)
        if found:
            log.warning(
                "resources short task_id=%s pool=%s needs=%s",
                task["task_id"],
                task["pool"],
                task["resources"],
            )
        for victim in found:
            log.info(
                "preemption target found task_id=%s victim_task=%s victim_agent=%s score=%s reason=%s",
                task["task_id"],
                victim["task_id"],
                victim["agent_name"],
                victim["preempt_score"],
                victim["reason"],
            )
        return [
            {
                "task_id": victim["task_id"],
                "agent_name": victim["agent_name"],
                "pool_name": victim["pool_name"],
                "preempt_score": victim["preempt_score"],
                "reason": victim["reason"],
                "preemption_id": victim["id"],
            }
            for victim in found
        ]

    def _task_body(self, named: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        """The body of a submission, but for what runs.

        Raises:
            InvalidArgument: something needed is missing, or there is no such option.
            TypeError: there is no such argument.
        """
        unknown = set(options) - _OPTIONS
        if unknown:
            raise TypeError(
                f"there is no argument {sorted(unknown)[0]!r}; besides those named: {sorted(_OPTIONS)}"
            )
        for name in ("task_id", "pool", "resources"):
            if named[name] is None or named[name] == "":
                raise InvalidArgument(f"{'pool_name' if name == 'pool' else name} is missing")
        for name in ("task_id", "pool"):
            if not isinstance(named[name], str):
                raise InvalidArgument(f"{name} is {named[name]!r}; give text")
        for name in ("resources", "labels"):
            if named[name] is not None and not isinstance(named[name], Mapping):
                raise InvalidArgument(f"{name} is {named[name]!r}; give a dict")
        entry = options.get("entry")
        if isinstance(entry, str):
            options = {**options, "entry": {"method": entry}}
        body = _without_none({**named, **options})
        body["resources"] = dict(body["resources"])
        if "labels" in body:
            body["labels"] = dict(body["labels"])
        return body

    def _launch(
        self,
        actor_class: Any,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        ray_options: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """What runs, and under which of Ray's names."""
        from schedulemesh.pickling import launch_fields

        if actor_class is None:
            raise InvalidArgument("actor_class is missing")
        if ray_options is not None and not isinstance(ray_options, Mapping):
            raise InvalidArgument(f"ray_options is {ray_options!r}; give a dict")
        fields = launch_fields(actor_class, args, kwargs)
        chosen = dict(ray_options or {})
        if self.namespace and "namespace" not in chosen:
            chosen["namespace"] = self.namespace
        if "name" in chosen and "namespace" not in chosen:
            import ray

            # So that ray.get_actor(name) finds it in the script that chose the name.
            chosen["namespace"] = ray.get_runtime_context().namespace
        if chosen:
            fields["ray_options"] = chosen
        return fields

    def _refused(self, task_id: str | None, pool: str | None, error: ScheduleMeshError) -> dict[str, Any]:
        if error.code not in _NO_ROOM:
            return _failure(error) | {"task_id": task_id}
        log.warning("resources short task_id=%s pool=%s: %s", task_id, pool, error)
        log.info("no preemption target task_id=%s", task_id)
        return {
            "success": False,
            "error": NO_CANDIDATES,
            "reason": "preemption_failed",
            "task_id": task_id,
            "detail": str(error),
            "code": error.code,
            "explanation": getattr(error, "explanation", None),
        }

    def complete(self, task_id: str, timeout: float = 60.0) -> dict[str, Any]:
        """End a task as done. A submitted task's agent is stopped, and its quota is back when this returns; a
        registered task's agent stays.

        Returns:
            ``{"success", "task_id", "state"}``, or ``error`` and ``reason``. One that is over is a success.
        """
        try:
            task = self.client.complete(task_id)
        except ServerError as error:
            if error.code != "wrong_state":
                return _failure(error) | {"task_id": task_id}
            task = self.client.task(task_id)
            if task["state"] not in _ENDED:
                return _failure(error) | {"task_id": task_id, "state": task["state"]}
            return {"success": True, "task_id": task_id, "state": task["state"]}
        except ScheduleMeshError as error:
            if isinstance(error, SchedulerClosed):
                raise
            return _failure(error) | {"task_id": task_id}
        if task["state"] not in _ENDED:
            task = self.client.task(task_id, wait=timeout)
        if task["state"] not in _ENDED:
            text = f"task {task_id!r} was told to end, but its agent is not gone after {timeout:g} s"
            return {"success": False, "error": text, "reason": "timeout", "task_id": task_id}
        return {"success": True, "task_id": task_id, "state": task["state"]}

    def wait(self, task_id: str, timeout: float | None = None) -> types.Task:
        """The task once it is over: completed, failed, cancelled, or preempted for good.

        Args:
            task_id: of a live task, or of one that is over already.
            timeout: seconds; without end when left out.

        Returns:
            The task, with its ``state``, ``code`` and ``reason``, and the ``result`` of its entry.

        Raises:
            UnknownTask: there is none of this id.
            TimeoutError: it is not over by then.
        """
        end, pause = None if timeout is None else time.monotonic() + timeout, 0.02
        while (task := self.client.task(task_id))["state"] not in _ENDED:
            if end is not None and time.monotonic() + pause > end:
                raise TimeoutError(f"task {task_id!r} is still {task['state']} after {timeout:g} s")
            sleep(pause)
            pause = min(1.5 * pause, 1.0)
        return task

    # Work on agents.

    def register_running_task(
        self,
        task_id: str,
        agent_name: str,
        pool_name: str,
        priority: float = 5.0,
        labels: Mapping[str, str] | None = None,
        estimated_duration: float | None = None,
        payload: Any = None,
    ) -> dict[str, Any]:
        """Say that a task runs on an agent. It charges nothing of its own; pool and agent need not be ours.

        Returns:
            ``{"success": True, "task_id"}``, or ``error`` and ``reason``.
        """
        fields = {
            "agent_name": agent_name,
            "pool": pool_name,
            "priority": priority,
            "labels": None if labels is None else dict(labels),
            "estimated_duration": estimated_duration,
            "payload": payload,
        }
        try:
            self.client.register(task_id, **_without_none(fields))
        except SchedulerClosed:
            raise
        except ScheduleMeshError as error:
            return _failure(error) | {"task_id": task_id}
        return {"success": True, "task_id": task_id}

    def unregister_task(self, task_id: str) -> dict[str, Any]:
        """Say that a registered task is over; its agent stays."""
        return self.complete(task_id)

    # Preemption.

    def evaluate_preemption(
        self,
        incoming_task_priority: float,
        incoming_task_pool: str,
        incoming_task_labels: Mapping[str, str] | None = None,
        incoming_task_resources: Mapping[str, float] | None = None,
        limit: int | None = None,
    ) -> types.Evaluation:
        """Who would make way for such a task; nothing is changed.

        Returns:
            ``{"should_preempt", "candidates", "policy_version"}``, candidates best first, each with
            ``task_id``, ``agent_name``, ``pool_name``, ``priority``, ``preempt_score`` and ``reason``; with
            resources also the ``decision``: whether it fits, and whom exactly it would take.
        """
        request = {
            "pool": incoming_task_pool,
            "priority": incoming_task_priority,
            "labels": None if incoming_task_labels is None else dict(incoming_task_labels),
            "resources": None if incoming_task_resources is None else dict(incoming_task_resources),
            "limit": limit,
        }
        found = self.client.evaluate(**_without_none(request))
        self._reasons = {one["task_id"]: one["reason"] for one in found["candidates"]}
        return found

    def execute_preemption(
        self, task_id: str, agent_name: str | None = None, reason: str | None = None
    ) -> dict[str, Any]:
        """Cancel a task and save its state; its agent stays, idle, for its next task or until it is deleted.

        Args:
            task_id: of a running task.
            agent_name: the agent it runs on; refused when it is on another one.
            reason: the rule under which it is counted, as the last :meth:`evaluate_preemption` named it when
                left out; ``manual`` for a task that was no candidate.

        Returns:
            ``{"success", "task_id", "agent_name", "pool_name", "cancel_success", "saved_state", "error"}``.
            The state is saved also when the cancel failed or came too late (``cancel_success`` False).
        """
        try:
            rule = reason or self._reasons.pop(task_id, "")
            found = self.client.execute(task_id=task_id, agent_name=agent_name or "", reason=rule)
        except SchedulerClosed:
            raise
        except ScheduleMeshError as error:
            nothing = {
                "task_id": task_id,
                "agent_name": agent_name,
                "cancel_success": False,
                "saved_state": None,
            }
            return _failure(error) | nothing
        self._mirror_states()
        return dict(found)

    def preempt_task(
        self,
        target_task_id: str | None = None,
        target_agent_name: str | None = None,
        incoming_task_priority: float | None = None,
        incoming_task_pool: str | None = None,
        incoming_task_labels: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Preempt the task with this id, or the one on this agent; or, when neither is named, the best
        candidate for the incoming task described.

        Returns:
            ``{"success", "chosen_candidate", "execution"}``: who it was, and what :meth:`execute_preemption`
            answered; ``error`` and ``reason`` when nobody was preempted.
        """
        nobody: dict[str, Any] = {"chosen_candidate": None, "execution": None}
        try:
            if target_task_id or target_agent_name:
                chosen = self._target(target_task_id, target_agent_name)
            elif incoming_task_priority is not None and incoming_task_pool:
                found = self.evaluate_preemption(
                    incoming_task_priority, incoming_task_pool, incoming_task_labels, limit=1
                )
                chosen = dict(found["candidates"][0]) if found["candidates"] else {}
            else:
                raise InvalidArgument(
                    "name target_task_id or target_agent_name, or describe the incoming task with "
                    "incoming_task_priority and incoming_task_pool"
                )
        except SchedulerClosed:
            raise
        except ScheduleMeshError as error:
            return _failure(error) | nobody
        if not chosen:
            return {
                "success": False,
                "error": "nobody may be preempted",
                "reason": "preemption_failed",
                **nobody,
            }
        execution = self.execute_preemption(chosen["task_id"], chosen["agent_name"])
        answer = {"success": execution["success"], "chosen_candidate": chosen, "execution": execution}
        if not execution["success"]:
            answer |= {"error": execution["error"], "reason": execution.get("reason", "preemption_failed")}
        return answer

    def _target(self, task_id: str | None, agent_name: str | None) -> dict[str, Any]:
        if not task_id:
            agent = self.client.agent(agent_name or "")
            if not agent["task_ids"]:
                raise UnknownAgent({"code": "no_task", "detail": f"agent {agent_name!r} runs no task"})
            task_id = agent["task_ids"][0]
        task = self.client.task(task_id)
        return {
            "task_id": task_id,
            "agent_name": agent_name or task["agent"]["name"],
            "pool_name": task["pool"],
            "priority": task["priority"],
            "labels": task["labels"],
        }

    def restore_task(self, saved_state: Mapping[str, Any]) -> dict[str, Any]:
        """Run the restorer of the state's pool on a saved state. It launches nothing.

        Returns:
            ``{"success", "task_id", "pool_name"}``, or ``error``.
        """
        if not isinstance(saved_state, Mapping):
            text = f"saved_state is {saved_state!r}; give the dict a preemption returned"
            return {"success": False, "error": text, "reason": "invalid_argument"}
        try:
            return self.client.restore_state(dict(saved_state))
        except SchedulerClosed:
            raise
        except ScheduleMeshError as error:
            return _failure(error)

    def register_state_handlers(
        self,
        pool_name: str,
        preserver: Callable[..., Any] | None = None,
        restorer: Callable[..., Any] | None = None,
    ) -> dict[str, Any]:
        """Say how states of a pool's tasks are saved and restored, in place of the agents' ``save_state``.

        Both run in a worker of the cluster. They replace earlier ones; None for the default.

        Args:
            pool_name: of the pool, which need not exist yet.
            preserver: takes a :class:`~schedulemesh.core.actors.control.preemption_controller.TaskState`,
                returns a dict that JSON can hold.
            restorer: takes that dict, with ``task_id`` and ``pool_name`` added.

        Raises:
            InvalidArgument: one cannot be called with one argument.
            NotPicklable: one cannot travel.
        """
        from schedulemesh.pickling import handler_fields

        preserver_pickle, preserver_name = handler_fields(preserver, "preserver")
        restorer_pickle, restorer_name = handler_fields(restorer, "restorer")
        if preserver is None and restorer is None:
            self.client.delete_state_handlers(pool_name)
        else:
            self.client.set_state_handlers(
                pool_name,
                preserver=preserver_pickle,
                preserver_name=preserver_name,
                restorer=restorer_pickle,
                restorer_name=restorer_name,
            )
        return {
            "success": True,
            "pool_name": pool_name,
            "preserver": preserver_name,
            "restorer": restorer_name,
        }

    def update_preemption_policy(
        self,
        policy: PreemptionPolicy | None = None,
        *,
        preemption_aggressiveness: PreemptionAggressiveness | str | None = None,
        comment: str = "",
        **fields: Any,
    ) -> dict[str, Any]:
        """Change the policy: any of the fields of
        :class:`~schedulemesh.core.actors.control.preemption_controller.PreemptionPolicy`.

        Args:
            policy: a whole policy; what is named beside it wins.
            preemption_aggressiveness: sets the label and same-pool thresholds, unless they are given too: a
                :class:`~schedulemesh.config.policy.PreemptionAggressiveness`, a word, or ``env:NAME``. A word
                that is not known changes nothing and is logged.
            comment: why, for the history.
            **fields: the fields to change; all others stay.

        Returns:
            The whole policy as it is now, with its ``version`` and ``warnings``.

        Raises:
            Invalid: a value is out of range, a rule has a cycle, or there is no such field.
        """
        change: dict[str, Any] = policy.as_dict() if policy is not None else {}
        level = PreemptionAggressiveness.parse(preemption_aggressiveness)
        if level is not None:
            change["label_priority_threshold"] = level.label_threshold
            change["same_pool_priority_threshold"] = level.same_pool_threshold
        change |= {
            name: list(value) if isinstance(value, (set, tuple)) else value for name, value in fields.items()
        }
        change = {name: value for name, value in change.items() if value is not None}
        found = (self.client.patch_policy(change, comment=comment) if change else self.client.policy())
        for warning in set(found["warnings"]) - self._warned:
            self._warned.add(warning)
            log.warning("policy version %d: %s", found["version"], warning)
        return {**found["policy"], "version": found["version"], "warnings": found["warnings"]}

    def get_preemption_policy(self) -> dict[str, Any]:
        """The whole policy, with its ``version``."""
        found = self.client.policy()
        return {**found["policy"], "version": found["version"], "warnings": found["warnings"]}

    def get_preemption_stats(self) -> types.PreemptionStats:
        """Preemptions by reason, ``failed_cancels``, ``running_tasks`` and ``recent_preemptions``."""
        return self.client.stats()


_OPTIONS = frozenset(
    {
        "payload",
        "entry",
        "runtime_env",
        "max_runtime",
        "queue_timeout",
        "retry_backoff",
        "launch_timeout",
        "on_insufficient",
        "on_preempted",
        "on_failure",
        "max_attempts",
        "use_placement_group",
        "preempt_for_quota",
    }
)


def _failure(error: ScheduleMeshError) -> dict[str, Any]:
    answer: dict[str, Any] = {"success": False, "error": str(error), "reason": error.code}
    explanation = getattr(error, "explanation", None)
    return answer | ({"explanation": explanation} if explanation is not None else {})


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
