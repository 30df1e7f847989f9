"""Preemption by label, with real agents: the cases the document on labels lists."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from conftest import held
from schedulemesh.core import RayScheduler
from schedulemesh.core.agent_actor import AgentActor

TIERS = {"tier": {"premium": ["standard", "batch"], "standard": ["batch"]}}
CLASSES = {
    "priority_class": {"critical": ["high", "normal", "low"], "high": ["normal", "low"], "normal": ["low"]}
}
TENANTS = {"user_tier": {"admin": ["vip", "regular"], "vip": ["regular"]}}


def submit(
    scheduler: RayScheduler, task_id: str, priority: float = 5.0, pool: str = "pool-a", **labels: str
) -> dict[str, Any]:
    """A task that fills a pool."""
    return scheduler.submit_task_with_preemption(
        task_id=task_id,
        pool_name=pool,
        resources={"cpu": 1},
        priority=priority,
        labels=labels,
        actor_class=AgentActor,
    )


def took(answer: dict[str, Any]) -> list[tuple[str, str]]:
    """Whose place a task took, and why."""
    assert answer["success"], answer
    return [(victim["task_id"], victim["reason"]) for victim in answer["preempted"]]


@pytest.fixture
def pools(scheduler: RayScheduler) -> RayScheduler:
    """A scheduler with room for one task in each of two pools."""
    for name in ("pool-a", "pool-b"):
        scheduler.create_pool(name, resources={"cpu": 1})
    return scheduler


def test_tiers(pools: RayScheduler) -> None:
    pools.update_preemption_policy(label_preemption_rules=TIERS)
    assert took(submit(pools, "batch", tier="batch")) == []
    # At equal priority, step by step up the tiers.
    assert took(submit(pools, "standard", tier="standard")) == [("batch", "label_based_preemption")]
    assert took(submit(pools, "premium", tier="premium")) == [("standard", "label_based_preemption")]
    # Never down.
    refused = submit(pools, "another", tier="standard")
    assert (refused["success"], refused["reason"]) == (False, "preemption_failed")
    assert [agent["task_ids"] for agent in pools.list_agents()] == [["premium"]]


def test_priority_classes(pools: RayScheduler) -> None:
    pools.update_preemption_policy(label_preemption_rules=CLASSES)
    assert took(submit(pools, "low", priority_class="low")) == []
    chain = ["low", "normal", "high", "critical"]
    for below, above in pairwise(chain):
        assert took(submit(pools, above, priority_class=above)) == [(below, "label_based_preemption")]
    assert submit(pools, "last", priority_class="critical")["success"] is False


def test_labels_come_before_pools(pools: RayScheduler) -> None:
    pools.update_preemption_policy(label_preemption_rules=TIERS, cross_pool_priority_threshold=10.0)
    submit(pools, "standard", 5.0, tier="standard")
    submit(pools, "plain", 5.0, pool="pool-b")
    # From the same pool one would do by priority, yet the label is the reason; at a difference of 2, which
    # is far from what taking from another pool needs, the label is enough as well.
    found = pools.evaluate_preemption(7.0, "pool-b", {"tier": "premium"})["candidates"]
    assert {c["task_id"]: c["reason"] for c in found} == {
        "standard": "label_based_preemption",
        "plain": "same_pool_preemption",
    }
    found = pools.evaluate_preemption(7.0, "pool-a", {"tier": "premium"})["candidates"]
    assert {c["task_id"]: c["reason"] for c in found} == {"standard": "label_based_preemption"}
    pools.complete("plain")
    assert took(submit(pools, "filler", 7.0, pool="pool-b")) == []
    assert took(submit(pools, "premium", 7.0, pool="pool-b", tier="premium")) == [
        ("standard", "label_based_preemption")
    ]
    lent = {loan["lender"]: loan["borrower"] for loan in pools.get_pool("pool-b")["loans"]}
    assert lent == {"pool-a": "pool-b"}


def test_several_labels(pools: RayScheduler) -> None:
    pools.update_preemption_policy(label_preemption_rules={**TIERS, **TENANTS, **CLASSES})
    for priority, (held_by, asks) in enumerate(
        [
            ({"tier": "standard", "user_tier": "regular"}, {"tier": "standard", "user_tier": "admin"}),
            ({"tier": "batch", "user_tier": "vip"}, {"tier": "premium", "user_tier": "regular"}),
            ({"priority_class": "low", "tier": "batch"}, {"priority_class": "normal", "tier": "batch"}),
        ]
    ):
        submit(pools, f"holds-{priority}", **held_by)
        assert took(submit(pools, f"asks-{priority}", **asks)) == [
            (f"holds-{priority}", "label_based_preemption")
        ]
        assert pools.complete(f"asks-{priority}")["success"]
    submit(pools, "regular", user_tier="regular", tier="premium")
    refused = submit(pools, "vip", user_tier="regular", tier="premium")
    assert refused["success"] is False  # no label of it outranks the other's


def test_without_labels_pools_decide(pools: RayScheduler) -> None:
    pools.update_preemption_policy(label_preemption_rules=TIERS, enable_label_preemption=False)
    submit(pools, "standard", 5.0, tier="standard")
    assert submit(pools, "equal", 5.0, tier="premium")["success"] is False
    assert submit(pools, "across", 9.9, pool="pool-b", tier="premium")["success"] is True  # it is empty
    assert submit(pools, "across-too", 9.9, pool="pool-b", tier="premium")["success"] is False
    assert took(submit(pools, "higher", 6.0, tier="premium")) == [("standard", "same_pool_preemption")]


def test_statistics(pools: RayScheduler) -> None:
    pools.update_preemption_policy(label_preemption_rules=TIERS)
    submit(pools, "batch", tier="batch")
    submit(pools, "premium", tier="premium")
    submit(pools, "higher", 9.0)
    stats = pools.get_preemption_stats()
    assert stats["total_preemptions"] == 2
    assert stats["label_preemptions"] == 1
    assert stats["same_pool_preemptions"] == 1
    assert stats["cross_pool_preemptions"] == 0
    assert stats["failed_cancels"] == 0
    assert stats["running_tasks"] == 1
    latest, first = stats["recent_preemptions"]
    assert (latest["task_id"], latest["reason"]) == ("premium", "same_pool_preemption")
    assert (first["task_id"], first["reason"]) == ("batch", "label_based_preemption")
    assert (first["preemptor_task_id"], first["pool_name"]) == ("premium", "pool-a")
    assert first["cancel_success"] is True
    assert first["saved_state"]["labels"]["tier"] == "batch"
    assert held(pools) == {"pool-a": {"cpu": 1}}
