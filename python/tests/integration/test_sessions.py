"""Schedulers that end with their process, and those that outlive it."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from conftest import Script, held, remove, until
from schedulemesh import local
from schedulemesh.client import Client
from schedulemesh.core import RayScheduler
from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.errors import SchedulerClosed, SchedulerInUse, SchedulerNotFound
from schedulemesh.simple import SimpleScheduler

SCRIPT = """
    import sys, time
    import ray
    from schedulemesh import session
    from schedulemesh.core.agent_actor import AgentActor
    from schedulemesh.simple import SimpleScheduler

    session.TTL, session.RENEW = 3.0, 0.5  # so that the test need not wait as long
    ray.init(log_to_driver=False)
    scheduler = SimpleScheduler("NAME", detached=DETACHED)
    scheduler.ensure_pool("pool", resources={"cpu": 1})
    agent = scheduler.submit("task", "pool", AgentActor, {"cpu": 0.5})["agent"]
    print(agent.ray_namespace, agent.actor_name, flush=True)
"""


def is_gone(server: local.Started, name: str) -> bool:
    with Client(server.url, server.token) as client:
        return name not in [one["name"] for one in client.namespaces()]


def alive(said: str) -> bool:
    """Whether the agent a script told of is there."""
    import ray

    namespace, actor = said.split()
    try:
        ray.get_actor(actor, namespace=namespace)
    except ValueError:
        return False
    return True


def test_a_script_that_ends_leaves_nothing(
    driver: local.Started, script: Callable[..., Script], name: str
) -> None:
    one = script(SCRIPT.replace("NAME", name).replace("DETACHED", "False"))
    said = one.line()
    code, _, err = one.end()
    assert code == 0, err
    assert is_gone(driver, name)
    assert not alive(said)


def test_what_a_killed_script_had_is_cleared_by_the_server(
    driver: local.Started, script: Callable[..., Script], name: str
) -> None:
    one = script(SCRIPT.replace("NAME", name).replace("DETACHED", "False") + "    time.sleep(600)\n")
    said = one.line()
    assert alive(said)
    # Nobody else can have the name meanwhile, and is told who has it.
    with pytest.raises(SchedulerInUse, match=f"process {one.process.pid}"):
        SimpleScheduler(name)
    with Client(driver.url, driver.token, name) as client:
        assert client.pool("pool")["running"] == 1
    one.signal(signal.SIGKILL)
    until(lambda: is_gone(driver, name))
    assert not alive(said)
    with SimpleScheduler(name) as again:
        assert again.list_pools() == []


def test_a_detached_one_lives_on_and_others_attach(
    driver: local.Started, script: Callable[..., Script], name: str
) -> None:
    import ray

    one = script(SCRIPT.replace("NAME", name).replace("DETACHED", "True"))
    said = one.line()
    assert one.end()[0] == 0
    try:
        attached = RayScheduler.attach(name)
        assert alive(said)
        (agent,) = attached.list_agents()
        assert agent["task_ids"] == ["task"]
        assert ray.get(agent.handle.ping.remote()) == "pong"
        assert held(attached) == {"pool": {"cpu": 0.5}}
        # The other kind attaches as well, and a second one of this name is the same one.
        also, same = SimpleScheduler.attach(name), SimpleScheduler(name, detached=True)
        assert same.complete("task")["success"]
        assert held(also) == held(attached) == {}
        with pytest.raises(SchedulerInUse):
            SimpleScheduler(name)  # it starts clean, and this one is not to be cleared
        for scheduler in (attached, also, same):
            scheduler.shutdown()
    finally:
        remove(driver, name)
    with pytest.raises(SchedulerNotFound):
        RayScheduler.attach(name)


@pytest.mark.parametrize("kind", [RayScheduler, SimpleScheduler])
def test_attaching_to_nothing(driver: local.Started, kind: Any) -> None:
    name = f"nobody-{uuid.uuid4().hex[:8]}"
    with pytest.raises(SchedulerNotFound, match=f"{name}.*detached=True"):
        kind.attach(name)
    assert is_gone(driver, name)  # asking makes none


def test_the_same_name_again_in_one_process_starts_anew(driver: local.Started, name: str) -> None:
    first = SimpleScheduler(name)
    first.ensure_pool("pool", resources={"cpu": 1})
    assert first.submit("task", "pool", AgentActor, {"cpu": 1})["success"]
    second = SimpleScheduler(name)
    assert second.list_pools() == []
    assert second.list_agents() == []
    with pytest.raises(SchedulerClosed, match="another scheduler of this name"):
        first.list_pools()
    with pytest.raises(SchedulerClosed):
        first.submit("task", "pool", AgentActor, {"cpu": 1})
    first.shutdown()  # does the second no harm
    second.ensure_pool("pool", resources={"cpu": 1})
    second.shutdown()
    assert is_gone(driver, name)


def test_schedulers_see_nothing_of_each_other(simple: SimpleScheduler, name: str) -> None:
    with SimpleScheduler(f"{name}-other") as other:
        for scheduler in (simple, other):
            scheduler.ensure_pool("pool", resources={"cpu": 1})
            assert scheduler.submit("task", "pool", AgentActor, {"cpu": 1})["success"]
        other.configure_preemption(min_preempt_score=3.0)
        assert simple.get_preemption_policy()["min_preempt_score"] == 0.5
        assert other.complete("task")["success"]
        assert held(simple) == {"pool": {"cpu": 1}}


def test_after_the_end(driver: local.Started, name: str) -> None:
    scheduler = SimpleScheduler(name)
    scheduler.shutdown()
    scheduler.shutdown()
    assert is_gone(driver, name)
    for call in (
        scheduler.list_pools,
        scheduler.stats,
        lambda: scheduler.submit("task", "pool", AgentActor, {"cpu": 1}),
        lambda: scheduler.complete("task"),
        lambda: scheduler.preempt_task("task"),
    ):
        with pytest.raises(SchedulerClosed, match="shut down"):
            call()
