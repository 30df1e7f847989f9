"""The examples: each is run as a user would, and tells its story to the end. The training demo's training is
exactly repeatable, and its agent stops and resumes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from examples.digits import DigitsTraining  # noqa: E402
from examples.training_preemption_demo import TrainingAgentActor  # noqa: E402

from schedulemesh.client import Client  # noqa: E402
from schedulemesh.local import Started  # noqa: E402
from schedulemesh.simple import SimpleScheduler  # noqa: E402

STEPS = 12


def trained(steps: int, seed: int = 1) -> DigitsTraining:
    training = DigitsTraining(seed)
    for _ in range(steps):
        training.train_step()
    return training


# The training.


def test_it_learns() -> None:
    training = DigitsTraining()
    assert training.accuracy() == 0.0
    training.train_step()
    early = training.accuracy()
    for _ in range(30):
        training.train_step()
    assert 0.5 < early < training.accuracy()
    assert training.accuracy() > 0.9


def test_the_same_seed_ends_with_the_same_weights_and_another_does_not() -> None:
    assert trained(STEPS).fingerprint() == trained(STEPS).fingerprint()
    assert trained(STEPS).fingerprint() != trained(STEPS, seed=2).fingerprint()
    assert trained(STEPS).fingerprint() != trained(STEPS + 1).fingerprint()


@pytest.mark.parametrize("stopped_at", [0, 1, 7, STEPS])
@pytest.mark.parametrize("begun", [0, 3])
def test_interrupted_and_undisturbed_end_exactly_alike(stopped_at: int, begun: int) -> None:
    state = json.loads(json.dumps(trained(stopped_at).state()))
    resumed = trained(begun, seed=99)  # the state's seed counts
    resumed.load(state)
    assert resumed.step == stopped_at
    while resumed.step < STEPS:
        resumed.train_step()
    undisturbed = trained(STEPS)
    assert resumed.state() == undisturbed.state()
    assert resumed.accuracy() == undisturbed.accuracy()
    assert resumed.fingerprint() == undisturbed.fingerprint()


@pytest.mark.parametrize("forgotten", ["coef_", "intercept_", "t_", "seed"])
def test_nothing_in_the_state_can_be_left_out(forgotten: str) -> None:
    fresh, state = DigitsTraining(seed=99), trained(6).state()
    fresh.train_step()
    state[forgotten] = {**fresh.state(), "seed": 99}[forgotten]
    resumed = DigitsTraining()
    resumed.load(state)
    while resumed.step < STEPS:
        resumed.train_step()
    assert resumed.fingerprint() != trained(STEPS).fingerprint()


# The agent.


class InSteps(TrainingAgentActor):
    """Calls back in the middle of every step."""

    in_step: Callable[[int], object] = staticmethod(lambda step: None)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        step = self.training.train_step

        def train_step() -> None:
            self.in_step(self.training.step)
            step()

        self.training.train_step = train_step  # type: ignore[method-assign]


def test_an_agent_trains_to_the_end() -> None:
    agent = TrainingAgentActor("a", {"training_stage": "pretraining"}, steps=STEPS, seed=1, extra="kept")
    result = agent.train(task_id="t")
    assert result == {
        "status": "completed",
        "stage": "pretraining",
        "step": STEPS,
        "steps": STEPS,
        "resumed_from": 0,
        "accuracy": trained(STEPS).accuracy(),
        "fingerprint": trained(STEPS).fingerprint(),
        "seconds": result["seconds"],
    }
    assert agent.options == {"extra": "kept"}


def test_cancel_stops_at_the_next_step_and_another_agent_goes_on_exactly() -> None:
    agent = InSteps("a", {}, steps=10**9, seed=1)
    agent.in_step = lambda step: step == 4 and agent.cancel("t")
    result = agent.train(task_id="t")
    assert result["status"] == "cancelled"
    assert result["step"] == 5

    other = TrainingAgentActor("b", {}, steps=STEPS, seed=77)
    other.restore_state(json.loads(json.dumps(agent.save_state())))
    resumed = other.train(task_id="t")
    assert resumed["resumed_from"] == 5
    assert resumed["fingerprint"] == trained(STEPS).fingerprint()


def test_cancel_of_another_task_stops_nothing() -> None:
    agent = TrainingAgentActor("a", {}, steps=STEPS)
    agent.cancel("another")
    assert agent.train(task_id="t")["status"] == "completed"


def test_what_is_saved_during_a_step_is_the_state_after_it() -> None:
    saved: list[dict[str, Any]] = []
    saving = threading.Thread(target=lambda: saved.append(agent.save_state()))

    def save_now(step: int) -> None:
        if step == 3:
            saving.start()
            agent.cancel("t")
            saving.join(0.2)
            assert not saved, "half a step was saved"

    agent = InSteps("a", {}, steps=STEPS, seed=1)
    agent.in_step = save_now
    agent.train(task_id="t")
    saving.join()
    assert {key: saved[0][key] for key in trained(4).state()} == trained(4).state()
    assert saved[0]["accuracy"] == trained(4).accuracy()


class Supervisor:
    """Hears what an agent reports."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.hears = threading.Event()

    def report_metrics(self, agent: str, metrics: dict[str, Any]) -> bool:
        self.heard.append({"agent": agent, **metrics})
        self.hears.set()
        return True


def test_one_with_a_supervisor_trains_by_itself_until_it_is_cancelled() -> None:
    supervisor = Supervisor()
    agent = TrainingAgentActor("a", {}, supervisor=supervisor, report_interval=1000.0, steps=10**9, seed=1)
    assert supervisor.hears.wait(30)
    agent.cancel("whatever its task is called")
    training = next(thread for thread in threading.enumerate() if thread.name == "training")
    training.join(10)
    state = agent.save_state()
    assert state["step"] >= 50
    assert supervisor.heard == [
        {"agent": "a", "step": 50, "steps": 10**9, "accuracy": trained(50).accuracy()}
    ]

    # One that is made for the task's next attempt may have begun anew before it is given the state.
    other = TrainingAgentActor("b", {}, supervisor=Supervisor(), steps=state["step"] + 5, seed=77)
    other.restore_state(json.loads(json.dumps(state)))
    for thread in threading.enumerate():
        if thread.name == "training":
            thread.join(30)
    assert other.training.fingerprint() == trained(state["step"] + 5).fingerprint()


def test_progress_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    TrainingAgentActor("a", {}, steps=101).train(task_id="t")
    said = [line.split(",")[0] for line in capsys.readouterr().out.splitlines()]
    assert said == ["step 50 of 101", "step 100 of 101", "completed at step 101 of 101"]


@pytest.mark.parametrize("module", ["examples.training_preemption_demo", "examples.training_agent"])
def test_a_worker_finds_and_builds_it_by_its_path(module: str) -> None:
    program = """
import importlib, sys
cls = importlib.import_module(sys.argv[1]).TrainingAgentActor
print(cls("a", {"training_stage": "rlhf"}, steps=3, seed=1).train(task_id="t")["fingerprint"])
"""
    out = subprocess.run(
        [sys.executable, "-c", program, module],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "python" / "src")])},
        cwd="/",
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    assert out.split()[-1] == trained(3).fingerprint()


def test_importing_the_demo_loads_neither_scikit_learn_nor_ray() -> None:
    program = (
        "import sys, examples.training_preemption_demo\n"
        "assert not {'sklearn', 'numpy', 'ray'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)


# The stories.


def run(*command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "python" / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path},
        cwd=ROOT / "examples",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize(
    "command",
    [
        ["automated_preemption_demo.py"],
        ["label_preemption_demo.py", "--stay"],  # nobody is there to press Enter
        ["training_preemption_demo.py", "--steps", "300"],
        ["preemption_file_state.py"],
        ["preemption_demo.py"],
        ["priority_scheduling_demo.py"],
        ["pg_pool_rlhf_full_demo.py", "--sentences", "400", "--steps", "60"],
        ["multi_pool_rlhf_demo.py"],
        ["multi_cluster_jobs_demo.py"],
    ],
    ids=lambda command: command[0],
)
def test_each_tells_its_story_to_the_end(server: Started, command: list[str]) -> None:
    done = run(*command)
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("All of it happened as told.\n")
    assert f"watch it at {server.url}/?namespace=" in done.stdout
    assert "  yes  " in done.stdout
    assert "  NO   " not in done.stdout


def test_two_at_once_are_told_apart(driver: Started) -> None:
    with SimpleScheduler("preemption-demo"):
        done = run("preemption_demo.py")
    assert done.returncode == 1, done.stdout
    assert "preemption-demo" in done.stdout.splitlines()[-1]
    assert "Traceback" not in done.stdout


def test_one_that_is_interrupted_leaves_nothing(server: Started) -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "preemption_file_state.py"],
        cwd=ROOT / "examples",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "preemption target found" in line:
            process.send_signal(signal.SIGINT)
            break
    rest = process.communicate(timeout=60)[0]
    assert process.returncode == 130, rest
    assert "Interrupted: what it made is removed." in rest
    assert "Traceback" not in rest
    with Client(server.url, server.token) as client:
        assert [one["name"] for one in client.namespaces()] == ["default"]


def test_one_that_goes_otherwise_says_so_and_exits_with_1(server: Started) -> None:
    done = run("-c", "import preemption_demo as demo; demo.names = lambda answer: []; demo.main()")
    assert done.returncode == 1, done.stdout
    assert "  NO   both might, the least important one first" in done.stdout
    assert "This did not happen as told: both might, the least important one first" in done.stdout
