"""The calls for jobs, against a stand-in for the server; test_seeds has them with a real one."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT, until
from schedulemesh import aio, errors, interrupts, jobs, jobserver
from standin import JobServer, Problem

TRAIN = "python /home/user/train.py"


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No server and no configuration, for a user who has neither."""
    for name in (
        "SCHEDULEMESH_URL",
        "SCHEDULEMESH_CLUSTERS",
        "SCHEDULEMESH_TOKEN",
        "SCHEDULEMESH_TOKEN_FILE",
    ):
        monkeypatch.delenv(name, raising=False)
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    jobserver.reset()
    return tmp_path


@pytest.fixture
def server(nothing: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobServer]:
    found = JobServer()
    monkeypatch.setenv("SCHEDULEMESH_URL", found.url)
    monkeypatch.setenv("SCHEDULEMESH_TOKEN", "secret")
    yield found
    jobserver.reset()
    found.close()


# Submitting.


def test_what_is_sent(server: JobServer) -> None:
    submission_id = jobs.submit_job(
        TRAIN,
        {"env_vars": {"A": "1"}},
        "nightly",
        {"user": "alice"},
        "sub_1",
        "gpu_cluster",
        {"CPU": 4, "GPU": 0.5, "memory": 16.0},
        ["training"],
        priority=8,
        queue_timeout=60,
        max_retries=2,
        retry_on=["node_lost"],
        reserve="none",
    )
    assert submission_id == "sub_1"
    sent = {
        key: value for key, value in server.jobs["sub_1"].items() if key not in ("state", "status", "notes")
    }
    assert sent == {
        "entrypoint": TRAIN,
        "runtime_env": {"env_vars": {"A": "1"}},
        "job_id": "nightly",
        "metadata": {"user": "alice"},
        "submission_id": "sub_1",
        "preferred_cluster": "gpu_cluster",
        "resource_requirements": {"CPU": 4, "GPU": 0.5, "memory": 16.0},
        "tags": ["training"],
        "priority": 8,
        "queue_timeout": 60,
        "max_retries": 2,
        "retry_on": ["node_lost"],
        "reserve": "none",
    }


def test_nothing_is_sent_that_was_not_said(server: JobServer) -> None:
    submission_id = jobs.submit_job(TRAIN)
    assert submission_id.startswith("sub_")
    body = {key for key in server.jobs[submission_id] if key not in ("state", "status", "notes", "job_id")}
    assert body == {"entrypoint", "submission_id"}


def test_a_lost_answer_is_one_job(server: JobServer) -> None:
    server.hang_up_after = ["POST /jobs"]
    submission_id = jobs.submit_job(TRAIN)
    assert server.calls.count("POST /jobs") == 2
    assert list(server.jobs) == [submission_id]


def test_the_entrypoint_is_looked_at_before_all_else(nothing: Path) -> None:
    with pytest.raises(ValueError, match=r'the script "script\.py" of the entrypoint is a relative path'):
        jobs.submit_job("python script.py", metadata={1: 2}, resource_requirements="much")  # type: ignore[dict-item, arg-type]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"runtime_env": "env"}, "runtime_env must be a dict"),
        ({"runtime_env": []}, "runtime_env must be a dict"),
        ({"runtime_env": {"working_dir": "/no/where"}}, "there is no /no/where"),
        ({"job_id": 7}, "job_id must be a string, not 7"),
        ({"job_id": ""}, "job_id must be text"),
        ({"submission_id": b"x"}, "submission_id must be a string"),
        ({"preferred_cluster": ["a"]}, "preferred_cluster must be a string"),
        ({"metadata": {"a": 1}}, r"metadata must have strings .* 'a': 1; write str\(1\)"),
        ({"metadata": {1: "a"}}, "metadata must have strings"),
        ({"metadata": "user=alice"}, "metadata must be a dict"),
        (
            {"resource_requirements": {"CPU": -1}},
            r"resource_requirements\['CPU'\] must be a number of at least 0",
        ),
        ({"resource_requirements": {"CPU": float("nan")}}, "must be a number of at least 0, not nan"),
        ({"resource_requirements": {"GPU": float("inf")}}, "must be a number of at least 0, not inf"),
        ({"resource_requirements": {"CPU": "4"}}, "must be a number, not '4'"),
        ({"resource_requirements": {"CPU": None}}, "must be a number, not None"),
        ({"resource_requirements": {"CPU": True}}, "must be a number, not True"),
        ({"resource_requirements": {4: 4}}, "names of resources"),
        ({"resource_requirements": [4]}, "resource_requirements must be a dict"),
        ({"tags": "training"}, "tags must be a list of strings, not 'training'"),
        ({"tags": [1]}, "tags must be a list of strings, and has 1"),
        ({"priority": "high"}, "priority must be a number"),
        ({"queue_timeout": -1}, "queue_timeout must be a number of at least 0"),
        ({"max_retries": 1.5}, "max_retries must be a whole number"),
        ({"retry_on": "node_lost"}, "retry_on must be a list"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(nothing: Path, arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        jobs.submit_job(TRAIN, **arguments)
    assert isinstance(refused.value, errors.InvalidArgument)


def test_numbers_of_numpy_are_numbers(server: JobServer) -> None:
    import numpy as np

    submission_id = jobs.submit_job(TRAIN, resource_requirements={"CPU": np.float32(2), "GPU": np.int64(1)})
    assert server.jobs[submission_id]["resource_requirements"] == {"CPU": 2, "GPU": 1}


def test_what_the_server_notes_is_said(server: JobServer, caplog: pytest.LogCaptureFixture) -> None:
    jobs.submit_job(TRAIN, preferred_cluster="nowhere")
    [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.endswith("named nowhere")


def test_local_directories_are_uploaded_once(server: JobServer, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "main.py").write_text("print(1)")
    (project / "noise.bin").write_bytes(os.urandom(3 << 20))
    (project / "x.log").write_text("x")
    env = {"working_dir": str(project), "excludes": ["*.log"]}
    first, second = jobs.submit_job(TRAIN, env), jobs.submit_job(TRAIN, env)
    [(name, data)] = server.packages.items()
    assert server.jobs[first]["runtime_env"] == {"working_dir": "gcs://" + name}
    assert server.jobs[second]["runtime_env"] == server.jobs[first]["runtime_env"]
    assert server.calls.count(f"PUT /packages/{name}") == 1
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert sorted(archive.namelist()) == ["main.py", "noise.bin"]
        assert archive.read("noise.bin") == (project / "noise.bin").read_bytes()


def test_an_upload_that_is_cut_begins_again(server: JobServer, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x")
    env = {"py_modules": [str(tmp_path / "mine.py")]}
    jobs.submit_job(TRAIN, env)
    [(name, data)] = server.packages.items()
    server.packages.clear()
    server.hang_up_after = [f"PUT /packages/{name}"]
    jobs.submit_job(TRAIN, env)
    assert server.packages == {name: data}


@pytest.mark.parametrize(
    ("code", "kinds"),
    [
        ("no_cluster_large_enough", (errors.NoClusterLargeEnough,)),
        ("no_clusters", (errors.NoClusters,)),
        ("job_exists", (errors.JobExists,)),
    ],
)
def test_what_the_server_refuses(server: JobServer, code: str, kinds: tuple[type, ...]) -> None:
    server.refuse = Problem(409, code, "because")
    with pytest.raises(errors.ServerError, match="because") as refused:
        jobs.submit_job(TRAIN)
    assert isinstance(refused.value, kinds)


# Looking.


def test_status_info_and_stop(server: JobServer) -> None:
    submission_id = jobs.submit_job(TRAIN)
    assert jobs.get_job_status(submission_id) == "PENDING"
    server.set(submission_id, "RUNNING", cluster="a")
    assert jobs.get_job_status(submission_id, "elsewhere") == "RUNNING"
    assert type(jobs.get_job_status(submission_id)) is str
    info = jobs.get_job_info(submission_id)
    assert (info["status"], info["cluster"], info["logs"]) == ("RUNNING", "a", "")
    assert info["logs_error"] == "cluster a does not answer"
    server.logs[submission_id] = "x" * 300_000 + "end"
    info = jobs.get_job_info(submission_id, "a")
    assert "logs_error" not in info
    assert (len(info["logs"]), info["logs"][-3:]) == (jobs_tail(), "end")
    assert jobs.stop_job(submission_id) is True
    with pytest.raises(RuntimeError, match=f"{submission_id}.*STOPPED on a"):
        jobs.wait_for_all_jobs([submission_id])
    assert jobs.stop_job(submission_id) is True
    server.set(submission_id, "SUCCEEDED")
    assert jobs.stop_job(submission_id, "a") is False


def jobs_tail() -> int:
    from schedulemesh._sync import jobs as sync_jobs

    return sync_jobs.LOG_TAIL


def test_a_job_nobody_knows(server: JobServer) -> None:
    for call in (jobs.get_job_status, jobs.stop_job, jobs.get_job_info):
        with pytest.raises(errors.UnknownJob, match="no job has the submission id 'sub_x'") as raised:
            call("sub_x")
        assert isinstance(raised.value, RuntimeError)
    with pytest.raises(errors.UnknownJob):
        jobs.wait_for_all_jobs(["sub_x"])


# Waiting.


def test_waiting_ends_with_the_last_job_not_with_the_interval(server: JobServer) -> None:
    ids = [server.add(f"sub_{n}") for n in range(5)]
    for n, submission_id in enumerate(ids):
        server.later(0.1 * (n + 1), submission_id, "SUCCEEDED")
    began = time.monotonic()
    assert jobs.wait_for_all_jobs([*ids, ids[0]], check_interval=60) is True
    assert 0.4 < time.monotonic() - began < 3.0
    assert jobs.wait_for_all_jobs([]) is True


def test_a_failure_names_the_job_and_why(server: JobServer) -> None:
    good, bad = server.add("sub_good"), server.add("sub_bad", cluster="a")
    server.later(0.2, bad, "FAILED", reason="exit code 3")
    with pytest.raises(
        errors.JobFailed, match=r"job sub_bad \(job_sub_bad\) FAILED on a: exit code 3 \(1 of 2"
    ):
        jobs.wait_for_all_jobs([good, bad], check_interval=0.1)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError) as raised:
        jobs.wait_for_all_jobs([bad])
    assert [job["submission_id"] for job in raised.value.jobs] == [bad]  # type: ignore[attr-defined]


def test_the_time_is_up(server: JobServer) -> None:
    done, live = server.add("sub_done", "SUCCEEDED"), server.add("sub_live", "UNKNOWN")
    began = time.monotonic()
    with pytest.raises(
        TimeoutError, match=r"after 0\.3 s 1 of 2 jobs have not ended \(1 UNKNOWN\): sub_live"
    ):
        jobs.wait_for_all_jobs([done, live], timeout=0.3)  # type: ignore[arg-type]
    assert time.monotonic() - began < 2
    with pytest.raises(errors.WaitTimeout):
        jobs.wait_for_all_jobs([live], timeout=0)


def test_waiting_outlasts_a_server_that_is_away(server: JobServer) -> None:
    submission_id = server.add("sub_1")
    server.hang_up_after = ["GET /jobs/sub_1"] * 4
    server.later(0.3, submission_id, "SUCCEEDED")
    assert jobs.wait_for_all_jobs([submission_id], check_interval=1)


@pytest.mark.parametrize("ids", ["sub_1", None, 7, [7], [""]])
def test_what_cannot_be_waited_for(server: JobServer, ids: Any) -> None:
    if ids is None:
        assert jobs.wait_for_all_jobs(ids)
        return
    with pytest.raises(ValueError, match="submission_ids must be a list of strings"):
        jobs.wait_for_all_jobs(ids)


def test_how_far_it_is_is_shown(
    server: JobServer,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO, "schedulemesh")
    ids = [server.add("sub_1", "SUCCEEDED"), server.add("sub_2", "QUEUED")]
    server.later(0.1, "sub_2", "SUCCEEDED")
    jobs.wait_for_all_jobs(ids)
    assert capsys.readouterr().err == ""
    assert "1 of 2 jobs ended: 1 PENDING, 1 SUCCEEDED" in caplog.text
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    jobs.wait_for_all_jobs(ids)
    assert "\r2 of 2 jobs ended: 2 SUCCEEDED, 0 s" in capsys.readouterr().err


# Initializing.

CLUSTERS = "clusters:\n  cpu_cluster:\n    head_address: 10.0.0.1:10001\n"


def test_without_a_configuration_and_a_server(nothing: Path) -> None:
    with pytest.raises(RuntimeError, match="call initialize_scheduler_environment") as raised:
        jobs.submit_job(TRAIN)
    assert isinstance(raised.value, errors.NotInitialized)
    assert str(nothing / "clusters.yaml") in str(raised.value)
    with pytest.raises(RuntimeError, match="neither a server on this machine nor a configuration"):
        jobs.initialize_scheduler_environment()
    with pytest.raises(RuntimeError, match="initialize_scheduler_environment"):
        jobs.get_unified_scheduler()


def test_a_configuration_that_is_not_there(server: JobServer) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"there is no configuration of clusters at /no/clusters\.yaml"
    ):
        jobs.initialize_scheduler_environment("/no/clusters.yaml")
    with pytest.raises(OSError, match="directory"):
        jobs.initialize_scheduler_environment("/tmp")


def test_a_configuration_is_told_the_server(server: JobServer, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(CLUSTERS)
    manager = jobs.initialize_scheduler_environment(config_file_path=file)
    assert server.imports == [{"yaml": CLUSTERS, "file": str(file)}]
    assert jobs.get_unified_scheduler() is manager
    assert jobs.initialize_scheduler_environment(config_file_path=str(file)) is manager
    clusters = manager.list_clusters()
    assert list(clusters) == ["cpu_cluster"]
    assert clusters["cpu_cluster"]["state"] == "healthy"
    assert clusters["cpu_cluster"]["free"] == {"cpu": 3}


def test_broken_yaml_is_said_with_line_and_column(server: JobServer, tmp_path: Path) -> None:
    (tmp_path / "clusters.yaml").write_text("broken")
    with pytest.raises(ValueError, match=r"clusters\.yaml:7:15: weight must be above 0") as raised:
        jobs.initialize_scheduler_environment()
    assert isinstance(raised.value, errors.BadConfiguration)
    (tmp_path / "clusters.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not text in UTF-8"):
        jobs.initialize_scheduler_environment()


@pytest.mark.parametrize("place", ["variable", "here", "user"])
def test_a_configuration_is_found(server: JobServer, tmp_path: Path, monkeypatch: Any, place: str) -> None:
    file = {
        "variable": tmp_path / "elsewhere.yaml",
        "here": tmp_path / "clusters.yaml",
        "user": jobserver._user_configuration(),
    }[place]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(CLUSTERS)
    if place == "variable":
        monkeypatch.setenv("SCHEDULEMESH_CLUSTERS", str(file))
    jobs.submit_job(TRAIN)  # initializes by itself
    jobs.submit_job(TRAIN)
    assert [one["yaml"] for one in server.imports] == [CLUSTERS]


def test_many_threads_initialize_once(server: JobServer, tmp_path: Path) -> None:
    (tmp_path / "clusters.yaml").write_text(CLUSTERS)
    threads = [threading.Thread(target=jobs.submit_job, args=(TRAIN,)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.imports) == 1
    assert len(server.jobs) == 16


# Ctrl-C.


class Session:
    """A script in a process of its own, which is interrupted."""

    def __init__(self, text: str, directory: Path) -> None:
        file = directory / "script.py"
        preamble = """
            import asyncio, threading, time, sys
            from schedulemesh.jobs import *
            from schedulemesh import aio
            def say(*words):
                print(*words, flush=True)
            def submit(name):
                submit_job("python /a/x.py", submission_id=name)
        """
        file.write_text(textwrap.dedent(preamble) + textwrap.dedent(text))
        path = os.pathsep.join([str(ROOT / "python/src"), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, str(file)],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == "ready\n", line + (self.process.communicate()[1] if not line else "")

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> tuple[str, str]:
        """What it said after it was interrupted."""
        try:
            out, err = self.process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        assert "KeyboardInterrupt" in err, err
        return out, err


@pytest.fixture
def script(server: JobServer, tmp_path: Path) -> Iterator[Any]:
    started: list[Session] = []

    def run(text: str) -> Session:
        started.append(Session(text, tmp_path))
        return started[-1]

    yield run
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


FUNCTION = """
    submit("before")
    @graceful_shutdown_on_keyboard_interrupt
    def work():
        submit("one"); submit("two"); submit("done")
        say("ready")
        wait_for_all_jobs(["one", "two"])
    work()
"""


def test_ctrl_c_stops_the_jobs_of_the_function_and_no_others(server: JobServer, script: Any) -> None:
    one = script(FUNCTION)
    one.ready()
    server.set("done", "SUCCEEDED")
    one.interrupt()
    _, said = one.end()
    assert sorted(server.asked_to_stop()) == ["one", "two"]
    assert "Interrupted: stopping 3 jobs; Ctrl-C again leaves them to it." in said
    assert "2 jobs stopped, 1 job had ended already." in said
    assert server.jobs["before"]["state"] == "QUEUED"


def test_a_second_ctrl_c_gives_up_waiting(server: JobServer, script: Any) -> None:
    server.stops_after = 60.0
    one = script(FUNCTION)
    one.ready()
    one.interrupt()
    until(lambda: len(server.asked_to_stop()) == 3, 10)
    one.interrupt()
    began = time.monotonic()
    one.end()
    assert time.monotonic() - began < 5


def test_without_an_interrupt_nothing_is_stopped(server: JobServer) -> None:
    @jobs.graceful_shutdown_on_keyboard_interrupt
    def work(x: int, *, y: int) -> int:
        """Words."""
        server.set(jobs.submit_job(TRAIN, submission_id="one"), "RUNNING")
        return x + y

    start, handler = threading.Thread.start, signal.getsignal(signal.SIGINT)
    assert work(1, y=2) == 3
    assert work.__doc__ == "Words."

    @jobs.graceful_shutdown_on_keyboard_interrupt
    def fails() -> None:
        jobs.submit_job(TRAIN, submission_id="two")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fails()
    assert server.asked_to_stop() == []
    assert (threading.Thread.start, signal.getsignal(signal.SIGINT)) == (start, handler)


def test_nested_functions_and_threads_count(server: JobServer, script: Any) -> None:
    one = script(
        """
        submit("before")
        def in_thread(name):
            submit(name)
            threading.Thread(target=submit, args=(name + "-deeper",)).start()
        @graceful_shutdown_on_keyboard_interrupt
        def inner():
            submit("inner")
        @graceful_shutdown_on_keyboard_interrupt
        def outer():
            inner()
            thread = threading.Thread(target=in_thread, args=("thread",))
            thread.start(); thread.join()
            while True:
                try:
                    get_job_status("thread-deeper")
                    break
                except RuntimeError:
                    time.sleep(0.01)
            say("ready")
            time.sleep(60)
        outer()
        """
    )
    one.ready()
    one.interrupt()
    one.end()
    assert sorted(server.asked_to_stop()) == ["inner", "thread", "thread-deeper"]


def test_the_inner_one_of_two_is_stopped_once(server: JobServer, script: Any) -> None:
    one = script(
        """
        @graceful_shutdown_on_keyboard_interrupt
        def inner():
            submit("inner")
            say("ready")
            time.sleep(60)
        @graceful_shutdown_on_keyboard_interrupt
        def outer():
            submit("outer")
            try:
                inner()
            except KeyboardInterrupt:
                say("inner:", get_job_status("inner"), get_job_status("outer"))
                raise
        outer()
        """
    )
    one.ready()
    one.interrupt()
    out, _ = one.end()
    assert out == "inner: STOPPED PENDING\n"
    assert server.asked_to_stop() == ["inner", "outer"]


def test_two_functions_at_once(server: JobServer, script: Any) -> None:
    """The one that the interrupt hits stops its own jobs; another's go on, until it is hit, too."""
    one = script(
        """
        other_is_there = threading.Event()
        @graceful_shutdown_on_keyboard_interrupt
        def other():
            submit("other")
            other_is_there.set()
            wait_for_all_jobs(["other"])
        @graceful_shutdown_on_keyboard_interrupt
        def mine():
            submit("mine")
            say("ready")
            time.sleep(60)
        threading.Thread(target=other, daemon=True).start()
        other_is_there.wait()
        mine()
        """
    )
    one.ready()
    one.interrupt()
    one.end()
    assert server.asked_to_stop() == ["mine"]


COROUTINES = """
    @graceful_shutdown_on_keyboard_interrupt
    async def work():
        async def child():
            await aio.jobs.submit_job("python /a/x.py", submission_id="child")
        await asyncio.gather(child(), aio.jobs.submit_job("python /a/x.py", submission_id="own"))
        say("ready")
        await aio.jobs.wait_for_all_jobs(["own", "child"])
    async def main():
        await aio.jobs.submit_job("python /a/x.py", submission_id="before")
        await asyncio.gather(work())
    asyncio.run(main())
"""


def test_coroutine_functions(server: JobServer, script: Any) -> None:
    one = script(COROUTINES)
    one.ready()
    one.interrupt()
    _, said = one.end()
    assert sorted(server.asked_to_stop()) == ["child", "own"]
    assert "2 jobs stopped." in said


def test_a_second_ctrl_c_in_coroutines(server: JobServer, script: Any) -> None:
    server.stops_after = 60.0
    one = script(COROUTINES)
    one.ready()
    one.interrupt()
    until(lambda: len(server.asked_to_stop()) == 2, 10)
    one.interrupt()
    began = time.monotonic()
    one.end()
    assert time.monotonic() - began < 5


async def test_a_coroutine_that_the_program_cancels_leaves_its_jobs_alone(server: JobServer) -> None:
    @jobs.graceful_shutdown_on_keyboard_interrupt
    async def work() -> None:
        await aio.jobs.submit_job(TRAIN, submission_id="one")
        await asyncio.sleep(60)

    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(work(), 0.5)
    assert "one" in server.jobs
    assert server.asked_to_stop() == []


def test_an_interrupt_while_a_job_is_submitted_stops_it_when_it_arrives(server: JobServer) -> None:
    submitted = threading.Event()
    real = server.answer

    def slow(method: str, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        if (method, path) == ("POST", "/jobs"):
            submitted.set()
            time.sleep(0.5)
        return real(method, path, query, body)

    server.answer = slow  # type: ignore[method-assign]

    @jobs.graceful_shutdown_on_keyboard_interrupt
    def work() -> None:
        jobs.submit_job(TRAIN, submission_id="late")

    def interrupt() -> None:
        submitted.wait()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        work()
    assert server.jobs["late"]["state"] == "STOPPED"


def test_a_job_that_cannot_be_stopped_is_named(server: JobServer, capsys: pytest.CaptureFixture[str]) -> None:
    @jobs.graceful_shutdown_on_keyboard_interrupt
    def work() -> None:
        jobs.submit_job(TRAIN, submission_id="one")
        server.refuse = Problem(500, "internal", "no")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert "Job one: it could not be stopped: no." in capsys.readouterr().err


# The other ways in.


async def test_the_twin(server: JobServer) -> None:
    submission_id = await aio.jobs.submit_job(TRAIN, {"py_modules": [json]})
    assert await aio.jobs.get_job_status(submission_id) == "PENDING"
    server.later(0.2, submission_id, "SUCCEEDED")
    assert await aio.jobs.wait_for_all_jobs([submission_id])
    assert (await aio.jobs.get_job_info(submission_id))["logs"] == ""
    assert await aio.jobs.stop_job(submission_id) is False
    assert await (await aio.jobs.get_unified_scheduler()).list_clusters() == {}


def test_the_twin_in_one_loop_after_the_other(server: JobServer) -> None:
    for _ in range(2):
        assert asyncio.run(aio.jobs.get_job_status(server.add("sub_1"))) == "RUNNING"


def test_a_fork_has_connections_of_its_own(server: JobServer) -> None:
    submission_id = server.add("sub_1")
    jobs.get_job_status(submission_id)
    child = os.fork()
    if child == 0:
        os._exit(0 if jobs.get_job_status(submission_id) == "RUNNING" else 1)
    assert jobs.get_job_status(submission_id) == "RUNNING"
    assert os.waitpid(child, 0)[1] == 0


def test_the_names_it_had_before() -> None:
    from ray_multicluster_scheduler.app.client_api import submit_job as old
    from ray_multicluster_scheduler.app.client_api import unified_scheduler

    own = {"get_job_status", "stop_job"}
    for name in {*old.__all__, *unified_scheduler.__all__} - own:
        assert getattr(old, name, getattr(unified_scheduler, name, None)) is getattr(jobs, name)
    assert set(old.__all__) | set(unified_scheduler.__all__) == set(jobs.__all__)
    assert jobs.graceful_shutdown_on_keyboard_interrupt is interrupts.graceful_shutdown_on_keyboard_interrupt


def test_a_job_nobody_knows_under_the_old_names(server: JobServer, caplog: pytest.LogCaptureFixture) -> None:
    from ray_multicluster_scheduler.app.client_api import submit_job as old

    assert old.get_job_status("sub_x", "gpu_cluster") == "UNKNOWN"
    assert old.stop_job("sub_x", "gpu_cluster") is False
    assert caplog.text.count("no job has the submission id 'sub_x'") == 2
    submission_id = old.submit_job("python /a.py")
    assert old.get_job_status(submission_id, "gpu_cluster") in {"PENDING", "RUNNING"}
    assert old.stop_job(submission_id, "gpu_cluster") is True


def test_the_arguments_are_those_of_the_document() -> None:
    def of(function: Any) -> list[tuple[str, Any]]:
        named = inspect.signature(function).parameters.values()
        return [(one.name, one.default) for one in named if one.kind is one.POSITIONAL_OR_KEYWORD]

    required = inspect.Parameter.empty
    assert of(jobs.submit_job) == [
        ("entrypoint", required),
        ("runtime_env", None),
        ("job_id", None),
        ("metadata", None),
        ("submission_id", None),
        ("preferred_cluster", None),
        ("resource_requirements", None),
        ("tags", None),
    ]
    for call in (jobs.get_job_status, jobs.stop_job, jobs.get_job_info):
        assert of(call) == [("submission_id", required), ("cluster_name", None)]
    assert of(jobs.wait_for_all_jobs) == [
        ("submission_ids", required),
        ("check_interval", 5),
        ("timeout", None),
    ]
    assert of(jobs.initialize_scheduler_environment) == [("config_file_path", None)]


def test_importing_loads_neither_ray_nor_much_else() -> None:
    code = (
        "import sys; from ray_multicluster_scheduler.app.client_api.submit_job import submit_job;"
        "assert not {'ray', 'yaml', 'pathspec', 'httpx', 'numpy'} & set(sys.modules)"
    )
    path = os.pathsep.join([str(ROOT / "python/src"), os.environ.get("PYTHONPATH", "")])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path})
