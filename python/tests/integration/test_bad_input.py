"""What goes wrong is said clearly, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conftest import Script, held, until
from schedulemesh import local
from schedulemesh.client import Client
from schedulemesh.core import RayScheduler
from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.errors import (
    InvalidArgument,
    RayUnavailable,
    ScheduleMeshError,
    ServerError,
    ServerNotFound,
)
from schedulemesh.simple import SimpleScheduler

# A cluster and a server of its own: both are killed while it uses them.
DOOMED = """
    import json, os, signal, threading, time
    import ray
    from schedulemesh import local
    from schedulemesh.simple import SimpleScheduler


    class Slow:
        def __init__(self, name, labels, seconds=0):
            time.sleep(seconds)

        def cancel(self, task_id):
            return {"success": True}


    def tell(**what):
        print(json.dumps(what), flush=True)


    def failure(call, *args, **kwargs):
        try:
            return call(*args, **kwargs)
        except Exception as error:
            return {"raised": type(error).__name__, "error": str(error)}


    def ray_processes():
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{process}/stat") as file:
                    name, rest = file.read().rsplit(")", 1)
            except OSError:
                continue
            if rest.split()[1] == str(os.getpid()) and name.endswith(("(gcs_server", "(raylet")):
                yield int(process)


    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    first = SimpleScheduler("first")
    (server,) = local.servers()
    first.ensure_pool("pool", resources={"cpu": 2})
    task = {"pool": "pool", "resources": {"cpu": 1}, "actor_class": Slow}
    assert first.submit("one", **task)["success"]
    first.client.retry_for = 0.5
    threading.Timer(0.5, os.kill, (server.pid, signal.SIGKILL)).start()
    tell(
        submit=first.submit("two", actor_kwargs={"seconds": 30}, **task),
        complete=first.complete("one"),
        execute=first.execute_preemption("one"),
        register=first.register_running_task("three", "agent", "pool"),
        restore=first.restore_task({"pool_name": "pool"}),
        evaluate=failure(first.evaluate_preemption, 1.0, "pool"),
        pools=failure(first.list_pools),
        policy=failure(first.configure_preemption, cancel_timeout=1.0),
    )

    second = SimpleScheduler("second")  # another server takes the place of the dead one
    (server,) = local.servers()
    second.ensure_pool("pool", resources={"cpu": 2})
    for process in ray_processes():
        os.kill(process, signal.SIGKILL)
    answer = second.submit("two", **task)
    answer.pop("task", None)
    tell(
        submit=answer,
        held=[balance["reserved"] + balance["used"] for balance in second.get_pool("pool")["balances"]],
        server=server.pid,
    )
    os._exit(0)  # Ray would end a driver without a cluster anyway
"""


@pytest.fixture(scope="module")
def doomed(server: local.Started, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Script]:
    """Runs beside the other tests: most of its time it waits."""
    directory = tmp_path_factory.mktemp("doomed")
    found = Script(
        directory,
        DOOMED,
        XDG_STATE_HOME=str(directory),
        SCHEDULEMESH_URL="",
        SCHEDULEMESH_TOKEN="",
        RAY_ADDRESS="",
    )
    yield found
    if found.process.poll() is None:
        found.process.kill()
        found.process.communicate()


@pytest.fixture(autouse=True)
def _started_early(doomed: Script) -> None: ...


@pytest.fixture
def pool(simple: SimpleScheduler) -> Iterator[SimpleScheduler]:
    simple.ensure_pool("pool", resources={"cpu": 1, "memory": 64})
    yield simple
    assert held(simple) == {}
    assert simple.list_agents() == []


GOOD: dict[str, Any] = {
    "task_id": "task",
    "pool": "pool",
    "resources": {"cpu": 1},
    "actor_class": AgentActor,
}


@pytest.mark.parametrize(
    ("wrong", "reason", "says"),
    [
        ({"task_id": None}, "invalid_argument", "task_id"),
        ({"task_id": ""}, "invalid_argument", "task_id"),
        ({"task_id": 7}, "invalid_argument", "7"),
        ({"task_id": "a\x00b"}, "invalid", "task_id"),
        ({"pool": None}, "invalid_argument", "pool"),
        ({"pool": 5}, "invalid_argument", "5"),
        ({"pool": "elsewhere"}, "unknown_pool", "elsewhere"),
        ({"resources": None}, "invalid_argument", "resources"),
        ({"resources": [1]}, "invalid_argument", "resources"),
        ({"resources": {"cpu": "two"}}, "invalid", "cpu"),
        ({"resources": {"cpu": -1}}, "invalid", "cpu"),
        ({"resources": {"cpu": float("nan")}}, "invalid_argument", "JSON"),
        ({"resources": {"cpu": 1e300}}, "invalid", "cpu"),
        ({"resources": {"cpu": 2}}, "request_too_large", "cpu"),
        ({"resources": {"unheard-of": 1}}, "request_too_large", "unheard-of"),
        ({"priority": "high"}, "invalid", "priority"),
        ({"priority": float("inf")}, "invalid_argument", "JSON"),
        ({"labels": ["tier"]}, "invalid_argument", "labels"),
        ({"labels": {"tier": 1}}, "invalid", "tier"),
        ({"labels": {1: "x"}}, "", ""),
        ({"estimated_duration": -1}, "invalid", "estimated_duration"),
        ({"estimated_duration": "long"}, "invalid", "estimated_duration"),
        ({"actor_class": None}, "invalid_argument", "actor_class"),
        ({"actor_class": 7}, "invalid_argument", "7"),
        ({"actor_class": "no-colon"}, "invalid_argument", "module:Class"),
        ({"actor_class": "no.such.module:Thing"}, "import_failed", "'no'"),
        ({"actor_args": "abc"}, "invalid_argument", "actor_args"),
        ({"actor_kwargs": ["a"]}, "invalid_argument", "actor_kwargs"),
        ({"actor_kwargs": {"lock": threading.Lock()}}, "not_picklable", "actor_kwargs['lock']"),
        ({"ray_options": "x"}, "invalid_argument", "ray_options"),
        ({"ray_options": {"max_restarts": 5}}, "bad_request", "max_restarts"),
        ({"on_preempted": "perhaps"}, "invalid", "on_preempted"),
        ({"agent_name": 7}, "invalid", "agent_name"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_submitting_nonsense(pool: SimpleScheduler, wrong: dict[str, Any], reason: str, says: str) -> None:
    answer = pool.submit(**{**GOOD, **wrong})
    if not reason:  # JSON makes text of a number
        assert pool.complete("task")["success"]
        return
    assert answer["success"] is False
    assert answer["reason"] == reason, answer
    assert says in answer["error"]


def test_an_argument_that_does_not_exist(pool: SimpleScheduler) -> None:
    with pytest.raises(TypeError, match="prioriti"):
        pool.submit(**GOOD, prioriti=3)


class NoNames:
    def __init__(self) -> None: ...


class OnlyName:
    def __init__(self, name: str) -> None: ...


class Unpicklable:
    lock = threading.Lock()

    def __init__(self, name: str, labels: dict[str, str]) -> None: ...


Unpicklable.__module__ = "__main__"  # as in a script


class Broken:
    def __init__(self, name: str, labels: dict[str, str]) -> None:
        raise ValueError("no weights here")


@pytest.mark.parametrize(
    ("cls", "reason", "says"),
    [
        (NoNames, "invalid_argument", "takes name and labels first"),
        (OnlyName, "invalid_argument", "takes name and labels first"),
        (Unpicklable, "not_picklable", "class Unpicklable"),
        (Broken, "constructor_failed", "no weights here"),
    ],
)
def test_classes_that_cannot_be_agents(pool: SimpleScheduler, cls: type, reason: str, says: str) -> None:
    answer = pool.submit(**{**GOOD, "actor_class": cls})
    assert (answer["success"], answer["reason"]) == (False, reason), answer
    assert says in answer["error"]
    with pytest.raises(ScheduleMeshError, match=says):
        pool.create_agent("agent", "pool", cls)


class NoCancel:
    def __init__(self, name: str, labels: dict[str, str]) -> None: ...

    def save_state(self) -> dict[str, Any]:
        return {"step": 3}


def test_a_class_without_cancel_makes_way_all_the_same(pool: SimpleScheduler) -> None:
    low = {**GOOD, "task_id": "low", "priority": 1.0, "actor_class": NoCancel}
    assert pool.submit(**low)["success"]
    taken = pool.submit(**{**GOOD, "priority": 9.0})
    assert [victim["task_id"] for victim in taken["preempted"]] == ["low"]
    (record,) = pool.get_preemption_stats()["recent_preemptions"]
    assert record["saved_state"] == {"step": 3, "task_id": "low", "pool_name": "pool"}
    assert pool.complete("task")["success"]


def test_a_launch_that_fails_gives_back_whom_it_took(pool: SimpleScheduler) -> None:
    assert pool.submit(**{**GOOD, "task_id": "low", "priority": 1.0})["success"]
    answer = pool.submit(**{**GOOD, "priority": 9.0, "actor_class": Broken})
    assert (answer["success"], answer["reason"]) == (False, "constructor_failed")
    assert "no weights here" in answer["error"]
    assert until(lambda: pool.client.task("low")["state"] == "running")
    assert pool.complete("low")["success"]


@pytest.mark.parametrize(
    "fields",
    [
        {"name": 5},
        {"name": ""},
        {"resources": {"cpu": -1}},
        {"resources": {"cpu": "x"}},
        {"resources": {"cpu": float("nan")}},
        {"resources": 5},
        {"labels": 5},
        {"target_agents": -1},
        {"target_agents": "two"},
        {"placement_strategy": "EVERYWHERE"},
    ],
    ids=str,
)
def test_pools_that_cannot_be(simple: SimpleScheduler, fields: dict[str, Any]) -> None:
    with pytest.raises((ServerError, InvalidArgument, TypeError, ValueError)) as refused:
        simple.ensure_pool(**{"name": "pool", "resources": {"cpu": 1}, **fields})
    assert str(refused.value)
    assert simple.list_pools() == []


def test_answers_of_other_calls(pool: SimpleScheduler) -> None:
    answers = {
        "unknown_task": pool.complete("never"),
        "invalid": pool.register_running_task("task", "agent", "pool", priority="high"),  # type: ignore[arg-type]
        "invalid_argument": pool.register_running_task("", "agent", "pool"),
    }
    for reason, answer in answers.items():
        assert (answer["success"], answer["reason"]) == (False, reason)
        assert answer["error"]
    for call in (
        lambda: pool.evaluate_preemption("high", "pool"),
        lambda: pool.evaluate_preemption(5.0, None),
        lambda: pool.create_agent("agent", "elsewhere", AgentActor),
        lambda: pool.ensure_agent_health(timeout=-1),
    ):
        with pytest.raises(ScheduleMeshError) as refused:
            call()
        assert str(refused.value)


@pytest.mark.parametrize("name", ["", " ", 5, None, "a\x00b", "x" * 1000])
def test_names_that_are_none(driver: local.Started, name: Any) -> None:
    with pytest.raises(ScheduleMeshError) as refused:
        RayScheduler(name)
    assert str(refused.value)


def test_a_server_that_is_not_there(driver: local.Started, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from schedulemesh import finding

    monkeypatch.setattr(finding, "_found", {})
    monkeypatch.setattr(finding, "_client", lambda url: Client(url, retry_for=0.2))
    monkeypatch.setenv("SCHEDULEMESH_URL", "http://127.0.0.1:1")
    with pytest.raises(ServerNotFound, match=r"127\.0\.0\.1:1"):
        SimpleScheduler("nowhere")
    assert ray.is_initialized()  # the script's own connection is left alone


def test_a_cluster_that_is_not_there(script: Callable[..., Script], server: local.Started) -> None:
    code, out, _ = script(
        """
        from schedulemesh.simple import SimpleScheduler
        from schedulemesh.errors import RayUnavailable

        try:
            SimpleScheduler("x")
        except RayUnavailable as error:
            print(error)
        """,
        SCHEDULEMESH_URL="",
        RAY_ADDRESS="127.0.0.1:1",
    ).end()
    assert code == 0
    assert "127.0.0.1:1" in out
    assert RayUnavailable.code == "ray_unavailable"


INTERRUPTED = """
    import json, time
    import ray
    from schedulemesh.simple import SimpleScheduler


    class Slow:
        def __init__(self, name, labels):
            time.sleep(60)

        def cancel(self, task_id):
            return {}


    ray.init(log_to_driver=False)
    scheduler = SimpleScheduler("NAME")
    scheduler.ensure_pool("pool", resources={"cpu": 1})
    try:
        print("ready", flush=True)
        scheduler.submit("one", "pool", Slow, {"cpu": 1})
    except KeyboardInterrupt:
        (pool,) = scheduler.list_pools()
        task = scheduler.client.task("one")
        print(json.dumps([task["state"], [b["reserved"] + b["used"] for b in pool["balances"]]]), flush=True)
    scheduler.submit("two", "pool", Slow, {"cpu": 1})
"""


def test_interrupted_with_ctrl_c(driver: local.Started, script: Callable[..., Script], name: str) -> None:
    one = script(INTERRUPTED.replace("NAME", name))
    assert one.line() == "ready"

    def launching(task_id: str) -> bool:
        with Client(driver.url, driver.token, name) as client:
            return any(task["task_id"] == task_id for task in client.tasks(state="launching"))

    until(lambda: launching("one"))
    one.signal(signal.SIGINT)
    state, balances = json.loads(one.line())
    assert state == "cancelled"
    assert set(balances) == {0}
    # And when nobody catches it, nothing is left at all.
    until(lambda: launching("two"))
    one.signal(signal.SIGINT)
    code, _, err = one.end()
    assert code != 0
    assert "KeyboardInterrupt" in err
    with Client(driver.url, driver.token) as client:
        assert name not in [space["name"] for space in client.namespaces()]


def test_server_and_ray_gone_in_mid_call(doomed: Script) -> None:
    told = json.loads(doomed.line())
    for call in ("submit", "complete", "execute", "register", "restore"):
        assert (told[call]["success"], told[call]["reason"]) == (False, "server_unavailable"), told[call]
        assert "is it running?" in told[call]["error"]
    for call in ("evaluate", "pools", "policy"):
        assert told[call]["raised"] == "ServerUnavailable"
    told = json.loads(doomed.line())
    # Either the launch finds no cluster, or no node is known any more.
    assert told["submit"]["success"] is False
    assert told["submit"]["reason"] in ("bridge_unavailable", "preemption_failed"), told
    assert told["submit"]["error"]
    assert set(told["held"]) == {0}
    assert doomed.end()[0] == 0
    until(lambda: not os.path.exists(f"/proc/{told['server']}"), 60)
