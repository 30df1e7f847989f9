"""What servers on this machine note about themselves, where this user's programs look for it.

A server writes the file; ``cmd/server/places.go`` and ``local/notice.go`` are its side. Nothing but the
standard library is imported.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import stat
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO


class LocalError(RuntimeError):
    """No server could be found or started here. The message says why and what to do."""


@dataclass(frozen=True)
class ServerEntry:
    """A server that runs on this machine for this user.

    Attributes:
        pid: its process id.
        url: where it answers.
        token_file: the file with its access token; empty when its tokens were configured.
        ray_address: host:port of the Ray cluster it is connected to; empty until it is.
        data: its data directory; empty when its database is not its own.
        deployment: the id of its database.
        parent: the process it ends with; 0 when it lives on its own.
    """

    pid: int
    url: str
    token_file: str
    ray_address: str
    data: str
    deployment: str
    parent: int = 0


def servers() -> list[ServerEntry]:
    """The servers that run on this machine for this user, the oldest first."""
    found = []
    for directory in filter(_is_own, state_dirs()):
        for path in (directory / "servers").glob("*.json"):
            with contextlib.suppress(OSError, ValueError, TypeError), path.open() as file:
                made = os.fstat(file.fileno()).st_mtime
                says = json.load(file)
                entry = ServerEntry(**{f.name: says[f.name] for f in fields(ServerEntry) if f.name in says})
                # Homes are shared among machines, loopback is not. One whose parent is gone is about to end.
                here = says.get("host") == socket.gethostname() and _writer_lives(file, entry.pid)
                if here and (not entry.parent or _runs(entry.parent)):
                    found.append((made, entry))
    return [entry for _, entry in sorted(found, key=lambda f: (f[0], f[1].pid))]


def server_for(ray_address: str) -> ServerEntry | None:
    """The server on this machine that is connected to the Ray cluster at ``host:port``."""
    return next((entry for entry in servers() if same(entry.ray_address, ray_address)), None)


def same(one: str, other: str) -> bool:
    """Whether two addresses mean one head: Ray listens on every interface, so ports on one machine differ."""
    if not one or not other:
        return False
    (host, _, port), (other_host, _, other_port) = one.rpartition(":"), other.rpartition(":")
    local = {"127.0.0.1", "localhost", "[::1]"}
    return port == other_port and (host == other_host or host in local or other_host in local)


def state_dirs() -> list[Path]:
    """Where servers note themselves: the user's place for state, or, for one without a home, /tmp."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".local", "state")
    return [Path(base, "schedulemesh"), Path(f"/tmp/schedulemesh-{os.getuid()}")]


def state_dir() -> Path:
    """The first of them that can be used, made when it is not there."""
    tried = []
    for path in state_dirs():
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            tried.append(str(error))
            continue
        if _is_own(path):
            return path
        tried.append(f"{path} is not a directory of yours alone")
    raise LocalError(f"no place to note which servers run ({'; '.join(tried)}): set XDG_STATE_HOME to one")


def _is_own(path: Path) -> bool:
    """Whether it is a directory that only this user can write to."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _writer_lives(file: IO[str], pid: int) -> bool:
    """Whether the process that wrote a notice lives: it locks it. The number may be another's by now."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks on this file system
        return _runs(pid)
    return False


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
