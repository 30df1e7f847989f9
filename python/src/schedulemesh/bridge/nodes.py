"""The cluster's nodes: how big they are, and what others use on them.

Free room is asked of each raylet directly, which answers in a fraction of a millisecond with what is
true now; the GCS's view lags behind. The raylet's interface is internal to Ray: where it is missing,
the GCS is asked instead.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc
import ray
import ray._private.state as ray_state

from schedulemesh.bridge.errors import BridgeError
from schedulemesh.bridge.events import Events
from schedulemesh.bridge.spares import RAYLET_TIMEOUT, Spares

log = logging.getLogger(__name__)

Resources = dict[str, int]

MIB = 1 << 20
#: How often the cluster is looked at, in seconds; two quiet readings so far apart make a stable one.
PERIOD = 1.0

_NAMES = {"CPU": "cpu", "GPU": "gpu"}


def from_ray(resources: dict[str, float], up: bool = False) -> Resources:
    """Ray's resources in ours: thousandths, memory in MiB, rounded down or ``up``.

    What Ray keeps for itself (object store, node addresses, placement groups' shadows) is left out.
    """
    out: Resources = {}
    for name, value in resources.items():
        if name == "object_store_memory" or name.startswith("node:") or "_group_" in name:
            continue
        exact = value / MIB if name == "memory" else value * 1000
        # Ray counts in ten-thousandths: what is nearly whole is whole.
        whole = round(exact)
        if abs(exact - whole) > 0.05:
            whole = math.ceil(exact) if up else math.floor(exact)
        out[_NAMES.get(name, name)] = whole
    return out


def add(total: Resources, more: Resources) -> None:
    """Add ``more`` to ``total``."""
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


def covers(room: Resources, wanted: Resources) -> bool:
    """Whether ``wanted`` fits into ``room``."""
    return all(room.get(name, 0) >= value for name, value in wanted.items())


@dataclass
class Node:
    """One node and what is known of it."""

    id: str
    address: str
    port: int
    alive: bool
    head: bool
    total: Resources
    foreign: Resources = field(default_factory=dict)
    foreign_known: bool = False
    reading: Resources | None = None  # the last one, while nothing disturbed it

    def as_json(self) -> dict[str, Any]:
        """The node as it goes over the wire."""
        return {
            "id": self.id,
            "address": self.address,
            "alive": self.alive,
            "head": self.head,
            "total": self.total,
            "foreign": self.foreign,
            "foreign_known": self.foreign_known,
        }


class Nodes:
    """The nodes of the cluster, looked at every :data:`PERIOD`.

    Args:
        events: told of changes.
        ours: gives ``(node id, resources)`` of what is placed of this deployment: agents and
            placement groups.
    """

    def __init__(self, events: Events, ours: Any) -> None:
        self.nodes: dict[str, Node] = {}
        self.last_seen = time.monotonic()
        self._events = events
        self._ours = ours
        self._in_flight = 0
        self._moves = 0  # launches and kills begun or ended
        self._channels: dict[str, tuple[grpc.aio.Channel, Any]] = {}
        self.spares = Spares(self.stub)
        self.own_id: str = ray.get_runtime_context().get_node_id()

    # Launches and kills disturb what is read of others.

    def begin(self) -> None:
        """A launch or kill begins."""
        self._in_flight += 1
        self._moves += 1

    def end(self) -> None:
        """It has ended."""
        self._in_flight -= 1
        self._moves += 1

    def check_fits(self, wanted: Resources) -> None:
        """Refuse what no node could ever hold.

        Raises:
            BridgeError: ``no_room``.
        """
        alive = [node for node in self.nodes.values() if node.alive]
        if any(covers(node.total, wanted) for node in alive):
            return
        largest: Resources = {}
        for node in alive:
            for name in wanted:
                largest[name] = max(largest.get(name, 0), node.total.get(name, 0))
        raise BridgeError(
            "no_room", f"no node of the cluster could ever hold {wanted}; the largest offer {largest}"
        )

    async def free(self, node_id: str) -> Resources | None:
        """What is free on a node now; ``None`` when it does not answer."""
        node = self.nodes.get(node_id)
        if node is None:
            return None
        try:
            from ray.core.generated import node_manager_pb2

            stub = self.stub(node.id)
            reply = await stub.GetResourceLoad(
                node_manager_pb2.GetResourceLoadRequest(), timeout=RAYLET_TIMEOUT
            )
            return from_ray(dict(reply.resources.resources_available))
        except Exception as error:
            log.debug("raylet of node %s did not say what is free: %s", node_id, error)
        try:
            per_node = await asyncio.to_thread(ray_state.available_resources_per_node)
        except Exception:
            return None
        found = per_node.get(node_id)
        return None if found is None else from_ray(found)

    async def room_is_back(self, node_id: str, used_by_ours: Resources, freed: Resources) -> bool:
        """Whether a node has back what an agent of ours held there."""
        node = self.nodes.get(node_id)
        free = await self.free(node_id)
        if node is None or free is None or not node.alive:
            return True
        for name in freed:
            used = node.total.get(name, 0) - free.get(name, 0)
            if used > used_by_ours.get(name, 0) + node.foreign.get(name, 0):
                return False
        return True

    async def pids(self, node_id: str) -> set[int] | None:
        """The worker processes of a node; ``None`` when it does not answer."""
        node = self.nodes.get(node_id)
        if node is None:
            return set()
        try:
            from ray.core.generated import node_manager_pb2

            reply = await self.stub(node.id).GetWorkerPIDs(
                node_manager_pb2.GetWorkerPIDsRequest(), timeout=RAYLET_TIMEOUT
            )
            return set(reply.pids)
        except Exception:
            await self.look(force=True)
            return None if node.alive else set()

    def stub(self, node_id: str) -> Any:
        """The raylet of a node, to ask it things."""
        node = self.nodes[node_id]
        address = f"{node.address}:{node.port}"
        found = self._channels.get(node.id)
        if found is None:
            from ray.core.generated import node_manager_pb2_grpc

            channel = _channel(address)
            found = self._channels[node.id] = (channel, node_manager_pb2_grpc.NodeManagerServiceStub(channel))
        return found[1]

    # Looking.

    async def watch(self) -> None:
        """Look at the cluster for ever."""
        while True:
            try:
                await self.look()
            except Exception as error:
                log.warning("the cluster could not be looked at: %s", error)
            await asyncio.sleep(PERIOD)

    async def look(self, force: bool = False) -> None:
        """One look at nodes and what others use on them."""
        listed: list[dict[str, Any]] = await asyncio.to_thread(ray.nodes)
        self.last_seen = time.monotonic()
        changed = self._take(listed)
        if not force:
            changed = await self._read_foreign() or changed
        if changed:
            self._events.publish("nodes_changed")

    def _take(self, listed: Iterable[dict[str, Any]]) -> bool:
        changed = False
        for entry in listed:
            node_id, alive = entry["NodeID"], bool(entry["Alive"])
            total = from_ray(entry.get("Resources", {}))
            node = self.nodes.get(node_id)
            if node is None:
                head = "node:__internal_head__" in entry.get("Resources", {})
                node = Node(
                    node_id, entry["NodeManagerAddress"], entry["NodeManagerPort"], alive, head, total
                )
                self.nodes[node_id] = node
                changed = True
                if alive:
                    self.spares.refill(node_id)
            elif node.alive != alive or (alive and node.total != total):
                changed = True
                node.alive = alive
                if alive:
                    node.total = total
                else:
                    self.spares.forget(node_id)
                    found = self._channels.pop(node_id, None)
                    if found is not None:
                        _background(found[0].close())
        return changed

    async def _read_foreign(self) -> bool:
        if self._in_flight:
            for node in self.nodes.values():
                node.reading = None
            return False
        moves = self._moves
        alive = [node for node in self.nodes.values() if node.alive]
        free = await asyncio.gather(*(self.free(node.id) for node in alive))
        ours: dict[str, Resources] = {}
        for node_id, resources in self._ours():
            add(ours.setdefault(node_id, {}), resources)
        quiet = moves == self._moves and self._in_flight == 0
        changed = False
        for node, available in zip(alive, free, strict=True):
            if available is None or not quiet:
                node.reading = None
                continue
            mine = ours.get(node.id, {})
            reading = {
                name: max(0, total - available.get(name, 0) - mine.get(name, 0))
                for name, total in node.total.items()
            }
            before, node.reading = node.reading, reading
            if before is None:
                continue
            stable = {name: min(value, before.get(name, 0)) for name, value in reading.items()}
            stable = {name: value for name, value in stable.items() if value}
            if stable != node.foreign or not node.foreign_known:
                node.foreign, node.foreign_known = stable, True
                changed = True
        return changed

    def disturbed(self) -> None:
        """Forget unfinished readings: something of ours just moved."""
        self._moves += 1
        for node in self.nodes.values():
            node.reading = None

    async def close(self) -> None:
        """Close connections."""
        for channel, _ in self._channels.values():
            await channel.close()


_tasks: set[asyncio.Task[Any]] = set()


def _background(work: Any) -> None:
    task = asyncio.ensure_future(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


def _channel(address: str) -> grpc.aio.Channel:
    """A channel to a raylet, with Ray's own TLS and token where they are on."""
    options = [("grpc.enable_http_proxy", 0)]
    try:
        from ray._private.grpc_utils import init_grpc_channel
    except ImportError:
        return grpc.aio.insecure_channel(address, options=options)
    return init_grpc_channel(address, options=options, asynchronous=True)
