"""Real training that makes way and comes back: run it against a server (``make run``).

Pretraining fills its pool. An RLHF task of the same priority arrives and takes its place, because a label
rule says that ``training_stage: rlhf`` goes before ``pretraining``. When it is done, pretraining is queued
again, resumes from the weights it had saved, and ends with exactly the weights and the accuracy it has when
nobody disturbs it; which is tried first, here, with the same code.

Both stages train a small classifier on scikit-learn's handwritten digits; what makes them what they are is
their label. Exits with 0 only when all of this happened.

    python examples/training_preemption_demo.py
"""

from __future__ import annotations

import argparse
import math
import os
import re
import signal
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

if not __package__:  # run as a script: its neighbours are found from the root of the repository
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from examples.api import API, ROOT, APIError
from examples.digits import DigitsTraining
from examples.training_agent import TrainingAgentActor

__all__ = ["TrainingAgentActor", "main"]

NAMESPACE = "training-demo"
POOL = "pretrain-pool"
POOL_RESOURCES = {"cpu": 2.0, "memory": 1024.0}  # MiB
ACTOR_CLASS = "examples.training_preemption_demo:TrainingAgentActor"
RULES = {"training_stage": {"rlhf": ["pretraining", "sft"], "dpo": ["pretraining"], "sft": ["pretraining"]}}
PRIORITY = 5.0

STEPS = 1200  # of pretraining: some 12 s on one core
RLHF_SHARE = 0.4  # of those steps are RLHF's
RLHF_ARRIVES = 0.4  # of the way through pretraining
PATIENCE = 240.0  # seconds for the whole story on the server
ENDED = ("completed", "failed", "cancelled", "preempted")

_PROGRESS = re.compile(r"step (\d+) of \d+, accuracy ([\d.]+)")


class DemoError(Exception):
    """The story cannot go on, in a sentence."""


@dataclass
class Stage:
    """One of the two tasks."""

    name: str
    task_id: str
    steps: int
    seed: int
    resources: dict[str, float]
    started: float = 0.0  # of this attempt, on our clock
    step: int = 0  # the last that was heard of
    step_said: int = 0


@dataclass
class Run:
    """One attempt of a task, from running until it was told to stop or was done. Epoch seconds."""

    stage: str
    attempt: int
    start: float
    end: float
    outcome: str = ""


@dataclass
class Story:
    """What happens, and what has happened so far."""

    api: API
    steps: int
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        mark = time.strftime("%H%M%S")  # ids are fresh: the pages of earlier runs stay
        rlhf_steps = max(1, round(self.steps * RLHF_SHARE))
        self.pretraining = Stage("pretraining", f"digits-pretraining-{mark}", self.steps, 1, POOL_RESOURCES)
        self.rlhf = Stage("rlhf", f"digits-rlhf-{mark}", rlhf_steps, 2, {"cpu": 1.0, "memory": 512.0})
        self.stages = {stage.task_id: stage for stage in (self.pretraining, self.rlhf)}
        self.undisturbed: DigitsTraining | None = None
        self.preemption: dict[str, Any] = {}

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)

    # The acts.

    def prepare(self) -> None:
        """A pool and a policy of our own, and nothing left of an earlier run that was killed."""
        self.clean_up("left by an earlier run")
        try:
            self.api.post("/pools", {"name": POOL, "resources": POOL_RESOURCES})
        except APIError as error:
            if error.code != "pool_exists":
                raise
            self.api.patch(f"/pools/{POOL}", {"resources": POOL_RESOURCES})
        now = self.api.get("/policy")["policy"]
        if now["label_preemption_rules"] != RULES or not now["enable_label_preemption"]:
            self.api.patch(
                "/policy",
                {
                    "policy": {
                        "enable_label_preemption": True,
                        "label_preemption_rules": RULES,
                        "preemption_aggressiveness": "medium",
                    },
                    "comment": "training demo: what comes after pretraining goes before it",
                },
            )
        self.say(f"ready at {self.api.url}/?namespace={NAMESPACE}: pool {POOL}, {_amounts(POOL_RESOURCES)}")

    def train_here(self) -> float:
        """The same pretraining without anybody in its way, in this process. Returns its seconds."""
        stage = self.pretraining
        self.say(f"first, undisturbed and in this process, to compare with: {stage.steps} steps")
        training = DigitsTraining(stage.seed)
        started = time.monotonic()
        while training.step < stage.steps:
            training.train_step()
            if training.step % math.ceil(stage.steps / 3) == 0:
                self.say(f"  here: step {training.step}, accuracy {training.accuracy():.3f}")
        seconds = time.monotonic() - started
        self.say(f"  here: done in {seconds:.1f} s, accuracy {training.accuracy():.3f}")
        self.undisturbed = training
        return seconds

    def perform(self, estimate: float) -> None:
        """Submit, follow, and say what happens, until pretraining has ended."""
        first = self.submit(self.pretraining, estimate, wait="90s", on_insufficient="queue")
        if first["state"] != "running":
            raise DemoError(
                f"pretraining is {first['state']}: {first['reason']} ({self.page(self.pretraining)})"
            )
        timeline = self.events_of(self.pretraining)
        running: Stage | None = None
        rlhf_submitted = False
        deadline = time.monotonic() + PATIENCE
        for event in _and_then(timeline, self.api.events(after=timeline[-1]["id"], idle=1.0)):
            if event is not None:
                stage = self.stages.get(event["task_id"])
                if stage is not None:
                    running = self.narrate(stage, event, running)
                if stage is self.pretraining and event["type"] in ENDED:
                    return
            elif running is not None:
                self.hear_progress(running)
            if running is self.pretraining and not rlhf_submitted and self.far_enough(estimate):
                self.say(f"rlhf arrives: priority {PRIORITY:g} as well, and the pool is full")
                # Only one that takes its place at once is what we are here to see: no queueing.
                self.submit(self.rlhf, estimate * RLHF_SHARE, wait="0s", on_insufficient="fail")
                rlhf_submitted = True
            if time.monotonic() > deadline:
                raise DemoError(f"it took more than {PATIENCE:.0f} s: see {self.page(self.pretraining)}")

    def submit(self, stage: Stage, estimate: float, wait: str, on_insufficient: str) -> dict[str, Any]:
        task: dict[str, Any] = self.api.post(
            "/tasks",
            {
                "task_id": stage.task_id,
                "pool": POOL,
                "priority": PRIORITY,
                "resources": stage.resources,
                "labels": {"training_stage": stage.name},
                "actor_class": ACTOR_CLASS,
                "actor_kwargs": {"steps": stage.steps, "seed": stage.seed},
                "entry": {"method": "train", "kwargs": {"task_id": stage.task_id}},
                "runtime_env": {"env_vars": {"PYTHONPATH": worker_path()}},
                "estimated_duration": round(estimate, 1),
                "on_insufficient": on_insufficient,
                "on_preempted": "requeue",
            },
            wait=wait,
        )
        return task

    def narrate(self, stage: Stage, event: dict[str, Any], running: Stage | None) -> Stage | None:
        """Say what an event means. Returns who runs after it."""
        match event["type"]:
            case "running":
                stage.started = time.monotonic()
                where = f"attempt {event['attempt']}, process {event['detail']['pid']}"
                if event["attempt"] > 1:
                    saved = self.preemption["saved_state"]
                    self.say(f"{stage.name} resumes from step {saved['step']} ({where})")
                else:
                    self.say(f"{stage.name} runs: {stage.steps} steps ({where})")
                return stage
            case "preempting":
                taken = self.read_preemption()
                why = taken["reason"]
                if why == "label_based_preemption":
                    why = f"label training_stage: rlhf > {stage.name}, score {taken['preempt_score']:.2f}"
                taker = self.stages.get(taken["preemptor_task_id"])
                self.say(f"{taker.name if taker else 'somebody'} takes {stage.name}'s place ({why})")
                return None
            case "queued" if event["code"] == "preempted":
                saved = self.read_preemption()["saved_state"]
                self.say(
                    f"{stage.name} saved at step {saved['step']}, accuracy {saved['accuracy']:.3f}; "
                    "it waits for its turn"
                )
            case "completed":
                result = self.task(stage)["result"]
                self.say(f"{stage.name} is done: step {result['step']}, accuracy {result['accuracy']:.3f}")
                return None
            case "failed" | "cancelled" | "preempted":
                raise DemoError(f"{stage.name} {event['type']}: {event['message']} ({self.page(stage)})")
        return None if stage is running and event["type"] == "stopping" else running

    def hear_progress(self, stage: Stage) -> None:
        """What the agent printed last, said when it is news."""
        text = self.api.get(f"/tasks/{stage.task_id}/logs", offset=-400)["text"]
        if not (said := _PROGRESS.findall(text)):
            return
        stage.step = int(said[-1][0])
        if stage.step - stage.step_said >= stage.steps / 8:
            stage.step_said = stage.step
            self.say(f"  {stage.name}: step {stage.step}, accuracy {said[-1][1]}")

    def far_enough(self, estimate: float) -> bool:
        """Whether pretraining is far enough to be worth interrupting: by what it said or, when it is not
        heard, by the clock."""
        stage = self.pretraining
        return stage.step >= RLHF_ARRIVES * stage.steps or time.monotonic() - stage.started > 0.6 * estimate

    def clean_up(self, why: str = "") -> None:
        """Cancel what is still live in our namespace, and see it gone."""
        live = self.api.get("/tasks", live="true")["items"]
        for task in live:
            self.say(f"cancels {task['task_id']}" + (f", {why}" if why else ""))
            self.api.delete(f"/tasks/{task['task_id']}")
        for task in live:
            if (gone := self.api.get(f"/tasks/{task['task_id']}", wait="30s"))["state"] not in ENDED:
                raise DemoError(f"{task['task_id']} does not go away, it is {gone['state']}")

    # The end.

    def report(self) -> bool:
        """Who ran when, where to look, and whether all happened as told."""
        runs = [run for stage in self.stages.values() for run in runs_of(stage.name, self.events_of(stage))]
        runs.sort(key=lambda run: run.start)
        print("\nWho ran when")
        for line in table(runs):
            print(f"  {line}")
        print("\nOn the dashboard (`make run` printed a link that signs you in)")
        for what, page in (
            ("overview", f"{self.api.url}/?namespace={NAMESPACE}"),
            ("pretraining", self.page(self.pretraining)),
            ("rlhf", self.page(self.rlhf)),
            ("preemption", self.api.page("preemptions", self.preemption.get("id", ""))),
        ):
            print(f"  {what:<12} {page}")
        print("\nAs told?")
        checks = self.checks(runs)
        for what, true in checks:
            print(f"  {'yes' if true else 'NO '}  {what}")
        print(flush=True)
        return all(true for _, true in checks)

    def checks(self, runs: list[Run]) -> list[tuple[str, bool]]:
        """What must be true of the server's answers."""
        pretraining, rlhf = self.task(self.pretraining), self.task(self.rlhf)
        taken = self.read_preemption()
        saved, result, here = taken["saved_state"] or {}, pretraining["result"] or {}, self.undisturbed
        assert here is not None
        return [
            (
                "rlhf took pretraining's place by label, at equal priority",
                taken["reason"] == "label_based_preemption"
                and taken["task_id"] == self.pretraining.task_id
                and taken["preemptor_task_id"] == self.rlhf.task_id
                and pretraining["priority"] == rlhf["priority"],
            ),
            (
                f"pretraining stopped when asked and was saved on the way, at step {saved.get('step')}",
                taken["cancel_success"] is True and 0 < saved.get("step", 0) < self.steps,
            ),
            (
                "they took turns: pretraining, rlhf, pretraining",
                [run.stage for run in runs] == ["pretraining", "rlhf", "pretraining"]
                and all(run.end <= then.start for run, then in pairwise(runs)),
            ),
            (
                "rlhf completed undisturbed",
                rlhf["state"] == "completed" and rlhf["preemptions"] == 0 and rlhf["attempt"] == 1,
            ),
            (
                "pretraining resumed where it was saved, and completed",
                pretraining["state"] == "completed"
                and pretraining["preemptions"] == 1
                and pretraining["attempt"] == 2
                and result.get("resumed_from") == saved.get("step")
                and result.get("step") == self.steps,
            ),
            (
                "it ended with the accuracy of the undisturbed run: "
                f"{result.get('accuracy')} and {here.accuracy()}",
                result.get("accuracy") == here.accuracy(),
            ),
            (
                "and with the same weights, to the bit: "
                f"{result.get('fingerprint')} and {here.fingerprint()}",
                result.get("fingerprint") == here.fingerprint(),
            ),
        ]

    # What the server knows.

    def task(self, stage: Stage) -> dict[str, Any]:
        answer: dict[str, Any] = self.api.get(f"/tasks/{stage.task_id}")
        return answer

    def events_of(self, stage: Stage) -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = self.api.get(f"/tasks/{stage.task_id}/events")["items"]
        return answer

    def read_preemption(self) -> dict[str, Any]:
        """Of pretraining, as far as it is."""
        for one in self.api.get("/preemptions")["items"]:
            if one["task_id"] == self.pretraining.task_id:
                self.preemption = self.api.get(f"/preemptions/{one['id']}")
                return self.preemption
        raise DemoError(f"the server knows of no preemption of {self.pretraining.task_id}")

    def page(self, stage: Stage) -> str:
        return self.api.page("tasks", stage.task_id)


def worker_path() -> str:
    """Where workers find this file, and the package when it is not installed there."""
    return os.pathsep.join([str(ROOT), str(ROOT / "python" / "src")])


def runs_of(stage: str, events: list[dict[str, Any]]) -> list[Run]:
    """The attempts in a task's timeline."""
    runs: list[Run] = []
    running = False
    for event in events:
        at = datetime.fromisoformat(event["at"].replace("Z", "+00:00")).timestamp()
        if event["type"] == "running":
            runs.append(Run(stage, event["attempt"], at, at))
            running = True
        elif running and event["type"] in ("preempting", "stopping", *ENDED):
            runs[-1].end, running = at, False
        if runs and event["type"] in ("preempting", *ENDED):
            runs[-1].outcome = {"preempting": "made way"}.get(event["type"], event["type"])
    return runs


def table(runs: list[Run], width: int = 40) -> list[str]:
    """Lines with a bar for each run, all on one scale of seconds since the first."""
    if not runs:
        return ["nobody"]
    origin, last = runs[0].start, max(run.end for run in runs)
    scale = width / max(last - origin, 1e-9)
    lines = [f"{'task':<12} {'attempt':>7} {'from':>8} {'to':>8}"]
    for run in runs:
        start, end = run.start - origin, run.end - origin
        left = min(round(start * scale), width - 1)
        bar = " " * left + "#" * max(1, round(end * scale) - left)
        when = f"{start:>6.1f} s {end:>6.1f} s"
        lines.append(f"{run.stage:<12} {run.attempt:>7} {when}   {bar:<{width}} {run.outcome}")
    return lines


def _and_then(first: list[dict[str, Any]], rest: Any) -> Any:
    yield from first
    yield from rest


def _amounts(resources: dict[str, float]) -> str:
    return f"{resources['cpu']:g} cores and {resources['memory']:g} MiB"


def _terminated(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 when all happened as told, 1 when not, 130 when it was interrupted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=STEPS, help="of pretraining; default %(default)s")
    options = parser.parse_args(arguments)
    if options.steps < 300:
        parser.error(
            f"{options.steps} steps are over before anybody could take their place; give 300 or more"
        )
    signal.signal(signal.SIGTERM, _terminated)
    try:
        story = Story(API.find(NAMESPACE), options.steps)
        story.prepare()
        try:
            story.perform(story.train_here())
        finally:
            story.clean_up()
        return 0 if story.report() else 1
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except (APIError, DemoError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
