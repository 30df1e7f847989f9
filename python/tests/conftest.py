"""What the tests share: a real Ray when one is named, and sidecars on it."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest


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
