"""Who runs first when there is not room for all: the line goes by priority, and then by age.

A pool has room for one task. Four more wait in line, then a critical one arrives that need not wait: the
running task makes way, queues again, and goes on where it stopped.

    python examples/priority_scheduling_demo.py
"""

from __future__ import annotations

from typing import Any

from pi_agent import PiAgent
from story import Story, tell

from schedulemesh.simple import SimpleScheduler


def main() -> None:
    story = Story(__doc__)
    with SimpleScheduler("priority-scheduling-demo") as scheduler:
        story.begin(scheduler)
        scheduler.ensure_pool("one-at-a-time", resources={"cpu": 1, "memory": 512})

        def submit(task_id: str, priority: float, batches: int, **more: Any) -> str:
            result = scheduler.submit(
                task_id,
                "one-at-a-time",
                PiAgent,
                resources={"cpu": 1, "memory": 256},
                priority=priority,
                actor_kwargs={"batches": batches},
                entry="run",  # called once the agent is ready; the task is over when it returns
                on_insufficient="queue",  # rather than being refused
                **more,
            )
            story.say(f"{task_id}, priority {priority:g}: {result['state']}")
            return str(result["state"])

        story.part("1. Five tasks for one place")
        submit("first", 8.5, batches=400)
        waiting = {"nightly": 1.0, "normal-a": 5.0, "normal-b": 5.0, "urgent": 8.0}
        states = [submit(task_id, priority, batches=100) for task_id, priority in waiting.items()]
        story.check("one runs, four wait: nobody is 1.0 above the one that runs", states == ["queued"] * 4)
        line = sorted(waiting, key=lambda task_id: scheduler.client.task(task_id)["queue_position"] or 0)
        story.say("the line: " + ", ".join(line))

        story.part("2. They run one after the other")
        tasks = {task_id: scheduler.wait(task_id, timeout=120) for task_id in ["first", *waiting]}
        order = sorted(tasks, key=lambda task_id: tasks[task_id]["started_at"])
        for task_id in order:
            story.say(f"{task_id}: pi is {tasks[task_id]['result']['pi']:.5f}")
        expected = ["first", "urgent", "normal-a", "normal-b", "nightly"]
        story.check("by priority, the older of two equal ones first", order == expected == ["first", *line])

        story.part("3. One that is critical does not wait: the task that runs makes way, and comes back")
        submit("reindex", 1.0, batches=800, on_preempted="requeue")
        story.wait_for(lambda: progress_of(scheduler, "reindex") > 0)
        submit("incident", 9.5, batches=100)
        incident, reindex = scheduler.wait("incident", timeout=120), scheduler.wait("reindex", timeout=120)
        went_on_from = reindex["result"]["went_on_from"]
        story.say(f"reindex ran {reindex['attempt']} times, and went on from batch {went_on_from} of 800")
        story.check(
            "the critical one was served at once, and nothing that was done is lost",
            incident["preemptions"] == 0
            and reindex["preemptions"] == 1
            and 0 < went_on_from < reindex["result"]["batches"] == 800,
        )
        story.end()


def progress_of(scheduler: SimpleScheduler, task_id: str) -> float:
    """Batches it has done, as its agent reports them."""
    metrics = scheduler.client.agent(task_id)["metrics"]
    return float(metrics["batches"]) if metrics else 0.0


if __name__ == "__main__":
    tell(main)
