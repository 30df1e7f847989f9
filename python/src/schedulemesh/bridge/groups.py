"""Placement groups of one deployment: making them, seeing them made, seeing them gone.

A group is written to the registry before it is made, as a launch is, so that a sidecar that dies at any
moment leaves none behind that its successor cannot find. What Ray's table says of a group is asked when it
is needed: that takes a millisecond.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ray._raylet import PlacementGroupID
from ray.exceptions import RaySystemError
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from schedulemesh.bridge.errors import BridgeError, bad_request
from schedulemesh.bridge.events import Events
from schedulemesh.bridge.nodes import Nodes, Resources, add
from schedulemesh.bridge.store import Store

log = logging.getLogger(__name__)

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
#: How long a group may take to find room, in seconds, when the server does not say.
DEFAULT_TIMEOUT = 30.0
#: How often groups are looked at, in seconds, while there are any.
PERIOD = 1.0
#: How long nodes may take to count the room of a group that is removed as free, in seconds.
ROOM_PATIENCE = 0.5
#: How many groups that are over are remembered, so that none of them is made again under its name.
KEEP_OVER = 10_000

_KIND = "group"
_PENDING, _CREATED, _REMOVED = "PENDING", "CREATED", "REMOVED"
_MOVED = "MOVED"  # our word: Ray has placed it anew, elsewhere, after a node was lost
_KEPT = ("name", "bundles", "strategy", "id", "nodes")


@dataclass
class Group:
    """One group. What is named in ``_KEPT`` outlives the sidecar."""

    name: str
    bundles: list[Resources]
    strategy: str
    id: str = ""  # Ray's, in hexadecimal; empty until it is made
    state: str = _PENDING  # Ray's word, as of the last look
    nodes: list[str] = field(default_factory=list)  # of each bundle, once Ray placed all of it
    making: asyncio.Task[None] | None = None
    creation: asyncio.Future[None] | None = None  # Ray's call
    removal: asyncio.Task[None] | None = None

    def as_json(self) -> dict[str, Any]:
        """The group as it goes over the wire."""
        return {
            "name": self.name,
            "state": "created" if self.state == _CREATED else "pending",
            "bundles": self.bundles,
            "nodes": self.nodes,
        }

    def handle(self) -> PlacementGroup:
        """Ray's handle of it."""
        return PlacementGroup(PlacementGroupID(bytes.fromhex(self.id)))


class Groups:
    """Every placement group of a deployment on this Ray cluster.

    Args:
        store: where they are registered.
        events: told of groups that are lost.
        nodes: the nodes they are on.
        used: says what all that is ours holds on a node, or may.
        off_loop: runs a call of Ray's on a thread.
    """

    def __init__(
        self,
        store: Store,
        events: Events,
        nodes: Nodes,
        used: Callable[[str], Resources],
        off_loop: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> None:
        self._groups: dict[str, Group] = {}
        self._over: dict[str, dict[str, Any]] = {}  # by name: why there is no such group any more
        self._store = store
        self._events = events
        self._nodes = nodes
        self._used = used
        self._off_loop = off_loop

    async def ensure(
        self, name: str, bundles: list[Resources], strategy: str, node_id: str, timeout: float
    ) -> dict[str, Any]:
        """Make a group, unless it is there, and return once Ray has placed all of it.

        Args:
            name: its name for us and in Ray, never used twice.
            bundles: what each reserves, in the server's units.
            strategy: Ray's; empty for PACK.
            node_id: where it should be, if there is room; only for groups that sit on one node.
            timeout: seconds.

        Raises:
            BridgeError: ``group_timeout`` when there is no room in time, or never could be, ``group_lost``
                when it was made, or removed, earlier and is gone. Nothing of it is left then, and the
                answer stays the same.
        """
        check(name, bundles, strategy)
        if name in self._over:
            raise BridgeError(**self._over[name])
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = Group(name, bundles, strategy or "PACK")
        if group.making is None:
            group.making = asyncio.ensure_future(self._make(group, node_id, timeout))
            group.making.add_done_callback(lambda task: task.cancelled() or task.exception())
        elif group.making.done():
            await self._look([group])
            if group.state != _CREATED or group.removal is not None:
                await self._lose(group)
                raise BridgeError(**self._over[name])
        # Whoever gives up waiting does not take it from the others.
        await asyncio.shield(group.making)
        return group.as_json()

    async def remove(self, name: str, timeout: float) -> None:
        """Remove a group with all that sits in it, and return once Ray says that it is gone.

        One that is not there is fine, and is not made later either.

        Raises:
            BridgeError: ``timeout``, when that was not seen in time; it goes on being removed.
        """
        group = self._groups.get(name)
        if group is None:
            self._leave_word(name, _lost(name, "it was removed"))
            return
        try:
            await asyncio.wait_for(asyncio.shield(self._remove(group)), timeout)
        except asyncio.TimeoutError:
            raise BridgeError(
                "timeout", f"placement group {name} was not seen gone within {timeout:g} s", unknown=True
            ) from None

    async def all(self) -> list[dict[str, Any]]:
        """All groups that are there, or on their way."""
        await self._look(list(self._groups.values()))
        return [group.as_json() for group in self._groups.values() if group.state != _REMOVED]

    def stands(self, name: str) -> bool:
        """Whether a group was there when it was looked at last, and nobody removes it."""
        group = self._groups.get(name)
        return group is not None and group.state == _CREATED and group.removal is None

    def handle(self, name: str) -> PlacementGroup:
        """A group for Ray's scheduling strategy.

        Raises:
            BridgeError: ``group_lost``, when there is none of this name.
        """
        if not self.stands(name):
            raise _lost(name, "it is not there")
        return self._groups[name].handle()

    def bundles(self, name: str) -> list[Resources]:
        """What each bundle of a group reserves; empty for a group that is not there."""
        group = self._groups.get(name)
        return [] if group is None else group.bundles

    def nodes(self, name: str) -> list[str]:
        """The node of each bundle of a group; empty for a group that is not there."""
        group = self._groups.get(name)
        return [] if group is None else group.nodes

    def placed(self) -> Iterator[tuple[str, Resources]]:
        """Where groups hold resources."""
        for group in self._groups.values():
            if group.state != _REMOVED:
                yield from zip(group.nodes, group.bundles, strict=False)

    def on(self, node_id: str) -> Iterator[Resources]:
        """What groups hold on a node. One that is on no node yet may have come to this one already."""
        for group in self._groups.values():
            for i, bundle in enumerate(group.bundles):
                if group.state != _REMOVED and (not group.nodes or group.nodes[i] == node_id):
                    yield bundle

    async def recover(self) -> None:
        """Find every group that an earlier sidecar left."""
        entries = await self._off_loop(partial(self._store.all, _KIND))
        await asyncio.gather(*(self._recover(Group(**entry)) for entry in entries))

    async def _recover(self, group: Group) -> None:
        known = bool(group.id)
        if not known:
            group.id = await self._off_loop(partial(_id_of, group.name))
        await self._look([group])
        if group.id and group.state != _REMOVED:
            self._groups[group.name] = group
            return
        if known:
            self._leave_word(group.name, _lost(group.name, "it went while no sidecar watched it"))
        await self._off_loop(partial(self._store.delete, group.name, _KIND))

    async def watch(self) -> None:
        """Say when a group is lost: removed behind our back, or with a node of it gone."""
        while True:
            await asyncio.sleep(PERIOD)
            try:
                stood = [group for group in self._groups.values() if group.nodes and group.removal is None]
                await self._look(stood)
                for group in stood:
                    if group.state != _CREATED and group.removal is None:
                        await self._lose(group)
            except Exception:
                log.exception("placement groups could not be looked at")

    # Making and removing.

    async def _make(self, group: Group, node_id: str, timeout: float) -> None:
        began = time.monotonic()
        self._nodes.begin()
        try:
            if not group.id and group.removal is None:
                self._check_fits(group)
                group.creation = asyncio.ensure_future(self._off_loop(partial(self._create, group, node_id)))
                await group.creation
            pause = 0.002
            while group.removal is None:
                await self._look([group])
                if group.state == _CREATED:
                    await self._off_loop(partial(self._keep, group))
                    return
                if group.state in (_REMOVED, _MOVED):
                    raise _lost(group.name, _why(group))
                if time.monotonic() - began > timeout:
                    raise BridgeError(
                        "group_timeout", f"{_shown(group)} did not find room within {timeout:g} s"
                    )
                await asyncio.sleep(pause)
                pause = min(2 * pause, 0.1)
            raise _lost(group.name, "it was removed while it was made")
        except BridgeError as error:
            await self._remove(group, error)
            raise
        except Exception as error:
            log.exception("placement group %s could not be made", group.name)
            failed = BridgeError("internal", f"{type(error).__name__}: {error}")
            await self._remove(group, failed)
            raise failed from None
        finally:
            self._nodes.end()

    def _create(self, group: Group, node_id: str) -> None:
        self._keep(group)
        # A group of one bundle is on one node by any strategy; only for this one can Ray be told which.
        strategy = "STRICT_PACK" if len(group.bundles) == 1 else group.strategy
        node = node_id if strategy == "STRICT_PACK" and node_id in self._nodes.nodes else ""
        try:
            made = placement_group(
                [_for_ray(bundle) for bundle in group.bundles],
                strategy=strategy,
                name=group.name,
                lifetime="detached",
                _soft_target_node_id=node or None,
            )
            group.id = made.id.hex()
        except RaySystemError:  # made by a sidecar that died before it could write down the id
            group.id = _id_of(group.name)
            if not group.id:
                raise
        self._keep(group)

    def _keep(self, group: Group) -> None:
        self._store.put(group.name, {name: getattr(group, name) for name in _KEPT}, _KIND)

    def _check_fits(self, group: Group) -> None:
        """Refuse at once what could never be placed."""
        pieces, alive = group.bundles, sum(node.alive for node in self._nodes.nodes.values())
        if group.strategy == "STRICT_PACK":
            pieces = [{}]
            for bundle in group.bundles:
                add(pieces[0], bundle)
        try:
            for piece in pieces:
                self._nodes.check_fits(piece)
            if group.strategy == "STRICT_SPREAD" and len(pieces) > alive:
                raise BridgeError(
                    "no_room", f"each of {len(pieces)} bundles needs a node of its own, and there are {alive}"
                )
        except BridgeError as error:
            raise BridgeError("group_timeout", f"{_shown(group)}: {error.message}") from None

    async def _lose(self, group: Group) -> None:
        """End a group that is not what it was, and say so."""
        if group.removal is None:
            reason = _why(group)
            # Ray places it anew somewhere; whoever decided where it is decides again.
            removal = self._remove(group, _lost(group.name, reason))
            removal.add_done_callback(
                lambda _: self._events.publish("group_lost", name=group.name, reason=reason)
            )
        await asyncio.shield(self._remove(group))

    def _remove(self, group: Group, error: BridgeError | None = None) -> asyncio.Task[None]:
        """Have a group removed; the task ends when it is gone. ``error`` is what is said of it then."""
        if group.removal is None:
            group.removal = asyncio.ensure_future(
                self._see_gone(group, error or _lost(group.name, "it was removed"))
            )
        return group.removal

    async def _see_gone(self, group: Group, error: BridgeError) -> None:
        self._nodes.begin()
        try:
            if group.creation is not None:
                await asyncio.wait({group.creation})
            pause = 0.001
            while group.id:
                try:
                    await self._look([group])
                    if group.state == _REMOVED:
                        break
                    await self._off_loop(lambda: remove_placement_group(group.handle()))
                except Exception as failure:
                    log.warning("placement group %s is still not removed: %s", group.name, failure)
                await asyncio.sleep(pause)
                pause = min(2 * pause, 1.0)
            group.state = _REMOVED
            await self._see_room_back(group)
            await self._off_loop(partial(self._store.delete, group.name, _KIND))
            self._leave_word(group.name, error)
            self._groups.pop(group.name, None)
        finally:
            self._nodes.end()

    async def _see_room_back(self, group: Group) -> None:
        end = time.monotonic() + ROOM_PATIENCE
        for node_id in set(group.nodes):
            freed: Resources = {}
            for node, bundle in zip(group.nodes, group.bundles, strict=True):
                if node == node_id:
                    add(freed, bundle)
            while not await self._nodes.room_is_back(node_id, self._used(node_id), freed):
                if time.monotonic() > end:  # somebody else took it at once
                    return
                await asyncio.sleep(0.005)

    def _leave_word(self, name: str, error: BridgeError) -> None:
        self._over[name] = error.as_json()
        if len(self._over) > KEEP_OVER:
            del self._over[next(iter(self._over))]

    async def _look(self, groups: list[Group]) -> None:
        """Ask Ray for the state of groups, and where they are."""
        groups = [group for group in groups if group.id]
        if not groups:
            return
        if len(groups) == 1:
            handle = groups[0].handle()
            table = {groups[0].id: await self._off_loop(lambda: placement_group_table(handle))}
        else:
            table = await self._off_loop(placement_group_table)
        for group in groups:
            entry = table.get(group.id) or {}
            group.state = str(entry.get("state") or _REMOVED)
            if group.state == _CREATED:
                places = entry["bundles_to_node_id"]
                nodes = [places[i] for i in range(len(group.bundles))]
                if group.nodes and group.nodes != nodes:
                    group.state = _MOVED
                else:
                    group.nodes = nodes


def check(name: str, bundles: list[Resources], strategy: str) -> None:
    """Raises ``bad_request`` for what is no placement group."""
    if not name:
        raise bad_request("the name of the placement group is empty")
    if strategy and strategy not in STRATEGIES:
        raise bad_request(f"strategy is {strategy!r}, it must be one of {', '.join(STRATEGIES)}")
    if not bundles or not all(any(bundle.values()) for bundle in bundles):
        raise bad_request(
            f"bundles are {bundles!r}: a placement group needs at least one, and each must reserve something"
        )


def _lost(name: str, reason: str) -> BridgeError:
    return BridgeError("group_lost", f"placement group {name} is not there: {reason}")


def _why(group: Group) -> str:
    """Why a group that stood does not any more."""
    if group.state == _REMOVED:
        return "somebody removed it from the Ray cluster"
    return "a node that it was on is gone"


def _id_of(name: str) -> str:
    try:
        return str(get_placement_group(name).id.hex())
    except ValueError:
        return ""


def _for_ray(bundle: Resources) -> dict[str, float]:
    names = {"cpu": "CPU", "gpu": "GPU"}
    return {
        names.get(name, name): float(value << 20) if name == "memory" else value / 1000
        for name, value in bundle.items()
        if value
    }


def _shown(group: Group) -> str:
    parts = []
    for bundle in group.bundles:
        parts.append(
            " ".join(
                f"{name} {value}" if name == "memory" else f"{name} {value / 1000:g}"
                for name, value in bundle.items()
            )
        )
    return f"placement group {group.name} ({' + '.join(parts)}, {group.strategy})"
