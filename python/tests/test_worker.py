"""The actor around the user's object, without Ray."""

import json
import threading
import time
from typing import Any

import numpy as np
import pytest

from schedulemesh.bridge import worker
from schedulemesh.bridge.worker import AgentHost, NotJson, describe, plain, to_json
from schedulemesh.core.reporting import report_metrics


def host(cls: str, **more: Any) -> AgentHost:
    spec = {
        "launch_id": "l.1",
        "deployment": "d",
        "agent_name": "a",
        "labels": {"tier": "x"},
        "task_id": "t",
        "pool": "p",
        "class_path": cls if ":" in cls else f"schedulemesh.testing.agents:{cls}",
        "pickled": "",
        "args": [],
        "kwargs": {},
        "saved_state": None,
        **more,
    }
    return AgentHost(spec)


def run(
    agent: AgentHost, method: str, args: list[Any] | None = None, kwargs: dict[str, Any] | None = None
) -> None:
    agent.sm_start(method, args or [], kwargs or {})
    agent.sm_run()


def test_plain_converts_numpy() -> None:
    state = {
        "loss": np.float32(0.5),
        "step": np.int64(3),
        "done": np.bool_(True),
        "weights": np.arange(4).reshape(2, 2),
        "pair": (1, np.str_("x")),
        7: None,
    }
    assert json.loads(to_json(state)) == {
        "loss": 0.5,
        "step": 3,
        "done": True,
        "weights": [[0, 1], [2, 3]],
        "pair": [1, "x"],
        "7": None,
    }


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"loss": float("nan")}, "state.loss is nan"),
        ({"a": [1, float("inf")]}, "state.a[1] is inf"),
        ({"w": np.array([1.0, np.nan])}, "state.w[1] is nan"),
        ({"s": {1, 2}}, "state.s is a builtins.set"),
        ({"b": b"x"}, "state.b is a builtins.bytes"),
        ({"t": "a\0b"}, "state.t contains a NUL"),
        ({"t": "\ud800"}, "state.t contains a lone surrogate"),
        ({(1, 2): 3}, "only strings and numbers"),
        ({"o": object()}, "state.o is a builtins.object"),
    ],
)
def test_plain_refuses_what_json_or_a_database_cannot_hold(value: Any, said: str) -> None:
    with pytest.raises(NotJson, match=r".*") as caught:
        plain(value)
    assert said in str(caught.value)


def test_a_state_that_contains_itself_is_refused() -> None:
    state: dict[str, Any] = {}
    state["self"] = state
    with pytest.raises(NotJson, match="too deeply"):
        to_json(state)


def test_describe_survives_an_exception_that_cannot_be_printed() -> None:
    class Bad(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert describe(Bad())[0] == "Bad"
    assert describe(ValueError("a\0b"))[0] == "ValueError: a\ufffdb"


@pytest.mark.parametrize(
    ("cls", "code"),
    [
        ("no_such_module:X", "import_failed"),
        ("Missing", "import_failed"),
        ("NotAClass", "invalid_class"),
        ("BadSignature", "invalid_class"),
        ("RaisingConstructor", "constructor_failed"),
    ],
)
def test_a_launch_that_cannot_be_says_why(cls: str, code: str) -> None:
    failure = host(cls).sm_ready()["failure"]
    assert failure["code"] == code
    assert failure["message"]


def test_a_restore_that_raises() -> None:
    assert host("RaisingRestore", saved_state={"step": 1}).sm_ready()["failure"]["code"] == "restore_failed"


def test_an_entry_ends_and_is_remembered() -> None:
    agent = host("Counter")
    run(agent, "run", [3], {"step_seconds": 0})
    news = agent.sm_watch("w", False)
    assert news["entry"] == "completed"
    assert json.loads(news["outcome"]["result"]) == {"status": "completed", "step": 3}


def test_an_entry_runs_once_and_only_when_it_was_taken_over() -> None:
    agent = host("Counter")
    agent.sm_run()
    assert agent.sm_entry_state == ""
    agent.sm_start("run", [2], {})
    assert agent.sm_entry_state == "accepted"
    agent.sm_start("run", [9], {})
    agent.sm_run()
    agent.sm_run()
    run(agent, "run", [9])
    assert agent.sm_object.step == 2


def test_an_entry_that_raises_tells_where_without_our_frames() -> None:
    agent = host("Failing")
    run(agent, "run", [], {})
    outcome = agent.sm_watch("w", False)["outcome"]
    assert outcome["error"] == "ValueError: told to fail"
    assert "in run" in outcome["traceback"]
    assert "sm_run" not in outcome["traceback"]


def test_an_entry_that_is_missing_fails() -> None:
    agent = host("Counter")
    run(agent, "walk", [], {})
    assert agent.sm_watch("w", False)["outcome"]["error"] == "AttributeError: Counter has no method walk"


def test_a_newer_watcher_displaces_the_older() -> None:
    agent = host("Counter")
    said: list[Any] = []
    older = threading.Thread(target=lambda: said.append(agent.sm_watch("old", False)))
    older.start()
    while agent.sm_watcher != "old":
        time.sleep(0.001)
    newer = threading.Thread(target=agent.sm_watch, args=("new", False), daemon=True)
    newer.start()
    older.join(5)
    assert said == [{"superseded": True}]
    run(agent, "run", [1], {})
    newer.join(5)
    assert not newer.is_alive()


def test_a_hanging_cancel_does_not_hold_up_anything() -> None:
    agent = host("HangingCancel")
    assert agent.sm_cancel("t", 0.05)["timed_out"]
    assert "earlier cancel" in agent.sm_cancel("t", 60.0)["error"]
    assert json.loads(agent.sm_save(1.0)["state"])["step"] == 0


def test_what_cancel_may_answer() -> None:
    agent = host("Counter")
    for value, success in [
        (None, True),
        (True, True),
        (False, False),
        ({"success": False, "error": "no"}, False),
    ]:
        agent.sm_object.cancel = lambda _, value=value: value
        answer = agent.sm_cancel("t", 1.0)
        assert answer["success"] is success
        assert bool(answer["error"]) is not success


def test_save_adds_task_and_pool_and_falls_back() -> None:
    assert json.loads(host("Counter").sm_save(1.0)["state"]) == {"step": 0, "task_id": "t", "pool_name": "p"}
    default = {"labels": {"tier": "x"}, "task_id": "t", "pool_name": "p"}
    for cls, said in [("Echo", None), ("NanSave", "loss"), ("RaisingSave", "told to raise")]:
        answer = host(cls).sm_save(1.0)
        assert json.loads(answer["state"]) == default
        assert answer["default"] is True
        assert said is None or said in answer["error"]
    agent = host("Counter")
    agent.sm_object.save_state = lambda: [1]
    assert "must return a dict" in agent.sm_save(1.0)["error"]


def test_coroutines_run_beside_control_calls() -> None:
    agent = host("AsyncAgent")
    thread = threading.Thread(target=run, args=(agent, "run"))
    thread.start()
    while json.loads(agent.sm_save(5.0)["state"])["step"] == 0:
        time.sleep(0.001)
    assert agent.sm_cancel("t", 5.0)["success"]
    thread.join(5)
    assert json.loads(agent.sm_watch("w", False)["outcome"]["result"])["status"] == "cancelled"
    assert agent.sm_outcome is not None
    assert agent.sm_outcome["cancelled"] is True


def test_results_that_are_not_json_or_too_long_are_shown() -> None:
    assert json.loads(worker._result_json({1, 2})) == {"repr": "{1, 2}"}
    long = json.loads(worker._result_json("x" * (worker.MAX_RESULT + 1)))
    assert len(long["repr"]) == 1000


def test_reported_metrics_reach_the_watcher_together() -> None:
    agent = host("Counter")
    agent.sm_metrics_sent = time.monotonic() - 10
    for step in range(3):
        assert report_metrics({"step": np.int64(step)}) is True
    assert [json.loads(m) for m in agent.sm_watch("w", False)["metrics"]] == [{"step": s} for s in range(3)]
    for step in range(1000):
        report_metrics({"step": step})
    assert len(agent.sm_metrics) == worker.MAX_METRICS
    with pytest.raises(ValueError, match="loss is nan"):
        report_metrics({"loss": float("nan")})


def test_public_methods_and_generators_are_forwarded() -> None:
    agent = host("Echo", args=[], kwargs={"extra": 1})
    call = worker.forward("run", generator=False)
    assert call(agent, 1, b=2)["kwargs"] == {"b": 2}
    agent.sm_object.count = lambda n: iter(range(n))
    assert list(worker.forward("count", generator=True)(agent, 3)) == [0, 1, 2]

    async def slowly(n: int) -> Any:
        for i in range(n):
            yield i

    agent.sm_object.slowly = slowly
    assert list(worker.forward("slowly", generator=True)(agent, 3)) == [0, 1, 2]


def test_name_and_labels_may_be_keywords_only() -> None:
    class Keywords:
        def __init__(self, size: int, *, name: str, labels: dict[str, str]) -> None:
            self.got = (size, name, labels)

    built = host("Counter")._sm_bind(Keywords, [3], {})()
    assert built.got == (3, "a", {"tier": "x"})
