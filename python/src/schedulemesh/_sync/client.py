# Generated from schedulemesh/_async by python/unasync.py; edit that.
"""The server's REST API as methods: JSON in, typed dicts out, errors as exceptions."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterator, Callable
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from schedulemesh import types
from schedulemesh._sync.job_calls import JobCalls, segment, wait_query
from schedulemesh._sync.waiting import sleep
from schedulemesh.errors import InvalidArgument, ServerError, ServerUnavailable, from_problem

if TYPE_CHECKING:
    import httpx

#: How long one call may take on the wire, in seconds, beyond the time it was asked to wait.
TIMEOUT = 30.0
#: For how long a call that found no server, or a busy one, is repeated, in seconds.
RETRY_FOR = 10.0

# The server did nothing, and says so.
_TRY_AGAIN = {"database_unavailable", "shutting_down"}


class Client(JobCalls):
    """A server, seen from one namespace.

    A call that finds no server is repeated for :data:`RETRY_FOR` seconds. Calls that change something carry
    an idempotency key, so that one whose answer was lost is not carried out twice.

    Args:
        url: where it is, such as ``http://127.0.0.1:8080``; the server of this machine when left out.
        token: an access token; looked up when left out (SCHEDULEMESH_TOKEN, SCHEDULEMESH_TOKEN_FILE, what
            servers on this machine left for this user).
        namespace: of all that is read and made here.
        timeout: seconds for one call.
        retry_for: seconds for which a call is repeated.

    Raises:
        ServerNotFound: no url was given, and no server runs here.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        namespace: str = "default",
        timeout: float = TIMEOUT,
        retry_for: float = RETRY_FOR,
    ) -> None:
        import httpx

        from schedulemesh.finding import default_url
        from schedulemesh.local import token_for

        self.url = (url or default_url()).rstrip("/")
        self.namespace = namespace
        self.timeout = timeout
        self.retry_for = retry_for
        token = token_for(self.url) if token is None else token
        split = urlsplit(self.url)
        if split.scheme not in ("http", "https") or not split.hostname:
            raise InvalidArgument(
                f"{self.url!r} is not the address of a server; one looks like http://127.0.0.1:8080"
            )
        # It would say every call at INFO, among the script's own lines.
        logging.getLogger("httpx").setLevel(max(logging.WARNING, logging.getLogger("httpx").level))
        here = split.hostname in ("localhost", "127.0.0.1", "::1")
        self._http = httpx.Client(
            base_url=self.url + "/api/v1",
            headers={"Authorization": f"Bearer {token}"} if token else {},
            verify=split.scheme == "https",
            trust_env=not here,  # no proxy between two processes of one machine
            limits=httpx.Limits(max_keepalive_connections=32, max_connections=256),
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def within(self, namespace: str) -> Client:
        """The same server and connections, seen from another namespace."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.namespace = namespace
        return other

    # The server.

    def server(self) -> types.ServerInfo:
        """Version, deployment, and the Ray cluster its agents run on."""
        return cast(types.ServerInfo, self._call("GET", "/server", space=False))

    def readiness(self) -> dict[str, str]:
        """Whether the server can do its work: for each part ``ok``, or why it cannot."""
        import httpx

        try:
            answer = self._http.get(self.url + "/readyz", timeout=self.timeout)
        except httpx.TransportError as error:
            raise ServerUnavailable(f"no server answers at {self.url} ({error})") from None
        return dict(line.split(": ", 1) for line in answer.text.splitlines() if ": " in line)

    def nodes(self) -> list[types.Node]:
        """The machines of all Ray clusters."""
        return cast("list[types.Node]", (self._call("GET", "/nodes", space=False))["items"])

    # Namespaces.

    def namespaces(self) -> list[types.Namespace]:
        """All namespaces."""
        found = self._call("GET", "/namespaces", space=False)
        return cast("list[types.Namespace]", found["items"])

    def get_namespace(self) -> types.Namespace:
        """This client's namespace. Raises :class:`~schedulemesh.errors.UnknownNamespace`."""
        return cast(types.Namespace, self._call("GET", self._space, space=False))

    def open_namespace(
        self,
        *,
        detached: bool,
        session: str = "",
        owner: str = "",
        ttl: float = 15.0,
        replace: str = "",
        timeout: float | None = None,
    ) -> types.Namespace:
        """Make the namespace: kept (``detached``), or held by a session for ``ttl`` seconds; the same call
        again renews. One that an earlier session left is cleared first."""
        body: dict[str, Any] = {"detached": detached}
        if not detached:
            body |= {"session": session, "owner": owner, "ttl": ttl}
            if replace:
                body["replace"] = replace
        return cast(types.Namespace, self._call("PUT", self._space, body, space=False, timeout=timeout))

    def delete_namespace(self, session: str = "", force: bool = False) -> None:
        """End a session, or remove a kept namespace, and all that is in it."""
        query: dict[str, Any] = {"session": session} if session else {}
        if force:
            query["force"] = "true"
        self._call("DELETE", self._space, query=query, space=False, timeout=self.timeout + 60)

    @property
    def _space(self) -> str:
        return "/namespaces/" + segment(self.namespace)

    # Pools.

    def pools(self) -> list[types.Pool]:
        """All pools with their balances."""
        return cast("list[types.Pool]", (self._call("GET", "/pools"))["items"])

    def pool(self, name: str) -> types.Pool:
        """One pool. Raises :class:`~schedulemesh.errors.UnknownPool`."""
        return cast(types.Pool, self._call("GET", "/pools/" + segment(name)))

    def create_pool(self, name: str, **fields: Any) -> types.Pool:
        """Make a pool: ``labels``, ``resources``, ``target_agents``, … as in the API."""
        return cast(types.Pool, self._call("POST", "/pools", {"name": name, **fields}))

    def update_pool(self, name: str, **fields: Any) -> types.Pool:
        """Replace the given fields of a pool."""
        return cast(types.Pool, self._call("PATCH", "/pools/" + segment(name), fields))

    def delete_pool(self, name: str) -> None:
        """Remove an empty pool."""
        self._call("DELETE", "/pools/" + segment(name))

    def hold_pool(self, name: str, *, reason: str = "") -> types.Pool:
        """Start nothing in a pool until it is resumed; what runs goes on."""
        body = _without_empty({"reason": reason})
        return cast(types.Pool, self._call("POST", f"/pools/{segment(name)}/hold", body))

    def drain_pool(self, name: str, *, reason: str = "", deadline: float | None = None) -> types.Pool:
        """Hold a pool and, ``deadline`` seconds from now, take what still runs in it."""
        body = _without_empty({"reason": reason, "deadline": deadline})
        return cast(types.Pool, self._call("POST", f"/pools/{segment(name)}/drain", body))

    def resume_pool(self, name: str) -> types.Pool:
        """End a hold or a drain."""
        return cast(types.Pool, self._call("POST", f"/pools/{segment(name)}/resume"))

    def placement_groups(self, pool: str, *, ended: bool = False) -> dict[str, Any]:
        """The placement groups of a pool, with sums; ``ended`` for the latest that are gone, too."""
        query = {"ended": "true" if ended else ""}
        found = self._call("GET", f"/pools/{segment(pool)}/placement-groups", query=query)
        return cast("dict[str, Any]", found)

    def set_state_handlers(
        self,
        pool: str,
        *,
        preserver: str | None,
        preserver_name: str = "",
        restorer: str | None,
        restorer_name: str = "",
    ) -> None:
        """Set both state handlers of a pool; each as base64 of its pickle, or None for none."""
        body = {
            "preserver": preserver,
            "preserver_name": preserver_name,
            "restorer": restorer,
            "restorer_name": restorer_name,
        }
        self._call("PUT", f"/pools/{segment(pool)}/state-handlers", body)

    def delete_state_handlers(self, pool: str) -> None:
        """Remove both state handlers of a pool; none there is fine."""
        self._call("DELETE", f"/pools/{segment(pool)}/state-handlers")

    # Tasks.

    def submit(self, task: dict[str, Any], *, wait: float = 0.0) -> types.Task:
        """Submit a task; the body is that of ``POST /tasks``. With ``wait`` the answer comes once it runs or
        has ended, at the latest after so many seconds."""
        return cast(types.Task, self._call("POST", "/tasks", task, query=wait_query(wait), extra=wait))

    def tasks(
        self,
        *,
        state: str = "",
        live: bool = False,
        pool: str = "",
        text: str = "",
        labels: types.Labels | None = None,
        limit: int = 0,
    ) -> Iterator[types.Task]:
        """Tasks, newest first, at most ``limit`` when it is not 0. ``state`` may name several with commas
        between, ``text`` is a part of the id; a task must have all of ``labels``."""
        query: dict[str, Any] = {"state": state, "pool": pool, "q": text, "live": "true" if live else ""}
        if labels:
            query["label"] = [f"{key}={value}" for key, value in labels.items()]
        for item in self._pages("/tasks", query, limit):
            yield cast(types.Task, item)

    def task(self, task_id: str, *, wait: float = 0.0) -> types.Task:
        """The live task of this id, or the latest. ``wait`` as in :meth:`submit`."""
        return cast(
            types.Task,
            self._call("GET", "/tasks/" + segment(task_id), query=wait_query(wait), extra=wait),
        )

    def change_task(self, task_id: str, **fields: Any) -> types.Task:
        """Replace ``priority``, ``labels`` or ``estimated_duration`` of a live task."""
        return cast(types.Task, self._call("PATCH", "/tasks/" + segment(task_id), fields))

    def complete(self, task_id: str) -> types.Task:
        """End a task as done. Read it with ``wait`` to see its agent gone."""
        return cast(types.Task, self._call("POST", f"/tasks/{segment(task_id)}/complete"))

    def cancel(self, task_id: str) -> types.Task:
        """Cancel a task. Read it with ``wait`` to see its agent gone."""
        return cast(types.Task, self._call("DELETE", "/tasks/" + segment(task_id)))

    def resume(self, task_id: str) -> types.Task:
        """Run a preempted task again from its saved state, as soon as there is room."""
        return cast(types.Task, self._call("POST", f"/tasks/{segment(task_id)}/restore"))

    def register(self, task_id: str, **fields: Any) -> types.Task:
        """Say that a task runs on an agent: ``agent_name``, ``pool``, ``priority``, ``labels``, …"""
        return cast(types.Task, self._call("PUT", f"/tasks/{segment(task_id)}/register", fields))

    def task_events(self, task_id: str) -> list[types.Event]:
        """The timeline of a task, oldest first."""
        found = self._call("GET", f"/tasks/{segment(task_id)}/events")
        return cast("list[types.Event]", found["items"])

    def task_logs(
        self, task_id: str, *, stream: str = "stdout", offset: int = 0, limit: int = 65536
    ) -> types.LogChunk:
        """A piece of a task's output; read on from ``next_offset`` until ``ended``."""
        query = {"stream": stream, "offset": offset, "limit": limit}
        return cast(types.LogChunk, self._call("GET", f"/tasks/{segment(task_id)}/logs", query=query))

    # Agents.

    def agents(self) -> Iterator[types.Agent]:
        """Live agents with what runs on them."""
        for item in self._pages("/agents", {}, 0):
            yield cast(types.Agent, item)

    def agent(self, name: str) -> types.Agent:
        """An agent by its name, or by the id of a task on it."""
        return cast(types.Agent, self._call("GET", "/agents/" + segment(name)))

    def create_agent(self, agent: dict[str, Any], *, wait: float = 0.0) -> types.Agent:
        """Make an agent that waits for work; the body is that of ``POST /agents``."""
        return cast(
            types.Agent, self._call("POST", "/agents", agent, query=wait_query(wait), extra=wait)
        )

    def delete_agent(self, name: str, *, force: bool = False, destroy_pg: bool = False) -> None:
        """Stop an agent; one that is gone already is fine. Answers before it is gone."""
        query = {"force": "true" if force else "", "destroy_pg": "true" if destroy_pg else ""}
        self._call("DELETE", "/agents/" + segment(name), query=query)

    def report_metrics(self, agent: str, metrics: dict[str, Any]) -> None:
        """Keep figures as the agent's latest."""
        self._call("POST", f"/agents/{segment(agent)}/metrics", metrics)

    def ensure_health(self, *, timeout: float = 120.0, recreate: bool = True) -> types.Health:
        """Ping all agents, and replace those that do not answer."""
        body = {"timeout": timeout, "recreate": recreate}
        return cast(types.Health, self._call("POST", "/agents/ensure-health", body, extra=60.0))

    # Preemption.

    def evaluate(self, **request: Any) -> types.Evaluation:
        """Who would make way for a task of this ``pool``, ``priority``, ``labels``, ``resources``."""
        return cast(types.Evaluation, self._call("POST", "/preemption/evaluate", request))

    def execute(self, *, task_id: str = "", agent_name: str = "", reason: str = "") -> types.Execution:
        """Cancel a task and save its state, by hand; its agent stays. ``reason`` is the rule an evaluation
        named for it, under which it is counted."""
        body = {"task_id": task_id, "agent_name": agent_name, "reason": reason}
        return cast(
            types.Execution,
            self._call("POST", "/preemption/execute", _without_empty(body), extra=600.0),
        )

    def restore_state(self, saved_state: dict[str, Any]) -> dict[str, Any]:
        """Run the restorer of the state's pool on it: ``{"success", "error", …}``. It launches nothing."""
        found = self._call("POST", "/preemption/restore", {"saved_state": saved_state}, extra=60.0)
        return cast("dict[str, Any]", found)

    def preemptions(self, *, limit: int = 0) -> Iterator[types.Preemption]:
        """Preemptions, newest first, at most ``limit`` when it is not 0."""
        for item in self._pages("/preemptions", {}, limit):
            yield cast(types.Preemption, item)

    def preemption(self, preemption_id: int) -> types.Preemption:
        """One preemption."""
        return cast(types.Preemption, self._call("GET", f"/preemptions/{preemption_id}"))

    def stats(self) -> types.PreemptionStats:
        """Figures of preemption."""
        return cast(types.PreemptionStats, self._call("GET", "/preemptions/stats"))

    # Policy.

    def policy(self) -> types.Policy:
        """The active policy."""
        return cast(types.Policy, self._call("GET", "/policy"))

    def put_policy(self, policy: dict[str, Any], *, comment: str = "", base: int = 0) -> types.Policy:
        """Replace the whole policy; fields left out get their defaults. With ``base`` only when that version
        is still active, or else :class:`~schedulemesh.errors.VersionConflict`."""
        return self._change_policy("PUT", policy, comment, base)

    def patch_policy(self, fields: dict[str, Any], *, comment: str = "", base: int = 0) -> types.Policy:
        """Replace the given fields."""
        return self._change_policy("PATCH", fields, comment, base)

    def _change_policy(
        self, method: str, policy: dict[str, Any], comment: str, base: int
    ) -> types.Policy:
        headers = {"If-Match": f'"{base}"'} if base else None
        body = _without_empty({"policy": policy, "comment": comment})
        return cast(
            types.Policy, self._call(method, "/policy", {"policy": policy} | body, headers=headers)
        )

    def policy_versions(self, *, limit: int = 50) -> list[types.Policy]:
        """Versions of the policy, newest first."""
        found = self._call("GET", "/policy/versions", query={"limit": limit})
        return cast("list[types.Policy]", found["items"])

    def policy_version(self, version: int, *, against: int = 0) -> dict[str, Any]:
        """One version, and ``changes`` against another one, the one before it by default."""
        query = {"against": against or ""}
        return cast("dict[str, Any]", self._call("GET", f"/policy/versions/{version}", query=query))

    def rollback_policy(self, version: int, *, comment: str = "") -> types.Policy:
        """Make an old version the active one, as a new version."""
        body = _without_empty({"comment": comment})
        return cast(types.Policy, self._call("POST", f"/policy/versions/{version}/rollback", body))

    def validate_policy(self, policy: dict[str, Any]) -> dict[str, Any]:
        """Whether a policy is ``valid``, with ``errors`` and ``warnings``; nothing is changed."""
        return cast("dict[str, Any]", self._call("POST", "/policy/validate", {"policy": policy}))

    # Events.

    def past_events(self, *, after: int = 0) -> Iterator[types.Event]:
        """What happened so far, oldest first, from the event after ``after``."""
        accept = {"Accept": "application/json"}
        while True:
            page = self._call("GET", "/events", query={"after": after, "limit": 500}, headers=accept)
            for event in page["items"]:
                after = int(event["id"])
                yield cast(types.Event, event)
            if not page["next_cursor"]:
                return

    def events(self, *, after: int = 0) -> Iterator[types.Event]:
        """Events as they happen, none left out, from the one after ``after`` (0: from now on). Without end;
        a connection that breaks is made anew, for :attr:`retry_for` seconds."""
        for _, data in self._stream("/events", {"namespace": self.namespace}, str(after or "")):
            yield cast(types.Event, json.loads(data))

    # The wire.

    def _stream(self, path: str, query: dict[str, Any], last: str) -> Iterator[tuple[str, str]]:
        """What an event stream says, as kind and data, without end. One that breaks is made anew behind the
        last event that had an id, as long as the server answers within :attr:`retry_for` seconds."""
        import httpx

        while True:
            headers = {"Accept": "text/event-stream"}
            if last:
                headers["Last-Event-ID"] = last
            try:
                with self._http.stream(
                    "GET",
                    path,
                    params=query,
                    headers=headers,
                    timeout=httpx.Timeout(self.timeout, read=60.0),
                ) as stream:
                    if stream.status_code != 200:
                        stream.read()
                        raise _refusal(stream)
                    kind, data, number = "message", "", last
                    for line in stream.iter_lines():
                        word, _, value = line.partition(":")
                        value = value.removeprefix(" ")
                        if word == "event":
                            kind = value
                        elif word == "data":
                            data = f"{data}\n{value}" if data else value
                        elif word == "id":
                            number = value
                        elif not line:
                            last = number
                            if data:
                                yield kind, data
                            kind, data = "message", ""
            except httpx.TransportError:
                self._call("GET", "/server", space=False)  # waits for it, or says that it is gone
            sleep(0.05)

    def _pages(
        self, path: str, query: dict[str, Any], limit: int, *, space: bool = True
    ) -> Iterator[dict[str, Any]]:
        seen = 0
        cursor = ""
        while True:
            size = min(500, limit - seen) if limit else 500
            page = self._call(
                "GET", path, query={**query, "limit": size, "cursor": cursor}, space=space
            )
            for item in page["items"]:
                yield item
            seen += len(page["items"])
            cursor = page["next_cursor"] or ""
            if not cursor or (limit and seen >= limit):
                return

    def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        query: dict[str, Any] | None = None,
        *,
        content: Callable[[], Iterator[bytes]] | None = None,
        headers: dict[str, str] | None = None,
        space: bool = True,
        timeout: float | None = None,
        extra: float = 0.0,
    ) -> Any:
        """Make a call, repeating it while no server answers. ``content`` makes the body, each time, that
        ``body`` is not.

        Raises:
            InvalidArgument: the body is not JSON.
            ServerError: the server refused.
            ServerUnavailable: nobody answered.
        """
        import httpx

        params = _without_empty(query or {})
        if space and self.namespace != "default":
            params["namespace"] = self.namespace
        headers = dict(headers or {})
        encoded = None
        if body is not None:
            encoded = _encode(body)
            headers["Content-Type"] = "application/json"
        if method == "POST":
            headers["Idempotency-Key"] = uuid.uuid4().hex
        wire = httpx.Timeout((timeout or self.timeout) + extra, connect=5.0)
        pause, last = 0.05, ""
        end = time.monotonic() + self.retry_for
        while True:
            try:
                answer = self._http.request(
                    method,
                    path,
                    params=params,
                    content=content() if content is not None else encoded,
                    headers=headers,
                    timeout=wire,
                )
            except (httpx.TimeoutException, httpx.TransportError) as error:
                last = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                if isinstance(error, httpx.ReadTimeout):
                    end = 0.0  # it had its time
            else:
                if answer.is_success:
                    return answer.json() if answer.content else None
                refusal = _refusal(answer)
                if refusal.code not in _TRY_AGAIN and answer.status_code not in (502, 504):
                    raise refusal
                last = str(refusal)
            if time.monotonic() + pause > end:
                raise ServerUnavailable(
                    f"the server at {self.url} did not answer {method} {path} ({last}); "
                    "is it running? `schedulemesh status` asks it"
                )
            sleep(pause)
            pause = min(2 * pause, 1.0)


def _refusal(answer: httpx.Response) -> ServerError:
    try:
        problem = answer.json()
        if not isinstance(problem, dict):
            raise ValueError
    except ValueError:
        text = " ".join(answer.text.split())
        problem = {"detail": f"HTTP {answer.status_code}: {text[:200]}"}
    return from_problem({"status": answer.status_code, **problem})


def _encode(body: dict[str, Any]) -> bytes:
    try:
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"this cannot be sent as JSON: {error}") from None


def _without_empty(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in ("", None)}
