"""The agents of one deployment: launching them, calling them, watching them, seeing them gone.

Runs on the event loop; whatever of Ray may block runs on threads. A launch is written to the registry
before its actor is made, so that a sidecar that dies at any moment leaves nothing its successor cannot find.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import ray
import ray._private.state as ray_state
from ray import exceptions as ray_errors

from schedulemesh.bridge import actors, spares
from schedulemesh.bridge.errors import BridgeError, bad_request
from schedulemesh.bridge.events import Events
from schedulemesh.bridge.groups import Groups
from schedulemesh.bridge.nodes import Nodes, Resources, add, covers
from schedulemesh.bridge.store import Store

log = logging.getLogger(__name__)

T = TypeVar("T")

DEFAULT_LAUNCH_TIMEOUT = 120.0
#: What a call may take beyond its own timeout before the worker counts as not answering, in seconds.
GRACE = 0.25
#: How long a worker may take to confirm that it has its entry, in seconds.
START_TIMEOUT = 10.0
#: How many ended launches are remembered, and for how long (seconds).
KEEP_ENDED = 2000
KEEP_ENDED_FOR = 3600.0
#: How long the node of a process that is gone may take to count its resources as free, in seconds.
ROOM_PATIENCE = 0.3

LAUNCHING, READY, GONE = "launching", "ready", "gone"

# What the registry keeps of a launch: everything of it but what only this process can hold.
_KEPT = (
    "launch_id",
    "agent_name",
    "task_id",
    "pool",
    "attempt",
    "labels",
    "actor_name",
    "ray_namespace",
    "resources",
    "group",
    "bundle",
    "deadline",
    "room_deadline",
    "state",
    "reason",
    "error",
    "actor_id",
    "node_id",
    "pid",
    "started",
    "stdout",
    "stderr",
    "entry",
    "outcome",
    "ended_at",
    "launched",
)

_SHOWN = (
    "launch_id",
    "agent_name",
    "task_id",
    "pool",
    "attempt",
    "state",
    "reason",
    "actor_id",
    "actor_name",
    "ray_namespace",
    "node_id",
    "pid",
    "resources",
)


@dataclass
class Record:
    """One launch. What is named in ``_KEPT`` outlives the sidecar."""

    launch_id: str
    agent_name: str = ""
    task_id: str = ""
    pool: str = ""
    attempt: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    actor_name: str = ""
    ray_namespace: str = ""
    resources: Resources = field(default_factory=dict)
    group: str = ""  # the placement group it sits in
    bundle: int = -1  # of the group; -1 is any
    deadline: float = 0.0  # epoch seconds
    room_deadline: float = 0.0
    state: str = LAUNCHING
    reason: str = ""
    error: dict[str, Any] | None = None  # why the launch failed
    actor_id: str = ""
    node_id: str = ""
    pid: int = 0
    started: int = 0  # of the process, in clock ticks since boot
    stdout: str = ""
    stderr: str = ""
    entry: str = ""
    outcome: dict[str, Any] | None = None
    ended_at: float = 0.0
    launched: dict[str, Any] | None = None

    certain: bool = True  # that the handle leads to this launch's actor, not to another of its name
    spare_key: str | None = None  # what kind of idle worker would do
    handle: Any = None
    settled: asyncio.Event = field(default_factory=asyncio.Event)  # launch over, one way or the other
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    kill_asked: asyncio.Event = field(default_factory=asyncio.Event)
    killing: asyncio.Task[None] | None = None

    def kept(self) -> dict[str, Any]:
        """What the registry holds of it."""
        return {name: getattr(self, name) for name in _KEPT}

    def as_json(self) -> dict[str, Any]:
        """Its status as it goes over the wire."""
        out: dict[str, Any] = {name: getattr(self, name) for name in _SHOWN}
        out["entry"] = "" if self.state == GONE and self.entry == "running" else self.entry
        if self.outcome is not None:
            out["outcome"] = outcome_json(self.outcome)
        return out


def outcome_json(outcome: dict[str, Any]) -> dict[str, Any]:
    """An outcome with its result as JSON instead of JSON text."""
    out = {name: value for name, value in outcome.items() if value}
    if "result" in out:
        out["result"] = json.loads(out["result"])
    return out


class Agents:
    """Every agent of a deployment on this Ray cluster.

    Args:
        deployment: its id; actors of others are never touched.
        namespace: the Ray namespace agents live in unless they choose another.
        session: this run of the sidecar.
    """

    def __init__(self, deployment: str, namespace: str, session: str, store: Store, events: Events) -> None:
        self.deployment = deployment
        self.namespace = namespace
        self.session = session
        self.records: dict[str, Record] = {}
        self.nodes = Nodes(events, self._placed)
        self._store = store
        self._events = events
        self._threads = concurrent.futures.ThreadPoolExecutor(16, "ray")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._watchers = itertools.count()
        self._writes: dict[str, asyncio.Lock] = {}
        self._ended: list[str] = []
        self.groups = Groups(store, events, self.nodes, self._used, self._off_loop)

    # Launch.

    async def launch(self, request: dict[str, Any]) -> dict[str, Any]:
        """Start an agent, or join a launch of the same id. Returns once it is ready.

        Raises:
            BridgeError: with the code of what went wrong; nothing of the launch is left then.
        """
        launch_id = request["launch_id"]
        record = self.records.get(launch_id)
        if record is None:
            try:
                record, make = self._prepare(request)
            except (TypeError, ValueError, AttributeError, KeyError) as error:
                raise bad_request(f"the request cannot be read: {error}") from None
            self.records[launch_id] = record
            self._start(self._launch(record, make, request.get("group")))
        await record.settled.wait()
        if record.error is not None:
            raise BridgeError(**record.error)
        if record.launched is None or record.state == GONE:
            raise self._died(record)
        return record.launched

    def _prepare(self, request: dict[str, Any]) -> tuple[Record, Callable[[], Any]]:
        """The record of a request, and what makes its actor. Raises for what is wrong with it."""
        extra = dict(request.get("ray_options") or {})
        name = request.get("actor_name") or extra.pop("name", "") or request["launch_id"]
        namespace = request.get("ray_namespace") or extra.pop("namespace", "") or self.namespace
        extra.pop("name", None), extra.pop("namespace", None)
        timeout = float(request.get("timeout") or DEFAULT_LAUNCH_TIMEOUT)
        room_timeout = float(request.get("room_timeout") or timeout)
        now = time.time()
        record = Record(
            launch_id=request["launch_id"],
            agent_name=request.get("agent_name") or "",
            task_id=request.get("task_id") or "",
            pool=request.get("pool") or "",
            attempt=int(request.get("attempt") or 0),
            labels=dict(request.get("labels") or {}),
            actor_name=name,
            ray_namespace=namespace,
            resources={k: int(v) for k, v in (request.get("resources") or {}).items() if v},
            group=(request.get("group") or {}).get("name", ""),
            deadline=now + timeout,
            room_deadline=now + min(room_timeout, timeout),
        )
        methods = actors.methods_of(request.get("methods"))
        runtime_env = request.get("runtime_env") or None
        options = actors.options_of(
            name, namespace, record.resources, request.get("node_id") or "", runtime_env, extra, methods
        )
        class_path = request.get("class_path") or ""
        module, colon, qualified = class_path.partition(":")
        if class_path and not (colon and module and qualified):
            raise BridgeError("invalid_class", f"{class_path!r} is not of the form module:Class")
        spec = {
            "launch_id": record.launch_id,
            "deployment": self.deployment,
            "agent_name": record.agent_name,
            "labels": record.labels,
            "task_id": record.task_id,
            "pool": record.pool,
            "class_path": class_path,
            "pickled": request.get("pickled") or "",
            "args": request.get("args") or [],
            "kwargs": request.get("kwargs") or {},
            "saved_state": request.get("saved_state"),
        }

        record.spare_key = spares.key_of(runtime_env)

        def make() -> Any:
            if record.group:
                wanted = actors.cut(record.resources, self.groups.bundles(record.group))
                options.update(actors.amounts(wanted))
                options["scheduling_strategy"] = actors.into(self.groups.handle(record.group), record.bundle)
            self._store.put(record.launch_id, record.kept())
            return actors.agent_class(methods).options(**options).remote(spec)

        return record, make

    async def _launch(
        self, record: Record, make: Callable[[], Any], group: dict[str, Any] | None = None
    ) -> None:
        self.nodes.begin()
        try:
            if group is not None:
                await self._sit(record, group)
            elif not record.group:
                self.nodes.check_fits(record.resources)
            began, asked = time.perf_counter(), time.time()
            try:
                record.handle = await self._off_loop(make)
            except ray_errors.ActorAlreadyExistsError:
                raise BridgeError(
                    "name_taken",
                    f"an actor named {record.actor_name!r} lives in Ray namespace {record.ray_namespace!r}",
                ) from None
            except ray_errors.RuntimeEnvSetupError as error:
                raise BridgeError(
                    "runtime_env_failed", f"the runtime_env could not be set up: {error}"
                ) from None
            except (ValueError, TypeError) as error:
                kind = "runtime_env_failed" if "runtime_env" in _trace_of(error) else "bad_request"
                raise BridgeError(kind, f"Ray refused the actor: {error}") from None
            record.actor_id = record.handle._actor_id.hex()
            self._write(record)
            created = time.perf_counter()
            answer = await self._until_ready(record)
            ready = time.perf_counter()
            if record.group and not self.groups.stands(record.group):
                raise BridgeError("group_lost", f"placement group {record.group} went while it launched")
            warm = 0 < answer["process_started"] < asked
            record.launched = {
                "launch_id": record.launch_id,
                "actor_id": record.actor_id,
                "actor_name": record.actor_name,
                "ray_namespace": record.ray_namespace,
                "node_id": record.node_id,
                "pid": record.pid,
                "warm": warm,
                "group_nodes": self.groups.nodes(record.group),
                "timings": {
                    "create_ms": _ms(created - began),
                    "place_ms": _ms(max(0.0, answer["began"] - asked - (created - began))),
                    "ready_ms": _ms(max(0.0, ready - began - (answer["began"] - asked))),
                    "total_ms": _ms(ready - began),
                },
            }
            # Who was told that it is ready must find it ready after a restart.
            await self._write_now(record, state=READY)
            if record.kill_asked.is_set():
                raise _killed(record)
            self._become_ready(record)
            self.nodes.spares.used(record.node_id, record.spare_key, warm)
        except BridgeError as error:
            await self._give_up(record, error)
        except Exception as error:
            log.exception("launch %s failed", record.launch_id)
            await self._give_up(record, BridgeError("internal", f"{type(error).__name__}: {error}"))
        finally:
            self.nodes.end()

    async def _sit(self, record: Record, group: dict[str, Any]) -> None:
        """Have a placement group made for a launch, and choose a bundle of it."""
        began = time.time()
        making = asyncio.ensure_future(self.groups.ensure(**group))
        killed = asyncio.ensure_future(record.kill_asked.wait())
        try:
            await asyncio.wait({making, killed}, return_when=asyncio.FIRST_COMPLETED)
            if killed.done():
                raise _killed(record)
            making.result()
        finally:
            making.cancel()
            killed.cancel()
        waited = time.time() - began
        record.deadline, record.room_deadline = record.deadline + waited, record.room_deadline + waited
        left = [dict(bundle) for bundle in self.groups.bundles(record.group)]
        for other in self.records.values():
            if other.group == record.group and other.bundle >= 0 and other.state != GONE:
                add(left[other.bundle], {name: -value for name, value in other.resources.items()})
        record.bundle = next((i for i, room in enumerate(left) if covers(room, record.resources)), -1)

    async def _until_ready(self, record: Record) -> dict[str, Any]:
        """Wait until an actor is made and say what it answered."""
        answer = asyncio.ensure_future(_await(record.handle.sm_ready.remote()))
        killed = asyncio.ensure_future(record.kill_asked.wait())
        try:
            placed = False
            while True:
                until = record.deadline if placed else record.room_deadline
                done, _ = await asyncio.wait(
                    {answer, killed},
                    timeout=max(0.0, until - time.time()),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if killed in done:
                    raise _killed(record)
                if answer in done:
                    return self._take_ready(record, answer)
                if placed:
                    raise BridgeError(
                        "launch_timeout", f"agent {record.launch_id} was placed, but not ready in time"
                    )
                placed = await self._is_placed(record)
                if not placed:
                    raise BridgeError(
                        "no_room",
                        f"no node had room for {record.resources} in time, or no worker process could start",
                    )
        finally:
            answer.cancel()
            killed.cancel()

    def _take_ready(self, record: Record, answer: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
        try:
            said = answer.result()
        except ray_errors.RuntimeEnvSetupError as error:
            raise BridgeError("runtime_env_failed", f"the runtime_env could not be set up: {error}") from None
        except ray_errors.ActorUnschedulableError as error:
            raise BridgeError("no_room", str(error)) from None
        except ray_errors.RayActorError as error:
            raise BridgeError(
                "agent_died",
                f"the worker of agent {record.launch_id} ended while it launched",
                detail=str(error),
            ) from None
        if (said["launch_id"], said["deployment"]) != (record.launch_id, self.deployment):
            record.handle = None  # found under its name after a restart, but another's
            raise BridgeError("name_taken", f"the name {record.actor_name!r} belongs to another agent")
        record.certain = True
        if "failure" in said:
            record.pid = said["pid"]
            raise BridgeError(**said["failure"])
        self._identify(record, said)
        return said

    def _identify(self, record: Record, said: dict[str, Any]) -> None:
        for name in ("node_id", "pid", "started", "actor_id", "stdout", "stderr"):
            setattr(record, name, said[name])

    def _become_ready(self, record: Record) -> None:
        if record.state == GONE:  # killed while it was asked who it is
            return
        record.state = READY
        record.settled.set()
        self._start(self._watch(record))

    async def _is_placed(self, record: Record) -> bool:
        info = await self._actor_info(record)
        return bool(info and info["Address"]["Port"])

    async def _actor_info(self, record: Record) -> dict[str, Any]:
        """The GCS's word on an actor; empty when it knows none."""
        if not record.actor_id:
            return {}
        info: dict[str, Any] = await self._off_loop(lambda: ray_state.actors(actor_id=record.actor_id))
        return info or {}

    async def _give_up(self, record: Record, error: BridgeError) -> None:
        """End a launch that failed; its answer comes when nothing of it is left."""
        if (
            record.group
            and error.code in ("agent_died", "no_room", "internal")
            and not record.kill_asked.is_set()
        ):
            with contextlib.suppress(Exception):
                await self.groups.all()
            if not self.groups.stands(record.group):
                error = BridgeError(
                    "group_lost",
                    f"placement group {record.group} went while it launched",
                    detail=error.message,
                )
        record.reason = f"{error.code}: {error.message}"
        if record.handle is not None and record.certain:
            while not await self._remove(record, time.monotonic() + 10):
                log.warning("launch %s failed and is still not seen gone", record.launch_id)
        record.error = error.as_json()
        self._ended_now(record, record.reason)

    # Calls.

    def find(self, launch_id: str) -> Record:
        """A ready agent.

        Raises:
            BridgeError: ``agent_not_found``, ``agent_died``, or ``bad_request`` when it is not ready yet.
        """
        record = self.records.get(launch_id)
        if record is None:
            raise BridgeError("agent_not_found", f"no agent was launched as {launch_id!r}")
        if record.state == GONE:
            raise self._died(record)
        if record.state == LAUNCHING:
            raise bad_request(f"agent {launch_id} is not ready yet")
        return record

    async def run(self, launch_id: str, method: str, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Start an agent's entry, once. It will run even if this sidecar dies the moment after.

        Raises:
            BridgeError: ``timeout``, when the worker did not confirm it.
        """
        record = self.find(launch_id)
        if record.entry:
            return
        accepted = await self._off_loop(lambda: record.handle.sm_start.remote(method, args, kwargs))
        try:
            await self._call(record, accepted, START_TIMEOUT)
        except asyncio.TimeoutError:
            raise BridgeError(
                "timeout",
                f"agent {launch_id} did not confirm its entry within {START_TIMEOUT:g} s",
                unknown=True,
            ) from None
        record.entry = record.entry or "running"
        if record.handle is not None:
            record.handle.sm_run.remote()

    async def cancel(self, launch_id: str, task_id: str, timeout: float) -> dict[str, Any]:
        """Ask an agent to stop. An agent that does not answer is a result that says so."""
        record = self.find(launch_id)
        try:
            answer = await self._call(record, record.handle.sm_cancel.remote(task_id, timeout), timeout)
        except asyncio.TimeoutError:
            return {"success": False, "timed_out": True, "error": "the worker process does not answer"}
        answer.pop("detail", None)
        if "result" in answer:
            answer["result"] = json.loads(answer["result"])
        return answer

    async def save_state(self, launch_id: str, timeout: float) -> dict[str, Any]:
        """Ask an agent for its state; the default one, with the reason, if there is none to be had."""
        record = self.find(launch_id)
        try:
            answer = await self._call(record, record.handle.sm_save.remote(timeout), timeout)
        except asyncio.TimeoutError:
            state = {"labels": record.labels, "task_id": record.task_id, "pool_name": record.pool}
            return {
                "state": state,
                "default": True,
                "timed_out": True,
                "error": "the worker process does not answer",
            }
        answer.pop("detail", None)
        answer["state"] = json.loads(answer["state"])
        return answer

    async def ping(self, launch_id: str, timeout: float) -> None:
        """Raises ``timeout`` when the worker does not answer."""
        record = self.find(launch_id)
        try:
            await self._call(record, record.handle.sm_ping.remote(), timeout - GRACE)
        except asyncio.TimeoutError:
            raise BridgeError("timeout", f"agent {launch_id} did not answer within {timeout:g} s") from None

    async def _call(self, record: Record, ref: Any, timeout: float) -> dict[str, Any]:
        """An answer of the worker's. Raises ``agent_died``, or TimeoutError when it does not come."""
        try:
            answer: dict[str, Any] = await asyncio.wait_for(_await(ref), max(0.0, timeout) + GRACE)
        except ray_errors.ActorUnavailableError:  # the connection broke; the actor may be well
            raise asyncio.TimeoutError from None
        except ray_errors.RayActorError:
            record.reason = record.reason or "its worker process ended"
            raise self._died(record) from None
        return answer

    # Watching, and the end.

    async def _watch(self, record: Record) -> None:
        """Keep one question open to an agent; its failing is how a death is noticed."""
        while record.state == READY:
            token = f"{self.session}/{next(self._watchers)}"
            try:
                news = await _await(record.handle.sm_watch.remote(token, record.outcome is not None))
            except ray_errors.ActorUnavailableError:
                await asyncio.sleep(0.2)
                continue
            except ray_errors.RayActorError as error:
                await self._on_death(record, error)
                return
            except Exception:
                log.exception("agent %s cannot be watched", record.launch_id)
                await asyncio.sleep(1.0)
                continue
            if news.get("superseded"):
                log.warning("another sidecar watches agent %s too", record.launch_id)
                await asyncio.sleep(5.0)
                continue
            for metrics in news["metrics"]:
                self._events.publish("agent_metrics", launch_id=record.launch_id, metrics=json.loads(metrics))
            if news["outcome"] is not None and record.outcome is None:
                record.entry, record.outcome = news["entry"], news["outcome"]
                self._events.publish(
                    f"entry_{record.entry}", launch_id=record.launch_id, outcome=outcome_json(record.outcome)
                )
                self._write(record)

    async def _on_death(self, record: Record, error: BaseException) -> None:
        if record.killing is not None or record.state != READY:
            return
        self.nodes.begin()
        try:
            reason = _reason(error)
            while not await self._see_gone(record, time.monotonic() + 10):
                log.warning("agent %s has died and is still not seen gone", record.launch_id)
            if record.killing is None:
                self._ended_now(record, reason)
                self._events.publish("agent_died", launch_id=record.launch_id, reason=reason)
        finally:
            self.nodes.end()

    async def kill(self, launch_id: str, timeout: float) -> None:
        """Remove an agent, and return once it was seen gone.

        Raises:
            BridgeError: ``timeout``, when that was not seen in time; it goes on being removed.
        """
        record = self.records.get(launch_id)
        if record is None:
            # Leave word, so that a launch that is still on its way is refused.
            record = Record(
                launch_id, error={"code": "agent_died", "message": "killed before it was launched"}
            )
            self.records[launch_id] = record
            self._ended_now(record, "killed before it was launched", keep=False)
            return
        if record.state == GONE:
            return
        record.kill_asked.set()
        if record.state == READY and record.killing is None:
            record.killing = self._start(self._kill(record))
        try:
            await asyncio.wait_for(record.gone.wait(), timeout)
        except asyncio.TimeoutError:
            raise BridgeError(
                "timeout", f"agent {launch_id} was not seen gone within {timeout:g} s", unknown=True
            ) from None

    async def _kill(self, record: Record) -> None:
        self.nodes.begin()
        try:
            while not await self._remove(record, time.monotonic() + 5):
                log.warning("agent %s was killed and is still not seen gone", record.launch_id)
            self._ended_now(record, "killed")
        finally:
            self.nodes.end()

    async def _remove(self, record: Record, deadline: float) -> bool:
        """Kill an actor and see it gone; False when the deadline came first."""
        with contextlib.suppress(Exception):
            await self._off_loop(lambda: ray.kill(record.handle, no_restart=True))
        return await self._see_gone(record, deadline)

    async def _see_gone(self, record: Record, deadline: float) -> bool:
        """Wait until an agent's process is gone and its node has the resources back."""
        pause = 0.001
        process_gone = 0.0
        while True:
            if not process_gone and await self._process_is_gone(record):
                process_gone = time.monotonic()
            if process_gone:
                if not record.node_id or record.group:  # what it sits in keeps the node's room
                    return True
                used = self._used(record.node_id, record)
                if await self.nodes.room_is_back(record.node_id, used, record.resources):
                    return True
                if time.monotonic() - process_gone > ROOM_PATIENCE:
                    # Somebody else took the room at once: the raylet frees it with the process.
                    return True
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(pause)
            pause = min(pause * 1.3, 0.02)

    async def _process_is_gone(self, record: Record) -> bool:
        if not (record.pid and record.node_id):
            info = await self._actor_info(record)
            if info and info["State"] != "DEAD":
                return False
            if not info or not info["Pid"]:
                return True  # it never got a process
            record.pid, record.node_id = info["Pid"], info["Address"]["NodeID"]
        if record.node_id == self.nodes.own_id:
            return not _process_lives(record.pid, record.started)
        pids = await self.nodes.pids(record.node_id)
        return pids is not None and record.pid not in pids

    def _ended_now(self, record: Record, reason: str, keep: bool = True) -> None:
        record.state, record.reason, record.ended_at = GONE, reason, time.time()
        record.handle = None
        record.settled.set()
        record.gone.set()
        self.nodes.disturbed()
        self._ended.append(record.launch_id)
        if keep:
            self._write(record)
        self._forget_old()

    def _forget_old(self) -> None:
        horizon = time.time() - KEEP_ENDED_FOR
        while self._ended and (
            len(self._ended) > KEEP_ENDED or self.records[self._ended[0]].ended_at < horizon
        ):
            launch_id = self._ended.pop(0)
            del self.records[launch_id]
            self._start(self._off_loop(partial(self._store.delete, launch_id)))

    def _died(self, record: Record) -> BridgeError:
        return BridgeError("agent_died", f"agent {record.launch_id} has ended: {record.reason}")

    def _placed(self) -> Iterator[tuple[str, Resources]]:
        """Where agents and placement groups hold resources; an agent in a group holds none besides it."""
        for record in self.records.values():
            if record.state != GONE and record.node_id and not record.group:
                yield record.node_id, record.resources
        yield from self.groups.placed()

    def _used(self, node_id: str, but: Record | None = None) -> Resources:
        """What is ours on a node. What is on no node yet may have come to this one already."""
        used: Resources = {}
        for other in self.records.values():
            if other.state == GONE or other is but or other.group:
                continue
            if other.node_id in ("", node_id):
                add(used, other.resources)
        for bundle in self.groups.on(node_id):
            add(used, bundle)
        return used

    # After a restart.

    async def recover(self) -> None:
        """Find every agent and placement group that an earlier sidecar left."""
        await self.groups.recover()
        kept = await self._off_loop(self._store.all)
        await asyncio.gather(*(self._recover(entry) for entry in kept))
        self._ended.sort(key=lambda launch_id: self.records[launch_id].ended_at)
        self._forget_old()

    async def _recover(self, entry: dict[str, Any]) -> None:
        record = Record(**{name: entry[name] for name in _KEPT if name in entry})
        if record.state == GONE:
            self.records[record.launch_id] = record
            self._ended.append(record.launch_id)
            record.settled.set()
            record.gone.set()
            return
        try:
            record.handle = await self._off_loop(
                lambda: ray.get_actor(record.actor_name, namespace=record.ray_namespace)
            )
        except ValueError:
            if record.state == LAUNCHING:  # it was never made
                await self._off_loop(lambda: self._store.delete(record.launch_id))
                return
            self.records[record.launch_id] = record
            self._ended_now(record, "it ended while no sidecar watched it")
            return
        # A sidecar that died between writing the record and making the actor never had its id. What has
        # the name now is then another's, unless nobody else could have chosen that name.
        own_name = (record.ray_namespace, record.actor_name) == (self.namespace, record.launch_id)
        found = record.handle._actor_id.hex()
        if record.actor_id and record.actor_id != found:
            self.records[record.launch_id] = record
            self._ended_now(record, "its name belongs to another actor now")
            return
        record.certain = bool(record.actor_id) or own_name
        record.actor_id = found
        self.records[record.launch_id] = record
        if not hasattr(record.handle, "sm_status"):
            self._ended_now(record, "its name belongs to another actor now")
            return
        if record.state == READY:
            self._start(self._rejoin(record))
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(record.settled.wait(), 5.0)
            return
        self._start(self._launch(record, lambda: record.handle))

    async def _rejoin(self, record: Record) -> None:
        """Learn from an agent itself what it did meanwhile."""
        while True:
            try:
                said = await _await(record.handle.sm_status.remote())
                break
            except ray_errors.ActorUnavailableError:
                await asyncio.sleep(0.2)
            except ray_errors.RayActorError as error:
                record.settled.set()
                await self._on_death(record, error)
                return
        if (said["launch_id"], said["deployment"]) != (record.launch_id, self.deployment):
            self._ended_now(record, "its name belongs to another agent now")
            return
        self._identify(record, said)
        record.entry, record.outcome = said["entry"], said["outcome"]
        if record.entry == "accepted":
            record.entry = "running"
            record.handle.sm_run.remote()
        self._become_ready(record)
        self._write(record)

    # Small things.

    def _start(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _off_loop(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _write(self, record: Record) -> None:
        """Write a record to the registry soon; writes of one record keep their order."""
        self._start(self._write_now(record))

    async def _write_now(self, record: Record, **instead: Any) -> None:
        lock = self._writes.setdefault(record.launch_id, asyncio.Lock())
        async with lock:
            if self.records.get(record.launch_id) is not record:
                return
            try:
                kept = {**record.kept(), **instead}
                await self._off_loop(lambda: self._store.put(record.launch_id, kept))
            except Exception:
                log.exception("launch %s could not be written to the registry", record.launch_id)
        if record.state == GONE:
            self._writes.pop(record.launch_id, None)

    async def flush(self) -> None:
        """Wait for writes to the registry that are under way."""
        for lock in list(self._writes.values()):
            async with lock:
                pass


def _killed(record: Record) -> BridgeError:
    return BridgeError("agent_died", f"agent {record.launch_id} was killed while it was launching")


async def _await(ref: Any) -> Any:
    return await ref


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)


def _trace_of(error: BaseException) -> str:
    """Names of the functions an exception came through."""
    names, tb = [str(error)], error.__traceback__
    while tb is not None:
        names.append(f"{tb.tb_frame.f_code.co_filename} {tb.tb_frame.f_code.co_name}")
        tb = tb.tb_next
    return "\n".join(names)


def _reason(error: BaseException) -> str:
    """The line of Ray's account that says why an actor ended."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in lines:
        if "exit detail" in line or "killed" in line or "exited" in line:
            return line
    return lines[-1] if lines else type(error).__name__


def _process_lives(pid: int, started: int) -> bool:
    """Whether a process of this host lives; ``started`` (0: unknown) tells it from a later one of its pid."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
    except FileNotFoundError:
        if os.path.exists("/proc/self/stat"):
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True
    except (OSError, IndexError):
        return False
    return fields[0] not in "ZX" and (not started or int(fields[19]) == started)
