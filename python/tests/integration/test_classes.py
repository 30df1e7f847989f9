"""Classes as users write them: in a script, decorated, async, with handles and neighbours."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import Script, held
from schedulemesh import pickling
from schedulemesh.core import RayScheduler
from schedulemesh.simple import SimpleScheduler

NEIGHBOUR = """
GREETING = "good day"


class Mixin:
    def greet(self):
        return f"{GREETING}, {self.name}"
"""

SCRIPT = """
    import asyncio

    import ray
    from neighbour import GREETING, Mixin
    from schedulemesh.core.agents import MetricsReportingAgent
    from schedulemesh.simple import SimpleScheduler

    LIMIT = 3


    class Plain(Mixin):
        def __init__(self, name, labels, store=None):
            self.name, self.labels, self.store = name, labels, store

        def cancel(self, task_id):
            return {"success": True, "task_id": task_id}

        def put(self):
            return ray.get(self.store.put.remote(self.name))

        def upto(self):
            yield from range(LIMIT)


    @ray.remote(num_cpus=1)
    class Decorated(Plain):
        def hello(self):
            return GREETING, self.greet(), type(self).__name__


    class Async(MetricsReportingAgent):
        async def sleepy(self):
            await asyncio.sleep(0)
            return "awake"


    @ray.remote(num_cpus=0)
    class Store:
        def __init__(self):
            self.names = []

        def put(self, name):
            self.names.append(name)
            return len(self.names)


    if __name__ == "__main__":
        ray.init(log_to_driver=False)
        store = Store.remote()
        with SimpleScheduler("NAME") as scheduler:
            scheduler.ensure_pool("pool", resources={"cpu": 1})

            def submit(task_id, cls, **kwargs):
                answer = scheduler.submit(
                    task_id, "pool", cls, {"cpu": 0.1}, agent_name=task_id, actor_kwargs=kwargs
                )
                assert answer["success"], answer
                return answer["agent"]["handle"]

            plain = submit("plain", Plain, store=store)
            assert ray.get(plain.put.remote()) == 1
            assert [ray.get(n) for n in plain.upto.options(num_returns="streaming").remote()] == [0, 1, 2]
            decorated = submit("decorated", Decorated, store=store)
            assert ray.get(decorated.hello.remote()) == ("good day", "good day, decorated", "Decorated")
            assert ray.get(decorated.put.remote()) == 2
            sleepy = submit("sleepy", Async)
            assert ray.get(sleepy.sleepy.remote()) == "awake"
        print("done")
"""


def test_a_script_with_classes_of_all_kinds(script: Callable[..., Script], name: str, tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text(NEIGHBOUR)
    code, out, err = script(SCRIPT.replace("NAME", name)).end()
    assert (code, out) == (0, "done\n"), err


def test_a_class_by_its_import_path(simple: SimpleScheduler) -> None:
    import ray

    simple.ensure_pool("pool", resources={"cpu": 1})
    answer = simple.submit(
        "task", "pool", "schedulemesh.core.agent_actor:AgentActor", {"cpu": 0.1}, actor_kwargs={"extra": 1}
    )
    assert answer["success"] is True
    assert answer["task"]["actor_class"] == "schedulemesh.core.agent_actor:AgentActor"
    assert ray.get(answer["agent"].ping.remote()) == "pong"


@pytest.mark.parametrize(
    ("which", "value"), [("python", "3.1"), ("ray", "1.0.0"), ("format", 99)], ids=["python", "ray", "format"]
)
def test_another_version_is_one_clear_sentence(
    scheduler: RayScheduler, monkeypatch: pytest.MonkeyPatch, which: str, value: Any
) -> None:
    class Local:
        def __init__(self, name: str, labels: dict[str, str]) -> None: ...

        def cancel(self, task_id: str) -> None: ...

    fields = pickling.launch_fields

    def of_another_version(*args: Any) -> dict[str, Any]:
        found = fields(*args)
        envelope = pickle.loads(base64.b64decode(found["pickled"]))
        envelope[which] = value
        return {**found, "pickled": base64.b64encode(pickle.dumps(envelope)).decode()}

    scheduler.create_pool("pool", resources={"cpu": 1})
    monkeypatch.setattr(pickling, "launch_fields", of_another_version)
    answer = scheduler.submit_task_with_preemption("task", "pool", {"cpu": 1}, Local)
    assert (answer["success"], answer["reason"]) == (False, "version_mismatch")
    assert str(value) in answer["error"]
    assert "\n" not in answer["error"]
    assert held(scheduler) == {}
