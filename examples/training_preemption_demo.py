"""Real training that makes way and comes back with the very weights it would have had.

Pretraining fills its pool. An RLHF task of the same priority arrives and takes its place, because a label
rule says that "training_stage: rlhf" goes before "pretraining": pretraining saves a checkpoint and is gone,
RLHF trains in its room. When that is done, pretraining resumes from its checkpoint, and ends with exactly the
weights and the accuracy it has when nobody disturbs it; which is tried first, here, with the same code.

Both stages train a small classifier on scikit-learn's handwritten digits; what makes them what they are is
their label. Exits with 0 only when all of this happened.

    python examples/training_preemption_demo.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if not __package__:  # run as a script: its neighbours are found from the root of the repository
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from examples.digits import DigitsTraining
from examples.story import Story, tell
from examples.training_agent import TrainingAgentActor
from schedulemesh.simple import SimpleScheduler

__all__ = ["TrainingAgentActor", "main"]

POOL = "pretrain-pool"
RULES = {"training_stage": {"rlhf": ["pretraining", "sft"], "dpo": ["pretraining"], "sft": ["pretraining"]}}
PRIORITY = 5.0
STEPS = 900  # of pretraining: some 9 s on one core
RLHF_SHARE = 0.4  # of those steps are RLHF's
RLHF_ARRIVES = 0.4  # of the way through pretraining
SEED = 1
ENDED = ("completed", "failed", "cancelled", "preempted")


def main() -> None:
    story = Story(__doc__, steps=STEPS)
    steps = story.numbers["steps"]
    story.part("First, undisturbed and in this process, to compare with")
    undisturbed = DigitsTraining(SEED)
    while undisturbed.step < steps:
        undisturbed.train_step()
    story.say(f"{steps} steps, accuracy {undisturbed.accuracy():.3f}, weights {undisturbed.fingerprint()}")

    with SimpleScheduler("training-demo") as scheduler:
        story.begin(scheduler)
        scheduler.ensure_pool(POOL, resources={"cpu": 2, "memory": 1024})
        scheduler.configure_preemption(label_preemption_rules=RULES, preemption_aggressiveness="medium")

        def submit(stage: str, resources: dict[str, float], seed: int, steps: int, **more: Any) -> None:
            result = scheduler.submit(
                task_id=f"digits-{stage}",
                pool=POOL,
                resources=resources,
                priority=PRIORITY,
                labels={"training_stage": stage},
                actor_class=TrainingAgentActor,
                actor_kwargs={"seed": seed, "steps": steps},
                entry={"method": "train", "kwargs": {"task_id": f"digits-{stage}"}},
                **more,
            )
            if not result["success"]:
                raise SystemExit(f"{stage} is refused: {result['error']}")
            story.say(f"{stage} runs, {steps} steps, on {result['agent'].name}")

        story.part("Pretraining fills the pool; RLHF of equal priority arrives")
        submit("pretraining", {"cpu": 2, "memory": 1024}, SEED, steps, on_preempted="requeue")
        story.wait_for(lambda: step_of(scheduler, "digits-pretraining") >= RLHF_ARRIVES * steps, within=120)
        began = scheduler.client.task_events("digits-pretraining")[-1]["id"]
        submit("rlhf", {"cpu": 1, "memory": 512}, 2, max(1, round(steps * RLHF_SHARE)))

        story.part("What the server tells of it, as it happens")
        for event in scheduler.client.events(after=began):
            story.say(f"{event['task_id']:<18} {event['type']:<15} {event['message']}")
            if event["task_id"] == "digits-pretraining" and event["type"] in ENDED:
                break

        story.part("As told?")
        for what, true in checks(scheduler, undisturbed):
            story.check(what, true)
        story.end()


def step_of(scheduler: SimpleScheduler, task_id: str) -> int:
    """The last step its agent reported."""
    task = scheduler.client.task(task_id)
    if task["state"] in ENDED:
        raise SystemExit(f"{task_id} is {task['state']}: {task['reason']}")
    metrics = scheduler.client.agent(task_id)["metrics"]
    return int(metrics["step"]) if metrics else 0


def checks(scheduler: SimpleScheduler, undisturbed: DigitsTraining) -> list[tuple[str, bool]]:
    """What must be true of the server's answers."""
    client = scheduler.client
    pretraining, rlhf = client.task("digits-pretraining"), client.task("digits-rlhf")
    taken = [client.preemption(one["id"]) for one in client.preemptions()]
    saved = (taken[0]["saved_state"] if taken else None) or {}
    result, other = pretraining.get("result") or {}, rlhf.get("result") or {}
    return [
        (
            "rlhf took pretraining's place by label, at equal priority",
            [(one["task_id"], one["preemptor_task_id"], one["reason"]) for one in taken]
            == [("digits-pretraining", "digits-rlhf", "label_based_preemption")]
            and pretraining["priority"] == rlhf["priority"],
        ),
        (
            f"pretraining stopped when asked, and was saved at step {saved.get('step')}",
            all(one["cancel_success"] for one in taken) and 0 < saved.get("step", 0) < undisturbed.step,
        ),
        (
            f"rlhf trained to its end meanwhile, accuracy {other.get('accuracy')}",
            rlhf["state"] == "completed" and rlhf["attempt"] == 1 and other.get("status") == "completed",
        ),
        (
            "pretraining resumed where it was saved, and completed",
            pretraining["state"] == "completed"
            and pretraining["attempt"] == 2
            and result.get("resumed_from") == saved.get("step")
            and result.get("step") == undisturbed.step,
        ),
        (
            f"with the accuracy of the undisturbed run, {undisturbed.accuracy()}",
            result.get("accuracy") == undisturbed.accuracy(),
        ),
        (
            f"and with the same weights, to the bit: {result.get('fingerprint')}",
            result.get("fingerprint") == undisturbed.fingerprint(),
        ),
    ]


if __name__ == "__main__":
    tell(main)
