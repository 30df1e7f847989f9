"""RLHF in one pool: the trainer and the reward model have placement groups kept for them, rollouts make do.

A tiny language of eight tokens is learned by reinforcement: rollouts write sentences with the policy as it
is, the reward model likes some pairs of neighbours more than others, and the trainer moves the policy towards
what was liked. They share a pool that is too small for all of them, so who is more important takes over
the place of who is less: its quota, and its placement group as it stands.

    python examples/pg_pool_rlhf_full_demo.py
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import ray
from story import Story

from schedulemesh.config.policy import PreemptionAggressiveness
from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.simple import SimpleScheduler, SimpleTaskSpec

POOL = "rlhf-pg-pool"
NEEDED = {"cpu": 7.0, "memory": 6144.0}  # what the groups take of the cluster, in all
SPECS: dict[str, Any] = {
    "pool": {"cpu": 6.0, "memory": 8192.0},
    "reserved": [{"cpu": 2.0, "memory": 2048.0}, {"cpu": 2.0, "memory": 2048.0}],
    "rollout": {"cpu": 1.5, "memory": 1024.0},
    "reward": {"cpu": 2.0, "memory": 2048.0},
    "train": {"cpu": 2.0, "memory": 2048.0},
}
TOKENS, LENGTH = 8, 12
# What the reward model likes: each token to be followed by the next one.
LIKED = np.roll(np.eye(TOKENS), 1, axis=1)


class RLHFWorker(AgentActor):
    """One role of the training. Its work is a method of the handle; cancel stops it at the next sentence.

    Args:
        name: the agent's name.
        labels: ``role`` among them says which method is its work.
        seed: of its random numbers.
    """

    def __init__(self, name: str, labels: dict[str, str] | None = None, seed: int = 0) -> None:
        super().__init__(name, labels)
        self.random = np.random.default_rng(seed)
        self.worked = 0  # sentences written, scored or learned from

    def run(self, *data: Any) -> Any:
        """The work of its role."""
        work = {"rollout": self.rollout, "reward": self.reward, "train": self.train}
        return work[self.labels["role"]](*data)

    def rollout(self, policy: np.ndarray, count: int) -> np.ndarray:
        """Sentences as the policy writes them: shape (count, LENGTH) of tokens."""
        chances = softmax(policy)
        written = np.zeros((count, LENGTH), dtype=np.int64)
        written[:, 0] = self.random.integers(TOKENS, size=count)
        for at in range(1, LENGTH):
            draws = self.random.random((count, 1))
            written[:, at] = (chances[written[:, at - 1]].cumsum(axis=1) < draws).sum(axis=1)
        self.worked += count
        return written

    def reward(self, sentences: np.ndarray) -> np.ndarray:
        """How much each sentence is liked: the share of its neighbours that are, from 0 to 1."""
        self.worked += len(sentences)
        return LIKED[sentences[:, :-1], sentences[:, 1:]].mean(axis=1)

    def train(self, policy: np.ndarray, sentences: np.ndarray, rewards: np.ndarray, steps: int) -> np.ndarray:
        """The policy after so many steps of REINFORCE on what was written and how it was liked."""
        policy = policy.copy()
        advantage = rewards - rewards.mean()
        for _ in range(steps):
            if self._stopping():
                break
            chances, push = softmax(policy), np.zeros_like(policy)
            for before, after in zip(sentences[:, :-1].T, sentences[:, 1:].T, strict=True):
                np.add.at(push, (before, after), advantage)
                np.add.at(push, before, -advantage[:, None] * chances[before])
            policy += push / len(sentences) * 2.0
            self.worked += len(sentences)
        return policy

    def save_state(self) -> dict[str, Any]:
        return {**super().save_state(), "worked": self.worked}

    def _stopping(self) -> bool:
        return bool(self._cancelled)

    def cancel(self, task_id: str) -> dict[str, Any]:
        print(f"[{self.name}] {task_id} makes way", flush=True)
        return super().cancel(task_id)


def softmax(policy: np.ndarray) -> np.ndarray:
    powers = np.exp(policy - policy.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def main() -> None:
    story = Story(__doc__, sentences=2000, steps=60)
    connect()
    with SimpleScheduler("pg-pool-rlhf-demo") as scheduler:
        story.begin(scheduler)
        free = room()
        specs = scheduler.scale_to_cluster(SPECS, NEEDED)
        scheduler.configure_preemption(
            enable_label_preemption=True,
            label_preemption_rules={"role": {"train": ["reward", "rollout"], "reward": ["rollout"]}},
            preemption_aggressiveness=PreemptionAggressiveness.MEDIUM,
            cancel_timeout=0.5,
            enable_cross_pool_preemption=False,
        )
        scheduler.ensure_pool(
            POOL,
            resources=specs["pool"],
            pg_pool_config={
                "enable": True,
                "high_priority_pg_specs": specs["reserved"],
                "enable_dynamic_pgs": True,
                "max_dynamic_pgs": 2,
                "enable_pg_reuse": True,
            },
        )
        story.wait_for(lambda: groups(scheduler)["available_pgs"] == 2)
        story.say("two placement groups are kept for what is important, and are made")

        def spec(task_id: str, role: str, priority: float, duration: float) -> SimpleTaskSpec:
            return SimpleTaskSpec(
                task_id=task_id,
                pool=POOL,
                actor_class=RLHFWorker,
                actor_kwargs={"seed": len(task_id)},
                resources=specs[role],
                priority=priority,
                labels={"role": role},
                estimated_duration=duration,
                ray_options={"name": task_id.replace("-", "-worker-", 1)},
            )

        def grouped(task: SimpleTaskSpec) -> dict[str, Any]:
            answer: dict[str, Any] = scheduler.submit_with_pg_preemption(**task.as_arguments())
            story.say(f"{task.task_id} in a placement group: success={answer['success']}")
            return answer

        def anyhow(task: SimpleTaskSpec) -> dict[str, Any]:
            answer: dict[str, Any] = scheduler.submit_spec(task)
            took = ", ".join(one["task_id"] for one in answer.get("preempted", []))
            story.say(
                f"{task.task_id} by preemption: success={answer['success']}, in place of {took or 'nobody'}"
            )
            return answer

        policy = np.zeros((TOKENS, TOKENS))
        story.part("Scene 1. Rollouts, each in a group made for it")
        first = grouped(spec("rollout-00", "rollout", 3.0, 10.0))
        second = grouped(spec("rollout-01", "rollout", 3.0, 20.0))
        story.check("both run, and nothing that is kept was touched", groups(scheduler)["available_pgs"] == 2)
        half = story.numbers["sentences"] // 2
        written = ray.get([r["agent"].handle.run.remote(policy, half) for r in (first, second)])
        sentences = np.concatenate(written)
        story.say(f"they wrote {len(sentences)} sentences")

        story.part("Scene 2. The reward model, in a group that was kept for it")
        reward = grouped(spec("reward-00", "reward", 8.5, 90.0))
        scores = ray.get(reward["agent"].handle.run.remote(sentences))
        story.say(f"it likes {scores.mean():.0%} of what an untrained policy writes")
        story.check("nobody had to make way", scheduler.stats()["total_preemptions"] == 0)

        story.part("Scene 3. The trainer arrives, and the pool has too little quota left")
        trainer = spec("train-00", "train", 9.0, 25.0)
        answer = grouped(trainer)
        story.check(
            "a free group is not enough: refused, with the reason", "quota" in answer.get("detail", "")
        )
        answer = anyhow(trainer)
        story.check(
            "the reward model makes way", [one["task_id"] for one in answer["preempted"]] == ["reward-00"]
        )
        began = time.monotonic()
        policy = ray.get(answer["agent"].handle.run.remote(policy, sentences, scores, story.numbers["steps"]))
        story.say(f"{story.numbers['steps']} steps of training took {time.monotonic() - began:.1f} s")

        story.part("Scene 4. One more rollout, for which another makes way")
        extra = spec("rollout-extra-00", "rollout", 4.5, 10.0)
        story.check("again there is no quota", not grouped(extra)["success"])
        answer = anyhow(extra)
        story.check(
            "the rollout with more left makes way",
            [one["task_id"] for one in answer["preempted"]] == ["rollout-01"],
        )
        sentences = ray.get(answer["agent"].handle.run.remote(policy, half))
        liked = LIKED[sentences[:, :-1], sentences[:, 1:]].mean()
        story.say(f"what the trained policy writes would be liked by {liked:.0%}")
        story.check("that is much better than before", liked > 2 * scores.mean())

        story.part("The end")
        stats, sums = scheduler.stats(), groups(scheduler)
        story.say(
            f"{sums['total_pgs']} groups, {sums['total_reuse_count']} taken over as they stood, "
            f"{sums['created']} made in all"
        )
        story.check("two preemptions", stats["total_preemptions"] == 2)
        story.check("three tasks run", stats["running_tasks"] == 3)
        for task_id in ("train-00", "rollout-00", "rollout-extra-00"):
            done = scheduler.complete(task_id)
            story.check(f"{task_id} is completed", done["success"])
    story.wait_for(lambda: all(room().get(name, 0) >= amount for name, amount in free.items()))
    story.check("every resource is back in Ray", True)
    story.end()


def groups(scheduler: SimpleScheduler) -> dict[str, Any]:
    found: dict[str, Any] = scheduler.pg_pool_stats(POOL)[POOL]
    return found


def connect() -> None:
    """The cluster RAY_ADDRESS names, else the one of this machine, else one of our own."""
    try:
        ray.init(address="auto", log_to_driver=False)
    except ConnectionError as error:
        if os.environ.get("RAY_ADDRESS"):
            raise
        print(f"no Ray cluster is here ({error}): starting one", flush=True)
        ray.init(num_cpus=8, log_to_driver=False, include_dashboard=False)


def room() -> dict[str, float]:
    """What Ray has free now, of what the story uses."""
    return {name: ray.available_resources().get(name, 0.0) for name in ("CPU", "memory")}


if __name__ == "__main__":
    main()
