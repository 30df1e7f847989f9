"""A stand-in for a server that takes jobs: its jobs run, end and fail when a test says so."""

from __future__ import annotations

import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


class Problem(Exception):
    """What is answered instead."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.body = {"code": code, "status": status, "title": "No", "detail": detail, "request_id": "r"}


class JobServer:
    """What it was asked is in ``calls``, as method and path."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.jobs: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, str] = {}
        self.packages: dict[str, bytes] = {}
        self.imports: list[dict[str, str]] = []
        self.clusters: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.refuse: Problem | None = None
        self.stops_after = 0.05
        self.hang_up_after: list[str] = []  # carried out, but not answered, once each
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def respond(self) -> None:
                split = urlsplit(self.path)
                path = split.path.removeprefix("/api/v1")
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.calls.append(f"{self.command} {path}")
                query = {key: values[-1] for key, values in parse_qs(split.query).items()}
                try:
                    status, answer = outer.answer(self.command, path, query, body)
                except Problem as problem:
                    status, answer = problem.status, problem.body
                if f"{self.command} {path}" in outer.hang_up_after:
                    outer.hang_up_after.remove(f"{self.command} {path}")
                    self.close_connection = True
                    self.connection.close()
                    return
                data = b"" if self.command == "HEAD" or answer is None else json.dumps(answer).encode()
                if isinstance(answer, bytes):
                    data = answer
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = respond

            def log_message(self, *_: Any) -> None: ...

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None: ...  # who asked was interrupted

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    # What tests do.

    def set(self, submission_id: str, state: str, **more: Any) -> None:
        """A job is in a state now."""
        with self.changed:
            status = "PENDING" if state in ("QUEUED", "SUBMITTING") else state
            self.jobs[submission_id].update({"state": state, "status": status, **more})
            self.changed.notify_all()

    def later(self, seconds: float, submission_id: str, state: str, **more: Any) -> None:
        """The same after a while."""
        timer = threading.Timer(seconds, self.set, (submission_id, state), more)
        timer.daemon = True
        timer.start()

    def add(self, submission_id: str, state: str = "RUNNING", **more: Any) -> str:
        """There is a job."""
        self.jobs[submission_id] = {"submission_id": submission_id, "job_id": "job_" + submission_id, **more}
        self.set(submission_id, state)
        return submission_id

    def asked_to_stop(self) -> list[str]:
        return [call.split("/")[2] for call in self.calls if call.endswith("/stop")]

    # What it answers.

    def answer(self, method: str, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        if self.refuse is not None:
            raise self.refuse
        parts = [unquote(part) for part in path.split("/")[1:]]
        match method, parts:
            case "GET", ["server"]:
                return 200, {"version": "dev"}
            case "GET", ["clusters"]:
                return 200, {"items": list(self.clusters.values()), "next_cursor": None}
            case "POST", ["clusters", "import"]:
                return 200, self._import(json.loads(body))
            case "POST", ["jobs"]:
                return self._submit(json.loads(body))
            case "GET", ["jobs"]:
                return 200, {"items": list(self.jobs.values()), "next_cursor": None}
            case "GET", ["jobs", submission_id]:
                return 200, self._job(submission_id, float(query.get("wait", "0s").rstrip("s")))
            case "POST", ["jobs", submission_id, "stop"]:
                job = self._job(submission_id)
                if job["state"] not in ENDED:
                    job["stop_requested_by"] = "somebody"
                    self.later(self.stops_after, submission_id, "STOPPED")
                return 200, job
            case "GET", ["jobs", submission_id, "logs"]:
                return 200, self._logs(submission_id, int(query.get("offset", 0)), int(query["limit"]))
            case (("HEAD" | "PUT"), ["packages", name]):
                if method == "PUT":
                    self.packages[name] = body
                elif name not in self.packages:
                    raise Problem(404, "unknown_package", name)
                return 200, None
        raise Problem(404, "not_found", path)

    def _import(self, body: dict[str, str]) -> Any:
        if "broken" in body["yaml"]:
            raise Problem(422, "invalid", f"{body['file']}:7:15: weight must be above 0")
        self.imports.append(body)
        for name in re.findall(r"^  (\w+):$", body["yaml"], re.M):
            self.clusters[name] = {
                "name": name,
                "state": "healthy",
                "resources": {"total": {"cpu": 4}, "used": {"cpu": 1}, "free": {"cpu": 3}},
            }
        return {"items": list(self.clusters.values())}

    def _submit(self, body: dict[str, Any]) -> tuple[int, Any]:
        with self.changed:
            if body["submission_id"] in self.jobs:
                return 200, self.jobs[body["submission_id"]]
        notes = ["no cluster is named nowhere"] if body.get("preferred_cluster") == "nowhere" else []
        with self.changed:
            self.jobs[body["submission_id"]] = {"job_id": "job_1", **body, "notes": notes}
            self.set(body["submission_id"], "QUEUED")
            return 201, dict(self.jobs[body["submission_id"]])

    def _job(self, submission_id: str, wait: float = 0.0) -> dict[str, Any]:
        end = time.monotonic() + wait
        with self.changed:
            if submission_id not in self.jobs:
                raise Problem(404, "unknown_job", f"no job has the submission id {submission_id!r}")
            while self.jobs[submission_id]["state"] not in ENDED and (left := end - time.monotonic()) > 0:
                self.changed.wait(left)
            return dict(self.jobs[submission_id])

    def _logs(self, submission_id: str, offset: int, limit: int) -> Any:
        if submission_id not in self.logs:
            raise Problem(503, "cluster_unreachable", "cluster a does not answer")
        text = self.logs[submission_id].encode()
        begin = max(0, len(text) + offset) if offset < 0 else offset
        piece = text[begin : begin + limit]
        return {"text": piece.decode(), "next": begin + len(piece), "ended": True, "kept": False}
