"""Finding the server, and the Ray cluster that goes with it; starting what is missing.

A scheduler needs both a server and a driver on the cluster whose agents the server runs. One leads to the
other: a server says which cluster it is on, a cluster carries the claim of its server.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from schedulemesh import local
from schedulemesh.errors import RayUnavailable, ServerNotFound

if TYPE_CHECKING:
    from schedulemesh._sync.client import Client

log = logging.getLogger("schedulemesh")


@dataclass
class Found:
    """A server that answers, with this process a driver on its Ray cluster.

    Attributes:
        url: where the server is.
        token: what it is asked with.
        started: the server, when it was started here and is to end with this process.
        owns_ray: this process connected to Ray here, rather than the script.
    """

    url: str
    token: str
    started: local.Started | None = None
    owns_ray: bool = False
    users: int = field(default=0, repr=False)


_lock = threading.RLock()
_found: dict[bool, Found] = {}


def default_url() -> str:
    """The server to talk to when none is named.

    SCHEDULEMESH_URL, or the newest server of this user on this machine, or the usual address.
    """
    named = os.environ.get("SCHEDULEMESH_URL")
    if named:
        return named
    servers = local.servers()
    return servers[-1].url if servers else local.DEFAULT_URL


def connect(keep: bool, start: bool = True) -> Found:
    """Find, or start, a server and make this process a driver on its cluster.

    Args:
        keep: the server is to outlive this process, when it has to be started and its cluster does.
        start: whether to start what is not there.

    Raises:
        ServerNotFound: there is no server, and none could be started.
        RayUnavailable: this process is on another cluster than the server.
    """
    with _lock:
        found = _found.get(keep) or _found.get(not keep)
        if found is None or not _alive(found):
            _forget(found)
            found = _found[keep] = _connect(keep, start)
        found.users += 1
        return found


def release(found: Found) -> None:
    """A scheduler is done with it; the last one stops what was started."""
    with _lock:
        found.users -= 1
        if found.users > 0:
            return
        _forget(found)
        if found.started is not None:
            found.started.stop()
        if found.owns_ray:
            import ray

            ray.shutdown()


def _forget(found: Found | None) -> None:
    for key in [key for key, value in _found.items() if value is found]:
        del _found[key]


def _alive(found: Found) -> bool:
    import ray

    return ray.is_initialized() and _answers(found.url)


def _connect(keep: bool, start: bool) -> Found:
    import ray

    owns_ray = False
    url = os.environ.get("SCHEDULEMESH_URL", "")
    servers = [] if url else local.servers()
    if not ray.is_initialized():
        address = ""
        if url:
            address = _about(url).get("ray_address", "")
        elif not os.environ.get("RAY_ADDRESS") and servers:
            address = servers[-1].ray_address
        _init_ray(address, start)
        owns_ray = True
    try:
        cluster = ray.get_runtime_context().gcs_address
        if url:
            found = Found(url.rstrip("/"), local.token_for(url), owns_ray=owns_ray)
            _check_cluster(found, cluster)
            return found
        claimed = _live_claim()
        if claimed and _answers(claimed):
            return Found(claimed, local.token_for(claimed), owns_ray=owns_ray)
        for server in reversed(servers):
            if server.ray_address == cluster and _answers(server.url):
                return Found(server.url, local.token_for(server.url), owns_ray=owns_ray)
        if claimed:
            raise ServerNotFound(
                f"this Ray cluster belongs to the ScheduleMesh server at {claimed}, which does not answer "
                "from here: start it again, or set SCHEDULEMESH_URL to an address of it that does"
            )
        if not start:
            raise ServerNotFound(f"the Ray cluster at {cluster} has no ScheduleMesh server")
        try:
            outlives = keep and not owns_ray
            started = local.start(cluster, keep=outlives, say=log.info)
        except local.LocalError as error:
            raise ServerNotFound(
                f"no ScheduleMesh server was found, and none could be started: {error}"
            ) from None
        return Found(started.url, started.token, None if outlives else started, owns_ray)
    except BaseException:
        if owns_ray:
            ray.shutdown()
        raise


def _init_ray(address: str, start: bool) -> None:
    """Join the cluster at an address, or the one RAY_ADDRESS or this machine has, or start one."""
    import ray

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    try:
        _check_reachable(address or os.environ.get("RAY_ADDRESS", ""))
        if address:
            ray.init(address=address, **options)
            return
        try:
            ray.init(address="auto", **options)
        except ConnectionError:
            if os.environ.get("RAY_ADDRESS") or not start:
                raise
            # Logical CPUs, as `schedulemesh up` has them: most agents wait more than they compute.
            ray.init(num_cpus=max(8, os.cpu_count() or 1), include_dashboard=False, **options)
    except (OSError, RuntimeError, ValueError) as error:
        where = address or os.environ.get("RAY_ADDRESS") or "of this machine"
        raise RayUnavailable(
            f"the Ray cluster {where} cannot be reached: {error}. Call ray.init() yourself to say which one"
        ) from None


def _check_reachable(address: str) -> None:
    """Ask for a connection ourselves: where nobody listens Ray tries for a minute, and then ends the process.

    Raises:
        OSError: nobody listens there.
    """
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10.0).close()


def _check_cluster(found: Found, cluster: str) -> None:
    address = _about(found.url).get("ray_address", "")
    if address and not _same_address(address, cluster):
        raise RayUnavailable(
            f"this process is on the Ray cluster at {cluster}, but the server at {found.url} runs agents on "
            f"{address}: call ray.init(address={address!r}), or unset SCHEDULEMESH_URL"
        )


def _same_address(one: str, other: str) -> bool:
    if one == other:
        return True
    # The same head may be known by several names; its port tells two heads of one machine apart.
    claimed = _claim()
    return one.rpartition(":")[2] == other.rpartition(":")[2] and bool(claimed)


def _claim() -> str:
    """The address of the server that has claimed the cluster this process is on; empty when none has."""
    from schedulemesh.bridge.store import read_claim

    claim = read_claim()
    return str(claim["url"]) if claim else ""


def _live_claim() -> str:
    """The same once its server answers, or once it is plain that it is somebody's: the claim of a server
    that was killed is there for some seconds more."""
    from schedulemesh.bridge.store import CLAIM_TTL

    end = time.monotonic() + CLAIM_TTL + 1
    waiting = False
    while True:
        claimed = _claim()
        if not claimed or _answers(claimed) or time.monotonic() > end:
            return claimed
        if not waiting:
            log.info("waiting for the ScheduleMesh server at %s, which does not answer", claimed)
        waiting = True
        time.sleep(0.5)


def _about(url: str) -> dict[str, Any]:
    from schedulemesh.errors import ScheduleMeshError

    client = _client(url)
    try:
        return dict(client.server())
    except ScheduleMeshError as error:
        raise ServerNotFound(f"SCHEDULEMESH_URL is {url}: {error}") from None
    finally:
        client.close()


def _answers(url: str) -> bool:
    """Whether a ScheduleMesh server answers there, to us."""
    from schedulemesh.errors import ScheduleMeshError

    try:
        client = _client(url, retry_for=0.0, timeout=5.0)
        try:
            client.server()
        finally:
            client.close()
    except ScheduleMeshError as error:
        log.info("the server at %s is left alone: %s", url, error)
        return False
    return True


def _client(url: str, **options: Any) -> Client:
    from schedulemesh._sync.client import Client

    return Client(url, **options)


@atexit.register
def _stop_all() -> None:
    """A script that ends without shutdown leaves no server behind."""
    for found in list(_found.values()):
        if found.started is not None:
            found.started.stop()
