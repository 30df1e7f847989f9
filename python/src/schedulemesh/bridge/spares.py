"""Idle worker processes kept on each node, so that an agent need not wait for one to start.

Starting a worker takes some 300 ms, taking over an idle one none of that. A raylet starts workers ahead
of need when asked; the call is internal to Ray, so where it is missing there are simply no spares. A worker
fits only agents of the runtime_env it was started with: spares are kept for the plain one, and fewer and
shorter for those used last.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import grpc
import ray

log = logging.getLogger(__name__)

#: How long a raylet may take to answer, in seconds.
RAYLET_TIMEOUT = 2.0

#: The plain runtime_env, as Ray writes it.
PLAIN = "{}"
#: Idle workers on each node for the plain runtime_env, and how long they live unused (seconds).
SPARES = 2
LIFE = 24 * 3600
#: For how many other runtime_envs one spare is kept where they were used, and how long after (seconds).
OTHERS = 2
OTHERS_LIFE = 600
#: A launch that found no spare where there should have been one has them counted after so long (seconds).
RECOUNT_AFTER = 2.0
#: How long a spare may take to be there, in seconds.
STARTING = 10.0


def key_of(runtime_env: dict[str, Any] | None) -> str | None:
    """A runtime_env as Ray writes it; ``None`` for one that cannot have spares, because launching uploads
    its files and changes it."""
    if not runtime_env:
        return PLAIN
    for name in ("working_dir", "py_modules"):
        if "://" not in json.dumps(runtime_env.get(name, "://")):
            return None
    try:
        from ray.runtime_env import RuntimeEnv

        return str(RuntimeEnv(**runtime_env).serialize())
    except Exception:
        return None


class Spares:
    """The spares of all nodes.

    Args:
        stub: gives a node's raylet.
    """

    def __init__(self, stub: Callable[[str], Any]) -> None:
        self._stub = stub
        self._job_id = bytes.fromhex(ray.get_runtime_context().get_job_id())
        self._there: dict[str, dict[str, int]] = {}  # node → runtime_env → spares
        self._recent: OrderedDict[str, float] = OrderedDict()  # other runtime_envs → when last used
        self._started: dict[tuple[str, str], float] = {}
        self._work = True
        self._refills: dict[str, asyncio.Task[None]] = {}

    def used(self, node_id: str, key: str | None, warm: bool) -> None:
        """An agent was launched on a node, on a spare worker or not."""
        if key is None:
            return
        if key != PLAIN:
            self._recent[key] = time.monotonic()
            self._recent.move_to_end(key)
            while len(self._recent) > OTHERS:
                self._recent.popitem(last=False)
        there = self._there.setdefault(node_id, {})
        expected = there.get(key, 0)
        if warm:
            there[key] = max(0, expected - 1)
        elif key != PLAIN and time.monotonic() - self._started.get((node_id, key), 0.0) > STARTING:
            there[key] = 0  # it has died of old age
        self.refill(node_id, recount=key == PLAIN and not warm and expected > 0)

    def forget(self, node_id: str) -> None:
        """A node is gone."""
        self._there.pop(node_id, None)
        self._started = {where: when for where, when in self._started.items() if where[0] != node_id}

    def refill(self, node_id: str, recount: bool = False) -> None:
        """See to it that a node has its spares, soon."""
        if self._work and node_id not in self._refills:
            task = asyncio.create_task(self._refill(node_id, recount))
            self._refills[node_id] = task
            task.add_done_callback(lambda _: self._refills.pop(node_id, None))

    async def _refill(self, node_id: str, recount: bool) -> None:
        there = self._there.setdefault(node_id, {})
        try:
            if recount:  # they may just be starting: give them the time
                await asyncio.sleep(RECOUNT_AFTER)
                others = sum(count for key, count in there.items() if key != PLAIN)
                there[PLAIN] = max(0, await self._count(node_id) - others)
            while missing := self._missing(there):
                key, count = missing
                await self._start(node_id, key, count)
                there[key] = there.get(key, 0) + count
                self._started[node_id, key] = time.monotonic()
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            self._give_up(error)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                self._give_up(error)
            else:  # the node may be on its way out; the next launch tries again
                log.info("node %s did not start spare workers: %s", node_id, error)

    def _give_up(self, error: Exception) -> None:
        self._work = False
        log.warning("no spare workers are kept, launches will be slower: %s", error)

    def _missing(self, there: dict[str, int]) -> tuple[str, int] | None:
        if (lacking := SPARES - there.get(PLAIN, 0)) > 0:
            return PLAIN, lacking
        now = time.monotonic()
        for key, used in self._recent.items():
            if now - used < OTHERS_LIFE and there.get(key, 0) < 1:
                return key, 1
        return None

    async def _start(self, node_id: str, key: str, count: int) -> None:
        from ray.core.generated import common_pb2, node_manager_pb2

        request = node_manager_pb2.PrestartWorkersRequest(
            language=common_pb2.Language.PYTHON,
            job_id=self._job_id,
            num_workers=count,
            keep_alive_duration_secs=LIFE if key == PLAIN else OTHERS_LIFE,
        )
        request.runtime_env_info.serialized_runtime_env = key
        await self._stub(node_id).PrestartWorkers(request, timeout=RAYLET_TIMEOUT)

    async def _count(self, node_id: str) -> int:
        """How many idle workers of ours a node has."""
        from ray.core.generated import common_pb2, node_manager_pb2

        reply = await self._stub(node_id).GetNodeStats(
            node_manager_pb2.GetNodeStatsRequest(), timeout=10 * RAYLET_TIMEOUT
        )
        return sum(
            1
            for worker in reply.core_workers_stats
            if worker.job_id == self._job_id
            and worker.worker_type == common_pb2.WorkerType.WORKER
            and not worker.actor_id.strip(b"\xff")
        )
