"""Preemption by label: rules such as "premium goes before standard", whatever the priorities.

Four parts: by tier, by priority class, by user, and what happens when labels and pools disagree.

    python examples/label_preemption_demo.py
"""

from __future__ import annotations

from typing import Any

from pi_agent import PiAgent
from story import Story, tell

from schedulemesh.simple import SimpleScheduler

TIERS = {"tier": {"premium": ["standard", "batch"], "standard": ["batch"]}}
CLASSES = {
    "priority_class": {"critical": ["high", "normal", "low"], "high": ["normal", "low"], "normal": ["low"]}
}
USERS = {"user_tier": {"admin": ["vip", "regular"], "vip": ["regular"]}}


class Demo:
    """A scheduler, and the few calls of it that all parts use."""

    def __init__(self, story: Story, scheduler: SimpleScheduler) -> None:
        self.story = story
        self.scheduler = scheduler

    def submit(
        self, task_id: str, pool: str, priority: float, labels: dict[str, str], **more: Any
    ) -> dict[str, Any]:
        """Run a task; returns the answer, with the first victim's id in ``took`` and the rule in ``why``."""
        result: dict[str, Any] = self.scheduler.submit(
            task_id,
            pool,
            PiAgent,
            resources={"cpu": 1, "memory": 256},
            priority=priority,
            labels=labels,
            entry="run",
            **more,
        )
        victim = (result.get("preempted") or [{}])[0]
        result |= {"took": victim.get("task_id", ""), "why": victim.get("reason", "")}
        label = ", ".join(f"{key}: {value}" for key, value in labels.items())
        outcome = "runs" if result["success"] else "is refused"
        if result["took"]:
            outcome = f"takes the place of {result['took']}"
        self.story.say(f"{task_id} ({label}; priority {priority:g}) {outcome}")
        return result

    def by_tier(self) -> None:
        self.scheduler.configure_preemption(label_preemption_rules=TIERS, label_priority_threshold=0.5)
        self.scheduler.ensure_pool("shared", resources={"cpu": 1, "memory": 512})
        self.submit("batch-job", "shared", 5.0, {"tier": "batch"})
        result = self.submit("premium-job", "shared", 5.0, {"tier": "premium"})
        self.story.check(
            "premium goes before batch at equal priority",
            (result["took"], result["why"]) == ("batch-job", "label_based_preemption"),
        )
        result = self.submit("late-batch", "shared", 50.0, {"tier": "batch"})
        self.story.check("and never the other way round, at priority 50 either", not result["success"])

    def by_priority_class(self) -> None:
        self.scheduler.configure_preemption(label_preemption_rules=CLASSES)
        self.scheduler.ensure_pool("classes", resources={"cpu": 2, "memory": 512})
        self.submit("normal-job", "classes", 5.0, {"priority_class": "normal"}, estimated_duration=300.0)
        self.submit("low-job", "classes", 5.0, {"priority_class": "low"}, estimated_duration=60.0)
        result = self.submit("high-job", "classes", 5.0, {"priority_class": "high"}, estimated_duration=60.0)
        self.story.check("of two it may take, the one with more work left", result["took"] == "normal-job")
        result = self.submit("critical-job", "classes", 5.0, {"priority_class": "critical"})
        self.story.check("and critical takes either of the rest", result["took"] in ("low-job", "high-job"))

    def by_user(self) -> None:
        self.scheduler.configure_preemption(label_preemption_rules=USERS)
        self.scheduler.ensure_pool("tenants", resources={"cpu": 1, "memory": 512})
        self.submit("users-job", "tenants", 10.0, {"user_tier": "regular"})
        result = self.submit("admins-job", "tenants", 6.0, {"user_tier": "admin"})
        self.story.check("an admin's task takes one of higher priority", result["took"] == "users-job")

    def labels_before_pools(self) -> None:
        self.scheduler.configure_preemption(label_preemption_rules=TIERS, cross_pool_priority_threshold=10.0)
        for pool in ("pool-a", "pool-b"):
            self.scheduler.ensure_pool(pool, resources={"cpu": 1, "memory": 256})
        self.submit("standard-in-a", "pool-a", 5.0, {"tier": "standard"})
        self.submit("resident-of-b", "pool-b", 7.0, {"tier": "premium"})
        question = {
            "incoming_task_priority": 7.0,
            "incoming_task_pool": "pool-b",
            "incoming_task_labels": {"tier": "premium"},
        }
        self.scheduler.update_preemption_policy(enable_label_preemption=False)
        answer = self.scheduler.evaluate_preemption(**question)
        self.story.check("across pools, 7 over 5 is less than 10: by pool, nobody", not answer["candidates"])
        self.scheduler.update_preemption_policy(enable_label_preemption=True)
        result = self.submit("premium-in-b", "pool-b", 7.0, {"tier": "premium"})
        self.story.check(
            "by label, the other pool's task lends its place",
            (result["took"], result["why"]) == ("standard-in-a", "label_based_preemption"),
        )
        for loan in self.scheduler.get_pool("pool-b")["loans"]:
            self.story.say(f"{loan['lender']} lends {loan['borrower']} {loan['amount']:g} {loan['resource']}")


def main() -> None:
    story = Story(__doc__)
    with SimpleScheduler("label-preemption-demo") as scheduler:
        story.begin(scheduler)
        demo = Demo(story, scheduler)
        story.part("1. By tier: premium > standard > batch")
        demo.by_tier()
        story.part("2. By priority class: critical > high > normal > low")
        demo.by_priority_class()
        story.part("3. By user: admin > vip > regular")
        demo.by_user()
        story.part("4. Labels go before pools")
        demo.labels_before_pools()
        stats = scheduler.get_preemption_stats()
        story.check("all were by label", stats["label_preemptions"] == stats["total_preemptions"] == 5)
        story.end()


if __name__ == "__main__":
    tell(main)
