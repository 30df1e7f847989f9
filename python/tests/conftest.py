"""What the tests share: a real Ray when one is named, sidecars on it, and one real server."""

from __future__ import annotations

import http.client
import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from schedulemesh import local
from schedulemesh.client import Client
from schedulemesh.core import RayScheduler
from schedulemesh.simple import SimpleScheduler

ROOT = Path(__file__).resolve().parents[2]


class Refused(Exception):
    """An error the sidecar answered with."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(f"{status} {error}")
        self.status = status
        self.code = error["code"]
        self.error = error


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("sidecar", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Sidecar:
    """A sidecar process and calls on it."""

    def __init__(self, ray_address: str, deployment: str) -> None:
        self.ray_address = ray_address
        self.deployment = deployment
        self.path = os.path.join(tempfile.mkdtemp(prefix="sm"), "s")
        self.process = self._start()
        self._count = 0
        self._mine: list[str] = []

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "schedulemesh.bridge", "--lifeline", "--socket", self.path]
        command += ["--ray-address", self.ray_address, "--deployment", self.deployment]
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
        end = time.monotonic() + 60
        while True:
            try:
                self.get("hello")
                return process
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    raise
                time.sleep(0.02)

    def kill_and_restart(self) -> None:
        """End it without warning and start another."""
        self.process.kill()
        self.process.wait()
        os.unlink(self.path)
        self.process = self._start()

    def close(self) -> None:
        for launch_id in self._mine:
            self.post("kill", launch_id=launch_id, timeout=30)
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(10) == 0

    def raw(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        connection = _UnixConnection(self.path)
        try:
            connection.request(method, "/v1/" + path, body)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        status, answer = self.raw("GET", path)
        if status != 200:
            raise Refused(status, answer["error"])
        return answer

    def post(self, path: str, **body: Any) -> Any:
        status, answer = self.raw("POST", path, json.dumps(body).encode())
        if status != 200:
            raise Refused(status, answer["error"])
        return answer

    def new_id(self) -> str:
        self._count += 1
        launch_id = f"{self.deployment}-{self._count}"
        self._mine.append(launch_id)
        return launch_id

    def request(self, cls: str = "Counter", **more: Any) -> dict[str, Any]:
        launch_id = self.new_id()
        return {
            "launch_id": launch_id,
            "agent_name": launch_id,
            "class_path": f"schedulemesh.testing.agents:{cls}",
            "resources": {"cpu": 100},
            "timeout": 30,
            **more,
        }

    def launch(self, cls: str = "Counter", **more: Any) -> str:
        launched: dict[str, Any] = self.post("launch", **self.request(cls, **more))
        return str(launched["launch_id"])

    def agent(self, launch_id: str) -> dict[str, Any] | None:
        return next((a for a in self.get("agents") if a["launch_id"] == launch_id), None)


def until(what: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Wait for what no event tells of."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)
    return found


@pytest.fixture(scope="session")
def ray_address() -> str:
    """The Ray cluster to test on: SCHEDULEMESH_TEST_RAY."""
    address = os.environ.get("SCHEDULEMESH_TEST_RAY", "")
    if not address:
        why = "no real Ray: set SCHEDULEMESH_TEST_RAY to host:port"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    return address


@pytest.fixture(scope="module")
def sidecar(ray_address: str) -> Iterator[Sidecar]:
    found = Sidecar(ray_address, f"pytest-{os.getpid()}-{time.time_ns() // 1000000}")
    yield found
    found.close()


@pytest.fixture(scope="session")
def server(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[local.Started]:
    """One server for the whole run, which scripts find by their environment."""
    with pytest.MonkeyPatch.context() as patch:
        # This user's own servers are none of our business.
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        started = local.start(ray_address, keep=False)
        patch.setenv("SCHEDULEMESH_URL", started.url)
        patch.setenv("SCHEDULEMESH_TOKEN", started.token)
        patch.setenv("RAY_ADDRESS", ray_address)
        yield started
        with Client(started.url, started.token) as client:
            left = [one["name"] for one in client.namespaces()]
        started.stop()
        assert left == ["default"], "tests left schedulers behind"


def connect(ray_address: str) -> None:
    """Make this process a driver on the cluster."""
    import ray

    if not ray.is_initialized():
        ray.init(ray_address, namespace="tests", log_to_driver=False, logging_level=logging.WARNING)


@pytest.fixture(scope="module")
def driver(server: local.Started, ray_address: str) -> Iterator[local.Started]:
    """This process as a driver on the cluster of the server."""
    import ray

    connect(ray_address)
    yield server
    ray.shutdown()


_numbers = itertools.count(1)


@pytest.fixture
def name() -> str:
    """A name no other test has."""
    return f"test-{next(_numbers)}"


@pytest.fixture
def simple(driver: local.Started, name: str) -> Iterator[SimpleScheduler]:
    """A scheduler of this test's own, which leaves nothing."""
    scheduler = SimpleScheduler(name)
    yield scheduler
    scheduler.shutdown()


@pytest.fixture
def scheduler(driver: local.Started, name: str) -> Iterator[RayScheduler]:
    """The other kind."""
    scheduler = RayScheduler(name)
    yield scheduler
    scheduler.shutdown()


def remove(server: local.Started, name: str) -> None:
    """Remove a scheduler that outlives its process, and whatever it has."""
    with Client(server.url, server.token, name) as client:
        client.delete_namespace(force=True)


def held(scheduler: RayScheduler | SimpleScheduler) -> dict[str, dict[str, float]]:
    """What each pool has given out or borrowed; empty when nobody holds anything."""
    return {
        pool["name"]: given
        for pool in scheduler.list_pools()
        if (
            given := {
                balance["resource"]: balance["reserved"] + balance["used"]
                for balance in pool["balances"]
                if balance["reserved"] or balance["used"] or balance["borrowed"] or balance["lent"]
            }
        )
    }


class Script:
    """A user's script in a process of its own."""

    def __init__(self, directory: Path, text: str, **environment: str) -> None:
        self.file = directory / "script.py"
        self.file.write_text(textwrap.dedent(text))
        self.process = subprocess.Popen(
            [sys.executable, str(self.file)],
            cwd=directory,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line it prints."""
        assert self.process.stdout is not None
        if said := self.process.stdout.readline():
            return said.rstrip("\n")
        raise AssertionError(f"it ended: {self.end()}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, seconds: float = 60.0) -> tuple[int, str, str]:
        """Wait for it: exit code, and what else it said on stdout and stderr."""
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode, out, err


@pytest.fixture
def script(server: local.Started, tmp_path: Path) -> Iterator[Callable[..., Script]]:
    """Starts scripts, in a directory of this test."""
    started: list[Script] = []

    def start(text: str, **environment: str) -> Script:
        started.append(Script(tmp_path, text, **environment))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()
