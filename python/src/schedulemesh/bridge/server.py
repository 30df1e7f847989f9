"""The sidecar's HTTP side: JSON in, JSON out, events as lines."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from schedulemesh.bridge import logs
from schedulemesh.bridge.agents import Agents
from schedulemesh.bridge.caller import Caller
from schedulemesh.bridge.calls import KINDS
from schedulemesh.bridge.errors import BridgeError, bad_request
from schedulemesh.bridge.events import Events
from schedulemesh.bridge.groups import DEFAULT_TIMEOUT, check
from schedulemesh.bridge.store import CLAIM_RENEW, Store, read_claim, read_dashboard

log = logging.getLogger(__name__)

PROTOCOL = 1
#: The largest body, in bytes.
MAX_BODY = 64 << 20
#: From this size on a body is parsed off the event loop.
_LARGE = 256 << 10
#: An empty line goes to followers of events so often, in seconds.
HEARTBEAT = 5.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """The routes.

    Args:
        about: what ``hello`` answers, but for what may change: the claim, the dashboard's address.
        token: what callers must send as bearer token; empty for none.
    """

    def __init__(
        self,
        agents: Agents,
        caller: Caller,
        store: Store,
        events: Events,
        about: dict[str, Any],
        token: str,
    ) -> None:
        self._agents = agents
        self._caller = caller
        self._store = store
        self._events = events
        self._about = about
        self._token = token
        self._claim_url = ""
        self.closing = asyncio.Event()

    def app(self) -> web.Application:
        """The application, ready to be served."""
        app = web.Application(client_max_size=MAX_BODY, middlewares=[self._guard])
        app.add_routes(
            [
                web.get("/v1/hello", self.hello),
                web.post("/v1/claim", self.claim),
                web.post("/v1/launch", self.launch),
                web.post("/v1/run", self.run),
                web.post("/v1/cancel", self.cancel),
                web.post("/v1/save_state", self.save_state),
                web.post("/v1/ping", self.ping),
                web.post("/v1/call", self.call),
                web.post("/v1/kill", self.kill),
                web.post("/v1/ensure_group", self.ensure_group),
                web.post("/v1/remove_group", self.remove_group),
                web.get("/v1/groups", self.groups),
                web.get("/v1/agents", self.list),
                web.get("/v1/nodes", self.nodes),
                web.get("/v1/events", self.events),
                web.get("/v1/logs", self.logs),
            ]
        )
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Who may call, and how errors look."""
        if self._token:
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self._token.encode()):
                return _error(BridgeError("bad_request", "the bearer token is missing or wrong"), 401)
        try:
            return await handler(request)
        except BridgeError as error:
            return _error(error, 413 if error.code == "too_large" else 400)
        except web.HTTPRequestEntityTooLarge:
            return _error(
                BridgeError("too_large", f"the request has more than {MAX_BODY} bytes"), 413, close=True
            )
        except web.HTTPException as error:
            return _error(
                BridgeError("bad_request", f"{request.method} {request.path}: {error.reason}"), error.status
            )
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:
            log.exception("%s failed", request.path)
            return _error(BridgeError("internal", f"{type(error).__name__}: {error}", unknown=True), 500)

    async def hello(self, _: web.Request) -> web.Response:
        claim, dashboard = await asyncio.to_thread(lambda: (read_claim(), read_dashboard()))
        if claim is not None:
            claim = {"deployment": claim["deployment"], "url": claim["url"]}
        return _json({**self._about, "dashboard": dashboard, "claim": claim})

    async def claim(self, request: web.Request) -> web.Response:
        body = await _body(request)
        deployment, url = _text(body, "deployment"), _text(body, "url")
        if deployment != self._agents.deployment:
            raise bad_request(
                f"the sidecar belongs to deployment {self._agents.deployment!r}, not {deployment!r}"
            )
        await asyncio.to_thread(self._store.claim, url, bool(body.get("force")))
        self._claim_url = url
        return _json({})

    async def keep_claim(self) -> None:
        """Renew the claim for ever, once there is one."""
        while True:
            await asyncio.sleep(CLAIM_RENEW)
            if not self._claim_url:
                continue
            try:
                if not await asyncio.to_thread(self._store.renew, self._claim_url):
                    log.warning("another deployment has taken the cluster over")
                    self._claim_url = ""
            except Exception as error:
                log.warning("the claim could not be renewed: %s", error)

    async def launch(self, request: web.Request) -> web.Response:
        body = await _body(request)
        for name in ("launch_id", "agent_name", "task_id", "pool", "actor_name", "ray_namespace", "node_id"):
            _text(body, name)
        if not body.get("launch_id"):
            raise bad_request("launch_id is empty")
        if not (body.get("class_path") or body.get("pickled")):
            raise bad_request("neither class_path nor pickled is given")
        for name, kind in (
            ("args", list),
            ("kwargs", dict),
            ("labels", dict),
            ("resources", dict),
            ("methods", list),
            ("runtime_env", dict),
            ("ray_options", dict),
            ("class_path", str),
            ("pickled", str),
        ):
            if body.get(name) is not None and not isinstance(body[name], kind):
                raise bad_request(f"{name} is a {type(body[name]).__name__}, it must be a {kind.__name__}")
        _amounts(body.get("resources") or {})
        if body.get("group") is not None:
            body["group"] = _group(body["group"])
        body["timeout"] = _seconds(body, "timeout", 0.0)
        body["room_timeout"] = _seconds(body, "room_timeout", 0.0)
        return _json(await self._agents.launch(body))

    async def run(self, request: web.Request) -> web.Response:
        body = await _body(request)
        args, kwargs = body.get("args") or [], body.get("kwargs") or {}
        if not isinstance(args, list) or not isinstance(kwargs, dict):
            raise bad_request("args must be an array and kwargs an object")
        method = _text(body, "method")
        if not method.isidentifier() or method.startswith("_"):
            raise bad_request(f"{method!r} is not the name of a public method")
        await self._agents.run(_text(body, "launch_id"), method, args, kwargs)
        return _json({})

    async def cancel(self, request: web.Request) -> web.Response:
        body = await _body(request)
        return _json(
            await self._agents.cancel(
                _text(body, "launch_id"), _text(body, "task_id"), _seconds(body, "timeout", 10.0)
            )
        )

    async def save_state(self, request: web.Request) -> web.Response:
        body = await _body(request)
        return _json(await self._agents.save_state(_text(body, "launch_id"), _seconds(body, "timeout", 10.0)))

    async def ping(self, request: web.Request) -> web.Response:
        body = await _body(request)
        await self._agents.ping(_text(body, "launch_id"), _seconds(body, "timeout", 10.0))
        return _json({})

    async def call(self, request: web.Request) -> web.Response:
        body = await _body(request)
        kind, name, node_id = _text(body, "kind"), _text(body, "name"), _text(body, "node_id")
        if kind not in KINDS:
            raise bad_request(f"kind is {kind!r}, it must be {' or '.join(KINDS)}")
        argument, runtime_env = body.get("argument"), body.get("runtime_env")
        if not isinstance(argument, dict):
            raise bad_request(f"argument is a {type(argument).__name__}, it must be a dict")
        if runtime_env is not None and not isinstance(runtime_env, dict):
            raise bad_request(f"runtime_env is a {type(runtime_env).__name__}, it must be a dict")
        try:
            code = base64.b64decode(body.get("pickled") or "", validate=True)
        except (TypeError, ValueError) as error:
            raise bad_request(f"pickled is not base64: {error}") from None
        if not code:
            raise bad_request("pickled is empty")
        timeout = _seconds(body, "timeout", 10.0)
        return _json(await self._caller.call(code, kind, name, argument, node_id, runtime_env, timeout))

    async def kill(self, request: web.Request) -> web.Response:
        body = await _body(request)
        await self._agents.kill(_text(body, "launch_id"), _seconds(body, "timeout", 10.0))
        return _json({})

    async def ensure_group(self, request: web.Request) -> web.Response:
        return _json(await self._agents.groups.ensure(**_group(await _body(request))))

    async def remove_group(self, request: web.Request) -> web.Response:
        body = await _body(request)
        await self._agents.groups.remove(_text(body, "name"), _seconds(body, "timeout", 10.0))
        return _json({})

    async def groups(self, _: web.Request) -> web.Response:
        return _json(await self._agents.groups.all())

    async def list(self, _: web.Request) -> web.Response:
        return _json([record.as_json() for record in self._agents.records.values() if record.actor_name])

    async def nodes(self, _: web.Request) -> web.Response:
        return _json([node.as_json() for node in self._agents.nodes.nodes.values()])

    async def events(self, request: web.Request) -> web.StreamResponse:
        after = _number(request, "after", 0)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        stream = self._events.follow(after, HEARTBEAT)
        closing = asyncio.ensure_future(self.closing.wait())
        try:
            while True:
                upcoming = asyncio.ensure_future(anext(stream))
                await asyncio.wait({upcoming, closing}, return_when=asyncio.FIRST_COMPLETED)
                if not upcoming.done():
                    upcoming.cancel()
                    break
                event = upcoming.result()
                await response.write(b"\n" if event is None else json.dumps(event).encode() + b"\n")
        except ConnectionError:
            pass
        finally:
            closing.cancel()
        return response

    async def logs(self, request: web.Request) -> web.Response:
        launch_id = request.query.get("launch_id", "")
        stream = request.query.get("stream", "")
        offset, limit = _number(request, "offset", 0), _number(request, "limit", 0) or logs.DEFAULT_LIMIT
        if stream not in ("stdout", "stderr"):
            raise bad_request(f"stream is {stream!r}, it must be stdout or stderr")
        record = self._agents.records.get(launch_id)
        if record is None or not record.actor_name:
            raise BridgeError("agent_not_found", f"no agent was launched as {launch_id!r}")
        ended = record.state == "gone"
        path = record.stdout if stream == "stdout" else record.stderr
        chunk: dict[str, Any] = {"text": "", "next": offset, "size": offset, "eof": True}
        if path:
            try:
                if record.node_id == self._agents.nodes.own_id:
                    chunk = await asyncio.to_thread(logs.read, path, offset, limit)
                else:
                    chunk = await asyncio.to_thread(logs.read_remote, record.node_id, path, offset, limit)
            except Exception as error:
                raise BridgeError(
                    "agent_not_found", f"the output of {launch_id} cannot be read: {error}"
                ) from None
        return _json({**chunk, "ended": ended})


def about(deployment: str, session: str, namespace: str) -> dict[str, Any]:
    """What ``hello`` says of this sidecar and its cluster."""
    import ray

    context = ray.get_runtime_context()
    return {
        "protocol": PROTOCOL,
        "session": session,
        "deployment": deployment,
        "cluster_id": ray._private.worker.global_worker.gcs_client.cluster_id.hex(),
        "ray_address": context.gcs_address,
        "ray_namespace": namespace,
        "node_id": context.get_node_id(),
        "ray_version": ray.__version__,
        "python_version": ".".join(str(part) for part in sys.version_info[:3]),
        "pid": os.getpid(),
    }


async def _body(request: web.Request) -> dict[str, Any]:
    raw = await request.read()
    try:
        body = await asyncio.to_thread(_parse, raw) if len(raw) > _LARGE else _parse(raw)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise bad_request("the body must be a JSON object")
    return body


def _amounts(resources: Any) -> None:
    if not isinstance(resources, dict):
        raise bad_request(f"resources are {resources!r}, they must be an object")
    for name, amount in resources.items():
        if isinstance(amount, bool) or not isinstance(amount, int) or amount < 0:
            raise bad_request(f"resource {name!r} is {amount!r}, it must be a whole number, not negative")


def _group(body: Any) -> dict[str, Any]:
    """What a placement group is made with."""
    if not isinstance(body, dict):
        raise bad_request(f"group is a {type(body).__name__}, it must be a dict")
    bundles = body.get("bundles")
    if not isinstance(bundles, list):
        raise bad_request(f"bundles are a {type(bundles).__name__}, they must be a list")
    for bundle in bundles:
        _amounts(bundle)
    group = {name: _text(body, name) for name in ("name", "strategy", "node_id")}
    check(group["name"], bundles, group["strategy"])
    return {**group, "bundles": bundles, "timeout": _seconds(body, "timeout", DEFAULT_TIMEOUT)}


def _parse(raw: bytes) -> Any:
    return json.loads(raw, parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name) or ""
    if not isinstance(value, str) or "\0" in value:
        raise bad_request(f"{name} is {value!r}, it must be text without NUL characters")
    return value


def _seconds(body: dict[str, Any], name: str, default: float) -> float:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 86400:
        raise bad_request(f"{name} is {value!r}, it must be seconds from 0 to 86400")
    return float(value)


def _number(request: web.Request, name: str, default: int) -> int:
    try:
        value = int(request.query.get(name, default))
    except ValueError:
        value = -1
    if value < 0:
        raise bad_request(f"{name} is {request.query.get(name)!r}, it must be a whole number, not negative")
    return value


def _json(value: Any) -> web.Response:
    text = json.dumps(value)
    if len(text) > MAX_BODY:
        raise BridgeError("too_large", f"the answer has more than {MAX_BODY} bytes")
    return web.Response(text=text, content_type="application/json")


def _error(error: BridgeError, status: int, close: bool = False) -> web.Response:
    response = web.json_response({"error": error.as_json()}, status=status)
    if close:
        response.force_close()
    return response
