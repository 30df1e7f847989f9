"""The client against servers that misbehave."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from schedulemesh import aio, errors
from schedulemesh.client import Client

Answer = tuple[int, Any]


class StandIn:
    """A server that answers each request as told, in turn; the last answer stands."""

    def __init__(self) -> None:
        self.answers: list[Answer | None] = []
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def respond(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                outer.requests.append(
                    (self.command, self.path, dict(self.headers), json.loads(body) if body else None)
                )
                answer = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                if answer is None:  # hang up without a word
                    self.close_connection = True
                    self.connection.close()
                    return
                status, value = answer
                data = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = respond

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    found = StandIn()
    yield found
    found.close()


@pytest.fixture
def client(stand_in: StandIn) -> Iterator[Client]:
    with Client(stand_in.url, "secret", "space", retry_for=2.0) as found:
        yield found


def problem(code: str, status: int, detail: str = "because") -> Answer:
    return status, {"code": code, "status": status, "title": "No", "detail": detail, "request_id": "r-1"}


def test_a_call_carries_token_and_namespace(stand_in: StandIn, client: Client) -> None:
    stand_in.answers = [(200, {"name": "a/b c"})]
    assert client.pool("a/b c") == {"name": "a/b c"}
    method, path, headers, _ = stand_in.requests[0]
    assert (method, path) == ("GET", "/api/v1/pools/a%2Fb%20c?namespace=space")
    assert headers["Authorization"] == "Bearer secret"


@pytest.mark.parametrize("name", sorted(errors.BY_CODE))
def test_each_problem_code_has_a_class(stand_in: StandIn, client: Client, name: str) -> None:
    if name in ("database_unavailable", "shutting_down"):
        client.retry_for = 0.0
        stand_in.answers = [problem(name, 503)]
        with pytest.raises(errors.ServerUnavailable, match="because"):
            client.pools()
        return
    stand_in.answers = [problem(name, 409)]
    with pytest.raises(errors.BY_CODE[name], match="because") as caught:
        client.pools()
    assert (caught.value.code, caught.value.status, caught.value.request_id) == (name, 409, "r-1")


def test_a_code_of_a_newer_server_is_an_error_all_the_same(stand_in: StandIn, client: Client) -> None:
    stand_in.answers = [problem("from_the_future", 418)]
    with pytest.raises(errors.ServerError) as caught:
        client.pools()
    assert caught.value.code == "from_the_future"


def test_an_answer_that_is_no_problem_document_is_shown(stand_in: StandIn, client: Client) -> None:
    stand_in.answers = [(500, b"<html>proxy says no</html>")]
    with pytest.raises(errors.ServerError, match="HTTP 500: <html>proxy says no"):
        client.pools()


def test_a_lost_answer_is_asked_for_again_under_the_same_key(stand_in: StandIn, client: Client) -> None:
    stand_in.answers = [None, problem("database_unavailable", 503), (201, {"task_id": "t"})]
    assert client.submit({"task_id": "t"}) == {"task_id": "t"}
    keys = {headers["Idempotency-Key"] for _, _, headers, _ in stand_in.requests}
    assert len(stand_in.requests) == 3
    assert len(keys) == 1


def test_nobody_there_is_said_with_the_address_within_bounds() -> None:
    began = time.monotonic()
    with (
        Client("http://127.0.0.1:9", "x", retry_for=0.3) as client,
        pytest.raises(errors.ServerUnavailable, match=r"http://127\.0\.0\.1:9 did not answer GET /pools"),
    ):
        client.pools()
    assert time.monotonic() - began < 5


def test_a_server_that_does_not_answer_in_time_is_not_waited_for_twice(client: Client) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as deaf:
        began = time.monotonic()
        slow = Client(f"http://127.0.0.1:{deaf.getsockname()[1]}", "x", timeout=0.5)
        with slow, pytest.raises(errors.ServerUnavailable, match="ReadTimeout"):
            slow.pools()
        assert time.monotonic() - began < 3


def test_what_is_not_json_is_refused_before_it_is_sent(stand_in: StandIn, client: Client) -> None:
    for body in ({"x": float("nan")}, {"x": object()}, {"x": {1, 2}}):
        with pytest.raises(errors.InvalidArgument, match="JSON"):
            client.submit(body)
    for name in ("", None, 3):
        with pytest.raises(errors.InvalidArgument, match="not a name"):
            client.pool(name)  # type: ignore[arg-type]
    assert stand_in.requests == []


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://x", "http://", "nonsense"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="not the address of a server"):
        Client(url, "x")


def test_pages_are_read_to_the_end_or_the_limit(stand_in: StandIn, client: Client) -> None:
    stand_in.answers = [
        (200, {"items": [{"id": 3}, {"id": 2}], "next_cursor": "c"}),
        (200, {"items": [{"id": 1}], "next_cursor": None}),
    ]
    assert [item["id"] for item in client.preemptions()] == [3, 2, 1]
    assert "cursor=c" in stand_in.requests[1][1]
    stand_in.answers = [(200, {"items": [{"id": 3}, {"id": 2}], "next_cursor": "c"})]
    assert [item["id"] for item in client.preemptions(limit=2)] == [3, 2]


def test_events_go_on_after_a_break_where_they_stopped(stand_in: StandIn, client: Client) -> None:
    stand_in.answers = [
        (200, b'id: 7\ndata: {"id": 7, "type": "running"}\n\n'),
        (200, b': alive\n\nid: 8\ndata: {"id": 8, "type": "completed"}\n\n'),
    ]
    stream = client.events()
    assert next(stream)["id"] == 7
    assert next(stream)["id"] == 8
    assert stand_in.requests[1][2]["Last-Event-ID"] == "7"


def test_events_of_a_server_that_refuses_are_an_error(stand_in: StandIn, client: Client) -> None:
    stand_in.answers = [problem("unauthorized", 401)]
    with pytest.raises(errors.Unauthorized):
        next(client.events())


async def test_the_twin_makes_many_calls_at_once(stand_in: StandIn) -> None:
    stand_in.answers = [(200, {"name": "p"})]
    async with aio.Client(stand_in.url, "secret", retry_for=1.0) as client:
        found = await asyncio.gather(*(client.pool(f"p{i}") for i in range(20)))
    assert len(found) == len(stand_in.requests) == 20


async def test_the_twin_says_the_same_errors(stand_in: StandIn) -> None:
    stand_in.answers = [problem("unknown_pool", 404, "no pool x")]
    async with aio.Client(stand_in.url, "secret") as client:
        with pytest.raises(errors.UnknownPool, match="no pool x"):
            await client.pool("x")


def test_both_twins_have_the_same_calls() -> None:
    def names(cls: type) -> set[str]:
        return {name for name in vars(cls) if not name.startswith("_")}

    from schedulemesh._sync.scheduler import RayScheduler
    from schedulemesh._sync.simple import SimpleScheduler

    pairs: list[tuple[type, type]] = [
        (Client, aio.Client),
        (RayScheduler, aio.RayScheduler),
        (SimpleScheduler, aio.SimpleScheduler),
    ]
    for plain, twin in pairs:
        assert names(plain) == {name.replace("aclose", "close") for name in names(twin)}


def test_from_within_another_namespace(stand_in: StandIn, client: Client) -> None:
    stand_in.answers = [(200, {"items": []})]
    client.within("other").pools()
    assert "namespace=other" in stand_in.requests[0][1]
