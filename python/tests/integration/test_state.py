"""What is kept of a task that makes way, and where."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from conftest import remove, until
from schedulemesh import local
from schedulemesh.core import RayScheduler
from schedulemesh.core.actors.control.preemption_controller import TaskState
from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.errors import InvalidArgument, NotPicklable


class Trainer(AgentActor):
    """Saves more than its base class does."""

    def save_state(self) -> dict[str, Any]:
        return {**super().save_state(), "step": 7}


class Undecided(Trainer):
    """Neither stops nor saves."""

    def cancel(self, task_id: str) -> dict[str, Any]:
        raise RuntimeError("not now")

    def save_state(self) -> dict[str, Any]:
        raise RuntimeError("nor this")


def running(scheduler: RayScheduler, task_id: str, cls: type = Trainer, **more: Any) -> None:
    """A task on an agent of its own."""
    scheduler.create_agent(f"{task_id}-agent", "pool", cls, resources={"cpu": 0.1})
    scheduler.register_running_task(task_id, f"{task_id}-agent", "pool", 1.0, **more)


@pytest.fixture
def pool(scheduler: RayScheduler) -> RayScheduler:
    scheduler.create_pool("pool", resources={"cpu": 1})
    return scheduler


def test_an_agents_own_state(pool: RayScheduler) -> None:
    running(pool, "job")
    done = pool.execute_preemption("job")
    assert (done["success"], done["cancel_success"], done["agent_name"]) == (True, True, "job-agent")
    assert done["saved_state"].items() >= {"step": 7, "agent": "job-agent"}.items()


def test_failure_answers(pool: RayScheduler) -> None:
    for task_id, agent in (("never", None), ("never", "nobody")):
        answer = pool.execute_preemption(task_id, agent)
        assert answer["success"] is False
        assert answer["reason"] == "unknown_task"
        assert answer["error"]
        assert (answer["cancel_success"], answer["saved_state"]) == (False, None)
    running(pool, "job", Undecided)
    answer = pool.execute_preemption("job", "job-agent")
    assert answer["cancel_success"] is False
    assert "not now" in answer["error"]
    again = pool.execute_preemption("job", "job-agent")
    assert (again["success"], again["cancel_success"]) == (False, False)  # it is preempted already


def test_a_preserver_is_told_of_the_task_and_a_restorer_gets_what_it_returned(
    pool: RayScheduler, tmp_path: Path
) -> None:
    file = tmp_path / "restored.json"

    def preserve(task: TaskState) -> dict[str, Any]:
        return {"told": {**vars(task)}, "is": type(task).__name__}

    def restore(saved_state: dict[str, Any]) -> None:
        file.write_text(json.dumps(saved_state))

    answer = pool.register_state_handlers("pool", preserver=preserve, restorer=restore)
    assert answer["success"] is True
    assert answer["preserver"].endswith("preserve")
    running(pool, "job", labels={"stage": "sft"}, estimated_duration=60.0, payload={"shard": 3})
    state = pool.execute_preemption("job")["saved_state"]
    started_at = state["told"].pop("started_at")
    assert started_at > 1.7e9
    assert state == {
        "is": "TaskState",
        "told": {
            "task_id": "job",
            "agent_name": "job-agent",
            "pool_name": "pool",
            "priority": 1,
            "labels": {"stage": "sft"},
            "payload": {"shard": 3},
            "estimated_duration": 60,
            "attempt": 1,
        },
        "task_id": "job",
        "pool_name": "pool",
    }
    state["told"]["started_at"] = started_at
    assert pool.restore_task(state)["success"] is True
    assert json.loads(file.read_text()) == state
    # Without handlers it is the agent's own state again.
    pool.register_state_handlers("pool")
    running(pool, "next")
    assert pool.execute_preemption("next")["saved_state"]["step"] == 7


def test_a_preserver_that_fails_falls_back(pool: RayScheduler) -> None:
    def fail(task: TaskState) -> dict[str, Any]:
        raise OSError("the disk is full")

    pool.register_state_handlers("pool", preserver=fail)
    running(pool, "job")
    done = pool.execute_preemption("job")
    assert done["cancel_success"] is True
    assert done["saved_state"]["step"] == 7
    (preemption,) = pool.client.preemptions()
    assert "the disk is full" in pool.client.preemption(preemption["id"])["save_error"]


def test_restoring_what_cannot_be_restored(pool: RayScheduler) -> None:
    assert pool.restore_task({"pool_name": "pool", "task_id": "t"})["success"] is True  # nothing to run
    for state in ({"task_id": "t"}, {}):
        answer = pool.restore_task(state)
        assert answer["success"] is False
        assert "pool_name" in answer["error"]
    answer = pool.restore_task("state")  # type: ignore[arg-type]
    assert (answer["success"], answer["reason"]) == (False, "invalid_argument")


def test_handlers_that_cannot_be(pool: RayScheduler) -> None:
    lock = threading.Lock()
    with pytest.raises(InvalidArgument, match="one argument"):
        pool.register_state_handlers("pool", preserver=lambda: {"step": 1})
    with pytest.raises(InvalidArgument, match="restorer"):
        pool.register_state_handlers("pool", restorer="a string")  # type: ignore[arg-type]
    with pytest.raises(NotPicklable):
        pool.register_state_handlers("pool", preserver=lambda task: {"lock": lock})


def test_states_are_mirrored_as_whole_files(driver: local.Started, name: str, tmp_path: Path) -> None:
    scheduler = RayScheduler(name, detached=True, state_path=tmp_path)
    try:
        scheduler.create_pool("pool", resources={"cpu": 1})
        file = tmp_path / name / "job.json"
        stop, broken = threading.Event(), []

        def read() -> None:
            while not stop.is_set():
                try:
                    json.loads(file.read_text())
                except FileNotFoundError:
                    continue
                except ValueError as error:
                    broken.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        scheduler.create_agent("agent", "pool", Trainer, resources={"cpu": 1})
        for _ in range(5):
            scheduler.register_running_task("job", "agent", "pool", 1.0)
            done = scheduler.execute_preemption("job", "agent")
            assert json.loads(file.read_text()) == done["saved_state"]  # before the call returns
        stop.set()
        reader.join()
        assert broken == []
        assert [path.name for path in file.parent.iterdir()] == ["job.json"]
        # Also what others save: here somebody attached without files.
        other = RayScheduler.attach(name)
        scheduler.register_running_task("another/job", "agent", "pool", 1.0)
        other.execute_preemption("another/job", "agent")
        other.shutdown()
        until(lambda: len(list(file.parent.iterdir())) == 2)
    finally:
        scheduler.shutdown()
        remove(driver, name)
    assert file.is_file()  # the files are the user's


def test_a_state_path_that_cannot_be_used(driver: local.Started, name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument, match="state_path"):
        RayScheduler(name, state_path=tmp_path / "file")
