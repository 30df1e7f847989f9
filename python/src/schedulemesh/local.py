"""Servers on this machine: which run, how to speak to them, and starting one.

Whatever is started here ends by itself: with this process, however that ends, or with the Ray cluster it
was started for. Nothing but the standard library is imported.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import signal
import site
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from schedulemesh.notices import LocalError, ServerEntry, same, server_for, servers, state_dir

__all__ = [
    "LocalError",
    "ServerEntry",
    "Started",
    "binary",
    "server_for",
    "server_for_jobs",
    "servers",
    "start",
    "start_for_jobs",
    "token_for",
]

log = logging.getLogger(__name__)

DEFAULT_URL = "http://127.0.0.1:8080"

#: A server must be ready within so many seconds.
START_PATIENCE = 90.0
#: A claim on the cluster that nobody renews is dead after 15 s: so long another server's is waited for.
CLAIM_PATIENCE = 20.0
#: How long a server may take to stop, in seconds.
STOP_PATIENCE = 45.0

#: Settings of the server that hold for one we start, too. Others, and DATABASE_URL, are about other servers.
_PASSED_ON = {"CACHE", "DATA", "LOG_FORMAT", "LOG_LEVEL", "POSTGRES_REPOSITORY", "SHUTDOWN_TIMEOUT"}


def binary() -> str:
    """The server program: SCHEDULEMESH_SERVER, else the one this package carries, else a checkout's.

    Raises:
        LocalError: there is none, or it cannot be run.
    """
    named = os.environ.get("SCHEDULEMESH_SERVER", "")
    package = Path(__file__).resolve().parent
    carried = package / "_bin" / "schedulemesh-server"
    checkout = package.parents[2]
    if named:
        path, repair = Path(named).absolute(), "correct SCHEDULEMESH_SERVER"
    elif carried.exists():
        path, repair = carried, f"run `chmod +x {carried}`, or install the package again"
    elif (checkout / "go.mod").exists():
        path, repair = checkout / "bin" / "server", f"run `make build` in {checkout}"
    else:
        raise LocalError(
            "this installation of schedulemesh carries no server for this platform: install the wheel for "
            "64-bit Linux or macOS, name a server program in SCHEDULEMESH_SERVER, or one that runs in "
            "SCHEDULEMESH_URL"
        )
    if not path.is_file():
        raise LocalError(f"the server program {path} is not there: {repair}")
    if not os.access(path, os.X_OK):
        raise LocalError(f"the server program {path} cannot be executed: {repair}")
    return str(path)


def token_for(url: str) -> str:
    """The access token for the server at ``url``; empty when none is known.

    Sources, in turn: SCHEDULEMESH_TOKEN, the file SCHEDULEMESH_TOKEN_FILE, the token file of a running
    server at that URL, ``./.data/token`` when it belongs to that URL.

    Raises:
        LocalError: SCHEDULEMESH_TOKEN_FILE cannot be read.
    """
    if token := os.environ.get("SCHEDULEMESH_TOKEN", "").strip():
        return token
    if file := os.environ.get("SCHEDULEMESH_TOKEN_FILE", ""):
        try:
            return Path(file).read_text().strip()
        except OSError as error:
            raise LocalError(f"SCHEDULEMESH_TOKEN_FILE cannot be read: {error}") from None
    url = url.rstrip("/")
    for entry in servers():
        if entry.url == url and entry.token_file and (token := _read(Path(entry.token_file))):
            return token
    data = Path(".data")
    if url == (_read(data / "url").rstrip("/") or DEFAULT_URL):
        return _read(data / "token")
    return ""


@dataclass
class Started:
    """A server that is ready.

    Attributes:
        url: where it answers.
        token: its access token.
        ours: whether this call started it; one that ran already is not stopped by :meth:`stop`.
    """

    url: str
    token: str = field(repr=False)
    ours: bool
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def stop(self) -> None:
        """Stop it, if this process started it, and wait until it is gone. Once is enough."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)


def start(
    ray_address: str, *, keep: bool, say: Callable[[str], None] = log.info, session: str = ""
) -> Started:
    """A server for a Ray cluster, started unless one of this user's is connected to it already.

    Args:
        ray_address: ``host:port`` of the cluster's head, as Ray knows it (``gcs_address``).
        keep: whether its data is kept and it lives until the Ray cluster is gone. Otherwise it ends with
            this process, however that ends, and leaves nothing.
        say: is told in a line what is being done.
        session: with ``keep``, a name for this life of the cluster, under which the data is kept; by default
            the cluster's id when this process is connected to it, else made from the address.

    Raises:
        LocalError: it could not be started; with the end of what it said.
    """
    if not re.fullmatch(r"\[?[^\s/]+\]?:\d+", ray_address):
        raise LocalError(
            f"{ray_address!r} is not the address of a Ray cluster: it looks like 10.0.0.4:6379 and is in "
            "ray.get_runtime_context().gcs_address after ray.init()"
        )
    program = binary()
    # Few locks, since nobody removes their files, and clusters that rarely wait for each other.
    lock = str(int(ray_address.rpartition(":")[2]) % 16)
    with _one_at_a_time(lock, say):
        if (entry := server_for(ray_address)) is not None:
            token = token_for(entry.url)
            _compare_version(entry.url, token)
            if keep and entry.parent:
                warnings.warn(
                    f"the server at {entry.url} ends with process {entry.parent}, which started it, and what "
                    "it keeps is gone then: end that one first when this is to last",
                    stacklevel=2,
                )
            return Started(entry.url, token, ours=False)
        _check_head(ray_address)
        say(f"starting a ScheduleMesh server for the Ray cluster at {ray_address}")
        command = [program, "up", "--addr", "127.0.0.1:0", "--ray-address", ray_address]
        command += ["--python", _interpreter()]
        if keep:
            command += ["--ray-session", os.path.join("ray", session or _session_of(ray_address))]
        else:
            command += ["--temporary", "--parent", str(os.getpid())]
        return _start(command, say, lambda entry: bool(entry.ray_address))


def start_for_jobs(say: Callable[[str], None] = log.info) -> Started:
    """A server without a Ray cluster of its own, for jobs on others, unless one of this user's runs.

    It outlives this process, so that jobs that wait are submitted and followed all the same, and keeps its
    data.

    Args:
        say: is told in a line what is being done.

    Raises:
        LocalError: it could not be started; with the end of what it said.
    """
    program = binary()
    with _one_at_a_time("jobs", say):
        if (entry := server_for_jobs()) is not None:
            return Started(entry.url, token_for(entry.url), ours=False)
        say("starting a ScheduleMesh server for jobs, which goes on after this script")
        command = [program, "up", "--addr", "127.0.0.1:0", "--no-ray"]
        if data := os.environ.get("SCHEDULEMESH_DATA", ""):
            command += ["--data", os.path.abspath(os.path.join(data, "jobs"))]
        return _start(command, say, lambda entry: True)


def server_for_jobs() -> ServerEntry | None:
    """The newest server on this machine that answers and lives on its own, whatever Ray cluster it is on."""
    for entry in reversed(servers()):
        if not entry.parent and _ready(entry.url)[0]:
            return entry
    return None


def _start(
    command: list[str], say: Callable[[str], None], finished: Callable[[ServerEntry], bool]
) -> Started:
    """Run a server until it is ready and what it notes of itself is finished."""
    # Without a name: nobody has to remove it. It has the token in it, and is for us alone.
    said = tempfile.TemporaryFile()  # noqa: SIM115
    try:
        # A session of its own: a terminal's Ctrl-C is for this process, which may still need the server.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=_environment(),
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        said.close()
        raise LocalError(f"the server program {command[0]} does not run here: {error}") from None
    with said:
        try:
            entry = _await_ready(process, said, finished)
        except BaseException:
            _end(process)
            raise
    say(f"it is ready at {entry.url}")
    return Started(entry.url, _read(Path(entry.token_file)), ours=True, _process=process)


def _await_ready(
    process: subprocess.Popen[bytes], said: IO[bytes], finished: Callable[[ServerEntry], bool]
) -> ServerEntry:
    """Wait until the server can do its work, and what it notes of itself is finished.

    Raises:
        LocalError: it cannot.
    """
    began = time.monotonic()
    claimed = 0.0
    why = "it does not answer"
    while True:
        if (code := process.poll()) is not None:
            raise LocalError(f"the ScheduleMesh server ended while starting ({code}); {_last_words(said)}")
        entry = next((entry for entry in servers() if entry.pid == process.pid), None)
        if entry is not None:
            ready, why = _ready(entry.url)
            if ready and finished(entry):
                return entry
        now = time.monotonic()
        claimed = (claimed or now) if "belongs to another" in why else 0.0
        if now - began > START_PATIENCE or (claimed and now - claimed > CLAIM_PATIENCE):
            raise LocalError(f"the ScheduleMesh server does not become ready: {why}; {_last_words(said)}")
        time.sleep(0.05)


def _ready(url: str) -> tuple[bool, str]:
    """Whether the server can do its work, and why not."""
    try:
        with _open(url + "/readyz", timeout=5) as answer:
            answer.read()
        return True, ""
    except urllib.error.HTTPError as error:
        lines = error.read().decode(errors="replace").splitlines()
        return False, "; ".join(line for line in lines if not line.endswith(": ok"))
    except OSError as error:
        return False, str(error)


def _open(url: str, timeout: float, token: str = "") -> Any:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    # It is on this machine: a proxy that is configured is for others.
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout)


def _last_words(said: IO[bytes]) -> str:
    """The end of what the server printed, without the link to sign in."""
    said.seek(0)
    lines = said.read().decode(errors="replace").rstrip().splitlines()
    lines = [line for line in lines if line.strip() and "token=" not in line][-12:]
    if not lines:
        return "it said nothing"
    return "it said:\n" + "\n".join(lines)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Have it stop in good order, else its guard clears up after it."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _environment() -> dict[str, str]:
    """Ours, with how to reach Ray and without settings that are meant for other servers."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DATABASE_URL", "RAY_JOB_CONFIG_JSON_ENV_VAR")
        and (not name.startswith("SCHEDULEMESH_") or name.removeprefix("SCHEDULEMESH_") in _PASSED_ON)
    }
    for name in ("SCHEDULEMESH_CACHE", "SCHEDULEMESH_DATA"):
        if name in environment:
            environment[name] = os.path.abspath(environment[name])  # it runs in another directory
    given = environment.pop("PYTHONPATH", "")
    paths = [os.path.abspath(path) for path in given.split(os.pathsep)] if given else []
    # The sidecar needs this very package, also when it was found by sys.path alone.
    home = str(Path(__file__).resolve().parents[1])
    installed = {os.path.realpath(path) for path in [*site.getsitepackages(), site.getusersitepackages()]}
    if home not in installed:
        paths.insert(0, home)
    if paths:
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def _interpreter() -> str:
    if not sys.executable:
        raise LocalError("this Python does not know where it is: name a running server in SCHEDULEMESH_URL")
    return sys.executable


def _check_head(ray_address: str) -> None:
    """Say at once what Ray would take a minute to find out.

    Raises:
        LocalError: nobody listens there.
    """
    host, _, port = ray_address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError as error:
        raise LocalError(
            f"there is no Ray cluster at {ray_address} ({error}): start one with `ray start --head`, or let "
            "ray.init() start one"
        ) from None


def _session_of(ray_address: str) -> str:
    """A name for this life of the cluster."""
    ray = sys.modules.get("ray")
    with contextlib.suppress(Exception):  # Ray's own business, and only a better name
        worker = ray._private.worker.global_worker if ray and ray.is_initialized() else None
        if worker and same(worker.gcs_client.address, ray_address):
            return str(worker.gcs_client.cluster_id.hex())
    return hashlib.sha256(ray_address.encode()).hexdigest()[:16]


_warned: set[str] = set()


def _compare_version(url: str, token: str) -> None:
    """Warn, once, of a server that is not of this package's version. A development build has none."""
    from schedulemesh import __version__

    with (
        contextlib.suppress(OSError, ValueError),
        _open(url + "/api/v1/server", timeout=5, token=token) as answer,
    ):
        version = str(json.load(answer).get("version", ""))
        if re.match(r"\d+\.", version) and version != __version__ and url not in _warned:
            _warned.add(url)
            warnings.warn(
                f"the server at {url} is ScheduleMesh {version} and this package is {__version__}: "
                "restart it when you can",
                stacklevel=3,
            )


@contextlib.contextmanager
def _one_at_a_time(lock: str, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock under which such servers are started: the next finds what this one started."""
    directory = state_dir()
    with (directory / f"start-{lock}.lock").open("a") as file:
        for attempt in range(int(2 * START_PATIENCE / 0.05)):
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt == 10:
                    say("another process is starting a ScheduleMesh server: waiting")
                time.sleep(0.05)
        else:
            raise LocalError(
                f"another process has been starting a ScheduleMesh server for {2 * START_PATIENCE:.0f} s: "
                "end it, or name a running server in SCHEDULEMESH_URL"
            )
        yield


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
