"""Two pools and one cluster: serving is protected, research is not, and training may borrow from it.

Both pools keep placement groups. When training needs more than its own pool has, it takes quota across pools
from an experiment, never from what serves users, and gives it back when it is done.

    python examples/multi_pool_rlhf_demo.py
"""

from __future__ import annotations

from typing import Any

from pi_agent import PiAgent
from story import Story

from schedulemesh.simple import SimpleScheduler

SIZE = {"cpu": 0.25, "memory": 256.0}  # small enough for any laptop


def main() -> None:
    story = Story(__doc__)
    with SimpleScheduler("multi-pool-rlhf-demo") as scheduler:
        story.begin(scheduler)
        groups = {"enable": True, "high_priority_pg_specs": [SIZE], "max_dynamic_pgs": 1}
        scheduler.ensure_pool("serving", resources=SIZE, pg_pool_config=groups)
        scheduler.ensure_pool("research", resources={"cpu": 0.5, "memory": 512}, pg_pool_config=groups)
        scheduler.ensure_pool("training", resources=SIZE)
        scheduler.configure_preemption(
            cross_pool_priority_threshold=5.0, protected_pools=["serving"], enable_cross_pool_preemption=True
        )
        made = story.wait_for(
            lambda: sum(p["available_pgs"] for p in scheduler.pg_pool_stats().values()) == 2
        )
        story.check("each pool has the group that is kept for it", made)

        def submit(task_id: str, pool: str, priority: float, grouped: bool) -> dict[str, Any]:
            call = scheduler.submit_with_pg_preemption if grouped else scheduler.submit
            answer: dict[str, Any] = call(
                task_id=task_id,
                pool=pool,
                resources=SIZE,
                priority=priority,
                actor_class=PiAgent,
                entry="run",
            )
            took = ", ".join(one["task_id"] for one in answer.get("preempted", []))
            story.say(
                f"{task_id} in {pool}: "
                + (f"runs, in place of {took or 'nobody'}" if answer["success"] else answer["error"])
            )
            return answer

        story.part("Everybody works")
        for task_id, pool, priority, grouped in [
            ("inference", "serving", 1.0, True),
            ("experiment-a", "research", 2.0, True),
            ("experiment-b", "research", 3.0, False),
            ("rlhf-1", "training", 9.0, False),
        ]:
            story.check(f"{task_id} runs", submit(task_id, pool, priority, grouped)["success"])

        story.part("Training needs more than it has")
        answer = submit("rlhf-2", "training", 9.5, False)
        victim = answer["preempted"][0]
        story.check(
            "an experiment makes way, across pools; what serves users is protected, though it matters least",
            (victim["task_id"], victim["reason"]) == ("experiment-a", "cross_pool_preemption"),
        )
        lenders = {loan["lender"] for loan in scheduler.get_pool("training")["loans"]}
        story.check("research lends its quota to training", lenders == {"research"})

        story.part("And it is given back")
        scheduler.complete("rlhf-2")
        story.check("nothing is borrowed any more", scheduler.get_pool("training")["loans"] == [])
        answer = submit("experiment-a", "research", 2.0, True)
        story.check("the experiment has its place again", answer["success"])
        story.end()


if __name__ == "__main__":
    main()
