"""Preemption step by step: who would make way, what is kept of it, what the agent does next.

Two agents work in one pool. A task that matters more asks who would make way for it, one is stopped and its
state saved, and the agent goes on with the new work. Then the same question is asked from another pool.

    python examples/preemption_demo.py
"""

from __future__ import annotations

import ray
from pi_agent import PiAgent
from story import Story, tell

from schedulemesh.core import RayScheduler
from schedulemesh.types import Evaluation


def main() -> None:
    story = Story(__doc__)
    with RayScheduler("preemption-demo") as scheduler:
        story.begin(scheduler)

        story.part("1. Two agents share a pool, and work")
        scheduler.create_pool("compute-pool", resources={"cpu": 2, "memory": 1024}, target_agents=2)
        scheduler.create_pool("premium-pool", resources={"cpu": 1, "memory": 512})
        work = {}
        for name, task_id, priority in [("agent-1", "report", 1.0), ("agent-2", "forecast", 4.0)]:
            agent = scheduler.create_agent(name, "compute-pool", PiAgent)
            work[task_id] = agent.handle.run.remote(task_id)
            scheduler.register_running_task(
                task_id, name, "compute-pool", priority, estimated_duration=60.0, payload={"figure": "pi"}
            )
            story.say(f"{task_id}, priority {priority:g}, runs on {name}, a {agent.resources} agent")

        story.part("2. A task of priority 5 asks who would make way; nothing is changed by asking")
        answer = scheduler.evaluate_preemption(5.0, "compute-pool")
        for one in answer["candidates"]:
            score = f"{one['priority_delta']:g} + 0.1 · {one['remaining_time']:.0f} s left"
            story.say(f"{one['task_id']}: score {one['preempt_score']:.2f} = {score} ({one['reason']})")
        story.check("both might, the least important one first", names(answer) == ["report", "forecast"])

        story.part("3. That one is preempted: cancelled, and its state saved")
        first = answer["candidates"][0]
        done = scheduler.execute_preemption(first["task_id"], first["agent_name"])
        story.say(f"saved: {done['saved_state']}")
        story.check("it stopped when asked", done["success"] and done["cancel_success"])
        lost = ray.get(work["report"], timeout=30)["batches"] - done["saved_state"]["batches"]
        story.check("and nothing is lost but the batch under way", lost in (0, 1))

        story.part("4. Its agent stayed, with its quota: the urgent task runs there")
        agent = next(one for one in scheduler.list_agents() if one.name == first["agent_name"])
        scheduler.register_running_task("urgent", agent.name, "compute-pool", priority=5.0)
        echo = ray.get(agent.handle.process.remote({"figure": "pi"}, task_id="urgent"), timeout=30)
        scheduler.unregister_task("urgent")
        story.check("it did", echo["status"] == "completed" and echo["agent"] == "agent-1")

        story.part("5. From another pool the bar is higher: a difference of 5")
        for priority, expected in [(6.0, []), (10.0, ["forecast"])]:
            answer = scheduler.evaluate_preemption(priority, "premium-pool")
            story.check(
                f"priority {priority:g} in premium-pool may take from {expected or 'nobody'}",
                names(answer) == expected,
            )
        scheduler.update_preemption_policy(protected_pools=["compute-pool"])
        answer = scheduler.evaluate_preemption(100.0, "premium-pool")
        story.check("and from a protected pool not even priority 100 may", not answer["should_preempt"])

        stats = scheduler.get_preemption_stats()
        story.say(f"{stats['total_preemptions']} preemption, {stats['running_tasks']} task runs")
        story.check("one preemption is on record", stats["total_preemptions"] == 1)
        story.end()


def names(answer: Evaluation) -> list[str]:
    return [one["task_id"] for one in answer["candidates"]]


if __name__ == "__main__":
    tell(main)
