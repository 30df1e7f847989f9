"""State handlers: pickled callables, run in a worker process of their own on real Ray."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import cloudpickle

from conftest import Refused, Sidecar, until
from schedulemesh.bridge.pickled import Mismatch, load
from schedulemesh.testing import handlers

TASK = {
    "task_id": "t",
    "agent_name": "a",
    "pool_name": "p",
    "priority": 2.5,
    "labels": {"tier": "batch"},
    "payload": {"n": [1, None]},
    "estimated_duration": 60.0,
    "started_at": 1700000000.25,
    "attempt": 2,
}

HERE = {"format": 1, "python": "{}.{}".format(*sys.version_info[:2]), "ray": ray.__version__, "sys_path": []}


def call(sidecar: Sidecar, target: Any, argument: Any = TASK, kind: str = "preserver", **more: Any) -> Any:
    """Call a callable, or bytes that stand for one."""
    code = target if isinstance(target, bytes) else cloudpickle.dumps(target)
    body = {"pickled": base64.b64encode(code).decode(), "kind": kind, "name": "mine", "argument": argument}
    return sidecar.post("call", **{**body, "timeout": 20, **more})


def envelope(body: Any, **more: Any) -> bytes:
    packed: bytes = cloudpickle.dumps({**HERE, "body": cloudpickle.dumps(body), **more})
    return packed


def scripted(source: str, name: str) -> Any:
    """A function of a script: it exists nowhere but here."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(textwrap.dedent(source), scope)
    return scope[name]


def test_a_preserver_gets_all_that_is_known_of_the_task(sidecar: Sidecar) -> None:
    assert call(sidecar, handlers.keep) == {"result": {**TASK, "kept_by": "keep", "type": "TaskState"}}
    assert call(sidecar, handlers.keep_async)["result"] == {
        "kept_by": "keep_async",
        "payload": {"n": [1, None]},
    }


def test_a_preserver_of_a_script_needs_none_of_our_packages_in_the_worker(
    sidecar: Sidecar, tmp_path: Path
) -> None:
    # A package of our name that cannot be imported stands for one that is not there.
    (tmp_path / "schedulemesh.py").write_text("raise ImportError('not installed here')")
    preserver = scripted(
        """
        import sys
        from schedulemesh.core.actors.control.preemption_controller import TaskState

        def keep(task: TaskState) -> dict:
            ours = sys.modules.get("schedulemesh.bridge.worker")
            return {"id": task.task_id, "is": isinstance(task, TaskState), "installed": ours is not None}
        """,
        "keep",
    )
    env = {"env_vars": {"PYTHONPATH": str(tmp_path)}}
    answer = call(sidecar, preserver, runtime_env=env)
    assert answer == {"result": {"id": "t", "is": True, "installed": False}}


def test_restorers_answer_by_what_they_return(sidecar: Sidecar) -> None:
    state = {"step": 3, "task_id": "t"}
    assert call(sidecar, handlers.restore, state, "restorer") == {"result": {"restored": state}}
    assert call(sidecar, handlers.restore_nothing, state, "restorer") == {"result": None}
    refused = call(sidecar, handlers.refuse, state, "restorer")
    assert refused == {"error": "the restorer mine did not succeed: the checkpoint is gone"}
    assert call(sidecar, lambda _: False, state, "restorer") == {"error": "the restorer mine returned False"}


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (handlers.raising, "raised ValueError: told to raise"),
        (handlers.listing, "returned a list, it must return a dict"),
        (handlers.nan, "state.deep.loss is nan"),
        (handlers.unordered, "state.seen is a builtins.set"),
        (handlers.raw, "state.weights is a builtins.bytes"),
        (handlers.NUMBER, "is a int, which cannot be called"),
        (handlers.exiting, "worker process ended"),
        (sys.exit, "raised SystemExit"),
        (b"no pickle", "cannot be unpickled: "),
        (b"cno_such_module\nkeep\n.", "No module named 'no_such_module'"),
    ],
)
def test_a_preserver_that_fails_says_why(sidecar: Sidecar, target: Any, said: str) -> None:
    answer = call(sidecar, target)
    assert said in answer["error"], answer
    assert "result" not in answer
    assert not answer.get("timed_out")


def test_where_a_preserver_raised_is_told_without_our_frames(sidecar: Sidecar) -> None:
    detail = call(sidecar, handlers.raising)["detail"]
    assert "told to raise" in detail
    assert "run_call" not in detail


def test_a_preserver_that_hangs_is_ended_at_its_timeout(sidecar: Sidecar, tmp_path: Path) -> None:
    hang = scripted(
        """
        import os, signal, time

        def hang(task):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with open(task.payload, "w") as file:
                file.write(str(os.getpid()))
            while True:
                try:
                    time.sleep(3600)
                except BaseException:
                    pass
        """,
        "hang",
    )
    pid_file = tmp_path / "pid"
    began = time.monotonic()
    answer = call(sidecar, hang, {**TASK, "payload": str(pid_file)}, timeout=3)
    assert time.monotonic() - began < 5
    assert answer == {"error": "the preserver mine did not return within 3 s", "timed_out": True}
    pid = int(pid_file.read_text())
    until(lambda: not _lives(pid), 10)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] != "Z"


def test_twenty_megabytes_there_and_back(sidecar: Sidecar) -> None:
    assert len(call(sidecar, handlers.large)["result"]["weights"]) == 20_000_000
    weights = "x" * 20_000_000
    heavy = scripted("def heavy(task):\n    return {'n': len(WEIGHTS)}", "heavy")
    heavy.__globals__["WEIGHTS"] = weights
    assert call(sidecar, heavy) == {"result": {"n": 20_000_000}}


def test_each_call_has_a_process_of_its_own(sidecar: Sidecar) -> None:
    keep = scripted("import os\ndef keep(task):\n    return {'pid': os.getpid()}", "keep")
    pids = {call(sidecar, keep)["result"]["pid"] for _ in range(3)}
    assert len(pids) == 3
    until(lambda: not any(_lives(pid) for pid in pids), 10)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "remover"},
        {"kind": ""},
        {"pickled": ""},
        {"pickled": "%%%"},
        {"pickled": 7},
        {"argument": []},
        {"argument": None},
        {"runtime_env": []},
        {"timeout": -1},
        {"node_id": 7},
    ],
)
def test_a_call_that_cannot_be_read_is_refused(sidecar: Sidecar, change: dict[str, Any]) -> None:
    body = {"pickled": "gA==", "kind": "preserver", "name": "x", "argument": TASK, "timeout": 5}
    with pytest.raises(Refused, match="bad_request"):
        sidecar.post("call", **{**body, **change})


def test_a_call_without_a_node_of_that_id_runs_elsewhere(sidecar: Sidecar) -> None:
    assert "result" in call(sidecar, handlers.keep, node_id="ab" * 28)


def test_a_broken_runtime_env_is_an_error_of_the_call(sidecar: Sidecar) -> None:
    answer = call(sidecar, handlers.keep, runtime_env={"working_dir": "/does/not/exist"})
    assert "could not be run" in answer["error"] or "could not be set up" in answer["error"], answer


def test_an_envelope_brings_its_directories(sidecar: Sidecar, tmp_path: Path) -> None:
    script = tmp_path / "pickle_it.py"
    (tmp_path / "helpers_of_mine.py").write_text("def keep(task):\n    return {'id': task.task_id}\n")
    script.write_text(
        textwrap.dedent(
            """
            import sys
            from ray import cloudpickle
            import helpers_of_mine
            sys.stdout.buffer.write(cloudpickle.dumps(helpers_of_mine.keep))
            """
        )
    )
    body = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, check=True).stdout
    assert "No module named 'helpers_of_mine'" in call(sidecar, body)["error"]
    packed = cloudpickle.dumps({**HERE, "sys_path": ["/does/not/exist", str(tmp_path)], "body": body})
    assert call(sidecar, packed) == {"result": {"id": "t"}}


def test_another_version_is_told_in_one_sentence_before_the_body_is_looked_at(sidecar: Sidecar) -> None:
    for change in ({"python": "2.7"}, {"ray": "0.1.0"}):
        packed = cloudpickle.dumps({**HERE, **change, "body": b"not even a pickle"})
        answer = call(sidecar, packed)
        assert "it was pickled with Python" in answer["error"], answer
        assert "run the script with the versions of the cluster" in answer["error"]
        request = sidecar.request(class_path="", pickled=base64.b64encode(packed).decode())
        with pytest.raises(Refused, match="version_mismatch") as refused:
            sidecar.post("launch", **request)
        assert HERE["ray"] in refused.value.error["message"]
        assert "\n" not in refused.value.error["message"]


def test_agents_come_in_envelopes_and_without(sidecar: Sidecar) -> None:
    cls = scripted(
        """
        class Agent:
            def __init__(self, name, labels, start=0):
                self.step = start
            def save_state(self):
                return {"step": self.step}
        """,
        "Agent",
    )
    body = {"class": cls, "args": [7], "kwargs": {}}
    for packed in (envelope(body), cloudpickle.dumps(body)):
        request = sidecar.request(class_path="", pickled=base64.b64encode(packed).decode())
        launch_id = sidecar.post("launch", **request)["launch_id"]
        assert sidecar.post("save_state", launch_id=launch_id, timeout=10)["state"]["step"] == 7
        sidecar.post("kill", launch_id=launch_id, timeout=10)
    request = sidecar.request(class_path="", pickled=base64.b64encode(envelope(handlers.keep)).decode())
    with pytest.raises(Refused, match=r"import_failed.*not a class"):
        sidecar.post("launch", **request)


def test_a_format_of_the_future_is_told() -> None:
    with pytest.raises(Mismatch, match="format 2"):
        load(cloudpickle.dumps({"format": 2, "body": b""}))


def test_a_sidecar_that_dies_takes_its_calls_along(sidecar: Sidecar, tmp_path: Path) -> None:
    import threading

    hang = scripted(
        """
        import os, time

        def hang(task):
            with open(task.payload, "w") as file:
                file.write(str(os.getpid()))
            time.sleep(3600)
        """,
        "hang",
    )
    pid_file = tmp_path / "pid"

    def ask() -> None:
        try:
            call(sidecar, hang, {**TASK, "payload": str(pid_file)}, timeout=60)
        except (OSError, ValueError):
            return

    thread = threading.Thread(target=ask)
    thread.start()
    until(lambda: pid_file.exists() and pid_file.read_text(), 20)
    sidecar.kill_and_restart()
    thread.join()
    until(lambda: not _lives(int(pid_file.read_text())), 20)
