"""Jobs on whichever Ray cluster suits them, as coroutines. ``schedulemesh._sync`` is generated from here."""

from __future__ import annotations

import collections
import copy
import math
import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from schedulemesh import jobserver, types
from schedulemesh._async.client import AsyncClient
from schedulemesh._async.waiting import PerPlace, blocking, places, where
from schedulemesh.entrypoints import check_entrypoint
from schedulemesh.environments import portable
from schedulemesh.errors import ClusterUnreachable, InvalidArgument, JobFailed, WaitTimeout
from schedulemesh.interrupts import graceful_shutdown_on_keyboard_interrupt, submitting
from schedulemesh.packages import Package, Progress
from schedulemesh.waitline import WaitLine, log

__all__ = [
    "UnifiedScheduler",
    "get_job_info",
    "get_job_status",
    "get_unified_scheduler",
    "graceful_shutdown_on_keyboard_interrupt",
    "initialize_scheduler_environment",
    "stop_job",
    "submit_job",
    "wait_for_all_jobs",
]

#: How much of the end of a job's output :func:`get_job_info` has, in bytes.
LOG_TAIL = 256 * 1024
#: For how long a server may be away, in seconds, while jobs are waited for.
OUTAGE = 120.0

_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


class UnifiedScheduler:
    """The scheduler of jobs: a server, and the clusters it knows.

    Attributes:
        url: where the server is.
        client: its REST API.
    """

    def __init__(self, server: jobserver.JobServer) -> None:
        self._server = server
        self._clients: PerPlace[AsyncClient] = places()

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def client(self) -> AsyncClient:
        here = where()
        if here not in self._clients:
            self._clients[here] = AsyncClient(self._server.url, self._server.token)
        return self._clients[here]

    async def list_clusters(self) -> dict[str, dict[str, Any]]:
        """All clusters by name, as ``GET /clusters`` has them: ``state``, ``score``, ``tags``, …, and of
        their resources ``total``, ``used`` and ``free``, memory in MiB."""
        found = await self.client.clusters()
        return {cluster["name"]: {**cluster, **(cluster.get("resources") or {})} for cluster in found}

    def __repr__(self) -> str:
        return f"UnifiedScheduler({self.url!r})"


_schedulers: dict[jobserver.JobServer, UnifiedScheduler] = {}


def _of(server: jobserver.JobServer) -> UnifiedScheduler:
    return _schedulers.setdefault(server, UnifiedScheduler(server))


async def initialize_scheduler_environment(
    config_file_path: str | os.PathLike[str] | None = None,
) -> UnifiedScheduler:
    """Find the server for jobs, or start one, and tell it the clusters of a configuration file.

    The server is the one SCHEDULEMESH_URL names, else one of this user on this machine, else one that is
    started; that one goes on after this process. May be called again, also with another file.

    Args:
        config_file_path: the clusters, as YAML; without, what SCHEDULEMESH_CLUSTERS names, ./clusters.yaml or
            the user's own, if there is one.

    Raises:
        FileNotFoundError: the file is not there.
        BadConfiguration: it cannot be used; a ValueError, with line and column.
        NotInitialized: there is neither a server nor a file; a RuntimeError.
        ServerNotFound: no server could be started.
    """
    return _of(await blocking(lambda: jobserver.initialize(config_file_path)))


async def get_unified_scheduler() -> UnifiedScheduler:
    """The scheduler of jobs; what the first call needs is found or started, as by submit_job.

    Raises:
        NotInitialized: as submit_job does.
    """
    return _of(await blocking(jobserver.current))


async def submit_job(
    entrypoint: str,
    runtime_env: dict[str, Any] | None = None,
    job_id: str | None = None,
    metadata: dict[str, str] | None = None,
    submission_id: str | None = None,
    preferred_cluster: str | None = None,
    resource_requirements: Mapping[str, float] | None = None,
    tags: list[str] | None = None,
    *,
    priority: float | None = None,
    queue_timeout: float | None = None,
    max_retries: int | None = None,
    retry_on: Sequence[str] | None = None,
    reserve: str | None = None,
) -> str:
    """Submit a job to the cluster that suits it best; it waits in line when none has room now.

    It is on disk when this returns, and is submitted to one cluster, once, whatever breaks meanwhile.

    Args:
        entrypoint: the command. Its program, and the script of a Python or shell, have absolute paths; a bare
            name is looked up on the cluster's PATH.
        runtime_env: Ray's, merged over the cluster's own. Local directories of ``working_dir`` and
            ``py_modules`` are packed, without ``excludes``, and uploaded.
        job_id: what people call it; need not be unique. ``job_…`` when left out.
        metadata: strings by name.
        submission_id: unique; ``sub_…`` when left out. The same id with the same job is the same job.
        preferred_cluster: where to go when it has room now. One that is not there is said in its notes.
        resource_requirements: ``CPU``, ``GPU``, ``memory`` in GiB, and custom resources.
        tags: words; clusters that share some are liked better.
        priority: who goes first in line; 5 when left out.
        queue_timeout: seconds after which one that still waits in line fails; None waits for ever.
        max_retries: how often it is tried again when its cluster or node is lost; 0 when left out.
        retry_on: after what: ``cluster_lost``, ``node_lost``; both when left out.
        reserve: ``entrypoint``, also when left out: Ray keeps the resources for the entrypoint's process;
            ``none``: they only count where jobs are placed, and the job's own tasks and actors take them.

    Returns:
        The submission id.

    Raises:
        InvalidArgument: an argument cannot be used; a ValueError. The entrypoint is looked at first.
        NotInitialized: initialize_scheduler_environment was not called, and nothing says what to use instead.
        NoClusterLargeEnough: no cluster could ever take it.
        NoClusters: there are none.
        JobExists: another job has this submission id.
        ServerUnavailable: the server does not answer.
    """
    check_entrypoint(entrypoint)
    body, packages = await blocking(
        lambda: job_request(
            entrypoint,
            runtime_env,
            job_id,
            metadata,
            submission_id,
            preferred_cluster,
            resource_requirements,
            tags,
            priority=priority,
            queue_timeout=queue_timeout,
            max_retries=max_retries,
            retry_on=retry_on,
            reserve=reserve,
        )
    )
    job = await send((await get_unified_scheduler()).client, body, packages)
    for note in job.get("notes") or []:
        log.warning("job %s: %s", job["submission_id"], note)
    return job["submission_id"]


def job_request(
    entrypoint: str,
    runtime_env: Mapping[str, Any] | None = None,
    job_id: str | None = None,
    metadata: Mapping[str, str] | None = None,
    submission_id: str | None = None,
    preferred_cluster: str | None = None,
    resource_requirements: Mapping[str, float] | None = None,
    tags: Sequence[str] | None = None,
    *,
    priority: float | None = None,
    queue_timeout: float | None = None,
    max_retries: int | None = None,
    retry_on: Sequence[str] | None = None,
    reserve: str | None = None,
) -> tuple[dict[str, Any], list[Package]]:
    """The body of ``POST /jobs`` for what :func:`submit_job` is given, and the packages that it names.

    Raises:
        InvalidArgument: as submit_job does.
    """
    check_entrypoint(entrypoint)
    body: dict[str, Any] = {
        "entrypoint": entrypoint,
        "submission_id": _text("submission_id", submission_id) or f"sub_{uuid.uuid4().hex}",
        "job_id": _text("job_id", job_id),
        "metadata": _strings("metadata", metadata),
        "tags": _list("tags", tags),
        "preferred_cluster": _text("preferred_cluster", preferred_cluster),
        "resource_requirements": _amounts("resource_requirements", resource_requirements),
        "priority": _number("priority", priority, least=-math.inf),
        "queue_timeout": _number("queue_timeout", queue_timeout),
        "max_retries": _count("max_retries", max_retries),
        "retry_on": _list("retry_on", retry_on),
        "reserve": _text("reserve", reserve),
    }
    packages: list[Package] = []
    if runtime_env is not None:
        env, packages = portable(runtime_env)
        body["runtime_env"] = env or None
    return {name: value for name, value in body.items() if value is not None}, packages


async def send(client: AsyncClient, body: dict[str, Any], packages: list[Package]) -> types.Job:
    """Submit what :func:`job_request` made."""
    for package in packages:
        await _upload(client, package)
    with submitting(body["submission_id"], client.url):
        return await client.submit_job(body)


async def _upload(client: AsyncClient, package: Package) -> None:
    if await client.has_package(package.name):
        return
    with await blocking(package.pack) as content:
        size = content.seek(0, os.SEEK_END)
        content.seek(0)
        told = Progress(f"uploading {package.source}", size)
        try:
            await client.put_package(package.name, content, size, told)
        finally:
            told.end()


async def get_job_status(submission_id: str, cluster_name: str | None = None) -> str:
    """The state of a job in Ray's words.

    Args:
        submission_id: what submit_job returned.
        cluster_name: not needed: the server knows where the job is.

    Returns:
        ``PENDING`` (it waits in line, or starts), ``RUNNING``, ``SUCCEEDED``, ``FAILED``, ``STOPPED``, or
        ``UNKNOWN`` while its cluster does not answer.

    Raises:
        UnknownJob: there is no such job; a RuntimeError.
    """
    scheduler = await get_unified_scheduler()
    return (await scheduler.client.job(submission_id))["status"]


async def stop_job(submission_id: str, cluster_name: str | None = None) -> bool:
    """Have a job stopped. It takes Ray some seconds; wait_for_all_jobs raises once it is.

    Args:
        submission_id: what submit_job returned.
        cluster_name: not needed: the server knows where the job is.

    Returns:
        Whether it is stopped or being stopped; False when it had succeeded or failed before.

    Raises:
        UnknownJob: there is no such job; a RuntimeError.
    """
    scheduler = await get_unified_scheduler()
    job = await scheduler.client.stop_job(submission_id)
    return job["state"] not in ("SUCCEEDED", "FAILED")


async def get_job_info(submission_id: str, cluster_name: str | None = None) -> dict[str, Any]:
    """All there is to know of a job.

    Args:
        submission_id: what submit_job returned.
        cluster_name: not needed: the server knows where the job is.

    Returns:
        The job as ``GET /jobs/{submission_id}`` has it (``status``, ``state``, ``cluster``, ``placement``,
        ``exit_code``, …), and ``logs``, the last 256 KiB of what it printed. ``logs_error`` says why there
        are none, when its cluster does not answer.

    Raises:
        UnknownJob: there is no such job; a RuntimeError.
    """
    scheduler = await get_unified_scheduler()
    info = cast("dict[str, Any]", dict(await scheduler.client.job(submission_id)))
    info["logs"] = ""
    try:
        end = await scheduler.client.job_logs(submission_id, offset=-LOG_TAIL, limit=LOG_TAIL)
        info["logs"] = end["text"]
    except ClusterUnreachable as error:
        info["logs_error"] = str(error)
    return info


async def wait_for_all_jobs(
    submission_ids: list[str], check_interval: float = 5, timeout: float | None = None
) -> bool:
    """Wait until all jobs have succeeded; the first that did not is said at once.

    The end of the last one is known as it happens, a failure among many within ``check_interval``. On a
    terminal a line tells how far they are, elsewhere the log.

    Args:
        submission_ids: what submit_job returned.
        check_interval: seconds between looks at all of them.
        timeout: the longest wait in seconds; None waits for ever.

    Returns:
        True.

    Raises:
        JobFailed: one failed or was stopped; a RuntimeError that names it and says why. The others go on.
        WaitTimeout: the time is up; a TimeoutError. The jobs go on.
        UnknownJob: there is no such job; a RuntimeError.
    """
    ids = _list("submission_ids", submission_ids) or []
    for submission_id in ids:
        _text("submission_ids", submission_id)
    interval = max(0.01, _number("check_interval", check_interval) or 0.0)
    limit = _number("timeout", timeout)
    client = copy.copy((await get_unified_scheduler()).client)
    client.retry_for = max(client.retry_for, OUTAGE)
    await wait_for(client, ids, interval, limit)
    return True


async def wait_for(
    client: AsyncClient, ids: list[str], interval: float, limit: float | None
) -> list[types.Job]:
    """The jobs, once all have succeeded; as :func:`wait_for_all_jobs`."""
    end = math.inf if limit is None else time.monotonic() + limit
    jobs: dict[str, types.Job] = {}
    live = list(dict.fromkeys(ids))
    with WaitLine(len(live)) as line:
        look_at = 0.0
        while live:
            if time.monotonic() >= look_at:
                began = time.monotonic()
                for submission_id in live:
                    jobs[submission_id] = await client.job(submission_id)
                live = _still_live(jobs.values())
                line.show(jobs.values())
                # With very many, looking is not all that is done.
                look_at = time.monotonic() + max(interval, 4 * (time.monotonic() - began))
                continue
            now = time.monotonic()
            if now >= end:
                raise WaitTimeout(_not_yet(limit or 0.0, jobs, live))
            first = live[0]
            jobs[first] = await client.job(first, wait=max(0.01, min(end, look_at) - now))
            if jobs[first]["state"] in _ENDED:
                live = _still_live(jobs.values())
                line.show(jobs.values())
    return [jobs[submission_id] for submission_id in dict.fromkeys(ids)]


def _still_live(jobs: Iterable[types.Job]) -> list[str]:
    """The jobs that have not ended.

    Raises:
        JobFailed: some have, and not well.
    """
    jobs = list(jobs)
    bad = [job for job in jobs if job["state"] in ("FAILED", "STOPPED")]
    live = [job["submission_id"] for job in jobs if job["state"] not in _ENDED]
    if not bad:
        return live
    words = "; ".join(_end(job) for job in bad[:5]) + (f"; and {len(bad) - 5} more" if len(bad) > 5 else "")
    raise JobFailed(words + (f" ({len(live)} of {len(jobs)} go on)" if live else ""), bad)


def _end(job: types.Job) -> str:
    why = job.get("reason") or job.get("message") or ""
    where = f" on {job['cluster']}" if job.get("cluster") else ""
    return f"job {job['submission_id']} ({job['job_id']}) {job['state']}{where}" + (f": {why}" if why else "")


def _not_yet(limit: float, jobs: dict[str, types.Job], live: list[str]) -> str:
    states = collections.Counter(jobs[submission_id]["status"] for submission_id in live)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    shown = ", ".join(live[:5]) + (", …" if len(live) > 5 else "")
    return f"after {limit:g} s {len(live)} of {len(jobs)} jobs have not ended ({counts}): {shown}"


# Arguments.


def _text(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} must be a string, not {value!r}")
    if not value or "\0" in value:
        raise InvalidArgument(f"{name} must be text, not {value!r}")
    return value


def _strings(name: str, value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"{name} must be a dict of strings, not {value!r}")
    for key, one in value.items():
        if not isinstance(key, str) or not isinstance(one, str):
            raise InvalidArgument(
                f"{name} must have strings as keys and values, and has {key!r}: {one!r}; write str({one!r})"
            )
    return dict(value)


def _list(name: str, value: Any) -> list[str] | None:
    if value is None:
        return None
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise InvalidArgument(f"{name} must be a list of strings, not {value!r}")
    found = list(value)
    for one in found:
        if not isinstance(one, str) or not one:
            raise InvalidArgument(f"{name} must be a list of strings, and has {one!r} in it")
    return found


def _number(name: str, value: Any, least: float = 0.0) -> float | None:
    if value is None:
        return None
    try:
        if isinstance(value, (str, bytes, bool)):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{name} must be a number, not {value!r}") from None
    if not math.isfinite(number) or number < least:
        of_at_least = " of at least 0" if least == 0 else ""
        raise InvalidArgument(f"{name} must be a number{of_at_least}, not {value!r}")
    return number


def _count(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidArgument(f"{name} must be a whole number of at least 0, not {value!r}")
    return value


def _amounts(name: str, value: Any) -> dict[str, float] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidArgument(f'{name} must be a dict such as {{"CPU": 4, "memory": 16.0}}, not {value!r}')
    found = {}
    for key, amount in value.items():
        if not isinstance(key, str) or not key:
            raise InvalidArgument(f"{name} must have names of resources as keys, and has {key!r}")
        if amount is None:
            raise InvalidArgument(f"{name}[{key!r}] must be a number, not None")
        found[key] = cast(float, _number(f"{name}[{key!r}]", amount))
    return found
