"""The wheel, as users have it: installed outside of the checkout, with nothing else of ours.

It is built for this machine and run on a Ray head of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import until

ROOT = Path(__file__).resolve().parents[2]
#: In the environment of everything a test starts, directly or not.
MARK = "WHEEL_TEST_MARK"

MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
PLATFORM = f"{sys.platform}-{MACHINES.get(platform.machine(), platform.machine())}"


def missing(why: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory that whoever runs Postgres for root gets into, with a name short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="smw", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def wheel(place: Path) -> Path:
    if not Path("/proc/self/environ").exists():
        missing("looks at processes through /proc, which this system has not")
    if shutil.which("go") is None:
        missing("builds the server, and Go is not on this machine")
    server = place / "server"
    subprocess.run(["go", "build", "-o", server, "./cmd/server"], cwd=ROOT, check=True)
    command = ["make", "wheel", f"PLATFORMS={PLATFORM}"]
    # `make wheel` compiles once more, for any Linux; that takes a minute when nothing is cached.
    command += [f"ARGS=-server {server} -python {sys.executable} -out {place / 'dist'}"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    [built] = (place / "dist").iterdir()
    return built


class Installed:
    """An environment with the wheel in it."""

    def __init__(self, place: Path, wheel: Path) -> None:
        self.place = place
        directory = place / "venv"
        venv.create(directory, symlinks=True)
        self.python = directory / "bin" / "python"
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet"]
        subprocess.run([*pip, "--no-deps", "--no-index", wheel], check=True)
        # Ray and what else it depends on are those of the environment that runs the tests.
        site = next(directory.glob("lib/python*/site-packages"))
        (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.package = site / "schedulemesh"
        self.home = place / "home"
        self.home.mkdir()
        self.temporary = place / "tmp"
        self.temporary.mkdir()
        self.temporary.chmod(0o777)

    def environment(self, mark: str, **more: str) -> dict[str, str]:
        """That of a user who has just installed it, without a network to fetch more from."""
        dropped = ("SCHEDULEMESH_", "RAY_", "XDG_", "PYTHONPATH", "DATABASE_URL")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        return {
            **kept,
            MARK: mark,
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "RAY_TMPDIR": "/tmp",
            "RAY_USAGE_STATS_ENABLED": "0",
            "SCHEDULEMESH_CACHE": str(self.place / "cache"),
            "SCHEDULEMESH_POSTGRES_REPOSITORY": "http://127.0.0.1:9",
            **more,
        }

    def run(self, program: str, mark: str, **more: str) -> subprocess.Popen[str]:
        """A script; it runs in a session of its own, as in another terminal."""
        return subprocess.Popen(
            [self.python, "-c", textwrap.dedent(program)],
            env=self.environment(mark, **more),
            cwd=self.place,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ask(self, code: str) -> list[str]:
        """The words a line of Python prints."""
        command = [self.python, "-c", code]
        out = subprocess.run(command, env=self.environment("-"), check=True, capture_output=True, text=True)
        return out.stdout.split()

    def notices(self) -> list[Path]:
        return list((self.home / ".local/state/schedulemesh/servers").glob("*.json"))


@pytest.fixture(scope="module")
def installed(place: Path, wheel: Path) -> Iterator[Installed]:
    yield Installed(place, wheel)
    for mark in ("up", "start", "kept", "fails", "head"):  # nothing, unless a test failed
        until(lambda mark=mark: [os.kill(pid, signal.SIGKILL) for pid in marked(mark)] == [])


def marked(mark: str) -> dict[int, str]:
    """The processes with that mark, and their command lines. Postgres' backends write over theirs."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def nothing_is_left(installed: Installed, mark: str) -> None:
    """Wait until what was started with that mark is gone, and its files too."""

    def left() -> list[Any]:
        # Ray's dashboard leaves empty directories, pymp-*, when it is stopped.
        return [*marked(mark).items(), *installed.notices(), *installed.temporary.glob("schedulemesh*")]

    with contextlib.suppress(AssertionError):
        until(lambda: not left(), 20)
    assert left() == []


def server_says(url: str, token: str) -> Any:
    request = urllib.request.Request(f"{url}/api/v1/server", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def head(installed: Installed) -> Iterator[str]:
    """A Ray head that no server has claimed."""
    free = []
    for _ in range(4):
        free.append(socket.create_server(("127.0.0.1", 0)))
    ports = [str(listener.getsockname()[1]) for listener in free]
    for listener in free:
        listener.close()
    names = ("port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port")
    command = [installed.python, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=2"]
    command += [f"--{name}={port}" for name, port in zip(names, ports, strict=True)]
    command += ["--metrics-export-port=0", "--min-worker-port=0", "--max-worker-port=0"]
    command += [
        "--disable-usage-stats",
        f"--object-store-memory={75 << 20}",
        "--include-dashboard=false",
        "--log-color=false",
    ]
    command += [f"--temp-dir={installed.place / 'ray'}"]
    environment = installed.environment("head", RAY_AUTH_MODE="disabled")
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    said = ""
    while "will now block" not in said:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, said
        said += line
    address = re.search(r"--address='(\S+)'", said)
    assert address, said
    yield address[1]
    process.terminate()
    process.wait(30)


def test_the_wheel_carries_the_server_its_postgres_and_the_licence(wheel: Path, installed: Installed) -> None:
    tag = r"manylinux_2_27_(x86_64|aarch64)" if sys.platform == "linux" else r"macosx_12_0_\w+"
    assert re.fullmatch(rf"schedulemesh-[\d.]+-py3-none-{tag}\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert f"schedulemesh/_bin/postgres-{PLATFORM}.txz" in names
    assert [name for name in names if name.endswith("/licenses/LICENSE")]
    assert not [name for name in names if name.startswith("tests")]
    assert "ray_multicluster_scheduler/py.typed" in names
    assert "ray_multicluster_scheduler/app/client_api/submit_job.py" in names
    program = installed.package / "_bin" / "schedulemesh-server"
    assert program.stat().st_mode & 0o111 == 0o111
    code = "import schedulemesh.local; print(schedulemesh.local.binary(), schedulemesh.local.__file__)"
    assert installed.ask(code) == [str(program), str(installed.package / "local.py")]
    code = "from ray_multicluster_scheduler.app.client_api import submit_job; print(submit_job.__file__)"
    assert installed.ask(code)[0].startswith(str(installed.package.parent))


def test_up_is_a_whole_installation_and_ctrl_c_leaves_nothing(installed: Installed) -> None:
    up = subprocess.Popen(
        [installed.python.parent / "schedulemesh", "up", "--addr", "127.0.0.1:0", "--ray-cpus", "2"],
        env=installed.environment("up"),
        cwd=installed.place,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    said, url = "", ""
    assert up.stdout is not None
    while not url:
        line = up.stdout.readline()
        assert line, said
        said += line
        if found := re.match(r" +(http://\S+)$", line.rstrip("\n")):
            url = found[1]
    data = installed.home / ".local/share/schedulemesh"
    says = server_says(url, (data / "token").read_text().strip())
    assert says["ray_address"]
    assert says["url"] == url
    code = "from schedulemesh.local import *; [s] = servers(); print(s.url, s.ray_address, token_for(s.url))"
    wanted = [url, says["ray_address"], (data / "token").read_text().strip()]
    until(lambda: installed.ask(code) == wanted)  # it notes the cluster a moment after it is ready

    os.killpg(up.pid, signal.SIGINT)
    rest = up.stdout.read()
    assert up.wait(30) == 0, said + rest
    assert "stopped; the data is kept in" in rest
    nothing_is_left(installed, "up")
    assert (data / "postgres").exists()


STARTS = """
    import sys, time
    from schedulemesh import local
    server = local.start({address!r}, keep={keep})
    print(server.url, server.token, server.ours, flush=True)
    sys.stdin.read() if {keep} else time.sleep(600)
"""


def started(process: subprocess.Popen[str]) -> tuple[str, str, bool]:
    assert process.stdout is not None
    url, token, ours = process.stdout.readline().split()
    return url, token, ours == "True"


def test_two_scripts_share_a_server_that_ends_when_they_are_killed(installed: Installed, head: str) -> None:
    program = STARTS.format(address=head, keep=False)
    scripts = [installed.run(program, "start", RAY_AUTH_MODE="disabled") for _ in range(2)]
    first, second = (started(script) for script in scripts)
    assert first[:2] == second[:2]
    assert {first[2], second[2]} == {True, False}
    assert server_says(first[0], first[1])["ray_address"] == head
    assert len(installed.notices()) == 1
    assert list(installed.temporary.glob("schedulemesh*"))
    for script in scripts:
        script.kill()
        script.wait()
    nothing_is_left(installed, "start")


def test_a_kept_server_outlives_its_script_and_is_found_again(installed: Installed, head: str) -> None:
    program = STARTS.format(address=head, keep=True)
    environment = {"RAY_AUTH_MODE": "disabled", "SCHEDULEMESH_DATA": str(installed.place / "kept")}
    found = []
    for _ in range(2):
        script = installed.run(program, "kept", **environment)
        found.append(started(script))
        script.kill()
        script.wait()
    assert found[0][:2] == found[1][:2]
    assert [ours for _, _, ours in found] == [True, False]
    [notice] = installed.notices()
    os.kill(int(notice.stem), signal.SIGTERM)
    nothing_is_left(installed, "kept")
    assert list((installed.place / "kept" / "ray").iterdir())


def test_what_prevents_a_start_is_said(installed: Installed, head: str) -> None:
    program = f"""
        import os
        from schedulemesh import local
        def fails(address={head!r}, keep=False, **environment):
            os.environ.update(environment)
            try:
                local.start(address, keep=keep)
            except local.LocalError as error:
                print(repr(str(error)), flush=True)
            else:
                print("it started")
            for name in environment:
                del os.environ[name]
        fails("auto")
        fails("127.0.0.1:9")
        fails(SCHEDULEMESH_SERVER="/nowhere/server")
        fails(SCHEDULEMESH_SERVER="{installed.place}/dist/not-executable")
        fails(SCHEDULEMESH_SERVER="{installed.place}/dist/not-for-this-machine")
        fails(keep=True, SCHEDULEMESH_DATA="/proc/nowhere")
        fails(SCHEDULEMESH_CACHE="/proc/nowhere")
    """
    (installed.place / "dist" / "not-executable").write_text("")
    wrong = installed.place / "dist" / "not-for-this-machine"
    wrong.write_bytes(b"\x7fELF nothing of ours")
    wrong.chmod(0o755)
    script = installed.run(program, "fails", RAY_AUTH_MODE="disabled")
    said, _ = script.communicate(timeout=60)
    wanted = [
        r"'auto' is not the address of a Ray cluster: it looks like 10\.0\.0\.4:6379",
        r"there is no Ray cluster at 127\.0\.0\.1:9 \(.*refused\): start one with `ray start --head`",
        r"/nowhere/server is not there: correct SCHEDULEMESH_SERVER",
        r"not-executable cannot be executed: correct SCHEDULEMESH_SERVER",
        r"not-for-this-machine does not run here",
        r"no place for the data: .*choose one with --data \(SCHEDULEMESH_DATA\)",
        r"no place for the Postgres programs: .*set SCHEDULEMESH_CACHE",
    ]
    assert len(said.splitlines()) == len(wanted), said
    for line, pattern in zip(said.splitlines(), wanted, strict=True):
        assert re.search(pattern, line), line
    nothing_is_left(installed, "fails")
