"""Units, logs and events of the sidecar."""

import asyncio
from pathlib import Path

import pytest

from schedulemesh.bridge import logs
from schedulemesh.bridge.events import Events
from schedulemesh.bridge.nodes import from_ray


def test_resources_become_thousandths_and_mib() -> None:
    found = from_ray(
        {
            "CPU": 8.0,
            "GPU": 0.5,
            "memory": 3.7 * (1 << 20),
            "object_store_memory": 1e9,
            "node:10.0.0.1": 1.0,
            "tpu": 0.0001,
            "CPU_group_abc": 1.0,
        }
    )
    assert found == {"cpu": 8000, "gpu": 500, "memory": 3, "tpu": 0}
    assert from_ray({"memory": 3.7 * (1 << 20), "tpu": 0.0001}, up=True) == {"memory": 4, "tpu": 1}
    # Floating point noise is not a thousandth less.
    assert from_ray({"CPU": 0.1 + 0.2, "memory": (1 << 30) - 0.001}) == {"cpu": 300, "memory": 1024}


def test_logs_are_read_in_whole_lines_without_rays_marks(tmp_path: Path) -> None:
    path = tmp_path / "worker.out"
    path.write_bytes(":job_id:01\n:actor_name:A\none\ntwo ü\n".encode() + b"\xff\n")
    whole = logs.read(str(path), 0, 1000)
    assert whole["text"] == "one\ntwo ü\n\ufffd\n"
    assert whole["eof"] is True
    text, at = "", 0
    while True:
        piece = logs.read(str(path), at, 16)
        text += piece["text"]
        assert piece["eof"] or piece["next"] > at
        at = piece["next"]
        if piece["eof"]:
            break
    assert text == whole["text"]
    assert logs.read(str(path), 10_000, 16) == {
        "text": "",
        "next": whole["size"],
        "size": whole["size"],
        "eof": True,
    }


def test_a_line_longer_than_the_limit_still_moves_on(tmp_path: Path) -> None:
    path = tmp_path / "worker.out"
    path.write_bytes(b"x" * 100)
    assert logs.read(str(path), 0, 10) == {"text": "x" * 10, "next": 10, "size": 100, "eof": False}


async def collect(events: Events, after: int, count: int) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    async for event in events.follow(after, 0.05):
        assert event is not None, "nothing came"
        found.append(event)
        if len(found) == count:
            break
    return found


async def test_events_continue_or_resync() -> None:
    events = Events("s", ring=4)
    (resync,) = await collect(events, 0, 1)
    assert resync["type"] == "resync"
    assert resync["session"] == "s"
    start = int(str(resync["seq"]))
    for _ in range(3):
        events.publish("nodes_changed")
    assert [e["seq"] for e in await collect(events, start, 3)] == [start + 1, start + 2, start + 3]
    for _ in range(10):
        events.publish("nodes_changed")
    assert (await collect(events, start, 1))[0]["type"] == "resync"
    assert (await collect(events, start + 9, 1))[0]["type"] == "nodes_changed"
    assert (await collect(events, start + 14, 1))[0]["type"] == "resync"


async def test_followers_wake_up_and_hear_heartbeats() -> None:
    events = Events("s")
    stream = events.follow(0, 0.01)
    assert (await anext(stream))["type"] == "resync"  # type: ignore[index]
    assert await anext(stream) is None
    waiting = asyncio.ensure_future(collect(events, events._last, 1))
    await asyncio.sleep(0)
    events.publish("agent_died", launch_id="x")
    assert (await asyncio.wait_for(waiting, 1))[0]["launch_id"] == "x"


def test_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from schedulemesh.bridge.__main__ import arguments, token_of

    monkeypatch.delenv("SCHEDULEMESH_BRIDGE_TOKEN", raising=False)
    with pytest.raises(SystemExit, match="needs a token"):
        token_of(arguments(["--deployment", "d", "--listen", "127.0.0.1:1"]))
    assert token_of(arguments(["--deployment", "d", "--socket", "/tmp/x"])) == ""


def test_spares_are_kept_for_runtime_envs_that_stay_as_they_are() -> None:
    from schedulemesh.bridge.spares import PLAIN, key_of

    assert key_of(None) == key_of({}) == PLAIN
    assert key_of({"env_vars": {"A": "1"}}) == '{"env_vars": {"A": "1"}}'
    assert key_of({"working_dir": "/here"}) is None
    assert key_of({"working_dir": "s3://bucket/x.zip"}) is not None
    assert key_of({"nonsense": object()}) is None
