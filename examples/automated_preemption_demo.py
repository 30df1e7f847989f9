"""Submitting with preemption: one call finds room, makes room, or says why there is none.

The first part is what submit does by itself. The second is what an operator does when the rules protect
everybody and a person knows better: preempt by hand, delete the agent, and submit again.

    python examples/automated_preemption_demo.py
"""

from __future__ import annotations

from typing import Any

from pi_agent import PiAgent
from story import Story, tell

from schedulemesh.simple import SimpleScheduler


def main() -> None:
    story = Story(__doc__)
    with SimpleScheduler("automated-preemption-demo") as scheduler:
        story.begin(scheduler)
        scheduler.ensure_pool("standard", labels={"tier": "standard"}, resources={"cpu": 2, "memory": 1024})
        scheduler.ensure_pool("premium", labels={"tier": "premium"}, resources={"cpu": 1, "memory": 512})
        scheduler.configure_preemption(preemption_aggressiveness="medium")

        def submit(task_id: str, pool: str, priority: float, **kwargs: Any) -> dict[str, Any]:
            result: dict[str, Any] = scheduler.submit(
                task_id=task_id,
                pool=pool,
                resources={"cpu": 1, "memory": 512},
                priority=priority,
                actor_class=PiAgent,
                actor_kwargs=kwargs,
                entry="run",
            )
            if result["success"]:
                took = "".join(f", in place of {one['task_id']}" for one in result["preempted"])
                story.say(f"{task_id} runs as {result['agent'].name}{took}")
            else:
                story.say(f"{task_id} is refused: {result['detail']}")
            return result

        story.part("Phase 1. Submitting is enough")
        for task_id, priority in [("nightly", 3.0), ("weekly", 4.0)]:
            result = submit(task_id, "standard", priority)
            story.check("there was room", result["success"] and not result["preempted"])
        result = submit("hotfix", "standard", 8.0)
        story.check(
            "the pool was full: the least important task made way",
            result["success"] and [one["task_id"] for one in result["preempted"]] == ["nightly"],
        )
        result = submit("another", "standard", 4.0)
        story.check(
            "nobody is less important: refused, with a reason, and nothing was touched",
            result["reason"] == "preemption_failed" and scheduler.stats()["running_tasks"] == 2,
        )
        submit("customer-1", "premium", 8.0)
        result = submit("outage", "premium", 9.5)
        victim = result["preempted"][0]
        story.check(
            "across pools the difference must be 5: the weekly one lends its place",
            (victim["task_id"], victim["reason"]) == ("weekly", "cross_pool_preemption"),
        )
        scheduler.complete("outage")

        story.part("Phase 2. The rules protect everybody, and a person decides")
        result = submit("customer-2", "premium", 8.0)
        story.check("customer-2 is no more important than customer-1", not result["success"])
        story.wait_for(lambda: scheduler.client.agent("customer-1")["metrics"])  # until it has done something
        done = scheduler.preempt_task(target_agent_name=agent_of(scheduler, "customer-1"))
        saved = done["execution"]["saved_state"]
        story.say(f"customer-1 was stopped by hand after {saved['batches']} batches")
        story.check("it stopped when asked, and is saved", done["success"] and saved["batches"] > 0)
        gone = scheduler.delete_agent(done["chosen_candidate"]["agent_name"])
        story.check("its agent, idle now, is deleted, so its quota is free", gone["success"])
        story.check("customer-2 has room", submit("customer-2", "premium", 8.0)["success"])
        result = submit("customer-1", "standard", 8.0, state=saved)
        story.check("and customer-1 goes on in the other pool", result["success"])

        figures = scheduler.get_preemption_stats()
        story.say(
            f"{figures['total_preemptions']} preemptions: {figures['same_pool_preemptions']} within a pool, "
            f"{figures['cross_pool_preemptions']} across"
        )
        story.end()


def agent_of(scheduler: SimpleScheduler, task_id: str) -> str:
    return next(str(agent.name) for agent in scheduler.list_agents() if agent.task_id == task_id)


if __name__ == "__main__":
    tell(main)
