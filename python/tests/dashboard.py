"""A stand-in for a Ray head's dashboard, which runs the jobs it is given as processes of this machine.

It has as many cores, cards and GiB as it is told, and reserves none of them; of runtime environments it knows
``env_vars`` and ``working_dir``. What a real one does is in clusters/clustertest, which is held against one.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_GIB = 1 << 30


class Dashboard:
    """Its submissions, as they came, are in ``submitted``."""

    def __init__(self, cpu: float, gpu: float = 0.0, memory: float = 64.0) -> None:
        self.total = {"CPU": cpu, "memory": memory * _GIB, **({"GPU": gpu} if gpu else {})}
        self.submitted: dict[str, dict[str, Any]] = {}
        self.session = f"session_{time.time_ns()}"
        self._jobs: dict[str, dict[str, Any]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._packages: dict[str, bytes] = {}
        self._home = tempfile.TemporaryDirectory(prefix="dashboard")
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def respond(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                split = urlsplit(self.path)
                status, answer = outer._answer(self.command, split.path, parse_qs(split.query), body)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = respond

            def log_message(self, *_: Any) -> None: ...

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None: ...

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        for submission_id in self._processes:
            self._kill(submission_id)
        self._server.shutdown()
        self._server.server_close()
        self._home.cleanup()

    def _answer(self, method: str, path: str, query: dict[str, list[str]], body: bytes) -> tuple[int, Any]:
        match method, [unquote(part) for part in path.strip("/").split("/")]:
            case "GET", ["api", "version"]:
                return 200, {"version": "4", "ray_version": "2.60.0", "session_name": self.session}
            case "GET", ["api", "cluster_status"]:
                usage = {name: [0.0, total] for name, total in self.total.items()}
                report = {"usage": usage, "usageByNode": {"n": usage}, "nodeTypes": [[self.total, 1]]}
                return 200, {"data": {"clusterStatus": {"loadMetricsReport": report}}}
            case "GET", ["api", "v0", "nodes"]:
                node = {"node_id": "n", "node_ip": "127.0.0.1", "is_head_node": True, "state": "ALIVE"}
                return 200, {"data": {"result": {"result": [{**node, "resources_total": self.total}]}}}
            case "GET", ["api", "v0", "logs", "file"]:
                name = query["filename"][0].removeprefix("job-driver-").removesuffix(".log")
                return 200, self._log(name).read_bytes() if name in self._jobs else b""
            case "GET", ["api", "jobs"]:
                return 200, [self._job(submission_id) for submission_id in self._jobs]
            case "POST", ["api", "jobs"]:
                return self._submit(json.loads(body))
            case _, ["api", "jobs", submission_id, *_] if submission_id not in self._jobs:
                return 404, f"Job {submission_id} does not exist".encode()
            case "GET", ["api", "jobs", submission_id]:
                return 200, self._job(submission_id)
            case "POST", ["api", "jobs", submission_id, "stop"]:
                return 200, {"stopped": self._kill(submission_id)}
            case "GET", ["api", "jobs", submission_id, "logs"]:
                return 200, {"logs": self._log(submission_id).read_text()}
            case "GET", ["api", "packages", _, name]:
                return (200, b"") if name in self._packages else (404, b"Package does not exist")
            case "PUT", ["api", "packages", _, name]:
                self._packages[name] = body
                return 200, b""
        return 404, b"no such route"

    def _log(self, submission_id: str) -> Path:
        return Path(self._home.name, submission_id + ".log")

    def _submit(self, body: dict[str, Any]) -> tuple[int, Any]:
        submission_id = body["submission_id"]
        if submission_id in self._jobs:
            return 500, f"ValueError: Job with submission_id {submission_id} already exists.".encode()
        self.submitted[submission_id] = body
        env = body.get("runtime_env") or {}
        where = Path(self._home.name, submission_id)
        where.mkdir()
        if package := env.get("working_dir"):
            with zipfile.ZipFile(io.BytesIO(self._packages[package.removeprefix("gcs://")])) as archive:
                archive.extractall(where)
        with self._log(submission_id).open("wb") as log:
            self._processes[submission_id] = subprocess.Popen(
                body["entrypoint"],
                shell=True,
                cwd=where,
                env={**os.environ, **env.get("env_vars", {})},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._jobs[submission_id] = {
            "type": "SUBMISSION",
            "submission_id": submission_id,
            "status": "RUNNING",
            "entrypoint": body["entrypoint"],
            "metadata": body.get("metadata") or {},
            "runtime_env": env,
            "start_time": int(time.time() * 1000),
            "driver_node_id": "n",
        }
        return 200, {"job_id": submission_id, "submission_id": submission_id}

    def _job(self, submission_id: str) -> dict[str, Any]:
        job = self._jobs[submission_id]
        code = self._processes[submission_id].poll()
        if code is not None and job["status"] == "RUNNING":
            status = "SUCCEEDED" if code == 0 else "FAILED"
            job |= {"status": status, "driver_exit_code": code, "end_time": int(time.time() * 1000)}
            job["message"] = (
                "Job finished successfully." if code == 0 else f"Job entrypoint failed: exit code {code}"
            )
        return job

    def _kill(self, submission_id: str) -> bool:
        if self._job(submission_id)["status"] != "RUNNING":
            return False
        os.killpg(self._processes[submission_id].pid, signal.SIGKILL)
        self._processes[submission_id].wait()
        self._jobs[submission_id] |= {"status": "STOPPED", "end_time": int(time.time() * 1000)}
        return True
