"""The schedulers as coroutines: the same calls and answers, many at once."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from conftest import held
from schedulemesh import aio, core, local
from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.errors import SchedulerClosed, SchedulerNotFound, UnknownPool
from schedulemesh.simple import SimpleScheduler


def signatures(cls: type) -> dict[str, str]:
    return {
        name: str(inspect.signature(member)).replace("aio.", "")
        for name, member in inspect.getmembers(cls, callable)
        if not name.startswith("_") and name != "start"
    }


@pytest.mark.parametrize(
    ("twin", "plain"), [(aio.SimpleScheduler, SimpleScheduler), (aio.RayScheduler, core.RayScheduler)]
)
def test_both_have_the_same_calls(twin: type, plain: type) -> None:
    assert signatures(twin) == signatures(plain)


async def test_a_whole_life(driver: local.Started, name: str) -> None:
    async with aio.SimpleScheduler(name) as scheduler:
        await scheduler.ensure_pool("pool", resources={"cpu": 1})
        await scheduler.configure_preemption(label_preemption_rules={"tier": {"premium": ["standard"]}})

        def submit(task_id: str, tier: str, cpu: float = 0.25) -> Any:
            return scheduler.submit(task_id, "pool", AgentActor, {"cpu": cpu}, labels={"tier": tier})

        answers = await asyncio.gather(*(submit(f"task-{i}", "standard") for i in range(4)))
        assert all(answer["success"] for answer in answers)
        # A handle's reference can be awaited.
        done = await asyncio.gather(
            *(answer["agent"].process.remote(answer["task_id"]) for answer in answers)
        )
        assert [one["payload"] for one in done] == [f"task-{i}" for i in range(4)]
        assert len(await scheduler.list_agents("pool")) == 4

        taken = await submit("premium", "premium", 0.5)
        assert [victim["reason"] for victim in taken["preempted"]] == ["label_based_preemption"] * 2
        assert (await scheduler.stats())["label_preemptions"] == 2
        assert (await scheduler.complete("premium"))["success"]
        assert (await submit("never", "standard", 2.0))["success"] is False
        with pytest.raises(UnknownPool):
            await scheduler.get_pool("elsewhere")
    with pytest.raises(SchedulerClosed):
        await scheduler.list_pools()


async def test_a_call_that_is_cancelled_takes_back_what_it_began(driver: local.Started, name: str) -> None:
    class Slow(AgentActor):
        def __init__(self, *args: Any) -> None:
            import time

            time.sleep(60)

    async with aio.SimpleScheduler(name) as scheduler:
        await scheduler.ensure_pool("pool", resources={"cpu": 1})
        call = asyncio.create_task(scheduler.submit("task", "pool", Slow, {"cpu": 1}))
        while not [task async for task in scheduler.client.tasks(state="launching")]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await scheduler.client.task("task"))["state"] == "cancelled"
        (pool,) = await scheduler.list_pools()
        assert {balance["reserved"] + balance["used"] for balance in pool["balances"]} == {0}


async def test_kept_and_attached(driver: local.Started, name: str) -> None:
    with pytest.raises(SchedulerNotFound):
        await aio.RayScheduler.attach(name)
    async with aio.RayScheduler(name, detached=True) as scheduler:
        await scheduler.create_pool("pool", resources={"cpu": 1})
    attached = await aio.SimpleScheduler.attach(name)
    assert [pool["name"] for pool in await attached.list_pools()] == ["pool"]
    await attached.client.delete_namespace()
    await attached.shutdown()


async def test_it_says_that_it_must_be_started(driver: local.Started, name: str) -> None:
    scheduler = aio.SimpleScheduler(name)
    with pytest.raises(SchedulerClosed, match="start"):
        await scheduler.list_pools()
    await scheduler.start()
    await scheduler.start()
    assert await scheduler.list_pools() == []
    await scheduler.shutdown()


def test_plain_calls_work_beside_a_loop(simple: SimpleScheduler) -> None:
    """As in a notebook, where a loop runs all the time."""

    async def cell() -> dict[str, Any]:
        simple.ensure_pool("pool", resources={"cpu": 1})
        return simple.submit("task", "pool", AgentActor, {"cpu": 1})

    assert asyncio.run(cell())["success"] is True
    assert held(simple) == {"pool": {"cpu": 1}}
