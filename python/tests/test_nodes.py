"""More than one node: a cluster of two raylets on this host, of which the sidecar is on one."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import Refused, Sidecar, until


@pytest.fixture(scope="module")
def cluster(ray_address: str) -> Iterator[Any]:
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # A lost node is noticed in seconds instead of the default half minute.
    os.environ["RAY_health_check_period_ms"] = "500"  # noqa: SIM112 - Ray spells it so
    os.environ["RAY_health_check_failure_threshold"] = "3"  # noqa: SIM112
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 78643200, "num_cpus": 2}
    found = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": True})
    found.add_node(**small)
    yield found
    found.shutdown()


@pytest.fixture(scope="module")
def two(cluster: Any) -> Iterator[Sidecar]:
    found = Sidecar(cluster.address, f"two-{time.time_ns()}")
    yield found
    found.close()


def other_node(two: Sidecar) -> str:
    """The node the sidecar is not on."""
    launched = [two.post("launch", **two.request(node_id=n["id"])) for n in two.get("nodes")]
    nodes = {one["node_id"]: one["launch_id"] for one in launched}
    assert len(nodes) == 2, "soft affinity was not followed"
    for one in launched:
        two.post("kill", launch_id=one["launch_id"], timeout=10)
    return next(node_id for node_id in nodes if node_id != two.get("hello")["node_id"])


def test_agents_on_another_node(two: Sidecar, cluster: Any) -> None:
    node_id = other_node(two)

    # An agent elsewhere: its output, its end, and its room are seen from here.
    request = two.request("Printer", node_id=node_id, resources={"cpu": 2000})
    launched = two.post("launch", **request)
    launch_id = launched["launch_id"]
    assert launched["node_id"] == node_id
    two.post("run", launch_id=launch_id, method="run", kwargs={"lines": ["hello from afar"]})
    until(lambda: (two.agent(launch_id) or {})["entry"] == "completed")

    def printed() -> str:
        with contextlib.suppress(Refused):  # the process of a new node that reads logs comes up last
            return str(two.get(f"logs?launch_id={launch_id}&stream=stdout")["text"])
        return ""

    text = until(printed)
    assert text == "hello from afar\n"

    # Affinity is soft: with that node full, the next one goes where there is room.
    spilled = two.post("launch", **two.request(node_id=node_id, resources={"cpu": 2000}, timeout=20))
    assert spilled["node_id"] != node_id
    with pytest.raises(Refused, match="no_room"):
        two.post("launch", **two.request(node_id=node_id, resources={"cpu": 1000}, room_timeout=0.5))
    two.post("kill", launch_id=spilled["launch_id"], timeout=10)

    # Its room is back the moment the kill answers. That its process has ended is, on another
    # node, what the raylet there says: on a busy machine the pid may outlive that by an instant.
    for _ in range(3):
        two.post("kill", launch_id=launch_id, timeout=10)
        pid = launched["pid"]
        until(lambda pid=pid: not os.path.exists(f"/proc/{pid}") or _is_zombie(pid), 5)
        launched = two.post("launch", **two.request(node_id=node_id, resources={"cpu": 2000}))
        launch_id = launched["launch_id"]
        assert launched["node_id"] == node_id

    # Groups on both nodes: one with a bundle on each, one where it was asked to be.
    memory = {"memory": 16}
    spread = {"name": "sm-spread.1", "bundles": [memory, memory], "strategy": "STRICT_SPREAD", "timeout": 20}
    assert len(set(two.post("ensure_group", **spread)["nodes"])) == 2
    there = {"name": "sm-there.1", "bundles": [memory], "node_id": node_id, "timeout": 20}
    assert two.post("ensure_group", **there)["nodes"] == [node_id]

    # A node that is lost takes its agents with it, and its groups, whole.
    worker = next(n for n in cluster.list_all_nodes() if n.node_id == node_id)
    cluster.remove_node(worker)
    until(lambda: (two.agent(launch_id) or {})["state"] == "gone", 60)
    until(lambda: [n for n in two.get("nodes") if n["id"] == node_id and not n["alive"]], 60)
    two.post("kill", launch_id=launch_id, timeout=10)
    until(lambda: two.get("groups") == [], 30)
    for lost in (spread, there):
        with pytest.raises(Refused, match="a node that it was on is gone"):
            two.post("ensure_group", **lost)
    with pytest.raises(Refused, match="needs a node of its own"):
        two.post("ensure_group", **{**spread, "name": "sm-spread.2"})
    assert two.launch(node_id=node_id), "affinity to a lost node is soft too"


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True
