"""Placement groups on real Ray: what the Go suite cannot reach. See bridge/bridgetest for the rest."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import Refused, Sidecar, until

ONE: dict[str, int] = {"cpu": 1000, "memory": 64}
_count = itertools.count()


class Groups:
    """Placement groups of a test, and Ray's own word on them."""

    def __init__(self, sidecar: Sidecar) -> None:
        self.sidecar = sidecar
        self._names: list[str] = []

    def request(self, *bundles: dict[str, int], **more: Any) -> dict[str, Any]:
        name = f"sm-test-{time.time_ns()}-{next(_count)}.1"
        self._names.append(name)
        return {"name": name, "bundles": list(bundles) or [ONE], "timeout": 20, **more}

    def ensure(self, *bundles: dict[str, int], **more: Any) -> dict[str, Any]:
        request = self.request(*bundles, **more)
        answer = self.sidecar.post("ensure_group", **request)
        assert (answer["name"], answer["state"]) == (request["name"], "created")
        return request

    def agent(self, group: dict[str, Any], class_name: str = "Counter", **more: Any) -> dict[str, Any]:
        request = self.sidecar.request(class_name, **{"resources": ONE, **more}, group=group)
        launched: dict[str, Any] = self.sidecar.post("launch", **request)
        return launched

    def listed(self) -> dict[str, str]:
        return {one["name"]: one["state"] for one in self.sidecar.get("groups")}

    def in_ray(self) -> dict[str, dict[str, Any]]:
        """What Ray has of this test's groups, by name."""
        from ray.util.placement_group import placement_group_table

        found = placement_group_table().values()
        return {g["name"]: g for g in found if g["name"] in self._names and g["state"] != "REMOVED"}

    def remove_behind_its_back(self, group: dict[str, Any]) -> None:
        from ray.util.placement_group import get_placement_group, remove_placement_group

        remove_placement_group(get_placement_group(group["name"]))

    def close(self) -> None:
        for name in self._names:
            self.sidecar.post("remove_group", name=name, timeout=20)
        assert self.in_ray() == {}
        assert not set(self.listed()) & set(self._names)


@pytest.fixture(scope="module")
def ours(sidecar: Sidecar) -> Iterator[Sidecar]:
    """The sidecar, and this process as another driver in its Ray namespace, where its groups have names."""
    import ray

    ray.init(
        sidecar.ray_address,
        namespace=f"schedulemesh-{sidecar.deployment}",
        log_to_driver=False,
        configure_logging=False,
    )
    yield sidecar
    ray.shutdown()


@pytest.fixture
def groups(ours: Sidecar) -> Iterator[Groups]:
    found = Groups(ours)
    yield found
    found.close()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        ({"name": ""}, "name of the placement group is empty"),
        ({"bundles": []}, "needs at least one"),
        ({"bundles": [{}]}, "must reserve something"),
        ({"bundles": [{"cpu": 0}]}, "must reserve something"),
        ({"bundles": [{"cpu": -1}]}, "not negative"),
        ({"bundles": [{"cpu": 0.5}]}, "whole number"),
        ({"bundles": {"cpu": 1}}, "must be a list"),
        ({"bundles": [7]}, "must be an object"),
        ({"strategy": "TIGHT"}, "must be one of PACK"),
        ({"timeout": -1}, "timeout"),
    ],
)
def test_what_is_no_group_is_refused(groups: Groups, spoil: dict[str, Any], says: str) -> None:
    request = {**groups.request(), **spoil}
    for path, body in (
        ("ensure_group", request),
        ("launch", groups.sidecar.request("Counter", group=request)),
    ):
        with pytest.raises(Refused, match=says) as refused:
            groups.sidecar.post(path, **body)
        assert refused.value.code == "bad_request"


def test_a_group_on_the_node_that_was_asked_for(groups: Groups) -> None:
    node_id = groups.sidecar.get("hello")["node_id"]
    group = groups.ensure(ONE, node_id=node_id)
    ray_says = groups.in_ray()[group["name"]]
    assert ray_says["bundles"] == {0: {"CPU": 1.0, "memory": float(64 << 20)}}
    assert ray_says["bundles_to_node_id"] == {0: node_id}
    # A node that is not there is no reason to fail.
    groups.ensure(ONE, node_id="00" * 28)


def test_agents_are_put_where_there_is_room_in_the_group(groups: Groups) -> None:
    import ray.util.state

    group = groups.ensure(ONE, ONE)
    first, second = groups.agent(group), groups.agent(group)
    assert first["group_nodes"] == [first["node_id"], second["node_id"]]
    kept = {"cpu": 2000, "memory": 128}
    groups.sidecar.post("kill", launch_id=first["launch_id"], timeout=20)
    groups.sidecar.post("kill", launch_id=second["launch_id"], timeout=20)
    # Who asks for the sum of the bundles sits in one of them, and has the group for itself.
    whole = groups.agent(group, resources=kept)
    actor = ray.util.state.get_actor(whole["actor_id"], address=groups.sidecar.ray_address)
    assert actor.placement_group_id == groups.in_ray()[group["name"]]["placement_group_id"]
    asked = {name: n for name, n in actor.required_resources.items() if name.startswith("CPU")}
    assert asked == {f"CPU_group_{actor.placement_group_id}": 1.0}
    listed = groups.sidecar.agent(whole["launch_id"])
    assert listed is not None
    assert listed["resources"] == kept


def test_groups_are_not_foreign_and_agents_in_them_do_not_count_twice(groups: Groups) -> None:
    def foreign() -> int:
        nodes = groups.sidecar.get("nodes")
        assert all(node["foreign_known"] for node in nodes)
        return sum(node["foreign"].get("cpu", 0) for node in nodes)

    until(lambda: all(node["foreign_known"] for node in groups.sidecar.get("nodes")))
    before = foreign()
    group = groups.ensure(ONE)
    groups.agent(group)
    for _ in range(30):  # as others' readings come in
        assert foreign() == before
        time.sleep(0.1)


def test_the_room_of_a_group_is_back_when_its_removal_answers(groups: Groups) -> None:
    for _ in range(5):
        group = groups.ensure({"cpu": 2000})
        agent = groups.agent(group)
        groups.sidecar.post("remove_group", name=group["name"], timeout=20)
        assert group["name"] not in groups.in_ray()
        assert groups.sidecar.get("groups") == []
        until(lambda agent=agent: (groups.sidecar.agent(agent["launch_id"]) or {})["state"] == "gone", 5)


def test_a_group_that_was_removed_behind_our_back(groups: Groups) -> None:
    group = groups.ensure()
    agent = groups.agent(group)
    groups.remove_behind_its_back(group)
    # Before anybody looked: an ensure and a launch both see for themselves.
    with pytest.raises(Refused) as refused:
        groups.agent(group)
    assert refused.value.code == "group_lost"
    with pytest.raises(Refused, match="somebody removed it") as refused:
        groups.sidecar.post("ensure_group", **group)
    assert refused.value.code == "group_lost"
    until(lambda: (groups.sidecar.agent(agent["launch_id"]) or {})["state"] == "gone")

    # While a launch into it is under way.
    group = groups.ensure()
    failed: list[Refused] = []

    def launch() -> None:
        try:
            groups.agent(group, "HangingConstructor")
        except Refused as error:
            failed.append(error)

    thread = threading.Thread(target=launch)
    thread.start()
    until(lambda: any(a["state"] == "launching" and a["pid"] == 0 for a in groups.sidecar.get("agents")))
    time.sleep(0.3)
    groups.remove_behind_its_back(group)
    thread.join(20)
    assert [error.code for error in failed] == ["group_lost"]


def test_a_launch_that_is_killed_while_its_group_has_no_room(groups: Groups) -> None:
    free = int(
        sum(node["total"]["cpu"] - node["foreign"].get("cpu", 0) for node in groups.sidecar.get("nodes"))
    )
    groups.ensure({"cpu": free // 1000 * 1000 - 1000})
    request = groups.sidecar.request("Counter", group=groups.request({"cpu": 4000}))
    failed: list[Refused] = []

    def launch() -> None:
        try:
            groups.sidecar.post("launch", **request)
        except Refused as error:
            failed.append(error)

    thread = threading.Thread(target=launch)
    thread.start()
    until(lambda: request["group"]["name"] in groups.in_ray())
    began = time.monotonic()
    groups.sidecar.post("kill", launch_id=request["launch_id"], timeout=20)
    thread.join(20)
    assert time.monotonic() - began < 5
    assert [error.code for error in failed] == ["agent_died"]
    # The group is on its way still: its removal is another's decision.
    assert groups.listed()[request["group"]["name"]] == "pending"


def test_a_sidecar_killed_at_any_moment_of_a_making_leaves_nothing_unknown(groups: Groups) -> None:
    random.seed(11)
    for _ in range(4):
        group = groups.request()
        request = groups.sidecar.request("Counter", group=group)
        thread = threading.Thread(target=_ignoring_errors, args=(groups.sidecar, request))
        thread.start()
        time.sleep(random.uniform(0.0, 0.06))
        groups.sidecar.kill_and_restart()
        thread.join()
        # What Ray has is listed; asked again, there is exactly one such group, with one agent in it.
        assert set(groups.in_ray()) <= set(groups.listed())
        launched = groups.sidecar.post("launch", **request)
        assert launched["group_nodes"] == [launched["node_id"]]
        assert [g["name"] for g in groups.in_ray().values()].count(group["name"]) == 1
        agent = groups.sidecar.agent(request["launch_id"])
        assert agent is not None
        assert (agent["state"], agent["pid"]) == ("ready", launched["pid"])
        groups.sidecar.post("remove_group", name=group["name"], timeout=20)
        assert groups.in_ray() == {}


def test_a_sidecar_killed_while_it_removes_a_group(groups: Groups) -> None:
    random.seed(12)
    for _ in range(3):
        group = groups.ensure()
        groups.agent(group)
        body = {"name": group["name"], "timeout": 20}
        thread = threading.Thread(target=_ignoring_errors, args=(groups.sidecar, body, "remove_group"))
        thread.start()
        time.sleep(random.uniform(0.0, 0.02))
        groups.sidecar.kill_and_restart()
        thread.join()
        assert set(groups.in_ray()) == set(groups.listed())
        groups.sidecar.post("remove_group", **body)
        assert groups.in_ray() == {}


def test_a_group_that_went_while_no_sidecar_watched_is_not_made_again(groups: Groups) -> None:
    group = groups.ensure()
    groups.sidecar.process.kill()
    groups.remove_behind_its_back(group)
    groups.sidecar.kill_and_restart()
    assert groups.listed() == {}
    with pytest.raises(Refused, match="no sidecar watched it") as refused:
        groups.agent(group)
    assert refused.value.code == "group_lost"


def _ignoring_errors(sidecar: Sidecar, body: dict[str, Any], path: str = "launch") -> None:
    try:
        sidecar.post(path, **body)
    except Exception:
        return
