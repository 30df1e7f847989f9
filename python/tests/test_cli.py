"""The schedulemesh command against a real server, whose agents are pretended."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import until
from dashboard import Dashboard
from schedulemesh import cli, local
from schedulemesh.cli import output
from schedulemesh.client import Client

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "schedulemesh.cli"]
COUNTER = "schedulemesh.testing.agents:Counter"

#: What is about this machine, not about other servers.
_KEPT = {"SCHEDULEMESH_CACHE", "SCHEDULEMESH_POSTGRES_REPOSITORY", "SCHEDULEMESH_RUN", "SCHEDULEMESH_SERVER"}

_names = iter(range(1, 1 << 30))


def _build() -> None:
    """The server of this checkout, as it is now."""
    if os.environ.get("SCHEDULEMESH_SERVER"):
        return
    if go := shutil.which("go"):
        subprocess.run([go, "build", "-o", "bin/server", "./cmd/server"], cwd=ROOT, check=True, timeout=300)
    elif not (ROOT / "bin/server").exists():
        pytest.skip("no server to test with: run `make build`")


@pytest.fixture(scope="module", autouse=True)
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that `schedulemesh up` started; Ctrl-C ends it. The commands find it by themselves."""
    _build()
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith("SCHEDULEMESH_") and n not in _KEPT]:
            patch.delenv(name)
        for name in ("DATABASE_URL", "RAY_ADDRESS", "NO_COLOR", "VISUAL", "EDITOR"):
            patch.delenv(name, raising=False)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv(
            "PYTHONPATH", os.pathsep.join([str(ROOT / "python/src"), os.environ.get("PYTHONPATH", "")])
        )
        patch.setenv("TERM", "xterm")
        patch.chdir(tmp_path_factory.mktemp("here"))
        log = tmp_path_factory.mktemp("log") / "up"
        arguments = ["--temporary", "--bridge-url", "fake", "--addr", "127.0.0.1:0"]
        with log.open("w") as file:
            process = subprocess.Popen([*COMMAND, "up", *arguments], stdout=file, stderr=file)
        try:
            try:
                until(lambda: local.servers() and client().readiness().get("ray") == "ok", 90)
            except AssertionError:
                pytest.fail(f"the server did not start: {log.read_text()}")
            yield local.servers()[0].url
        finally:
            process.send_signal(signal.SIGINT)
            try:
                code = process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert code == 0, log.read_text()
        assert local.servers() == []


def client(namespace: str = "default") -> Client:
    return Client(namespace=namespace, retry_for=0.0)


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line here: exit code, standard output, standard error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = cli.main(arguments)
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return call


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> str:
    """A namespace for this test alone, which its commands are in."""
    name = f"cli-{next(_names)}"
    monkeypatch.setenv("SCHEDULEMESH_NAMESPACE", name)
    return name


@pytest.fixture
def pool(space: str) -> str:
    """A pool of 4 cores in it."""
    client(space).create_pool("train", resources={"cpu": 4, "memory": 8192}, labels={"tier": "standard"})
    return "train"


def good(result: tuple[int, str, str]) -> str:
    code, out, err = result
    assert code == 0, err
    return out


def parsed(result: tuple[int, str, str]) -> Any:
    return json.loads(good(result))


def refused(result: tuple[int, str, str], *words: str, code: int = 1) -> None:
    """It ended with one sentence that has these words."""
    got, out, err = result
    assert got == code, (out, err)
    assert out == ""
    if code == 1:
        assert err.startswith("schedulemesh: ")
        assert err.count("\n") == 1
    for word in words:
        assert word in err


def submit(run: Run, name: str, *more: str) -> dict[str, Any]:
    found = run(
        "submit", "--pool", "train", "--id", name, "--class", COUNTER, "--entry", "run", "--json", *more
    )
    task: dict[str, Any] = parsed(found)
    return task


def running(run: Run, name: str, *more: str) -> None:
    submit(run, name, *more)
    good(run("tasks", "wait", name, "--running"))


def rows(text: str) -> list[list[str]]:
    """The cells of a table, the headings first."""
    return [re.split(r" {2,}", line.strip()) for line in text.splitlines() if line.strip()]


# The server.


def test_status_shows_the_server_and_its_pools(run: Run, pool: str, address: str) -> None:
    text = good(run("status"))
    assert address in text
    assert "ready" in text
    assert rows(text)[-2:] == [
        ["POOL", "STATE", "RUNNING", "QUEUED", "CPU", "MEMORY", "LABELS"],
        ["train", "open", "0", "0", "0/4", "0/8 GiB", "tier=standard"],
    ]
    found = parsed(run("status", "--json"))
    assert found["ready"] is True
    assert found["server"]["url"] == address
    assert [p["name"] for p in found["pools"]] == ["train"]


def test_status_without_pools_says_how_to_make_one(run: Run, space: str) -> None:
    assert "schedulemesh pools create" in good(run("status"))


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The address of no server, named in the environment."""
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("SCHEDULEMESH_URL", url)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return url


def test_without_a_server_status_says_what_to_do(run: Run, nowhere: str) -> None:
    refused(run("status"), nowhere, "schedulemesh up", "SCHEDULEMESH_URL")
    code, out, _ = run("--json", "status")
    assert code == 1
    assert json.loads(out)["ready"] is False


@pytest.mark.parametrize("command", ["tasks", "pools", "top", "events", "events -f", "logs x", "policy edit"])
def test_without_a_server_a_command_ends_soon(run: Run, nowhere: str, command: str) -> None:
    began = time.monotonic()
    refused(run(*command.split()), nowhere, "schedulemesh status")
    assert time.monotonic() - began < 5


def test_version_works_with_and_without_a_server(
    run: Run, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"at {address}" in good(run("version"))
    assert parsed(run("version", "--json"))["server"]["url"] == address
    monkeypatch.setenv("SCHEDULEMESH_URL", f"http://127.0.0.1:{free_port()}")
    assert "none answers" in good(run("version"))
    assert good(run("--version")).startswith("schedulemesh ")


def test_a_wrong_token_and_its_file(
    run: Run, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("sm_wrong\n")
    refused(run("pools", "--token-file", str(file)), "--token-file", "SCHEDULEMESH_TOKEN")
    refused(run("pools", "--token-file", str(tmp_path / "none")), "cannot be read", str(tmp_path / "none"))
    file.write_text(local.token_for(address))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    good(run("--url", address, "--token-file", str(file), "pools"))


def test_an_address_that_is_none(run: Run) -> None:
    refused(run("pools", "--url", "not a url"), "not a url", "http://127.0.0.1:8080")


def test_another_server_is_not_taken_for_ours(run: Run) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=0)"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as other:
        try:
            assert other.stdout is not None
            port = re.search(r"port (\d+)", other.stdout.readline())
            assert port
            refused(run("status", "--url", f"http://127.0.0.1:{port[1]}"), "not a ScheduleMesh server")
        finally:
            other.kill()


def test_namespaces_are_listed(run: Run, pool: str, space: str) -> None:
    assert [space, "kept"] in [row[:2] for row in rows(good(run("namespaces")))]
    assert space in [found["name"] for found in parsed(run("namespaces", "--json"))]


def test_a_namespace_is_shown_and_deleted(run: Run, pool: str, space: str) -> None:
    running(run, "t1", "--cpu", "1")
    assert ["Live tasks", "1"] in rows(good(run("namespaces", "show", space)))
    assert parsed(run("namespaces", "show", space, "--json"))["pools"] == 1
    refused(run("namespaces", "delete", space), space)
    assert "is gone" in good(run("namespaces", "delete", space, "--force"))
    assert space not in good(run("namespaces"))
    refused(run("namespaces", "show", space), space)


def test_a_namespace_of_a_session_says_who_holds_it(run: Run, space: str) -> None:
    held = client(space)
    held.open_namespace(detached=False, session="one", owner="ann@laptop, train.py", ttl=30)
    try:
        (row,) = [row for row in rows(good(run("namespaces"))) if row[0] == space]
        assert row[1:3] == ["of a session", "ann@laptop, train.py"]
    finally:
        held.delete_namespace(session="one")


def test_up_shows_the_servers_own_settings() -> None:
    found = subprocess.run([*COMMAND, "up", "--help"], capture_output=True, text=True, timeout=30)
    assert "--ray-cpus" in found.stdout + found.stderr


def test_up_without_a_server_program(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SCHEDULEMESH_SERVER", str(tmp_path / "none"))
    refused(run("up"), "correct SCHEDULEMESH_SERVER")


# Pools.


def test_a_pools_life(run: Run, space: str) -> None:
    assert "no pools" in good(run("pools"))
    made = parsed(
        run("pools", "create", "推理", "--cpu", "2", "--memory", "4GiB", "--label", "tier=premium",
            "--resource", "licence=3", "--target-agents", "2", "--json")
    )  # fmt: skip
    assert made["resources"] == {"cpu": 2, "memory": 4096, "licence": 3}
    text = good(run("pools", "show", "推理"))
    assert ["memory", "4 GiB", "0", "0", "0", "0", "4 GiB"] in rows(text)

    good(run("pools", "set", "推理", "--cpu", "3", "--resource", "licence=0", "--label", "owner=ann"))
    found = client(space).pool("推理")
    assert {k: v for k, v in found["resources"].items() if v} == {"cpu": 3, "memory": 4096}
    assert found["labels"] == {"tier": "premium", "owner": "ann"}
    good(run("pools", "set", "推理", "--no-label", "owner"))
    assert client(space).pool("推理")["labels"] == {"tier": "premium"}
    refused(run("pools", "set", "推理"), "nothing to change", code=2)
    refused(run("pools", "set", "推理", "--no-label", "owner"), "no label 'owner'")

    assert parsed(run("--json", "pools"))[0]["name"] == "推理"
    assert [row[0] for row in rows(good(run("pools", "list")))] == ["POOL", "推理"]
    refused(run("pools", "create", "推理", "--cpu", "1"), "推理")
    assert "is gone" in good(run("pools", "delete", "推理"))
    refused(run("pools", "show", "推理"), 'no pool "推理"')


def test_columns_stand_under_each_other_whatever_the_script(run: Run, space: str) -> None:
    for name in ("推理", "training"):
        client(space).create_pool(name, resources={"cpu": 2})
    lines = good(run("pools")).splitlines()
    places = zip(lines, ("STATE", "open", "open"), strict=True)
    assert len({output.width(line[: line.index(word)]) for line, word in places}) == 1


def test_names_that_the_terminal_cannot_show(run: Run, space: str) -> None:
    client(space).create_pool("推理", resources={"cpu": 2})
    plain = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    for words in (
        ["pools"],
        ["tasks", "list", "--help"],
        ["tasks", "show", b"\xff"],
        ["pools", "show", "练"],
    ):
        found = subprocess.run([*COMMAND, *words], env=plain, capture_output=True, timeout=30)
        assert b"defect" not in found.stderr
        assert found.returncode == (1 if b"\xff" in words or "练" in words else 0), found.stderr


def test_a_pool_is_held_drained_and_resumed(run: Run, pool: str, space: str) -> None:
    assert "held: new disks" in good(run("pools", "hold", pool, "--reason", "new disks"))
    assert rows(good(run("pools")))[1][1] == "held"
    refused(run("submit", "--pool", pool, "--class", COUNTER, "--cpu", "1"), "new disks")
    assert "draining, 59m left" in good(run("pools", "drain", pool, "--deadline", "1h"))
    drained = parsed(run("pools", "drain", pool, "--deadline", "1h", "--json"))
    assert drained["hold"]["state"] == "draining"
    assert drained["hold"]["deadline"]
    assert "State    open" in good(run("pools", "resume", pool))
    refused(run("pools", "resume", pool), pool)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("pools create x --cpu many", "'many' is not a number"),
        ("pools create x --cpu nan", "'nan' is not a number"),
        ("pools create x --memory 4parsecs", "512MiB"),
        ("pools create x --label tier", "'tier' is not key=value"),
        ("pools create x --resource tpu=x", "'x' is not a number"),
        ("pools drain x --deadline soon", "90s, 15m"),
        ("pools create", "Missing argument"),
        ("pools nonsense", "nonsense"),
        ("nonsense", "nonsense"),
        ("tasks --state sleeping", "queued, reserved"),
        ("preempt", "name a task"),
        ("completion powershell", "bash"),
        ("policy show three", "three"),
        ("jobs submit", "Missing argument"),
        ("jobs submit python x.py", "is a relative path"),
        ("jobs submit --runtime-env {x true", "--runtime-env is not JSON"),
        ("jobs submit --runtime-env /no/file true", "neither JSON nor a file"),
        ("jobs submit --working-dir /no/where true", "there is no /no/where"),
        ("jobs submit --cpu -1 true", "must be a number of at least 0"),
        ("jobs --state SLEEPING", "QUEUED, SUBMITTING"),
    ],
)
def test_a_wrong_command_line_ends_with_two(run: Run, arguments: str, words: str) -> None:
    refused(run(*arguments.split()), words, code=2)


# Tasks.


def test_a_task_from_options(run: Run, pool: str, space: str) -> None:
    task = submit(
        run, "t1", "--cpu", "1", "--memory", "512MiB", "--priority", "7.5", "--label", "tier=batch",
        "--estimate", "2h", "--max-runtime", "1d", "--requeue", "--attempts", "2", "--queue-timeout", "5m",
        "--actor-kwargs", '{"start": 5}', "--arg", "0", "--kwargs", '{"step_seconds": 0.5}',
    )  # fmt: skip
    assert task["resources"] == {"cpu": 1, "memory": 512}
    assert (task["priority"], task["labels"]) == (7.5, {"tier": "batch"})
    assert (task["estimated_duration"], task["max_runtime"], task["queue_timeout"]) == (7200, 86400, 300)
    assert (task["on_preempted"], task["on_failure"], task["max_attempts"]) == ("requeue", "requeue", 2)
    assert task["actor_kwargs"] == {"start": 5}
    assert task["entry"] == {"method": "run", "args": [0], "kwargs": {"step_seconds": 0.5}}
    assert client(space).task("t1")["actor_class"] == COUNTER


def test_a_task_from_a_file_and_from_the_standard_input(run: Run, pool: str, tmp_path: Path) -> None:
    file = tmp_path / "task.json"
    body = {"task_id": "t1", "pool": "train", "actor_class": COUNTER, "resources": {"cpu": 1}, "priority": 3}
    file.write_text(json.dumps(body))
    task = parsed(run("submit", str(file), "--id", "t2", "--memory", "100", "--json"))
    assert (task["task_id"], task["priority"]) == ("t2", 3)
    assert task["resources"] == {"cpu": 1, "memory": 100}
    piped = subprocess.run(
        [*COMMAND, "submit", "-"], input=json.dumps(body), capture_output=True, text=True, timeout=30
    )
    assert "Task t1 is" in piped.stdout, piped.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "not JSON"), ("[]", "one task"), ('{"pool": "train", "cpu": 1}', "cpu"), ("\xff", "not JSON")],
)
def test_a_bad_file_is_refused(run: Run, pool: str, tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "task.json"
    file.write_bytes(text.encode("latin-1"))
    refused(run("submit", str(file)), words)


def test_what_submit_refuses(run: Run, pool: str, tmp_path: Path) -> None:
    base = ("submit", "--class", COUNTER)
    refused(run(*base), "--pool", code=2)
    refused(run(*base, "--pool", "train", "--kwargs", "{steps"), "is not JSON", code=2)
    refused(run(*base, "--pool", "train", "--entry", "run", "--arg", "text"), "'\"text\"'", code=2)
    refused(run(*base, "--pool", "train", "--entry", "run", "--kwargs", "[]"), "not a JSON object", code=2)
    refused(run(*base, "--pool", "train", "--arg", "1"), "--entry", "--actor-arg", code=2)
    refused(run(*base, "--pool", "nix", "--cpu", "1"), 'no pool "nix"')
    refused(run(*base, "--pool", "train", "--cpu", "99"), "99 cpu")
    refused(run("submit", str(tmp_path / "none.json")), "none.json", code=2)


def test_submit_waits_for_the_result(run: Run, pool: str) -> None:
    base = ("submit", "--pool", "train", "--cpu", "1", "--entry", "run", "--wait", "--class")
    out = good(run(*base, COUNTER, "--kwargs", '{"steps": 3}'))
    assert "is completed" in out
    assert json.loads(out[out.index("{") :])["step"] == 3
    assert parsed(run(*base, COUNTER, "--kwargs", '{"steps": 3}', "--json"))["state"] == "completed"
    code, out, _ = run(*base, "schedulemesh.testing.agents:Failing")
    assert code == 1
    assert "told to fail" in out


def test_tasks_are_listed_by_what_is_asked(run: Run, pool: str) -> None:
    assert "no tasks" in good(run("tasks"))
    running(run, "alpha", "--cpu", "1", "--label", "tier=batch", "--label", "team=a")
    running(run, "beta", "--cpu", "1", "--label", "tier=batch")
    submit(run, "gamma", "--cpu", "4", "--priority", "1", "--queue")

    def ids(*arguments: str) -> list[str]:
        return [task["task_id"] for task in parsed(run("tasks", *arguments, "--json"))]

    assert ids() == ["gamma", "beta", "alpha"]
    assert ids("--state", "running") == ["beta", "alpha"]
    assert ids("--state", "queued,failed") == ["gamma"]
    assert ids("--text", "lph") == ["alpha"]
    assert ids("--label", "tier=batch", "--label", "team=a") == ["alpha"]
    assert ids("--pool", "train", "--live", "--limit", "2") == ["gamma", "beta"]
    assert ids("--limit", "0") == ["gamma", "beta", "alpha"]
    assert "no such tasks" in good(run("tasks", "--state", "failed"))
    table = rows(good(run("tasks", "--limit", "2")))
    assert table[0] == ["TASK", "STATE", "POOL", "PRIORITY", "RESOURCES", "AGE", "RAN", "NOTE"]
    assert table[1][:5] == ["gamma", "queued", "train", "1", "4 CPU"]
    assert "number 1 in the line" in table[1][-1]
    assert "the 2 newest" in table[3][0]


def test_ids_are_never_cut_or_wrapped(run: Run, pool: str) -> None:
    name = "a-task-of-a-very-long-name-" + "x" * 150
    running(run, name, "--cpu", "1")
    assert any(line.startswith(name + "  running") for line in good(run("tasks")).splitlines())


def test_a_task_is_shown_with_its_timeline(run: Run, pool: str) -> None:
    running(run, "t1", "--cpu", "1")
    text = good(run("tasks", "show", "t1"))
    assert "schedulemesh.testing.agents:Counter" in text
    timeline = rows(text[text.index("TIME") :])
    assert timeline[0] == ["TIME", "AFTER", "EVENT", "BY", "WHAT"]
    assert [word for row in timeline for word in row if word in ("reserved", "running")] == [
        "reserved",
        "running",
    ]
    found = parsed(run("tasks", "show", "t1", "--json"))
    assert found["task_id"] == "t1"
    assert found["events"][0]["type"] == "reserved"
    refused(run("tasks", "show", "nix"), 'no task "nix"')


def test_tasks_are_cancelled_and_completed(run: Run, pool: str, space: str) -> None:
    for name in ("a", "b", "c"):
        running(run, name, "--cpu", "1")
    assert "is cancelled" in good(run("tasks", "cancel", "a", "--wait"))
    assert client(space).task("a")["state"] == "cancelled"
    good(run("tasks", "complete", "b", "--wait"))
    assert client(space).task("b")["state"] == "completed"
    # One wrong name does not keep the others from being done.
    code, out, err = run("tasks", "cancel", "nix", "c")
    assert code == 1
    assert '"nix"' in err
    assert "Task c" in out
    until(lambda: client(space).task("c")["state"] == "cancelled")
    refused(run("tasks", "restore", "b"), "b")


def test_a_live_task_is_changed(run: Run, pool: str, space: str) -> None:
    running(run, "t1", "--cpu", "1", "--label", "tier=batch")
    good(run("tasks", "set", "t1", "--priority", "9", "--label", "team=a", "--estimate", "10m"))
    task = client(space).task("t1")
    assert (task["priority"], task["labels"]) == (9, {"tier": "batch", "team": "a"})
    assert task["estimated_duration"] == 600
    refused(run("tasks", "set", "t1"), "nothing to change", code=2)


def test_wait_ends_with_the_task(run: Run, pool: str, space: str) -> None:
    running(run, "t1", "--cpu", "1")
    refused(run("tasks", "wait", "t1", "--timeout", "0.2"), "still running after 0.2s")
    with subprocess.Popen([*COMMAND, "tasks", "wait", "t1"], stdout=subprocess.PIPE, text=True) as waiting:
        client(space).complete("t1")
        out, _ = waiting.communicate(timeout=30)
    assert waiting.returncode == 0
    assert "is completed" in out
    code, out, _ = run("tasks", "wait", "t1", "--running")
    assert (code, out) == (0, "Task t1 is completed.\n")
    submit(run, "t2", "--cpu", "4", "--queue")
    good(run("tasks", "cancel", "t2"))
    assert run("tasks", "wait", "t2")[0] == 1


def test_ctrl_c_ends_a_wait_quietly_and_leaves_the_task(run: Run, pool: str, space: str) -> None:
    with subprocess.Popen(
        [*COMMAND, "submit", "--pool", "train", "--id", "t1", "--cpu", "1", "--class", COUNTER, "--wait"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        until(lambda: any(task["state"] == "running" for task in client(space).tasks()))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert client(space).task("t1")["state"] == "running"


# Preemption.


def test_a_task_is_preempted_and_restored(run: Run, pool: str, space: str) -> None:
    running(run, "t1", "--cpu", "1")
    out = good(run("preempt", "t1"))
    assert "it stopped, its state is saved" in out
    assert "step" in json.loads(out[out.index("{") :])
    until(lambda: client(space).task("t1")["state"] == "preempted")
    refused(run("preempt", "t1"), "t1")
    assert "Task t1 is" in good(run("tasks", "restore", "t1"))
    good(run("tasks", "wait", "t1", "--running"))
    agent = client(space).task("t1")["agent"]["name"]
    assert parsed(run("preempt", "--agent", agent, "--json"))["task_id"] == "t1"
    refused(run("preempt", "--agent", "nix"), "nix")


def test_who_would_make_way(run: Run, pool: str) -> None:
    assert "Nobody could" in good(run("evaluate", "--pool", "train", "--priority", "9"))
    running(run, "low", "--cpu", "3", "--priority", "1", "--estimate", "10m")
    assert "fits as things are" in good(run("evaluate", "--pool", "train", "--cpu", "1"))
    text = good(run("evaluate", "--pool", "train", "--priority", "9", "--cpu", "4"))
    assert "once 1 task made way" in text
    (row,) = [row for row in rows(text) if row[0] == "low"]
    assert "same pool" in row
    assert row[-1] == "would be taken"
    assert "does not fit" in good(run("evaluate", "--pool", "train", "--priority", "1", "--cpu", "4"))
    assert "1 task could be" in good(run("evaluate", "--pool", "train", "--priority", "9"))
    found = parsed(run("evaluate", "--pool", "train", "--priority", "9", "--cpu", "4", "--json"))
    assert found["decision"]["outcome"] == "preempt"
    assert [c["task_id"] for c in found["candidates"]] == ["low"]


# The policy.


@pytest.fixture
def editor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Makes an editor of Python statements on ``path`` and ``policy``, which is written back."""

    def make(code: str) -> None:
        script = tmp_path / "editor.py"
        script.write_text(
            "import json, pathlib, sys\n"
            "path = pathlib.Path(sys.argv[1])\n"
            "policy = json.loads(path.read_text())\n"
            f"{code}\n"
            "if policy is not None: path.write_text(json.dumps(policy))\n"
        )
        monkeypatch.setenv("EDITOR", f"{sys.executable} '{script}'")
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    return make


def texts(tmp_path: Path) -> list[str]:
    return [path.read_text() for path in tmp_path.glob("policy-*.json")]


def test_the_policy_is_shown_edited_compared_and_rolled_back(
    run: Run, pool: str, space: str, editor: Callable[[str], None], tmp_path: Path
) -> None:
    assert "min_preempt_score" in good(run("policy"))
    editor("policy['min_preempt_score'] = 2; policy['protected_pools'] = ['train']")
    out = good(run("policy", "edit", "-m", "protect production"))
    assert "Version 2 is active" in out
    assert ["min_preempt_score", "0.5", "2.0"] in rows(out)
    assert texts(tmp_path) == []
    active = client(space).policy()
    assert (active["version"], active["comment"]) == (2, "protect production")
    assert active["policy"]["protected_pools"] == ["train"]

    assert ["min_preempt_score", "0.5", "2.0"] in rows(good(run("policy", "diff", "1", "2")))
    assert parsed(run("policy", "diff", "--json"))["to"] == 2
    assert "do not differ" in good(run("policy", "diff", "2", "2"))
    newest = rows(good(run("policy", "history")))[1]
    assert (newest[0], newest[-1]) == ("2", "protect production")
    assert "Version 3 is active" in good(run("policy", "rollback", "1", "-m", "too eager"))
    assert parsed(run("policy", "show", "--json"))["policy"]["min_preempt_score"] == 0.5
    assert parsed(run("policy", "show", "2", "--json"))["policy"]["min_preempt_score"] == 2
    assert len(parsed(run("policy", "history", "--json"))) == 3
    refused(run("policy", "show", "99"), "99")
    refused(run("policy", "rollback", "99"), "99")


def test_an_editor_that_changes_nothing(
    run: Run, space: str, editor: Callable[[str], None], tmp_path: Path
) -> None:
    editor("policy = None")
    assert "Nothing was changed" in good(run("policy", "edit"))
    assert client(space).policy()["version"] == 1
    assert texts(tmp_path) == []


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("policy['min_preempt_score'] = -1; policy['nonsense'] = 1", "nonsense"),
        ("policy['min_preempt_score'] = 'high'", "min_preempt_score"),
        ("path.write_text('{'); policy = None", "not JSON"),
        ("policy = [1]", "JSON object"),
    ],
)
def test_an_invalid_policy_is_refused_and_the_text_kept(
    run: Run, space: str, editor: Callable[[str], None], tmp_path: Path, code: str, words: str
) -> None:
    editor(code)
    refused(run("policy", "edit"), words, "your text is in")
    assert client(space).policy()["version"] == 1
    assert len(texts(tmp_path)) == 1


def test_a_policy_that_was_changed_meanwhile_is_not_overwritten(
    run: Run, space: str, editor: Callable[[str], None], tmp_path: Path
) -> None:
    editor(
        "from schedulemesh.client import Client\n"
        f"Client(namespace={space!r}).patch_policy({{'cancel_timeout': 7}})\n"
        "policy['min_preempt_score'] = 3"
    )
    refused(run("policy", "edit"), "version 2", "your text is in")
    assert client(space).policy()["policy"]["min_preempt_score"] == 0.5
    assert json.loads(texts(tmp_path)[0])["min_preempt_score"] == 3


def test_editors_that_fail(run: Run, space: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITOR", "/nowhere/editor")
    refused(run("policy", "edit"), "/nowhere/editor")
    monkeypatch.setenv("EDITOR", "false")
    refused(run("policy", "edit"), "ended with code 1")
    monkeypatch.setenv("EDITOR", "'unbalanced")
    refused(run("policy", "edit"), "EDITOR")


# What happens, as it happens.


def printer(run: Run, name: str, lines: list[str], stream: str = "stdout") -> None:
    arguments = json.dumps({"lines": lines, "stream": stream})
    good(
        run("submit", "--pool", "train", "--id", name, "--cpu", "1", "--entry", "run", "--kwargs", arguments,
            "--class", "schedulemesh.testing.agents:Printer", "--wait")
    )  # fmt: skip


def test_logs_of_a_task(run: Run, pool: str) -> None:
    lines = [f"step {i}" for i in range(100)]
    printer(run, "t1", lines)
    printer(run, "t2", ["trouble"], "stderr")
    assert good(run("logs", "t1")).splitlines() == lines
    assert good(run("logs", "t1", "--tail", "2")).splitlines() == lines[-2:]
    assert good(run("logs", "t1", "-f")).splitlines() == lines
    assert good(run("logs", "t1", "--tail", "0")) == ""
    assert good(run("logs", "t2", "--stderr")) == "trouble\n"
    assert good(run("logs", "t2")) == ""
    assert parsed(run("logs", "t2", "--stderr", "--json"))["text"] == "trouble\n"
    refused(run("logs", "nix"), "nix")


def test_following_logs_ends_with_the_task(run: Run, pool: str, space: str) -> None:
    running(run, "t1", "--cpu", "1")
    with subprocess.Popen([*COMMAND, "logs", "-f", "t1"], stdout=subprocess.PIPE, text=True) as following:
        with pytest.raises(subprocess.TimeoutExpired):
            following.wait(1)
        client(space).complete("t1")
        assert following.wait(30) == 0


def test_events_so_far(run: Run, pool: str) -> None:
    running(run, "t1", "--cpu", "1")
    running(run, "t2", "--cpu", "1")
    found = [json.loads(line) for line in good(run("events", "--json")).splitlines()]
    assert [event["type"] for event in found if event["task_id"] == "t1"] == ["reserved", "running"]
    assert found == sorted(found, key=lambda event: event["id"])
    late = good(run("events", "--json", "--after", str(found[-2]["id"])))
    assert json.loads(late) == found[-1]
    assert all("t1" in line for line in good(run("events", "--task", "t1")).splitlines())


def test_events_are_followed(run: Run, pool: str, space: str) -> None:
    with subprocess.Popen(
        [*COMMAND, "events", "-f", "--after", "0", "--json"], stdout=subprocess.PIPE, text=True
    ) as following:
        try:
            assert following.stdout is not None
            assert json.loads(following.stdout.readline())["type"].startswith("pool")
            running(run, "t1", "--cpu", "1")
            while json.loads(following.stdout.readline())["type"] != "running":
                pass
        finally:
            following.send_signal(signal.SIGINT)
            assert following.wait(10) == 130


@pytest.mark.parametrize("command", ["pools", "events --json", "tasks --help"])
def test_a_closed_pipe_is_quiet(run: Run, space: str, command: str) -> None:
    for i in range(30):
        client(space).create_pool(f"pool-{i}-" + "x" * 150, resources={"cpu": 1})
    with subprocess.Popen(
        [*COMMAND, *command.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""


# The live screen.


def test_top_in_a_pipe_is_one_picture(run: Run, pool: str, address: str) -> None:
    running(run, "low", "--cpu", "1", "--priority", "1", "--estimate", "1h")
    running(run, "high", "--cpu", "2", "--priority", "9")
    submit(run, "waits", "--cpu", "4", "--priority", "0.5", "--queue")
    good(run("preempt", "low"))
    text = good(run("top"))
    assert address in text
    assert "1 running · 1 queued · 1 preemption" in text
    assert "█" in text
    assert "by hand" in text
    assert "\x1b" not in text
    found = parsed(run("top", "--json"))
    assert {task["task_id"] for task in found["tasks"]} == {"high", "waits"}
    assert found["preemptions"][0]["task_id"] == "low"


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *arguments: str, lines: int = 24, columns: int = 80, **environment: str) -> None:
        import fcntl
        import struct
        import termios

        self.handle, there = pty.openpty()
        fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.before = termios.tcgetattr(there)
        self.there = there
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=there,
            stdout=there,
            stderr=there,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        self.said = ""

    def read_until(self, word: str, seconds: float = 20.0) -> str:
        end = time.monotonic() + seconds
        while word not in self.said:
            assert time.monotonic() < end, self.said
            if select.select([self.handle], [], [], 0.1)[0]:
                self.said += os.read(self.handle, 65536).decode()
        return self.said

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for handle in (self.handle, self.there):
            with contextlib.suppress(OSError):
                os.close(handle)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def make(*arguments: str, **more: Any) -> Terminal:
        made.append(Terminal(*arguments, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize(("ending", "code"), [("q", 0), (signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_top_redraws_until_q_and_leaves_the_terminal_as_it_was(
    run: Run,
    pool: str,
    space: str,
    terminal: Callable[..., Terminal],
    ending: str | signal.Signals,
    code: int,
) -> None:
    import termios

    screen = terminal("top", "--interval", "0.2")
    screen.read_until("train")
    running(run, "newcomer", "--cpu", "1")
    text = screen.read_until("newcomer")
    assert "\x1b[?1049h" in text
    frame = text.split("\x1b[H")[-1]
    assert all(
        output.width(line.replace("\x1b[K", "").replace("\x1b[J", "")) <= 80 for line in frame.split("\r\n")
    )
    if isinstance(ending, str):
        os.write(screen.handle, ending.encode())
    else:
        screen.process.send_signal(ending)
    screen.read_until("\x1b[?1049l")
    assert screen.process.wait(10) == code
    assert termios.tcgetattr(screen.there) == screen.before
    assert "Traceback" not in screen.said


def test_top_fits_a_small_terminal(run: Run, pool: str, terminal: Callable[..., Terminal]) -> None:
    for i in range(30):
        running(run, f"task-{i}", "--cpu", "0.1")
    screen = terminal("top", "--interval", "0.2", lines=16, columns=60)
    text = screen.read_until("more running")
    frame = next(f for f in text.split("\x1b[H") if "more running" in f)
    assert frame.count("\r\n") <= 15


def test_colours_are_for_terminals_only(pool: str, run: Run, terminal: Callable[..., Terminal]) -> None:
    assert "\x1b[" not in good(run("pools"))
    assert "\x1b[32mopen" in terminal("pools").read_until("tier=standard")
    assert "\x1b[" not in terminal("pools", NO_COLOR="1").read_until("tier=standard")


# Jobs, and the clusters they may go to: a stand-in, which runs them here.


@pytest.fixture(scope="module")
def cluster(address: str) -> Iterator[Dashboard]:
    """A cluster of 16 cores that is called `here`, beside one that is not there."""
    found = Dashboard(16)
    with client() as asked:
        asked.import_clusters(
            f"clusters:\n  here: {{head_address: '127.0.0.1:1', dashboard: '{found.url}'}}\n"
            "  away: {head_address: '127.0.0.1:9', dashboard: 'http://127.0.0.1:9'}\n"
        )
        until(lambda: [c["state"] for c in asked.clusters()] == ["unhealthy", "healthy"])
        yield found
        until(lambda: not any(asked.cluster("here")["jobs"].values()), 60)
        for name in ("here", "away"):
            asked.delete_cluster(name)
    found.close()


def test_a_job_is_submitted_shown_and_read(run: Run, cluster: Dashboard, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("import os; print('hello', os.environ['WHO'])")
    code, out, err = run(
        "jobs", "submit", "--id", "cli-1", "--job-id", "greeting", "--tag", "t1", "--metadata", "user=alice",
        "--cpu", "2", "--memory", "1GiB", "--env", "WHO=you", "--working-dir", str(tmp_path),
        "--cluster", "nowhere",
        "--wait", "--", sys.executable, "-m", "main",
    )  # fmt: skip
    assert (code, out) == (0, "Job cli-1 is SUCCEEDED on here.\n")
    assert 'there is no cluster "nowhere"' in err
    sent = cluster.submitted["cli-1"]
    assert (sent["entrypoint_num_cpus"], sent["entrypoint_memory"]) == (2, 1 << 30)
    assert good(run("logs", "cli-1")) == "hello you\n"
    assert good(run("logs", "-f", "cli-1")) == "hello you\n"
    shown = good(run("jobs", "show", "cli-1"))
    for words in ("greeting", "SUCCEEDED", "2 CPU, 1 GiB", "user=alice", "succeeded", "not away:"):
        assert words in shown
    assert parsed(run("jobs", "show", "cli-1", "--json"))["tags"] == ["t1"]
    for narrowed in (
        ("--tag", "t1"),
        ("--metadata", "user=alice"),
        ("--job-id", "greeting"),
        ("-q", "cli-1"),
    ):
        assert [job["submission_id"] for job in parsed(run("jobs", *narrowed, "--json"))] == ["cli-1"]
    assert rows(good(run("jobs", "--state", "succeeded", "--cluster", "here", "--tag", "t1")))[1][:4] == [
        "cli-1", "greeting", "SUCCEEDED", "here",
    ]  # fmt: skip
    assert good(run("jobs", "--tag", "nobody")) == "There are no such jobs.\n"


def test_a_job_that_fails_and_one_that_is_stopped(run: Run, cluster: Dashboard) -> None:
    code, out, _ = run("jobs", "submit", "--id", "cli-2", "--wait", "exit 3")
    assert code == 1
    assert "Job cli-2 is FAILED on here" in out
    assert "cli-3" in good(run("jobs", "submit", "--id", "cli-3", "sleep", "600"))
    code, _, err = run("jobs", "wait", "cli-3", "--timeout", "0.5")
    assert code == 1
    assert "cli-3 is" in err
    stopped = run("jobs", "stop", "cli-3", "cli-none", "--wait")
    assert stopped[0] == 1
    assert "Job cli-3 is STOPPED on here" in stopped[1]
    assert "cli-none" in stopped[2]
    code, out, _ = run("jobs", "wait", "cli-2", "cli-3", "--json")
    assert (code, [job["state"] for job in json.loads(out)]) == (1, ["FAILED", "STOPPED"])


def test_output_is_followed_while_it_comes(run: Run, cluster: Dashboard) -> None:
    say = "import time\nfor n in range(3):\n    print('line', n, flush=True)\n    time.sleep(0.2)"
    good(run("jobs", "submit", "--id", "cli-4", "--", sys.executable, "-c", say))
    assert good(run("logs", "-f", "cli-4")) == "line 0\nline 1\nline 2\n"
    assert good(run("logs", "cli-4", "--tail", "1")) == "line 2\n"
    assert good(run("logs", "cli-4", "--tail", "0")) == ""
    pieces = [json.loads(line) for line in good(run("logs", "cli-4", "--json")).splitlines()]
    assert "".join(piece["text"] for piece in pieces) == "line 0\nline 1\nline 2\n"


def test_clusters_are_listed_held_and_resumed(run: Run, cluster: Dashboard) -> None:
    listed = rows(good(run("clusters")))
    assert listed[0][:5] == ["CLUSTER", "STATE", "HEALTH", "JOBS", "CPU"]
    assert [row[:2] for row in listed[1:]] == [["away", "unhealthy"], ["here", "healthy"]]
    assert "healthy, held" in good(run("clusters", "hold", "here", "--reason", "new drivers"))
    assert "new drivers" in good(run("clusters", "show", "here"))
    assert "QUEUED" in good(run("jobs", "submit", "--id", "cli-5", "true"))
    assert "held" not in good(run("clusters", "resume", "here"))
    assert good(run("jobs", "wait", "cli-5")) == "Job cli-5 is SUCCEEDED on here.\n"
    refused(run("clusters", "show", "nowhere"), "nowhere")


def test_a_configuration_is_imported_or_refused_with_its_place(
    run: Run, cluster: Dashboard, tmp_path: Path
) -> None:
    file = tmp_path / "clusters.yaml"
    file.write_text("clusters:\n  third:\n    head_address: '127.0.0.1:9'\n    weight: 0.5\n")
    assert "third" in good(run("clusters", "import", str(file)))
    assert parsed(run("clusters", "show", "third", "--json"))["weight"] == 0.5
    assert good(run("clusters", "delete", "third")) == "Cluster third is gone.\n"
    file.write_text("clusters:\n  third:\n    head_address: '127.0.0.1:9'\n    weight: heavy\n")
    refused(run("clusters", "import", str(file)), f"{file}:4:13: ", "weight")
    refused(run("clusters", "import", str(tmp_path / "none.yaml")), "none.yaml cannot be read")
    file.write_bytes(b"\xff\xfe")
    refused(run("clusters", "import", str(file)), "cannot be read")


# The shell.


def test_completion_scripts_are_valid(run: Run) -> None:
    for shell in ("bash", "zsh", "fish"):
        script = good(run("completion", shell))
        assert "_SCHEDULEMESH_COMPLETE" in script
        if found := shutil.which(shell):
            check = subprocess.run([found, "-n"], input=script, capture_output=True, text=True, timeout=10)
            assert (check.returncode, check.stderr) == (0, "")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("po", ["pools", "policy"]),
        ("pools sh", ["show"]),
        ("pools show ", ["train"]),
        ("tasks show t", ["t1"]),
        ("submit --pool ", ["train"]),
        ("completion ba", ["bash"]),
        ("clusters show h", ["here"]),
    ],
)
def test_the_shell_completes_names_the_server_knows(
    run: Run, pool: str, cluster: Dashboard, line: str, wanted: list[str]
) -> None:
    running(run, "t1", "--cpu", "1")
    words = ["schedulemesh", *line.split(" ")]
    found = subprocess.run(
        COMMAND,
        env={
            **os.environ,
            "_SCHEDULEMESH_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(words),
            "COMP_CWORD": str(len(words) - 1),
        },
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (found.stderr, sorted(found.stdout.split())) == ("", sorted(f"plain,{word}" for word in wanted))


def test_help_comes_fast_and_without_ray() -> None:
    code = (
        "import sys; from schedulemesh import cli; cli.main(['--help']); "
        "print(sorted({'ray', 'httpx', 'aiohttp', 'grpc', 'numpy'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert found.stdout.splitlines()[-1] == "[]"
    assert "top" in found.stdout


def test_every_command_explains_itself(run: Run) -> None:
    from schedulemesh.cli.app import app
    from schedulemesh.cli.context import Group

    def walk(group: Group, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        for name, command in group.commands.items():
            yield (*before, name)
            if isinstance(command, Group):
                yield from walk(command, (*before, name))

    assert isinstance(app, Group)
    for words in walk(app):
        if words != ("up",):
            assert good(run(*words, "--help")).startswith(f"Usage: schedulemesh {' '.join(words)}")
