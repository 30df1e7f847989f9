"""How classes and handlers of a script are made ready to travel."""

from __future__ import annotations

import base64
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
import ray

from schedulemesh import pickling
from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.errors import InvalidArgument, NotPicklable


class Plain:
    def __init__(self, name: str, labels: dict[str, str], steps: int = 1) -> None:
        self.name = name

    def run(self) -> None: ...

    async def wait(self) -> None: ...

    def stream(self) -> Any:
        yield 1

    async def flow(self) -> Any:
        yield 1

    @ray.method(num_returns=2)
    def pair(self) -> tuple[int, int]:
        return 1, 2

    def cancel(self, task_id: str) -> bool:
        return True

    def _private(self) -> None: ...


@ray.remote(num_cpus=1)
class Decorated(AgentActor):
    pass


class ByName:
    def __init__(self, steps: int, *, name: str, labels: dict[str, str]) -> None: ...


def envelope(fields: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = pickle.loads(base64.b64decode(fields["pickled"]))
    return found


def test_a_class_of_a_script_is_pickled_with_where_the_script_finds_its_modules() -> None:
    fields = pickling.launch_fields(Plain, [1], {})
    assert fields["pickled_name"] == "Plain"
    found = envelope(fields)
    assert found["format"] == pickling.FORMAT
    assert found["python"] == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert found["ray"] == ray.__version__
    assert str(Path(__file__).parent) in found["sys_path"]
    body = pickle.loads(found["body"])
    assert body["class"].__name__ == "Plain"
    assert body["args"] == (1,)


def test_where_installed_packages_are_is_not_sent() -> None:
    assert not [path for path in pickling.local_paths() if "site-packages" in path or "lib/python3" in path]


def test_an_installed_class_goes_by_its_import_path() -> None:
    import logging.handlers

    assert pickling.import_path(logging.handlers.QueueListener) == "logging.handlers:QueueListener"
    assert pickling.import_path(Plain) == ""


def test_what_json_would_change_is_pickled() -> None:
    class Local(Plain):
        pass

    assert not pickling.is_json({"shape": (1, 2)})
    assert not pickling.is_json({1: 2})
    assert not pickling.is_json([float("nan")])
    assert pickling.is_json({"a": [1, 2.5, "x", None, True]})
    assert "pickled" in pickling.launch_fields(Local, None, {"steps": 3})


def test_methods_are_said_as_the_handle_will_need_them() -> None:
    methods = {m["name"]: m for m in pickling.public_methods(Plain)}
    assert set(methods) == {"run", "wait", "stream", "flow", "pair", "cancel"}
    assert methods["wait"] == {"name": "wait", "async": True}
    assert methods["stream"] == {"name": "stream", "generator": True}
    assert methods["flow"] == {"name": "flow", "async": True, "generator": True}
    assert methods["pair"] == {"name": "pair", "num_returns": 2}


def test_rays_decoration_is_taken_off() -> None:
    assert pickling.plain_class(Decorated).__mro__[1] is AgentActor
    assert {m["name"] for m in pickling.launch_fields(Decorated, None, None)["methods"]} >= {
        "process",
        "ping",
    }
    with pytest.raises(InvalidArgument, match=r"without \.options\(\)"):
        pickling.plain_class(Decorated.options(num_cpus=2))


def test_name_and_labels_may_be_keywords() -> None:
    pickling.launch_fields(ByName, [3], {})


@pytest.mark.parametrize(
    ("cls", "args", "kwargs", "says"),
    [
        (3, None, None, "actor_class is 3; give a class"),
        (Plain("a", {}), None, None, "give a class"),
        (threading.Lock, "ab", None, "actor_args is 'ab'; give a list"),
        (Plain, None, [1], "actor_kwargs is"),
        (Plain, None, {1: 2}, "names of arguments are text"),
        (Plain, None, {"unknown": 1}, "unexpected keyword argument 'unknown'"),
        (type("Bare", (), {}), None, None, "takes name and labels"),
        ("no colon", None, None, "module:Class"),
        ("a:B", None, {"x": object()}, "not plain JSON"),
    ],
)
def test_what_cannot_be_an_agent_is_said_before_anything_is_sent(
    cls: Any, args: Any, kwargs: Any, says: str
) -> None:
    with pytest.raises(InvalidArgument, match=says.replace("(", r"\(")):
        pickling.launch_fields(cls, args, kwargs)


def test_what_cannot_be_pickled_is_named() -> None:
    with pytest.raises(NotPicklable, match=r"actor_kwargs\['lock'\] cannot be pickled"):
        pickling.launch_fields(AgentActor, None, {"lock": threading.Lock()})
    lock = threading.Lock()

    class Holder(Plain):
        def run(self) -> None:
            lock.acquire()

    with pytest.raises(NotPicklable, match=r"class .*Holder cannot be pickled"):
        pickling.launch_fields(Holder, None, None)


def test_what_is_too_large_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickling, "MAX_PICKLE", 1 << 20)
    with pytest.raises(InvalidArgument, match=r"2 MiB pickled.*ray\.put"):
        pickling.launch_fields(AgentActor, None, {"blob": b"x" * (2 << 20)})


def test_a_class_without_cancel_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    class Mute:
        def __init__(self, name: str, labels: dict[str, str]) -> None: ...

    pickling.launch_fields(Mute, None, None)
    assert "Mute has no cancel method" in caplog.text


def test_a_handler_takes_one_argument_and_has_a_name() -> None:
    data, name = pickling.handler_fields(lambda state: {}, "preserver")
    assert data is not None
    assert "lambda" in name
    assert pickling.handler_fields(None, "restorer") == (None, "")
    with pytest.raises(InvalidArgument, match="must take one argument"):
        pickling.handler_fields(lambda: None, "preserver")
    with pytest.raises(InvalidArgument, match="give a function"):
        pickling.handler_fields("save", "preserver")  # type: ignore[arg-type]
    lock = threading.Lock()
    with pytest.raises(NotPicklable, match="preserver"):
        pickling.handler_fields(lambda state: lock, "preserver")
