"""The part of the REST API that is about jobs, the clusters they may go to, and their packages."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import IO, TYPE_CHECKING, Any, cast
from urllib.parse import quote

from schedulemesh import types
from schedulemesh.errors import InvalidArgument, ServerError

if TYPE_CHECKING:
    from schedulemesh.packages import Progress

_PIECE = 1 << 20


class JobCalls:
    """Methods of the client; jobs and clusters have no namespace."""

    if TYPE_CHECKING:

        async def _call(self, method: str, path: str, *args: Any, **options: Any) -> Any: ...

        def _pages(
            self, path: str, query: dict[str, Any], limit: int, *, space: bool = True
        ) -> AsyncIterator[dict[str, Any]]: ...

        def _stream(self, path: str, query: dict[str, Any], last: str) -> AsyncIterator[tuple[str, str]]: ...

    # Clusters.

    async def clusters(self) -> list[types.Cluster]:
        """All clusters that jobs may go to, by name."""
        found = await self._call("GET", "/clusters", space=False)
        return cast("list[types.Cluster]", found["items"])

    async def cluster(self, name: str) -> types.Cluster:
        """One cluster. Raises :class:`~schedulemesh.errors.UnknownCluster`."""
        return cast(types.Cluster, await self._call("GET", "/clusters/" + segment(name), space=False))

    async def put_cluster(self, name: str, *, rev: int = 0, **fields: Any) -> types.Cluster:
        """Make a cluster, or replace how it is configured: ``head_address``, ``dashboard``, ``weight``, … as
        in the API. With ``rev`` only when that is still its revision, or else
        :class:`~schedulemesh.errors.VersionConflict`."""
        headers = {"If-Match": f'"{rev}"'} if rev else None
        path = "/clusters/" + segment(name)
        return cast(types.Cluster, await self._call("PUT", path, fields, headers=headers, space=False))

    async def delete_cluster(self, name: str) -> None:
        """Remove a cluster on which no job is live."""
        await self._call("DELETE", "/clusters/" + segment(name), space=False)

    async def hold_cluster(self, name: str, *, reason: str = "") -> types.Cluster:
        """Send no new jobs to a cluster until it is resumed; what runs there goes on."""
        body = {"reason": reason} if reason else {}
        path = f"/clusters/{segment(name)}/hold"
        return cast(types.Cluster, await self._call("POST", path, body, space=False))

    async def resume_cluster(self, name: str) -> types.Cluster:
        """End a hold."""
        path = f"/clusters/{segment(name)}/resume"
        return cast(types.Cluster, await self._call("POST", path, space=False))

    async def cluster_history(self, name: str, *, hours: float = 1.0) -> list[dict[str, Any]]:
        """Health and room of a cluster over the last hours, oldest first."""
        path = f"/clusters/{segment(name)}/history"
        found = await self._call("GET", path, query={"hours": hours}, space=False)
        return cast("list[dict[str, Any]]", found["items"])

    async def import_clusters(self, yaml: str, *, file: str = "") -> list[types.Cluster]:
        """Make or replace the clusters that the text of a clusters.yaml names; none is removed. ``file`` is
        what messages call it."""
        body = {"yaml": yaml, "file": file} if file else {"yaml": yaml}
        found = await self._call("POST", "/clusters/import", body, space=False)
        return cast("list[types.Cluster]", found["items"])

    # Jobs.

    async def submit_job(self, job: dict[str, Any], *, wait: float = 0.0) -> types.Job:
        """Submit a job; the body is that of ``POST /jobs``. With ``wait`` the answer comes once Ray has
        accepted it, it waits in line or has ended, at the latest after so many seconds."""
        query = wait_query(wait)
        return cast(types.Job, await self._call("POST", "/jobs", job, query=query, extra=wait, space=False))

    async def jobs(
        self,
        *,
        state: str = "",
        cluster: str = "",
        job_id: str = "",
        tags: list[str] | None = None,
        metadata: Mapping[str, str] | None = None,
        text: str = "",
        after: str = "",
        before: str = "",
        limit: int = 0,
    ) -> AsyncIterator[types.Job]:
        """Jobs, newest first, at most ``limit`` when it is not 0. ``state`` may name several with commas
        between, ``text`` is a part of an id or the entrypoint; a job must have all of ``tags`` and
        ``metadata``. ``after`` and ``before`` are times of submission in ISO 8601."""
        query: dict[str, Any] = {"state": state, "cluster": cluster, "job_id": job_id, "q": text}
        query |= {"after": after, "before": before}
        if tags:
            query["tag"] = tags
        if metadata:
            query["metadata"] = [f"{key}={value}" for key, value in metadata.items()]
        async for item in self._pages("/jobs", query, limit, space=False):
            yield cast(types.Job, item)

    async def job(self, submission_id: str, *, wait: float = 0.0) -> types.Job:
        """One job. With ``wait`` the answer comes once it has ended, at the latest after so many seconds.
        Raises :class:`~schedulemesh.errors.UnknownJob`."""
        path, query = "/jobs/" + segment(submission_id), wait_query(wait)
        return cast(types.Job, await self._call("GET", path, query=query, extra=wait, space=False))

    async def stop_job(self, submission_id: str) -> types.Job:
        """Have a job stopped; one that has ended is just answered. Read it with ``wait`` to see it
        stopped."""
        path = f"/jobs/{segment(submission_id)}/stop"
        return cast(types.Job, await self._call("POST", path, space=False))

    async def job_events(self, submission_id: str) -> list[dict[str, Any]]:
        """The history of a job, oldest first."""
        found = await self._call("GET", f"/jobs/{segment(submission_id)}/events", space=False)
        return cast("list[dict[str, Any]]", found["items"])

    async def job_logs(
        self, submission_id: str, *, offset: int = 0, limit: int = 65536, tail: int | None = None
    ) -> types.JobLog:
        """A piece of what a job printed; read on from ``next`` until ``ended``. ``tail`` is a number of lines
        at the end, instead of an offset."""
        query: dict[str, Any] = {"limit": limit}
        query["offset" if tail is None else "tail"] = offset if tail is None else tail
        path = f"/jobs/{segment(submission_id)}/logs"
        return cast(types.JobLog, await self._call("GET", path, query=query, space=False))

    async def follow_job_logs(self, submission_id: str, *, offset: int = 0) -> AsyncIterator[types.JobLog]:
        """What a job prints from an offset on, as it prints it, until it has ended. A connection that breaks
        is made anew where it broke."""
        path = f"/jobs/{segment(submission_id)}/logs"
        query = {"follow": "true", "offset": str(offset)}
        async for kind, data in self._stream(path, query, ""):
            if kind == "end":
                return
            if kind == "log":
                yield cast(types.JobLog, json.loads(data))

    async def outside_jobs(self, *, cluster: str = "") -> list[dict[str, Any]]:
        """Jobs that others started on our clusters, as they were last seen, newest first."""
        found = await self._call("GET", "/outside-jobs", query={"cluster": cluster}, space=False)
        return cast("list[dict[str, Any]]", found["items"])

    # Packages.

    async def has_package(self, name: str) -> bool:
        """Whether the server has a package."""
        try:
            await self._call("HEAD", "/packages/" + segment(name), space=False)
        except ServerError as error:
            if error.status == 404:
                return False
            raise
        return True

    async def put_package(
        self, name: str, content: IO[bytes], size: int, progress: Progress | None = None
    ) -> None:
        """Upload a package of ``size`` bytes from where the file stands."""
        begin = content.tell()

        async def pieces() -> AsyncIterator[bytes]:
            content.seek(begin)
            while piece := content.read(_PIECE):
                yield piece
                if progress is not None:
                    progress.more(len(piece))

        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        path = "/packages/" + segment(name)
        await self._call("PUT", path, content=pieces, headers=headers, space=False, extra=600.0)


def segment(name: str) -> str:
    """A name as a part of a path."""
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"{name!r} is not a name; give text of 1 to 200 characters")
    return quote(name, safe="")


def wait_query(seconds: float) -> dict[str, str]:
    """How long an answer may be waited for."""
    return {"wait": f"{seconds:g}s"} if seconds > 0 else {}
