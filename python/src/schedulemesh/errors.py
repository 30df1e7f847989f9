"""What can go wrong, one class for each problem code of the server.

All of them are :class:`ScheduleMeshError`. Catch :class:`ServerError` for whatever the server refused, or one
of the classes below it; ``error.code`` is the server's own name of it, and ``str(error)`` a sentence.
"""

from __future__ import annotations

from typing import Any


class ScheduleMeshError(Exception):
    """The root of all errors of this package.

    Attributes:
        code: a stable name for programs.
    """

    code = "error"


class ServerUnavailable(ScheduleMeshError):
    """No server answered, though asked several times. Whether the last call was carried out is not known."""

    code = "server_unavailable"


class ServerNotFound(ScheduleMeshError):
    """There is no server to talk to, and none could be started."""

    code = "server_not_found"


class RayUnavailable(ScheduleMeshError):
    """The Ray cluster cannot be reached, or is not the one the server runs agents on."""

    code = "ray_unavailable"


class SchedulerNotFound(ScheduleMeshError):
    """``attach`` named a scheduler that does not exist."""

    code = "unknown_namespace"


class SchedulerInUse(ScheduleMeshError):
    """Another process has a scheduler of this name, or a kept one has it."""

    code = "namespace_in_use"


class SchedulerClosed(ScheduleMeshError):
    """The scheduler was shut down, or its session ended: the server did not hear of it for too long."""

    code = "scheduler_closed"


class InvalidArgument(ScheduleMeshError, ValueError):
    """An argument has the wrong type or value; nothing was sent."""

    code = "invalid_argument"


class NotPicklable(ScheduleMeshError, TypeError):
    """A class, an argument or a handler cannot travel to a worker."""

    code = "not_picklable"


class NotInitialized(ScheduleMeshError, RuntimeError):
    """No server was named or found for jobs, and no configuration of clusters to start one with."""

    code = "not_initialized"


class BadConfiguration(ScheduleMeshError, ValueError):
    """A file with clusters cannot be used; the message says in which line and column."""

    code = "bad_configuration"


class JobFailed(ScheduleMeshError, RuntimeError):
    """A job that was waited for failed or was stopped.

    Attributes:
        jobs: those that did, as documents.
    """

    code = "job_failed"

    def __init__(self, message: str, jobs: list[Any]) -> None:
        super().__init__(message)
        self.jobs = jobs

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.jobs)


class WaitTimeout(ScheduleMeshError, TimeoutError):
    """Jobs had not ended when the time was up; they go on."""

    code = "wait_timeout"


class ServerError(ScheduleMeshError):
    """The server refused a call.

    Attributes:
        code: its name of the problem, such as ``unknown_pool``.
        status: the HTTP status.
        title: what the code means, the same for each problem of this code.
        errors: one ``{"field", "location", "message"}`` for each field that was wrong.
        explanation: further facts, for example what is missing where; None when there are none.
        request_id: what the server's log knows the request by.
    """

    code = "internal"

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(problem.get("detail") or problem.get("title") or "the server gave no reason")
        self.code = str(problem.get("code") or "internal")
        self.status = int(problem.get("status") or 0)
        self.title = str(problem.get("title") or "")
        self.errors: list[dict[str, str]] = list(problem.get("errors") or [])
        self.explanation: Any = problem.get("explanation")
        self.request_id = str(problem.get("request_id") or "")


class BadJson(ServerError):
    """The body was not JSON."""


class BadRequest(ServerError):
    """The request could not be read."""


class Unauthorized(ServerError):
    """No valid token came with the call: set SCHEDULEMESH_TOKEN or SCHEDULEMESH_TOKEN_FILE."""


class CrossOrigin(ServerError):
    """A browser sent this from a page of another origin."""


class NotFound(ServerError):
    """There is nothing at this address; the server may be older than this package."""


class UnknownTask(NotFound):
    """No task has this id."""


class UnknownPool(NotFound):
    """No pool has this name."""


class UnknownAgent(NotFound):
    """No agent has this name."""


class UnknownNode(NotFound):
    """No cluster has a node of this id."""


class UnknownNamespace(NotFound):
    """No namespace, so no scheduler, has this name."""


class UnknownPolicyVersion(NotFound):
    """There is no such version of the policy."""


class UnknownCluster(NotFound):
    """No Ray cluster for jobs has this name."""


class UnknownJob(NotFound, RuntimeError):
    """No job has this submission id."""


class UnknownPackage(NotFound):
    """No package has this name."""


class MethodNotAllowed(ServerError):
    """The address does not know this method; the server may be older than this package."""


class RequestTimeout(ServerError):
    """The body arrived too slowly."""


class Conflict(ServerError):
    """The call does not fit the present state of things."""


class TaskExists(Conflict):
    """A live task has this id and another body."""


class AgentExists(Conflict):
    """A live agent has this name."""


class PoolExists(Conflict):
    """A pool has this name."""


class PoolInUse(Conflict):
    """Something runs, waits or borrows in the pool."""


class WrongState(Conflict):
    """The task is in a state in which this cannot be done."""


class PoolHeld(Conflict):
    """Somebody holds the pool: nothing starts in it."""


class VersionConflict(Conflict):
    """Somebody else changed it first."""


class NamespaceInUse(Conflict):
    """Another session holds the namespace."""


class NamespaceKept(Conflict):
    """A kept namespace has this name."""


class NamespaceClosing(Conflict):
    """The namespace is being cleared."""


class InsufficientResources(Conflict):
    """Too little is free, and nobody may be preempted for it."""


class RequestTooLarge(Conflict):
    """The request exceeds the whole capacity of the pool."""


class NoNodeLargeEnough(Conflict):
    """No single node of the cluster has this much."""


class JobExists(Conflict):
    """The submission id is another job's."""


class NoClusters(Conflict):
    """No Ray cluster is configured for jobs."""


class NoClusterLargeEnough(Conflict):
    """No single cluster could ever take the job; ``explanation`` says why not, for each."""


class ClusterInUse(Conflict):
    """Jobs are live on the cluster."""


class ClusterUnreachable(ServerError):
    """The cluster the job is on does not answer."""


class TooLarge(ServerError):
    """The body is too large."""


class UnsupportedMediaType(ServerError):
    """The body must be JSON."""


class MisdirectedRequest(ServerError):
    """The server does not answer for this host name."""


class Invalid(ServerError):
    """Some field is missing, unknown, of the wrong type or out of range; ``errors`` lists them."""


class IdempotencyKeyReused(ServerError):
    """The same Idempotency-Key came with another request."""


class TooManyBacktests(ServerError):
    """As many backtests are under way as the server allows."""


class Internal(ServerError):
    """The server's fault; its log has the cause under ``request_id``."""


class DatabaseUnavailable(ServerError):
    """The server's database does not answer."""


class BridgeUnavailable(ServerError):
    """The server does not reach the Ray cluster."""


class ShuttingDown(ServerError):
    """The server is stopping."""


def _codes() -> dict[str, type[ServerError]]:
    found: dict[str, type[ServerError]] = {}
    waiting: list[type[ServerError]] = [ServerError]
    while waiting:
        for cls in waiting.pop().__subclasses__():
            waiting.append(cls)
            found["".join("_" + c.lower() if c.isupper() else c for c in cls.__name__)[1:]] = cls
    return found


#: The class of each problem code.
BY_CODE = _codes()


def from_problem(problem: dict[str, Any]) -> ServerError:
    """The error of a problem document; :class:`ServerError` itself for a code this version does not know."""
    return BY_CODE.get(str(problem.get("code")), ServerError)(problem)
