"""The server that jobs of this process are submitted to, and the configuration of clusters it is told."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from schedulemesh import local
from schedulemesh.errors import BadConfiguration, Invalid, NotInitialized, ServerNotFound

log = logging.getLogger("schedulemesh")

#: How long new clusters are waited for, in seconds, until the server has asked each how it is.
PATIENCE = 3.0


@dataclass(frozen=True)
class JobServer:
    """A server that takes jobs.

    Attributes:
        url: where it is.
        token: what it is asked with.
    """

    url: str
    token: str = field(repr=False)


_lock = threading.RLock()
_current: JobServer | None = None


def current() -> JobServer:
    """The server; the first call finds, or starts, one, provided that SCHEDULEMESH_URL or a configuration
    says that jobs are wanted.

    Raises:
        NotInitialized: neither does.
    """
    with _lock:
        if _current is not None:
            return _current
        if not os.environ.get("SCHEDULEMESH_URL") and find_configuration() is None:
            raise NotInitialized(
                "the scheduler is not initialized: call initialize_scheduler_environment("
                'config_file_path="clusters.yaml") first, or let SCHEDULEMESH_URL name a server. No '
                f"configuration was found at {_places()}"
            )
        return initialize()


def initialize(config_file_path: str | os.PathLike[str] | None = None) -> JobServer:
    """Find the server, or start one, and tell it the clusters of a configuration.

    The server is the one SCHEDULEMESH_URL names, else one of this user on this machine, else one that is
    started and goes on after this process.

    Args:
        config_file_path: the configuration; without, the one in the usual places, if there is any.

    Raises:
        FileNotFoundError: it is not there.
        BadConfiguration: it cannot be used.
        NotInitialized: there is neither a server nor a configuration.
        ServerNotFound: no server could be started.
    """
    global _current
    with _lock:
        path = find_configuration() if config_file_path is None else Path(config_file_path).expanduser()
        text = None if path is None else _text(path)
        found = _find(start=text is not None)
        if path is not None and text is not None:
            _import(found, path, text)
        _current = found
        return found


def find_configuration() -> Path | None:
    """Where the configuration of clusters is when nobody says: what SCHEDULEMESH_CLUSTERS names,
    ./clusters.yaml, clusters.yaml in the user's place for settings of ScheduleMesh."""
    if named := os.environ.get("SCHEDULEMESH_CLUSTERS"):
        return Path(named).expanduser()
    return next((path for path in (Path("clusters.yaml"), _user_configuration()) if path.is_file()), None)


def _user_configuration() -> Path:
    if sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Application Support")
    else:
        base = os.environ.get("XDG_CONFIG_HOME", "")
        base = base if os.path.isabs(base) else os.path.expanduser("~/.config")
    return Path(base, "schedulemesh", "clusters.yaml")


def _places() -> str:
    return f"SCHEDULEMESH_CLUSTERS, {Path('clusters.yaml').absolute()} and {_user_configuration()}"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no configuration of clusters at {path.absolute()}") from None
    except UnicodeDecodeError as error:
        raise BadConfiguration(f"{path} is not text in UTF-8: {error}") from None


def _find(start: bool) -> JobServer:
    if url := os.environ.get("SCHEDULEMESH_URL", "").rstrip("/"):
        return JobServer(url, local.token_for(url))
    entry = local.server_for_jobs()
    if entry is not None:
        return JobServer(entry.url, local.token_for(entry.url))
    if not start:
        raise NotInitialized(
            "there is neither a server on this machine nor a configuration of clusters: give "
            "initialize_scheduler_environment a config_file_path, or let SCHEDULEMESH_URL name a server. A "
            f"configuration was looked for at {_places()}"
        )
    try:
        started = local.start_for_jobs(_say)
    except local.LocalError as error:
        raise ServerNotFound(f"no server for jobs was found, and none could be started: {error}") from None
    return JobServer(started.url, started.token)


def _say(line: str) -> None:
    log.info("%s", line)


def _import(server: JobServer, path: Path, text: str) -> None:
    from schedulemesh._sync.client import Client

    with Client(server.url, server.token) as client:
        try:
            names = {cluster["name"] for cluster in client.import_clusters(text, file=str(path))}
        except Invalid as error:
            raise BadConfiguration(str(error)) from None
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and any(
            cluster["state"] == "unseen" for cluster in client.clusters() if cluster["name"] in names
        ):
            time.sleep(0.05)


def reset() -> None:
    """Forget the server, as if none had been found yet. It goes on."""
    global _current
    with _lock:
        _current = None
