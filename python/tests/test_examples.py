"""The training demo: its training is exactly repeatable, its agent stops and resumes, its story is checked.

The story itself needs a whole server: ``make demo``.
"""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from examples import training_preemption_demo as demo  # noqa: E402
from examples.api import API, APIError  # noqa: E402
from examples.digits import DigitsTraining  # noqa: E402
from examples.training_agent import TrainingAgentActor  # noqa: E402

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


def test_progress_is_printed_the_way_the_demo_reads_it(capsys: pytest.CaptureFixture[str]) -> None:
    TrainingAgentActor("a", {}, steps=101).train(task_id="t")
    said = demo._PROGRESS.findall(capsys.readouterr().out)
    assert [int(step) for step, _ in said] == [50, 100, 101]


def test_a_worker_finds_and_builds_it_by_the_path_the_demo_submits() -> None:
    program = """
import importlib, sys
module, _, name = sys.argv[1].partition(":")
agent = getattr(importlib.import_module(module), name)("a", {"training_stage": "rlhf"}, steps=3, seed=1)
print(agent.train(task_id="t")["fingerprint"])
"""
    out = subprocess.run(
        [sys.executable, "-c", program, demo.ACTOR_CLASS],
        env={**os.environ, "PYTHONPATH": demo.worker_path()},
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


# The calls.


class Stub(http.server.BaseHTTPRequestHandler):
    """Answers what it is told to, and remembers what it was asked."""

    answers: list[tuple[int, bytes]]
    asked: list[tuple[str, str, str]]

    def do_GET(self) -> None:
        self.asked.append((self.command, self.path, self.headers.get("Authorization", "")))
        status, body = self.answers.pop(0)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def stub() -> Iterator[tuple[str, type[Stub]]]:
    handler = type("Handler", (Stub,), {"answers": [], "asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    for name in ("URL", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"SCHEDULEMESH_{name}", raising=False)
    monkeypatch.setenv("SCHEDULEMESH_DATA", str(tmp_path))
    return monkeypatch


def test_it_finds_the_server_and_its_token(settings: pytest.MonkeyPatch, tmp_path: Path) -> None:
    api = API.find("demo")
    assert (api.url, api.token) == ("http://127.0.0.1:8080", "")
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "url").write_text("http://127.0.0.1:9999/\n")
    api = API.find("demo")
    assert (api.url, api.token) == ("http://127.0.0.1:9999", "secret")
    settings.setenv("SCHEDULEMESH_URL", "http://elsewhere")
    settings.setenv("SCHEDULEMESH_TOKEN", "another")
    api = API.find("demo")
    assert (api.url, api.token) == ("http://elsewhere", "another")


def test_no_server_is_a_sentence(settings: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    settings.setenv("SCHEDULEMESH_URL", "http://127.0.0.1:1")
    assert demo.main([]) == 1
    assert "start one with `make run`" in capsys.readouterr().err


def test_a_refused_token_and_a_refused_call_are_sentences(stub: tuple[str, type[Stub]]) -> None:
    url, handler = stub
    api = API(url, "secret", "a b")
    handler.answers += [
        (401, b"{}"),
        (409, json.dumps({"code": "pool_exists", "title": "It exists", "detail": "there is one"}).encode()),
        (404, b"<html>"),
    ]
    with pytest.raises(APIError, match="does not accept this token"):
        api.get("/pools")
    with pytest.raises(APIError, match="there is one") as refused:
        api.post("/pools", {}, wait="1s")
    assert refused.value.code == "pool_exists"
    with pytest.raises(APIError, match="no ScheduleMesh server"):
        api.get("/pools")
    assert handler.asked[1] == ("POST", "/api/v1/pools?namespace=a+b&wait=1s", "Bearer secret")


def test_a_broken_stream_is_taken_up_behind_its_last_event(stub: tuple[str, type[Stub]]) -> None:
    url, handler = stub
    one, two = ({"id": i, "type": "running"} for i in (7, 9))
    handler.answers += [
        (200, b": alive\n\n" + f"id: 7\ndata: {json.dumps(one)}\n\n".encode()),
        (200, f"id: 9\ndata: {json.dumps(two)}\n\n".encode()),
        (401, b"{}"),
    ]
    events = API(url, "", "demo").events(after=5, idle=30)
    assert [next(events), next(events)] == [one, two]
    with pytest.raises(APIError, match="does not accept"):
        next(events)
    assert [path.rpartition("after=")[2] for _, path, _ in handler.asked] == ["5", "7", "9"]


def test_idle_events_say_so(stub: tuple[str, type[Stub]]) -> None:
    url, handler = stub
    free = threading.Event()
    handler.do_GET = lambda self: free.wait()  # type: ignore
    assert next(API(url, "", "demo").events(after=5, idle=0.01)) is None
    free.set()


# The story's end.


def event(kind: str, second: int, attempt: int) -> dict[str, Any]:
    return {"type": kind, "at": f"2026-01-01T00:00:{second:02}.000Z", "attempt": attempt}


TURNS = [
    event("submitted", 0, 1),
    event("running", 1, 1),
    event("preempting", 5, 1),
    event("phase:saving", 6, 1),
    event("queued", 7, 1),
    event("running", 12, 2),
    event("stopping", 20, 2),
    event("completed", 21, 2),
]


def test_who_ran_when_is_read_from_the_timeline() -> None:
    runs = demo.runs_of("pretraining", TURNS)
    first, second = runs
    assert (first.attempt, first.end - first.start, first.outcome) == (1, 4, "made way")
    assert (second.attempt, second.end - second.start, second.outcome) == (2, 8, "completed")
    head, *lines = demo.table(runs, width=19)
    assert head.split() == ["task", "attempt", "from", "to"]
    assert lines[0].split() == ["pretraining", "1", "0.0", "s", "4.0", "s", "####", "made", "way"]
    assert lines[1].endswith("           ######## completed")


class Told:
    """A server on which everything happened as told, but for what a test changes."""

    url = "http://server"

    def __init__(self, story: demo.Story) -> None:
        here = trained(STEPS)
        story.undisturbed = here
        ids = {"task_id": story.pretraining.task_id, "preemptor_task_id": story.rlhf.task_id}
        self.preemption = {
            **ids,
            "id": 1,
            "reason": "label_based_preemption",
            "cancel_success": True,
            "saved_state": {"step": 5, "accuracy": 0.9},
        }
        self.pretraining: dict[str, Any] = {
            "state": "completed",
            "priority": 5,
            "preemptions": 1,
            "attempt": 2,
        }
        self.pretraining["result"] = {
            "step": STEPS,
            "resumed_from": 5,
            "accuracy": here.accuracy(),
            "fingerprint": here.fingerprint(),
        }
        self.rlhf = {"state": "completed", "priority": 5, "preemptions": 0, "attempt": 1}
        self.rlhf_events = [event("running", 8, 1), event("stopping", 10, 1)]
        self.answers: dict[str, Callable[[], Any]] = {
            "/preemptions": lambda: {"items": [self.preemption]},
            "/preemptions/1": lambda: self.preemption,
            f"/tasks/{story.pretraining.task_id}": lambda: self.pretraining,
            f"/tasks/{story.rlhf.task_id}": lambda: self.rlhf,
            f"/tasks/{story.pretraining.task_id}/events": lambda: {"items": TURNS},
            f"/tasks/{story.rlhf.task_id}/events": lambda: {"items": self.rlhf_events},
        }

    def get(self, path: str) -> Any:
        return self.answers[path]()

    def page(self, kind: str, name: str) -> str:
        return f"{self.url}/{kind}/{name}"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda told: None, None),
        (lambda told: told.pretraining["result"].update(accuracy=0.5), "accuracy of the undisturbed run"),
        (lambda told: told.pretraining["result"].update(fingerprint="another"), "same weights"),
        (lambda told: told.pretraining["result"].update(resumed_from=0), "resumed where it was saved"),
        (lambda told: told.pretraining.update(state="failed", result=None), "resumed where it was saved"),
        (lambda told: told.preemption.update(reason="same_pool_preemption"), "by label"),
        (lambda told: told.preemption.update(cancel_success=False), "stopped when asked"),
        (lambda told: told.preemption.update(saved_state=None), "stopped when asked"),
        (lambda told: told.rlhf.update(preemptions=1), "rlhf completed"),
        (lambda told: told.rlhf_events.append(event("running", 14, 2)), "took turns"),
        (lambda told: told.rlhf_events.__setitem__(1, event("stopping", 15, 1)), "took turns"),
    ],
)
def test_the_demo_notices_what_did_not_happen_as_told(
    change: Callable[[Told], None], complaint: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    story = demo.Story(None, STEPS)  # type: ignore[arg-type]
    told = Told(story)
    story.api = told  # type: ignore[assignment]
    change(told)
    assert story.report() is (complaint is None)
    complaints = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  NO")]
    if complaint is None:
        assert complaints == []
    else:
        assert any(complaint in line for line in complaints)
