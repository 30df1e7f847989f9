"""Calls to a ScheduleMesh server over REST, with nothing but the standard library."""

from __future__ import annotations

import http.client
import json
import os
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_URL = "http://127.0.0.1:8080"


class APIError(Exception):
    """A call that did not succeed, in a sentence for people.

    Attributes:
        code: the server's name of the error, such as ``unknown_task``; empty when no server answered.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class API:
    """A server, seen from one namespace.

    Args:
        url: where it is, such as ``http://127.0.0.1:8080``.
        token: an access token, or empty.
        namespace: of all that is read and made here.
    """

    def __init__(self, url: str, token: str, namespace: str) -> None:
        self.url = url.rstrip("/")
        self.token = token
        self.namespace = namespace

    @classmethod
    def find(cls, namespace: str) -> API:
        """The server named by SCHEDULEMESH_URL and SCHEDULEMESH_TOKEN, or the one ``make run`` started: it
        leaves its token in ``.data``, and its address when that is not the usual one."""
        data = Path(os.environ.get("SCHEDULEMESH_DATA") or ROOT / ".data")
        url = os.environ.get("SCHEDULEMESH_URL") or _read(data / "url") or DEFAULT_URL
        token_file = Path(os.environ.get("SCHEDULEMESH_TOKEN_FILE") or data / "token")
        return cls(url, os.environ.get("SCHEDULEMESH_TOKEN") or _read(token_file), namespace)

    def get(self, path: str, **query: Any) -> Any:
        return self._call("GET", path, None, query)

    def post(self, path: str, body: dict[str, Any], **query: Any) -> Any:
        return self._call("POST", path, body, query)

    def patch(self, path: str, body: dict[str, Any]) -> Any:
        return self._call("PATCH", path, body, {})

    def delete(self, path: str) -> Any:
        return self._call("DELETE", path, None, {})

    def events(self, after: int, idle: float) -> Iterator[dict[str, Any] | None]:
        """Events of the namespace after the one with that id, as they happen, none left out.

        Yields None when nothing happened for ``idle`` seconds. Ends with an :class:`APIError` when the
        server is gone.
        """
        arrived: queue.SimpleQueue[dict[str, Any] | APIError] = queue.SimpleQueue()
        threading.Thread(target=self._listen, args=(after, arrived), daemon=True).start()
        while True:
            try:
                event = arrived.get(timeout=idle)
            except queue.Empty:
                yield None
                continue
            if isinstance(event, APIError):
                raise event
            yield event

    def page(self, kind: str, name: str | int) -> str:
        """The dashboard's page of a thing."""
        return f"{self.url}/{kind}/{quote(str(name), safe='')}?namespace={quote(self.namespace, safe='')}"

    def _listen(self, after: int, arrived: queue.SimpleQueue[dict[str, Any] | APIError]) -> None:
        while True:
            try:
                # When nothing happens the server says so every 15 seconds.
                with self._open("GET", "/events", None, {"after": after}, timeout=45) as stream:
                    for line in stream:
                        if line.startswith(b"data: "):
                            event = json.loads(line[6:])
                            after = event["id"]
                            arrived.put(event)
            except APIError as error:
                arrived.put(error)
                return
            except (OSError, http.client.HTTPException):
                pass  # the stream broke: take it up again behind the last event

    def _call(self, method: str, path: str, body: dict[str, Any] | None, query: dict[str, Any]) -> Any:
        # Longer than any ?wait= that is asked for here.
        with self._open(method, path, body, query, timeout=150) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def _open(
        self, method: str, path: str, body: dict[str, Any] | None, query: dict[str, Any], timeout: float
    ) -> http.client.HTTPResponse:
        address = f"{self.url}/api/v1{path}?{urlencode({'namespace': self.namespace, **query})}"
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        if path == "/events":
            headers["Accept"] = "text/event-stream"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(address, data, headers, method=method)
        try:
            answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=timeout)
            return answer
        except urllib.error.HTTPError as error:
            raise self._refused(error) from None
        except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise APIError(
                f"No ScheduleMesh server answers at {self.url} ({reason}): start one with `make run`, "
                "or name another in SCHEDULEMESH_URL."
            ) from None

    def _refused(self, error: urllib.error.HTTPError) -> APIError:
        if error.code == 401:
            return APIError(
                f"The server at {self.url} does not accept "
                + ("this token" if self.token else "calls without a token")
                + ": set SCHEDULEMESH_TOKEN to one of its own (`make run` keeps it in .data/token).",
                "unauthorized",
            )
        try:
            problem = json.loads(error.read())
            return APIError(problem["detail"] or problem["title"], problem["code"])
        except (ValueError, KeyError, TypeError):
            return APIError(f"What answers at {self.url} is no ScheduleMesh server (HTTP {error.code}).")


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
