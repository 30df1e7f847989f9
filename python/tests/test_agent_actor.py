"""The base class of agents, without Ray."""

import threading
import time

from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.core.reporting import report_metrics


def test_process_completes() -> None:
    answer = AgentActor("a", {"k": "v"}).process({"x": 1}, task_id="t", simulated_duration=0.02)
    assert answer["status"] == "completed"
    assert answer["payload"] == {"x": 1}
    assert answer["task_id"] == "t"
    assert answer["elapsed"] >= 0.02


def test_cancel_stops_what_runs() -> None:
    agent = AgentActor("a", {})
    answers: list[dict[str, object]] = []
    thread = threading.Thread(target=lambda: answers.append(agent.process(None, "t", 60.0)))
    thread.start()
    while not agent.cancel("t")["was_running"]:
        time.sleep(0.001)
    thread.join(5)
    assert answers[0]["status"] == "cancelled"


def test_a_cancel_that_overtakes_its_task_still_counts_once() -> None:
    agent = AgentActor("a", {})
    assert agent.cancel("t") == {"success": True, "task_id": "t", "agent": "a", "was_running": False}
    assert agent.is_cancelled("t")
    assert agent.process(None, "t", 60.0)["status"] == "cancelled"
    assert agent.process(None, "t")["status"] == "completed"


def test_state_goes_round() -> None:
    agent = AgentActor("a", {"tier": "x"}, report_interval=1.0)
    agent.process(None)
    state = agent.save_state()
    assert state == {"agent": "a", "labels": {"tier": "x"}, "processed": 1}
    other = AgentActor("b", {})
    other.restore_state(state)
    assert other.save_state()["processed"] == 1
    assert other.restored_state == state
    assert agent.options == {"report_interval": 1.0}
    assert agent.ping() == "pong"


def test_cancelled_ids_do_not_pile_up() -> None:
    agent = AgentActor("a", {})
    assert not agent.is_cancelled()
    for i in range(5000):
        agent.cancel(f"t{i}")
    assert not agent.is_cancelled("t0")
    assert agent.is_cancelled("t4999")
    assert agent.is_cancelled()


def test_metrics_outside_an_agent_go_nowhere_and_say_so() -> None:
    assert report_metrics({"loss": 1.0}) is False
