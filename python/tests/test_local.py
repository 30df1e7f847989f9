"""Finding servers by what they note, and their tokens. Starting one is tested with the wheel."""

from __future__ import annotations

import fcntl
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from schedulemesh import local


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where servers are looked for, and the working directory."""
    for name in ("TOKEN", "TOKEN_FILE", "SERVER", "URL"):
        monkeypatch.delenv(f"SCHEDULEMESH_{name}", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schedulemesh" / "servers").mkdir(parents=True)
    (tmp_path / "schedulemesh").chmod(0o700)
    return tmp_path


class Notes:
    """Writes notices as servers do, with a lock that lives as long as this."""

    def __init__(self, place: Path) -> None:
        self._directory = place / "schedulemesh" / "servers"
        self._locks: list[IO[str]] = []

    def write(self, pid: int, *, locked: bool = True, **more: Any) -> None:
        says = {
            "pid": pid,
            "host": socket.gethostname(),
            "url": f"http://127.0.0.1:{pid}",
            "token_file": "",
            "ray_address": f"10.0.0.4:{pid}",
            "data": "",
            "deployment": "d",
            "a_newer_field": 1,
        }
        path = self._directory / f"{pid}.json"
        path.write_text(json.dumps({**says, **more}))
        if locked:
            self._locks.append(path.open())
            fcntl.flock(self._locks[-1].fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        for lock in self._locks:
            lock.close()


@pytest.fixture
def notes(place: Path) -> Iterator[Notes]:
    found = Notes(place)
    yield found
    found.close()


def gone() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_only_servers_that_live_here_are_listed(notes: Notes, place: Path) -> None:
    notes.write(1)
    notes.write(os.getpid(), locked=False)  # a number that another program has by now
    notes.write(3, host="another-machine")
    notes.write(4, parent=gone())
    notes.write(5, parent=os.getpid())
    notes.write(6, ray_address="")
    (place / "schedulemesh/servers/7.json").write_text('{"pid": 7, "host"')
    (place / "schedulemesh/servers/8.json").write_text("{}")
    assert sorted(entry.pid for entry in local.servers()) == [1, 5, 6]
    assert next(entry for entry in local.servers() if entry.pid == 5) == local.ServerEntry(
        pid=5,
        url="http://127.0.0.1:5",
        token_file="",
        ray_address="10.0.0.4:5",
        data="",
        deployment="d",
        parent=os.getpid(),
    )
    notes.close()
    assert local.servers() == []


def test_a_place_that_others_can_write_to_is_not_believed(notes: Notes, place: Path) -> None:
    notes.write(1)
    assert len(local.servers()) == 1
    (place / "schedulemesh").chmod(0o777)
    assert local.servers() == []


def test_a_cluster_on_this_machine_has_several_names(notes: Notes) -> None:
    notes.write(6379)
    for address in ("10.0.0.4:6379", "127.0.0.1:6379", "localhost:6379"):
        assert local.server_for(address) is not None
    for address in ("10.0.0.4:6380", "10.0.0.5:6379", ""):
        assert local.server_for(address) is None


def test_a_token_is_looked_for_where_it_is_most_clearly_meant(
    notes: Notes, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert local.token_for(local.DEFAULT_URL) == ""
    (place / ".data").mkdir()
    (place / ".data" / "token").write_text("of-data\n")
    assert local.token_for(local.DEFAULT_URL + "/") == "of-data"
    (place / ".data" / "url").write_text("http://127.0.0.1:9000\n")
    assert local.token_for(local.DEFAULT_URL) == ""
    assert local.token_for("http://127.0.0.1:9000") == "of-data"

    (place / "token").write_text("of-the-server\n")
    notes.write(9000, token_file=str(place / "token"))
    assert local.token_for("http://127.0.0.1:9000") == "of-the-server"

    (place / "named").write_text("named\n")
    monkeypatch.setenv("SCHEDULEMESH_TOKEN_FILE", str(place / "named"))
    assert local.token_for("http://127.0.0.1:9000") == "named"
    monkeypatch.setenv("SCHEDULEMESH_TOKEN_FILE", str(place / "missing"))
    with pytest.raises(local.LocalError, match=r"SCHEDULEMESH_TOKEN_FILE cannot be read: .*missing"):
        local.token_for("http://127.0.0.1:9000")
    monkeypatch.setenv("SCHEDULEMESH_TOKEN", "given")
    assert local.token_for("http://127.0.0.1:9000") == "given"


class Old(http.server.BaseHTTPRequestHandler):
    """A server of an earlier release."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"version": "0.0.9"}')

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_a_server_of_another_version_is_used_with_one_warning(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHEDULEMESH_SERVER", sys.executable)  # which must not be started
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Old) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        notes.write(6379, url=url)
        with pytest.warns(UserWarning, match=r"is ScheduleMesh 0\.0\.9 and this package is"):
            found = local.start("10.0.0.4:6379", keep=False)
        assert (found.url, found.ours) == (url, False)
        assert "token" not in repr(found)  # which ends up in logs
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = local.start("10.0.0.4:6379", keep=False)
            found.stop()  # not ours to stop
        server.shutdown()
    assert len(local.servers()) == 1


def test_what_is_meant_for_other_servers_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "SCHEDULEMESH_TOKENS", "SCHEDULEMESH_ADDR", "SCHEDULEMESH_BRIDGE_URL"):
        monkeypatch.setenv(name, "of-another")
    monkeypatch.setenv("SCHEDULEMESH_CACHE", "relative")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-the-cluster")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", "relative", "/absolute"]))
    environment = local._environment()
    assert "of-another" not in environment.values()
    assert environment["RAY_AUTH_TOKEN"] == "of-the-cluster"
    assert environment["SCHEDULEMESH_CACHE"] == os.path.abspath("relative")
    assert environment["PYTHONPATH"].split(os.pathsep)[-3:] == [
        os.getcwd(),
        os.path.abspath("relative"),
        "/absolute",
    ]
