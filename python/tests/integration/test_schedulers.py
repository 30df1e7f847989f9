"""Every call of the two schedulers, with the answers scripts rely on."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest

from conftest import held, remove, until
from schedulemesh import local
from schedulemesh.agent import Agent
from schedulemesh.core import RayScheduler
from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.core.agents import MetricsReportingAgent
from schedulemesh.errors import InsufficientResources, Invalid, ServerError, UnknownPool
from schedulemesh.simple import SimpleScheduler, SimpleTaskSpec


class Worker:
    """An agent as users write one."""

    def __init__(self, name: str, labels: dict[str, str], start: int = 0, *, step: int = 1) -> None:
        self.name, self.labels, self.count, self.step = name, labels, start, step

    def next(self) -> int:
        self.count += self.step
        return self.count

    def cancel(self, task_id: str) -> dict[str, Any]:
        return {"success": True, "task_id": task_id}

    def save_state(self) -> dict[str, Any]:
        return {"count": self.count}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def submit(
    scheduler: Any, task_id: str, priority: float = 5.0, cpu: float = 1, **more: Any
) -> dict[str, Any]:
    call = getattr(scheduler, "submit", None) or scheduler.submit_task_with_preemption
    pool = {"pool" if hasattr(scheduler, "submit") else "pool_name": more.pop("pool", "pool")}
    return call(
        task_id=task_id, priority=priority, resources={"cpu": cpu}, actor_class=Worker, **pool, **more
    )


# Pools.


def test_a_pool_that_exists_is_changed(simple: SimpleScheduler) -> None:
    made = simple.ensure_pool("pool", {"tier": "standard"}, {"cpu": 2, "memory": 4.0}, target_agents=2)
    assert made["resources"] == {"cpu": 2, "memory": 4}
    assert made["target_agents"] == 2
    changed = simple.scheduler.create_pool("pool", labels={"tier": "premium"}, resources={"cpu": 3, "gpu": 1})
    assert changed["labels"] == {"tier": "premium"}
    assert changed["resources"].items() >= {"cpu": 3, "gpu": 1}.items()
    assert changed["target_agents"] == 2  # what is not named stays
    assert simple.list_pools() == [changed] == [simple.get_pool("pool")]
    with pytest.raises(UnknownPool):
        simple.get_pool("elsewhere")


def test_a_pool_does_not_shrink_below_what_is_used(simple: SimpleScheduler) -> None:
    simple.ensure_pool("pool", resources={"cpu": 2})
    assert submit(simple, "task", cpu=2)["success"]
    with pytest.raises(ServerError, match="cpu"):
        simple.ensure_pool("pool", resources={"cpu": 1})
    assert simple.get_pool("pool")["resources"] == {"cpu": 2}


# Submission.


def test_submit_and_complete(simple: SimpleScheduler) -> None:
    import ray

    simple.ensure_pool("pool", resources={"cpu": 2, "memory": 100})
    answer = submit(
        simple, "task", labels={"user": "alice"}, actor_args=[10], actor_kwargs={"step": 5}, agent_name="mine"
    )
    agent = answer["agent"]
    assert answer["success"] is True
    assert (answer["task_id"], answer["state"], answer["preempted"]) == ("task", "running", [])
    assert (agent["name"], agent["resources"]) == ("mine", {"cpu": 1})
    assert agent["labels"] == {"pool": "pool", "user": "alice"}
    assert isinstance(agent["handle"], ray.actor.ActorHandle)
    assert ray.get(agent["handle"].next.remote()) == 15
    assert ray.get(agent.next.remote()) == 20  # the agent is as good as its handle
    assert (agent.name, agent.pool) == ("mine", "pool")
    assert held(simple) == {"pool": {"cpu": 1}}

    assert simple.complete("task") == {"success": True, "task_id": "task", "state": "completed"}
    assert held(simple) == {}
    assert simple.list_agents() == []
    assert simple.complete("task")["success"] is True  # it is over, which is what was wanted
    assert simple.complete("never")["reason"] == "unknown_task"


def test_a_spec_is_submit_as_a_value(simple: SimpleScheduler) -> None:
    import ray

    simple.ensure_pool("pool", resources={"cpu": 1})
    spec = SimpleTaskSpec(
        task_id="task",
        pool="pool",
        actor_class=Worker,
        resources={"cpu": 0.5},
        priority=7.0,
        labels={"tier": "premium"},
        actor_args=[1],
        estimated_duration=30.0,
        options={"payload": {"epoch": 3}},
    )
    answer = simple.submit_spec(spec)
    assert answer["success"] is True
    assert ray.get(answer["agent"].next.remote()) == 2
    assert answer["task"]["priority"] == 7
    assert answer["task"]["estimated_duration"] == 30
    assert simple.client.task("task")["payload"] == {"epoch": 3}


def test_submitting_twice_is_once(simple: SimpleScheduler) -> None:
    simple.ensure_pool("pool", resources={"cpu": 2})
    first = submit(simple, "task")
    again = submit(simple, "task")
    assert again["agent"]["name"] == first["agent"]["name"]
    assert held(simple) == {"pool": {"cpu": 1}}
    other = submit(simple, "task", priority=9.0)
    assert (other["success"], other["reason"]) == (False, "task_exists")


@pytest.mark.parametrize("simply", [True, False])
def test_submission_in_a_placement_group(simple: SimpleScheduler, simply: bool) -> None:
    simple.ensure_pool("pool", resources={"cpu": 1})
    if simply:
        answer = simple.submit_with_pg_preemption(
            task_id="task", pool="pool", resources={"cpu": 1}, actor_class=Worker
        )
    else:
        answer = simple.submit_task_with_pg_preemption(
            task_id="task", pool_name="pool", resources={"cpu": 1}, actor_class=Worker
        )
    assert answer["success"] is True
    assert answer["task"]["use_placement_group"] is True


def test_a_name_of_rays_own(simple: SimpleScheduler, name: str) -> None:
    import ray

    simple.ensure_pool("pool", resources={"cpu": 1})
    answer = submit(simple, "task", ray_options={"name": f"actor-{name}"})
    assert answer["success"] is True
    # Found as Ray's users find an actor: in the namespace of the script.
    assert ray.get(ray.get_actor(f"actor-{name}").next.remote()) == 1


def test_the_ray_namespace_of_agents(driver: local.Started, name: str) -> None:
    import ray

    with SimpleScheduler(name, namespace=f"of-{name}") as simple:
        simple.ensure_pool("pool", resources={"cpu": 1})
        agent = submit(simple, "task")["agent"]
        assert agent["ray_namespace"] == f"of-{name}"
        assert ray.get(ray.get_actor(agent["actor_name"], namespace=f"of-{name}").next.remote()) == 1


# What happens when room is short.


def test_scenario_enough_room(simple: SimpleScheduler) -> None:
    simple.ensure_pool("pool", resources={"cpu": 2})
    assert submit(simple, "low", 1.0)["success"]
    answer = submit(simple, "high", 9.0)
    assert (answer["success"], answer["preempted"]) == (True, [])
    assert len(simple.list_agents("pool")) == 2


def test_scenario_somebody_makes_way(simple: SimpleScheduler) -> None:
    import ray

    simple.ensure_pool("pool", resources={"cpu": 2})
    lowest = submit(simple, "lowest", 1.0)
    submit(simple, "low", 2.0)
    answer = submit(simple, "high", 9.0)
    (victim,) = answer["preempted"]
    assert (victim["task_id"], victim["reason"]) == ("lowest", "same_pool_preemption")
    assert (victim["agent_name"], victim["pool_name"]) == (lowest["agent"]["name"], "pool")
    assert victim["preempt_score"] == 8.0
    assert ray.get(answer["agent"].next.remote()) == 1
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(lowest["agent"].next.remote(), timeout=10)
    assert simple.client.task("lowest")["state"] == "preempted"
    assert held(simple) == {"pool": {"cpu": 2}}


def test_scenario_nobody_makes_way(simple: SimpleScheduler) -> None:
    simple.ensure_pool("pool", resources={"cpu": 1})
    submit(simple, "high", 9.0)
    answer = submit(simple, "low", 1.0)
    assert answer["success"] is False
    assert answer["reason"] == "preemption_failed"
    assert answer["error"] == "Insufficient resources and no available preemption candidates"
    assert "cpu" in answer["detail"]
    assert [agent["task_ids"] for agent in simple.list_agents()] == [["high"]]
    assert held(simple) == {"pool": {"cpu": 1}}


def test_scenario_across_pools_and_by_hand(simple: SimpleScheduler) -> None:
    simple.ensure_pool("standard", resources={"cpu": 1})
    simple.ensure_pool("premium", resources={"cpu": 1})
    submit(simple, "cheap", 1.0, pool="standard")
    submit(simple, "first", 9.0, pool="premium")
    # By itself: the low task of the other pool makes way, and its pool lends.
    answer = submit(simple, "second", 8.0, pool="premium")
    assert [v["reason"] for v in answer["preempted"]] == ["cross_pool_preemption"]
    assert [loan["borrower"] for loan in simple.get_pool("standard")["loans"]] == ["premium"]
    assert simple.complete("second")["success"]
    assert simple.get_pool("standard")["loans"] == []
    # Where nobody may be taken: by hand, then the agent is deleted, then there is room.
    simple.update_preemption_policy(enable_cross_pool_preemption=False)
    assert submit(simple, "third", 8.0, pool="premium")["success"] is False
    by_hand = simple.preempt_task(target_task_id="first")
    assert by_hand["success"] is True
    assert by_hand["chosen_candidate"]["task_id"] == "first"
    agent = by_hand["execution"]["agent_name"]
    assert simple.delete_agent(agent, force=True)["success"]
    assert submit(simple, "third", 8.0, pool="premium")["success"]
    stats = simple.stats()
    assert (stats["total_preemptions"], stats["cross_pool_preemptions"]) == (2, 1)


def test_waiting_instead_of_failing(simple: SimpleScheduler) -> None:
    simple.ensure_pool("pool", resources={"cpu": 1})
    submit(simple, "first")
    answer = submit(simple, "second", on_insufficient="queue")
    assert (answer["success"], answer["state"], answer["agent"]) == (True, "queued", None)
    simple.complete("first")
    assert simple.client.task("second", wait=30)["state"] == "running"


def test_what_was_saved_is_given_back(simple: SimpleScheduler) -> None:
    import ray

    simple.ensure_pool("pool", resources={"cpu": 1})
    low = submit(simple, "low", 1.0, on_preempted="requeue", actor_args=[40])
    ray.get(low["agent"].next.remote())
    assert submit(simple, "high", 9.0)["preempted"][0]["task_id"] == "low"
    simple.complete("high")
    assert simple.client.task("low", wait=30)["attempt"] == 2
    (agent,) = simple.list_agents()
    assert ray.get(agent.next.remote()) == 42


# Agents.


def test_agents(scheduler: RayScheduler) -> None:
    import ray

    scheduler.create_pool("pool", resources={"cpu": 4, "memory": 80}, target_agents=4)
    agent = scheduler.create_agent(name="one", pool="pool", actor_class=AgentActor, labels={"tier": "gold"})
    assert isinstance(agent, Agent)
    assert agent["labels"] == {"pool": "pool", "tier": "gold"}
    assert agent["resources"].items() >= {"cpu": 1, "memory": 20}.items()  # an equal share
    done = ray.get(agent.handle.process.remote({"x": 1}, task_id="job", simulated_duration=0.01))
    assert (done["status"], done["task_id"], done["payload"]) == ("completed", "job", {"x": 1})
    scheduler.create_agent("two", "pool", Worker, resources={"cpu": 0.5}, actor_args=[7])
    assert {agent["name"] for agent in scheduler.list_agents()} == {"one", "two"}
    assert scheduler.list_agents("elsewhere") == []
    assert held(scheduler) == {"pool": {"cpu": 1.5, "memory": 20}}
    with pytest.raises(InsufficientResources):
        scheduler.create_agent("three", "pool", Worker, resources={"cpu": 3})

    assert scheduler.delete_agent("one") == {"success": True, "agent_name": "one"}
    assert held(scheduler) == {"pool": {"cpu": 0.5}}
    assert scheduler.delete_agent("one")["success"] is True  # gone already
    scheduler.register_running_task("job", "two", "pool", 1.0)
    busy = scheduler.delete_agent("two")
    assert busy["success"] is False
    assert busy["reason"] == "wrong_state"
    assert scheduler.delete_agent("two", force=True, destroy_pg=False)["success"] is True
    assert held(scheduler) == {}


def test_registered_tasks(scheduler: RayScheduler) -> None:
    scheduler.create_pool("pool", resources={"cpu": 1})
    scheduler.create_agent("agent", "pool", AgentActor, resources={"cpu": 1})
    answer = scheduler.register_running_task(
        "job", "agent", "pool", 2.0, {"stage": "sft"}, estimated_duration=50.0, payload={"a": 1}
    )
    assert answer == {"success": True, "task_id": "job"}
    assert held(scheduler) == {"pool": {"cpu": 1}}  # the agent's, not the task's
    found = scheduler.evaluate_preemption(5.0, "pool", incoming_task_resources={"cpu": 1})
    assert found["decision"]
    assert found["candidates"][0]["task_id"] == "job"
    assert found["candidates"][0]["agent_name"] == "agent"
    assert scheduler.evaluate_preemption(5.0, "pool", limit=1)["candidates"]
    assert scheduler.unregister_task("job")["success"] is True
    assert scheduler.evaluate_preemption(5.0, "pool") == {
        "should_preempt": False,
        "candidates": [],
        "policy_version": found["policy_version"],
    }
    assert scheduler.unregister_task("job")["success"] is True
    assert scheduler.unregister_task("never")["success"] is False
    assert [agent["task_ids"] for agent in scheduler.list_agents()] == [[]]


def test_preempting_by_hand(scheduler: RayScheduler) -> None:
    scheduler.create_pool("pool", resources={"cpu": 1})
    scheduler.create_agent("agent", "pool", AgentActor, resources={"cpu": 1})
    for how in (
        {"target_task_id": "job"},
        {"target_agent_name": "agent"},
        {"incoming_task_priority": 9.0, "incoming_task_pool": "pool"},
    ):
        scheduler.register_running_task("job", "agent", "pool", 1.0)
        answer = scheduler.preempt_task(**how)
        assert answer["success"] is True, answer
        assert answer["chosen_candidate"]["task_id"] == "job"
        assert answer["chosen_candidate"]["agent_name"] == "agent"
        assert answer["execution"]["success"] is True
        assert answer["execution"]["cancel_success"] is True
        assert answer["execution"]["saved_state"]["agent"] == "agent"
        # The agent stays, idle.
        assert [agent["task_ids"] for agent in scheduler.list_agents()] == [[]]
    nobody = {"chosen_candidate": None, "execution": None}
    for wrong, reason in (
        ({"target_task_id": "never"}, "unknown_task"),
        ({"target_agent_name": "never"}, "unknown_agent"),
        ({"target_agent_name": "agent"}, "no_task"),
        ({"incoming_task_priority": 9.0, "incoming_task_pool": "pool"}, "preemption_failed"),
        ({}, "invalid_argument"),
    ):
        answer = scheduler.preempt_task(**wrong)
        assert answer.items() >= {"success": False, "reason": reason, **nobody}.items()
        assert answer["error"]


# Policy and figures.


def test_what_was_evaluated_counts_under_its_rule(scheduler: RayScheduler) -> None:
    scheduler.update_preemption_policy(label_preemption_rules={"tier": {"premium": ["batch"]}})
    for task_id, labels in [("labelled", {"tier": "batch"}), ("plain", {}), ("unasked", {})]:
        assert scheduler.register_running_task(task_id, "nobody", "elsewhere", 1.0, labels)["success"]
    found = scheduler.evaluate_preemption(5.0, "elsewhere", {"tier": "premium"})
    assert {one["task_id"] for one in found["candidates"]} == {"labelled", "plain", "unasked"}
    for task_id in ("labelled", "plain"):
        assert scheduler.execute_preemption(task_id, "nobody")["success"]
    scheduler.evaluate_preemption(0.0, "elsewhere")  # for which nobody would make way
    assert scheduler.execute_preemption("unasked", "nobody")["success"]
    stats = scheduler.get_preemption_stats()
    assert stats["total_preemptions"] == 3
    assert stats["label_preemptions"] == stats["same_pool_preemptions"] == 1
    reasons = [one["reason"] for one in stats["recent_preemptions"]]
    assert reasons == ["manual", "same_pool_preemption", "label_based_preemption"]


def test_any_subset_of_the_policy(scheduler: RayScheduler) -> None:
    before = scheduler.get_preemption_policy()
    changed = scheduler.update_preemption_policy(
        cancel_timeout=1.5,
        protected_pools=("a",),
        preemption_aggressiveness="low",
        label_priority_threshold=0.2,
    )
    expected = {
        **before,
        "cancel_timeout": 1.5,
        "protected_pools": ["a"],
        "same_pool_priority_threshold": 3.0,
        "label_priority_threshold": 0.2,  # what is named beside it wins
        "version": changed["version"],
        "warnings": changed["warnings"],
    }
    assert changed == expected == scheduler.get_preemption_policy()
    for wrong in (
        {"no_such_field": 1},
        {"cancel_timeout": -1},
        {"min_preempt_score": float("inf")},
        {"same_pool_priority_threshold": "high"},
        {"label_preemption_rules": {"tier": {"a": ["b"], "b": ["a"]}}},
    ):
        with pytest.raises((Invalid, ValueError)):
            scheduler.update_preemption_policy(**wrong)
    assert scheduler.get_preemption_policy() == changed
    with pytest.raises(TypeError):
        scheduler.update_preemption_policy(preemption_aggressiveness=3)


def test_stats_at_a_glance(simple: SimpleScheduler) -> None:
    simple.ensure_pool("pool", {"tier": "standard"}, {"cpu": 2})
    submit(simple, "task")
    stats = simple.stats()
    assert stats["pools"] == {
        "pool": {
            "resources": {"cpu": 2},
            "available": {"cpu": 1},
            "running": 1,
            "queued": 0,
            "labels": {"tier": "standard"},
        }
    }
    assert (stats["agents"], stats["running_tasks"], stats["total_preemptions"]) == (1, 1, 0)


def test_figures_reach_the_scheduler(driver: local.Started, scheduler: RayScheduler) -> None:
    import ray

    scheduler.create_pool("pool", resources={"cpu": 2})
    scheduler.create_agent("waits", "pool", AgentActor, resources={"cpu": 1})

    def metrics(name: str) -> Any:
        return next(agent for agent in scheduler.list_agents() if agent["name"] == name)["metrics"]

    assert scheduler.update_agent_metrics("waits", {"loss": 0.5})["success"] is True
    assert until(lambda: metrics("waits")) == {"loss": 0.5}
    wrong = scheduler.update_agent_metrics("waits", {"loss": float("nan")})
    assert (wrong["success"], wrong["reason"]) == (False, "invalid_argument")

    # From inside an agent, without ever waiting, however many there are.
    agent = scheduler.create_agent("reports", "pool", Reporter, resources={"cpu": 1})
    assert ray.get(agent.handle.train.remote(5000)) < 2.0
    until(lambda: (metrics("reports") or {}).get("step") == 5000)

    # And from any actor that was handed the way back.
    supervisor = scheduler.supervisor_handle()
    assert repr(pickle.loads(pickle.dumps(supervisor))) == repr(supervisor)

    # It carries no token: a worker looks for one as a script does.
    @ray.remote(num_cpus=0, runtime_env={"env_vars": {"SCHEDULEMESH_TOKEN": driver.token}})
    class Elsewhere:
        def report(self, supervisor: Any) -> bool:
            return bool(supervisor.report_metrics("waits", {"loss": 0.25}))

    actor = Elsewhere.remote()
    assert ray.get(actor.report.remote(supervisor)) is True
    until(lambda: metrics("waits") == {"loss": 0.25})


class Reporter(MetricsReportingAgent):
    """Reports after each step."""

    def train(self, steps: int) -> float:
        started = time.monotonic()
        for step in range(1, steps + 1):
            self.report_metrics({"step": step})
        return time.monotonic() - started


def test_logs_say_what_was_decided(simple: SimpleScheduler, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "schedulemesh")
    simple.ensure_pool("pool", resources={"cpu": 1})
    submit(simple, "low", 1.0)
    assert [r for r in caplog.records if "resources short" in r.getMessage()] == []
    submit(simple, "high", 9.0)
    lines = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("resources short task_id=high pool=pool") for line in lines)
    (target,) = [line for line in lines if line.startswith("preemption target found")]
    assert "victim_task=low" in target
    assert "score=8" in target
    submit(simple, "lowest", 0.5)
    assert "no preemption target task_id=lowest" in caplog.records[-1].getMessage()


def test_a_simple_scheduler_answers_what_the_other_does(simple: SimpleScheduler) -> None:
    assert isinstance(simple.scheduler, RayScheduler)
    assert simple.update_preemption_policy(cancel_timeout=2.0)["cancel_timeout"] == 2.0
    assert simple.get_preemption_stats()["total_preemptions"] == 0
    with pytest.raises(AttributeError, match="no_such_call"):
        simple.no_such_call()


def test_by_itself_it_is_called_something(driver: local.Started) -> None:
    with SimpleScheduler() as simple:
        assert simple.name == "simple-scheduler"
        assert simple.list_pools() == []


def test_removing_everything(driver: local.Started, name: str) -> None:
    kept = SimpleScheduler(name, detached=True)
    kept.ensure_pool("pool", resources={"cpu": 1})
    submit(kept, "task")
    kept.shutdown()
    again = SimpleScheduler.attach(name)
    assert held(again) == {"pool": {"cpu": 1}}
    again.shutdown()
    remove(driver, name)
