"""Placement groups of one deployment: making them, seeing them made, seeing them gone.

A group is written to the registry before it is made, as a launch is, so that a sidecar that dies at any
moment leaves none behind that its successor cannot find. What Ray's table says of a group is asked when it
is needed: that takes half a millisecond.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeVar

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
from schedulemesh.bridge.nodes import Resources
from schedulemesh.bridge.store import Store

log = logging.getLogger(__name__)

T = TypeVar("T")

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
#: How often groups are looked at, in seconds, while there are any.
PERIOD = 1.0

_KIND = "group"
_CREATED, _GONE = "CREATED", ("REMOVED", "")


@dataclass
class Group:
    """One group. ``nodes`` has the node of each bundle once Ray placed it."""

    name: str
    bundles: list[Resources]
    strategy: str
    id: str = ""  # Ray's, in hexadecimal; empty until it is made
    nodes: list[str] = field(default_factory=list)
    removing: bool = False

    def as_json(self, state: str) -> dict[str, Any]:
        """The group as it goes over the wire."""
        return {"name": self.name, "state": state, "bundles": self.bundles, "nodes": self.nodes}


class Groups:
    """Every placement group of a deployment on this Ray cluster.

    Args:
        store: where they are registered.
        events: told of groups that are lost.
        off_loop: runs a call of Ray's on a thread.
    """

    def __init__(self, store: Store, events: Events, off_loop: Callable[[Callable[[], Any]], Any]) -> None:
        self._groups: dict[str, Group] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._store = store
        self._events = events
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
            BridgeError: ``group_timeout`` when there is no room in time, ``group_lost`` when it was made
                earlier and is gone; nothing of it is left.
        """
        _check(name, bundles, strategy)
        async with self._locks.setdefault(name, asyncio.Lock()):
            end = time.monotonic() + timeout
            group = self._groups.get(name)
            if group is None:
                group = Group(name, bundles, strategy or "PACK")
                self._groups[name] = group
                await self._off_loop(lambda: self._make(group, node_id))
            pause = 0.002
            while True:
                state = await self._look(group)
                if state == _CREATED:
                    return group.as_json(state)
                if state in _GONE:
                    await self._forget(group)
                    raise BridgeError("group_lost", f"placement group {name} was removed meanwhile")
                if time.monotonic() > end:
                    await self._remove(group)
                    raise BridgeError(
                        "group_timeout",
                        f"no room for placement group {name} ({_shown(bundles)}, {group.strategy}) within "
                        f"{timeout:g} s",
                    )
                await asyncio.sleep(pause)
                pause = min(2 * pause, 0.25)

    async def remove(self, name: str, timeout: float) -> None:
        """Remove a group, and return once Ray says that it is gone; one that is not there is fine.

        Raises:
            BridgeError: ``timeout``, when that was not seen in time.
        """
        group = self._groups.get(name)
        if group is None:
            return
        try:
            await asyncio.wait_for(self._remove(group), timeout)
        except asyncio.TimeoutError:
            raise BridgeError(
                "timeout", f"placement group {name} was not seen gone within {timeout:g} s", unknown=True
            ) from None

    async def list(self) -> list[dict[str, Any]]:
        """All groups that are there, or on their way."""
        found = []
        for group in list(self._groups.values()):
            state = await self._look(group)
            if state not in _GONE:
                found.append(group.as_json(state))
        return found

    def handle(self, name: str) -> PlacementGroup:
        """A group for Ray's scheduling strategy.

        Raises:
            BridgeError: ``group_lost``, when there is none of this name.
        """
        from ray._raylet import PlacementGroupID

        group = self._groups.get(name)
        if group is None or not group.id:
            raise BridgeError("group_lost", f"there is no placement group {name}")
        return PlacementGroup(PlacementGroupID(bytes.fromhex(group.id)))

    def placed(self) -> Iterator[tuple[str, Resources]]:
        """Where groups hold resources."""
        for group in self._groups.values():
            yield from zip(group.nodes, group.bundles, strict=False)

    async def recover(self) -> None:
        """Find every group that an earlier sidecar left."""
        for entry in await self._off_loop(lambda: self._store.all(_KIND)):
            group = Group(**entry)
            if not group.id:
                group.id = await self._off_loop(partial(_id_of, group.name))
            if group.id and await self._look(group) not in _GONE:
                self._groups[group.name] = group
            else:
                await self._forget(group)

    async def watch(self) -> None:
        """Say when a group is lost: removed behind our back, or with a node of it gone."""
        while True:
            await asyncio.sleep(PERIOD)
            try:
                for group in list(self._groups.values()):
                    if not group.nodes or group.removing or self._locks[group.name].locked():
                        continue
                    state = await self._look(group)
                    if state == _CREATED or group.removing:
                        continue
                    # Ray would place it anew somewhere; whoever decided where it is decides again.
                    await self._remove(group)
                    self._events.publish(
                        "group_lost", name=group.name, reason=f"Ray says {state or 'nothing'}"
                    )
            except Exception:
                log.exception("placement groups could not be looked at")

    def _make(self, group: Group, node_id: str) -> None:
        self._store.put(group.name, asdict(group), _KIND)
        options: dict[str, Any] = {}
        if node_id and group.strategy == "STRICT_PACK":
            options["_soft_target_node_id"] = node_id
        try:
            made = placement_group(
                [_for_ray(bundle) for bundle in group.bundles],
                strategy=group.strategy,
                name=group.name,
                lifetime="detached",
                **options,
            )
            group.id = made.id.hex()
        except RaySystemError:  # made by a sidecar that died before it could write down the id
            group.id = _id_of(group.name)
            if not group.id:
                raise
        self._store.put(group.name, asdict(group), _KIND)

    async def _look(self, group: Group) -> str:
        """Ray's word for the group's state; empty when Ray does not know it."""
        if not group.id:
            return ""
        table: dict[str, Any] = await self._off_loop(lambda: placement_group_table(self.handle_of(group)))
        state = str(table.get("state", ""))
        places = table.get("bundles_to_node_id") or {}
        group.nodes = [places[i] for i in sorted(places)] if state == _CREATED else []
        return state

    @staticmethod
    def handle_of(group: Group) -> PlacementGroup:
        """Ray's handle of a group that was made."""
        from ray._raylet import PlacementGroupID

        return PlacementGroup(PlacementGroupID(bytes.fromhex(group.id)))

    async def _remove(self, group: Group) -> None:
        group.removing = True
        pause = 0.001
        while await self._look(group) not in _GONE:
            await self._off_loop(lambda: remove_placement_group(self.handle_of(group)))
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.1)
        await self._forget(group)

    async def _forget(self, group: Group) -> None:
        group.nodes = []
        self._groups.pop(group.name, None)
        await self._off_loop(lambda: self._store.delete(group.name, _KIND))


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


def _check(name: str, bundles: list[Resources], strategy: str) -> None:
    if not name:
        raise bad_request("the group's name is empty")
    if strategy and strategy not in STRATEGIES:
        raise bad_request(f"strategy is {strategy!r}, it must be one of {', '.join(STRATEGIES)}")
    if not bundles or not all(any(bundle.values()) for bundle in bundles):
        raise bad_request(
            f"bundles are {bundles!r}: a group needs at least one, and each must reserve something"
        )


def _shown(bundles: list[Resources]) -> str:
    return " + ".join(", ".join(f"{name} {value}" for name, value in bundle.items()) for bundle in bundles)
