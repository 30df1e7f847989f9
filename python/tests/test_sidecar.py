"""The sidecar on real Ray: what the Go suite cannot reach. See bridge/bridgetest for the rest."""

from __future__ import annotations

import base64
import concurrent.futures
import os
import random
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

from conftest import Refused, Sidecar, until


def test_only_this_user_may_connect(sidecar: Sidecar) -> None:
    mode = os.stat(sidecar.path).st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b"\x00",
        b'{"launch_id": NaN}',
        b'{"launch_id": 7, "class_path": "a:B"}',
        b'{"launch_id": "x", "class_path": 7}',
        b'{"launch_id": "x", "class_path": "a:B", "args": {}}',
        b'{"launch_id": "x", "class_path": "a:B", "resources": {"cpu": 0.5}}',
        b'{"launch_id": "x", "class_path": "a:B", "resources": {"cpu": -1}}',
        b'{"launch_id": "x", "class_path": "a:B", "methods": [{"name": "sm_run"}]}',
        b'{"launch_id": "x", "class_path": "a:B", "methods": [{"name": "a b"}]}',
        b'{"launch_id": "x", "class_path": "a:B", "methods": [7]}',
        b'{"launch_id": "x", "class_path": "a:B", "ray_options": {"max_restarts": 5}}',
        b'{"launch_id": "x", "class_path": "a:B", "timeout": "soon"}',
        b'{"launch_id": "x\\u0000", "class_path": "a:B"}',
        b"[" * 100_000,
    ],
)
def test_nonsense_is_refused_and_leaves_nothing(sidecar: Sidecar, body: bytes) -> None:
    status, answer = sidecar.raw("POST", "launch", body)
    assert (status, answer["error"]["code"]) == (400, "bad_request"), answer
    assert sidecar.agent("x") is None


def test_unknown_routes_and_calls(sidecar: Sidecar) -> None:
    assert sidecar.raw("GET", "nothing")[0] == 404
    assert sidecar.raw("GET", "launch")[0] == 405
    assert sidecar.raw("GET", "events?after=x")[0] == 400
    launch_id = sidecar.launch()
    for method in ("_sm_build", "__init__", "a b", ""):
        with pytest.raises(Refused, match="bad_request"):
            sidecar.post("run", launch_id=launch_id, method=method)
    with pytest.raises(Refused, match="bad_request"):
        sidecar.post("kill", launch_id=launch_id, timeout=-1)


def test_many_at_once(sidecar: Sidecar) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        requests = [sidecar.request("Counter", resources={"cpu": 10}) for _ in range(8)]
        launched = list(pool.map(lambda r: sidecar.post("launch", **r), requests))
        assert len({one["pid"] for one in launched}) == 8
        ids = [one["launch_id"] for one in launched]
        list(pool.map(lambda i: sidecar.post("run", launch_id=i, method="run"), ids))
        answers = list(pool.map(lambda i: sidecar.post("cancel", launch_id=i, task_id="t", timeout=10), ids))
        assert all(answer["success"] for answer in answers)
        list(pool.map(lambda i: sidecar.post("kill", launch_id=i, timeout=10), ids))
    assert all((sidecar.agent(i) or {}).get("state") == "gone" for i in ids)


def test_a_sidecar_killed_at_any_moment_of_a_launch_leaves_nothing_unknown(sidecar: Sidecar) -> None:
    import ray

    random.seed(7)
    for _ in range(4):
        request = sidecar.request("Counter", actor_name=f"n-{time.time_ns()}", ray_namespace="elsewhere")
        thread = threading.Thread(target=_ignoring_errors, args=(sidecar, request))
        thread.start()
        time.sleep(random.uniform(0.0, 0.12))
        sidecar.kill_and_restart()
        thread.join()
        # Asked again, there is exactly one such agent, whatever had become of the first.
        launched = sidecar.post("launch", **request)
        agent = sidecar.agent(request["launch_id"])
        assert agent is not None
        assert (agent["state"], agent["pid"]) == ("ready", launched["pid"])
        sidecar.post("kill", launch_id=request["launch_id"], timeout=10)
    with _driver(sidecar):
        assert [
            a for a in ray.util.list_named_actors(all_namespaces=True) if a["namespace"] == "elsewhere"
        ] == []


def _ignoring_errors(sidecar: Sidecar, request: dict[str, Any]) -> None:
    try:
        sidecar.post("launch", **request)
    except Exception:
        return


class _driver:
    """This process as another driver on the cluster."""

    def __init__(self, sidecar: Sidecar, namespace: str = "elsewhere") -> None:
        self.address, self.namespace = sidecar.ray_address, namespace

    def __enter__(self) -> None:
        import ray

        ray.init(address=self.address, namespace=self.namespace, log_to_driver=False, configure_logging=False)

    def __exit__(self, *_: object) -> None:
        import ray

        ray.shutdown()


def test_pickled_classes_their_methods_and_handles_from_another_driver(sidecar: Sidecar) -> None:
    import ray
    from ray import cloudpickle

    with _driver(sidecar):
        # A class of a script: it exists nowhere but here.
        scope: dict[str, Any] = {}
        exec(
            textwrap.dedent(
                """
                import time

                class Script:
                    def __init__(self, name, labels, peer, scale=1):
                        self.name, self.peer, self.scale, self.stop = name, peer, scale, False

                    def run(self):
                        while not self.stop:
                            time.sleep(0.01)

                    def cancel(self, task_id):
                        self.stop = True
                        return {"success": True, "task_id": task_id}

                    def ask_peer(self):
                        import ray
                        return ray.get(self.peer.value.remote()) * self.scale

                    def count(self, n):
                        yield from range(n)

                    async def soon(self, x):
                        return x + 1

                    def two(self):
                        return 1, 2
                """
            ),
            scope,
        )

        @ray.remote(num_cpus=0)
        class Peer:
            def value(self) -> int:
                return 21

        peer = Peer.remote()
        pickled = cloudpickle.dumps({"class": scope["Script"], "args": (peer,), "kwargs": {"scale": 2}})
        name = f"script-{time.time_ns()}"
        launch_id = sidecar.launch(
            class_path="",
            pickled=base64.b64encode(pickled).decode(),
            actor_name=name,
            ray_namespace="elsewhere",
            methods=[
                {"name": "run"},
                {"name": "cancel"},
                {"name": "ask_peer"},
                {"name": "count", "generator": True},
                {"name": "soon", "async": True},
                {"name": "two", "num_returns": 2},
                {"name": "_private"},
            ],
        )
        handle = ray.get_actor(name)
        assert ray.get(handle.ask_peer.remote()) == 42
        assert [ray.get(ref) for ref in handle.count.remote(3)] == [0, 1, 2]
        assert ray.get(handle.soon.remote(1)) == 2
        assert ray.get(handle.two.remote()) == [1, 2]
        assert not hasattr(handle, "_private")
        busy = handle.run.remote()
        began = time.monotonic()
        assert ray.get(handle.cancel.remote("t"))["success"] is True
        assert time.monotonic() - began < 3
        ray.get(busy)
        sidecar.post("kill", launch_id=launch_id, timeout=10)


def test_plain_methods_of_a_class_without_coroutines_run_one_at_a_time(sidecar: Sidecar) -> None:
    import ray

    name = f"busy-{time.time_ns()}"
    launch_id = sidecar.launch("Busy", actor_name=name, ray_namespace="elsewhere")
    sidecar.post("run", launch_id=launch_id, method="run", kwargs={"seconds": 0.5})
    with _driver(sidecar):
        handle = ray.get_actor(name)
        began = time.monotonic()
        ray.get(handle.run.remote(0.0))
        assert time.monotonic() - began > 0.2


def test_environment_variables_of_a_runtime_env(sidecar: Sidecar) -> None:
    launch_id = sidecar.launch("Counter", runtime_env={"env_vars": {"SM_TEST": "1"}})
    agent = sidecar.agent(launch_id)
    assert agent is not None
    with open(f"/proc/{agent['pid']}/environ") as env:
        assert "SM_TEST=1" in env.read()


def test_actors_of_others_are_never_touched(sidecar: Sidecar) -> None:
    import ray

    with _driver(sidecar):

        @ray.remote(num_cpus=0)
        class Other:
            def pid(self) -> int:
                return os.getpid()

        name = f"other-{time.time_ns()}"
        other = Other.options(name=name).remote()
        pid = ray.get(other.pid.remote())
        taken = sidecar.request("Counter", actor_name=name, ray_namespace="elsewhere")
        with pytest.raises(Refused, match="name_taken"):
            sidecar.post("launch", **taken)
        sidecar.post("kill", launch_id=taken["launch_id"], timeout=10)
        assert ray.get(other.pid.remote()) == pid


@pytest.mark.parametrize("runtime_env", [{}, {"env_vars": {"SM_WARM": "1"}}])
def test_spare_workers_make_launches_warm(sidecar: Sidecar, runtime_env: dict[str, Any]) -> None:
    def warm() -> bool:
        launched = sidecar.post("launch", **sidecar.request(runtime_env=runtime_env))
        sidecar.post("kill", launch_id=launched["launch_id"], timeout=10)
        return bool(launched["warm"])

    until(warm, 60)


def test_it_ends_when_its_standard_input_closes(ray_address: str) -> None:
    own = Sidecar(ray_address, f"lifeline-{time.time_ns()}")
    launch_id = own.launch()
    own.post("kill", launch_id=launch_id, timeout=10)
    own.close()
    assert not os.path.exists(own.path)


def test_over_tcp_it_wants_its_token(ray_address: str) -> None:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.NamedTemporaryFile("w") as token:
        token.write("s3cret\n")
        token.flush()
        command = [sys.executable, "-m", "schedulemesh.bridge", "--lifeline", "--deployment", "tcp"]
        command += ["--ray-address", ray_address, "--listen", f"127.0.0.1:{port}", "--token-file", token.name]
        process = subprocess.Popen(command, stdin=subprocess.PIPE)

        def status(given: str) -> int:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/hello", headers={"Authorization": given}
            )
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                return error.code
            except urllib.error.URLError:
                return 0

        until(lambda: status("Bearer s3cret") == 200)
        assert status("Bearer wrong") == 401
        assert status("") == 401
        process.terminate()
        assert process.wait(10) == 0
