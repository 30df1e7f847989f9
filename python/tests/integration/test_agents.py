"""Agents at work: they process, stop when told to, report, and are looked after."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from conftest import until
from schedulemesh.core import RayScheduler
from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.core.agents import MetricsReportingAgent


class Stepper(MetricsReportingAgent):
    """Works in steps, as fast as it can, and reports each."""

    def work(self, task_id: str) -> dict[str, int]:
        step = 0
        while not self.is_cancelled(task_id):
            step += 1
            self.report_metrics({"step": step})
            time.sleep(0.001)
        self.last = step
        return {"stopped_at": step}

    def save_state(self) -> dict[str, Any]:
        return {**super().save_state(), "step": getattr(self, "last", -1)}


@pytest.fixture
def pool(scheduler: RayScheduler) -> RayScheduler:
    scheduler.create_pool("pool", resources={"cpu": 1})
    return scheduler


def agent(scheduler: RayScheduler, name: str, cls: Any = AgentActor, **more: Any) -> Any:
    return scheduler.create_agent(name, "pool", cls, resources={"cpu": 0.2}, **more)


def test_process(pool: RayScheduler) -> None:
    import ray

    one = agent(pool, "one", labels={"tier": "gold"})
    done = ray.get(one.process.remote({"x": [1, 2]}, task_id="job", simulated_duration=0.05))
    assert done["elapsed"] >= 0.05
    assert (done["status"], done["task_id"], done["agent"], done["payload"]) == (
        "completed",
        "job",
        "one",
        {"x": [1, 2]},
    )


def test_cancel_stops_a_busy_agent_at_its_next_step(pool: RayScheduler) -> None:
    import ray

    busy = agent(pool, "busy", Stepper)
    pool.register_running_task("job", "busy", "pool", 1.0)
    work = busy.work.remote("job")
    until(lambda: (pool.list_agents()[0]["metrics"] or {}).get("step"))
    assert ray.get(busy.ping.remote(), timeout=5) == "pong"  # while it works
    done = pool.execute_preemption("job", "busy")
    assert (done["success"], done["cancel_success"]) == (True, True)
    assert ray.get(work, timeout=5)["stopped_at"] > 0
    # Idle, it takes the next.
    pool.register_running_task("next", "busy", "pool", 1.0)
    assert ray.get(busy.process.remote(1, task_id="next"), timeout=5)["status"] == "completed"


def test_reports_never_wait_and_not_more_often_than_wanted(pool: RayScheduler) -> None:
    import ray

    class Timed(MetricsReportingAgent):
        def train(self) -> tuple[int, float]:
            sent, slowest = 0, 0.0
            for step in range(2000):
                started = time.monotonic()
                sent += self.report_metrics(step=step)
                slowest = max(slowest, time.monotonic() - started)
            return sent, slowest

    eager = agent(pool, "eager", Timed, actor_kwargs={"supervisor": pool.supervisor_handle()})
    sent, slowest = ray.get(eager.train.remote())
    assert sent == 2000
    assert slowest < 0.5
    patient = agent(pool, "patient", Timed, actor_kwargs={"report_interval": 3600.0})
    sent, _ = ray.get(patient.train.remote())
    assert sent == 1
    figures = {"eager": {"step": 1999}, "patient": {"step": 0}}
    until(lambda: {one["name"]: one["metrics"] for one in pool.list_agents()} == figures)


def test_health(pool: RayScheduler) -> None:
    import ray

    def found(name: str) -> Any:
        return next(
            (one for one in pool.list_agents() if one["name"] == name and one["state"] == "running"), None
        )

    well, frozen = agent(pool, "well"), agent(pool, "frozen")
    health = pool.ensure_agent_health(timeout=120)
    assert (health["success"], health["checked"]) == (True, 2)
    assert set(health["healthy"]) == {"well", "frozen"}
    assert (health["unhealthy"], health["removed"], health["recreated"]) == ([], [], [])

    first = found("frozen")["pid"]
    os.kill(first, signal.SIGSTOP)
    told = pool.ensure_agent_health(timeout=3, recreate=False)
    assert [one["name"] for one in told["unhealthy"]] == ["frozen"]
    assert told["unhealthy"][0]["reason"]
    assert (told["healthy"], told["removed"], told["recreated"]) == (["well"], [], [])
    assert found("frozen")["pid"] == first  # only told

    done = pool.ensure_agent_health(timeout=3)
    assert (done["removed"], done["recreated"]) == (["frozen"], ["frozen"])
    second = until(lambda: found("frozen") and found("frozen")["pid"] != first and found("frozen"))
    assert ray.get(second.ping.remote(), timeout=10) == "pong"
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(frozen.ping.remote(), timeout=10)

    # One that died by itself is made again as well.
    os.kill(second["pid"], signal.SIGKILL)
    until(lambda: not found("frozen"))
    assert pool.ensure_agent_health()["recreated"] == ["frozen"]
    assert ray.get(until(lambda: found("frozen")).ping.remote(), timeout=10) == "pong"
    assert ray.get(well.ping.remote()) == "pong"
