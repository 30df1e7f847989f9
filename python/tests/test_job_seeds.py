"""The code blocks of the document on jobs, as test_seeds has those of the others.

The server is a real one, which the first block that initializes the scheduler starts. The clusters of the
document are a stand-in that runs jobs as processes (gpu_cluster: nobody here has the cards) and, where
SCHEDULEMESH_TEST_RAY names a Ray head, that one as well (cpu_cluster, in a second run of these tests). Files
the blocks name below /path/to, /home/user and the like are in a directory of this run.
"""

# ruff: noqa: RUF001 - what blocks print is in Chinese

from __future__ import annotations

import ast
import itertools
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT, until
from dashboard import Dashboard
from schedulemesh import jobs, jobserver, local
from test_cli import _build

BLOCKS = Path(__file__).parent / "seeds" / "submit_job_api"
#: Where the document's files are, longest first, and what they are called here.
PLACES = {
    "/absolute/path/to/": "",
    "/path/to/": "",
    "/home/user/project": "project",
    "/path/script.py": "script.py",
}
PLACES |= {"/home/user/code": "code", "/home/user/script.py": "script.py"}
SCRIPT = """
import os, sys
print(os.path.basename(__file__), *sys.argv[1:], os.environ.get('OMP_NUM_THREADS', ''))
"""


class World:
    """Clusters, files and a server for the blocks."""

    def __init__(self, place: Path, cpu_cluster: str, stand_ins: dict[str, Dashboard]) -> None:
        self.place = place
        self.cpu_cluster = cpu_cluster
        self.stand_ins = stand_ins
        self.names: dict[str, Any] = {"__name__": "__main__"}

    def text(self, block: str) -> str:
        text = (BLOCKS / block).read_text(encoding="utf-8")
        for theirs, ours in PLACES.items():
            text = text.replace(theirs, f"{self.place}/files/{ours}")
        return text

    def run(
        self, block: str, raises: tuple[int, type[BaseException]] | None = None, **given: Any
    ) -> dict[str, Any]:
        """Run a block, statement by statement; one of them may have to raise."""
        self.names.update(given)
        for number, statement in enumerate(ast.parse(self.text(block), block).body):
            code = compile(ast.Module([statement], []), block, "exec")
            if raises is not None and number == raises[0]:
                with pytest.raises(raises[1]):
                    exec(code, self.names)
            else:
                exec(code, self.names)
        return self.names

    def clusters(self) -> str:
        """The document's configuration, with addresses that are here."""
        text = (BLOCKS / "20_clusters.yaml").read_text(encoding="utf-8")
        dashboards = {
            "123.456.789.0:10001": self.cpu_cluster,
            "123.456.789.1:10002": self.stand_ins["gpu"].url,
        }
        for theirs, ours in dashboards.items():
            text = text.replace(f'"{theirs}"', f'"127.0.0.1:10001"\n    dashboard: "{ours}"')
        if self.cpu_cluster not in [one.url for one in self.stand_ins.values()]:
            # Ray itself would install these, which takes minutes and a network.
            text = text.replace('      pip:\n        - "numpy"\n        - "pandas"\n', "")
        return text


@pytest.fixture(scope="module", params=["stand-in", "ray"])
def place(request: pytest.FixtureRequest) -> Iterator[World]:
    _build()
    stand_ins = {"cpu": Dashboard(16), "gpu": Dashboard(32, 4, 128)}
    cpu_cluster = stand_ins["cpu"].url
    if request.param == "ray":
        cpu_cluster = dashboard_of(request.getfixturevalue("ray_address"))
    # Whoever runs Postgres for root must get into it.
    directory = Path(tempfile.mkdtemp(prefix="smj", dir="/tmp"))
    directory.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        for name in (
            "SCHEDULEMESH_URL",
            "SCHEDULEMESH_TOKEN",
            "SCHEDULEMESH_TOKEN_FILE",
            "SCHEDULEMESH_CLUSTERS",
            "DATABASE_URL",
            "XDG_CONFIG_HOME",
            "RAY_ADDRESS",
        ):
            patch.delenv(name, raising=False)
        patch.setenv("XDG_STATE_HOME", str(directory / "state"))
        patch.setenv("SCHEDULEMESH_DATA", str(directory / "data"))
        patch.setenv("HOME", str(directory))
        here = World(directory, cpu_cluster, stand_ins)
        (directory / "clusters.yaml").write_text(here.clusters())
        patch.chdir(directory)
        files = directory / "files"
        for name in ("script", "job1", "job2", "train", "preprocess", "evaluate", "project/main"):
            file = files / f"{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(SCRIPT)
        (files / "project" / "noise.log").write_text("x")
        jobserver.reset()
        yield here
        jobserver.reset()
        for entry in local.servers():
            os.kill(entry.pid, signal.SIGTERM)
        until(lambda: not local.servers(), 30)
    for one in stand_ins.values():
        one.close()
    shutil.rmtree(directory, ignore_errors=True)


def dashboard_of(ray_address: str) -> str:
    """The dashboard of the head at this address."""
    code = "import ray, sys; print(ray.init(sys.argv[1], log_to_driver=False).dashboard_url)"
    done = subprocess.run(
        [sys.executable, "-c", code, ray_address], capture_output=True, text=True, check=True
    )
    return "http://" + done.stdout.split()[-1]


@pytest.fixture
def world(place: World) -> World:
    """The same for one test, whose blocks have the names that the document has by then."""
    place.names = {"__name__": "__main__"}
    exec(
        "from ray_multicluster_scheduler.app.client_api.submit_job import *\n"
        "from ray_multicluster_scheduler.app.client_api.unified_scheduler import *\n",
        place.names,
    )
    place.names["initialize_scheduler_environment"](config_file_path="clusters.yaml")
    return place


def test_basic_use(place: World, capsys: pytest.CaptureFixture[str]) -> None:
    jobserver.reset()
    names = place.run("01_basic_use.py")
    out = capsys.readouterr().out
    assert f"作业提交成功，Submission ID: {names['submission_id']}" in out
    assert "作业状态: SUCCEEDED" in out
    info = jobs.get_job_info(names["submission_id"])
    assert "script.py --arg1 value1 --arg2 value2" in info["logs"]
    assert (info["job_id"], info["cluster"]) == ("my_job_001", "gpu_cluster")
    sent = place.stand_ins["gpu"].submitted[names["submission_id"]]
    assert (sent["entrypoint_num_cpus"], sent["entrypoint_num_gpus"]) == (4, 1)
    assert sent["entrypoint_memory"] == 16 << 30
    # pip and conda, which Ray refuses together, became one.
    assert sent["runtime_env"] == {
        "conda": {"dependencies": ["cudatoolkit=11.7", {"pip": ["torch", "torchvision"]}]}
    }


def test_the_decorated_workflow(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    names = world.run("02_decorator.py")
    assert "所有作业完成" in capsys.readouterr().out
    assert callable(names["my_workflow"])


def test_ctrl_c_in_the_decorated_workflow(world: World) -> None:
    script = world.place / "workflow.py"
    script.write_text(
        "from ray_multicluster_scheduler.app.client_api.submit_job import *\n" + world.text("02_decorator.py")
    )
    for name in ("job1", "job2"):
        (world.place / "files" / f"{name}.py").write_text("import time; time.sleep(60)")
    try:
        before = {job["submission_id"] for job in jobs.get_unified_scheduler().client.jobs()}
        path = os.pathsep.join([str(ROOT / "python/src"), os.environ.get("PYTHONPATH", "")])
        process = subprocess.Popen(
            [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": path}, stderr=-1
        )
        started: list[str] = []

        def running() -> bool:
            found = [
                j for j in jobs.get_unified_scheduler().client.jobs() if j["submission_id"] not in before
            ]
            started[:] = [job["submission_id"] for job in found]
            return [job["state"] for job in found] == ["RUNNING", "RUNNING"]

        until(running, 60)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert b"2 jobs stopped." in said
        assert b"KeyboardInterrupt" in said
        assert [jobs.get_job_status(one) for one in started] == ["STOPPED", "STOPPED"]
    finally:
        for name in ("job1", "job2"):
            (world.place / "files" / f"{name}.py").write_text(SCRIPT)


@pytest.mark.parametrize(
    "block",
    [
        "03_submit_job.txt",
        "05_get_job_status.txt",
        "06_stop_job.txt",
        "07_wait_for_all_jobs.txt",
        "08_get_job_info.txt",
    ],
)
def test_the_signatures(block: str) -> None:
    """Whatever a call of theirs has, one of ours takes at the same place, with the same default."""
    import inspect

    [theirs] = ast.parse((BLOCKS / block).read_text(encoding="utf-8").strip() + ": pass").body
    assert isinstance(theirs, ast.FunctionDef)
    ours = list(inspect.signature(getattr(jobs, theirs.name)).parameters.values())
    defaults = [None] * (len(theirs.args.args) - len(theirs.args.defaults)) + theirs.args.defaults
    for one, theirs_one, default in zip(ours, theirs.args.args, defaults, strict=False):
        assert one.name == theirs_one.arg
        if default is not None:
            assert one.default == ast.literal_eval(default)


def test_a_runtime_environment_as_shown(world: World) -> None:
    shown = ast.literal_eval((BLOCKS / "04_runtime_env.txt").read_text(encoding="utf-8").strip())
    ready = {"CPU": 1, "GPU": 1}  # where nothing is installed
    submission_id = jobs.submit_job(
        f"python {world.place}/files/script.py", shown, resource_requirements=ready
    )
    assert jobs.wait_for_all_jobs([submission_id], timeout=60)
    info = jobs.get_job_info(submission_id)
    assert info["runtime_env"] == shown
    assert info["logs"].split()[-1] == "1"  # OMP_NUM_THREADS
    assert info["merged_runtime_env"]["conda"]["dependencies"][-1]["pip"][-2:] == [
        "numpy>=1.21.0",
        "pandas>=1.3.0",
    ]


def test_many_jobs(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    names = world.run("10_batch.py")
    assert "所有批量作业完成" in capsys.readouterr().out
    infos = [jobs.get_job_info(submission_id) for submission_id in names["jobs"]]
    assert [info["job_id"] for info in infos] == [f"batch_job_{n}" for n in range(5)]
    assert infos[3]["tags"] == ["batch_training", "iteration_3"]
    assert "train.py --job_id job_4" in infos[4]["logs"]
    tagged = jobs.get_unified_scheduler().client.jobs(tags=["iteration_3"])
    assert next(iter(tagged))["submission_id"] == names["jobs"][3]


def test_a_runtime_environment_of_ones_own(world: World) -> None:
    names = world.run("11_runtime_environment.py")
    assert jobs.wait_for_all_jobs([names["submission_id"]], timeout=60)
    sent = world.stand_ins["gpu"].submitted[names["submission_id"]]["runtime_env"]
    assert sent["working_dir"].startswith("gcs://_ray_pkg_")
    assert sent["env_vars"]["CUDA_VISIBLE_DEVICES"] == "0,1"
    # The job's own go before the cluster's.
    assert sent["conda"]["dependencies"][-1]["pip"] == [
        "torch==2.0.0",
        "torchvision==0.15.0",
        "transformers==4.30.0",
    ]


def test_one_job_after_the_other(world: World) -> None:
    names = world.run("12_dependencies.py")
    infos = [jobs.get_job_info(names[name]) for name in ("preprocess_id", "train_id", "eval_id")]
    for before, after in itertools.pairwise(infos):
        assert after["metadata"] == {"depends_on": before["submission_id"]}
        assert before["ended_at"] <= after["created_at"]


def test_a_relative_path(world: World) -> None:
    world.run("13_relative_path.py", raises=(0, ValueError))


def test_without_initializing(world: World) -> None:
    jobserver.reset()
    (world.place / "clusters.yaml").rename(world.place / "elsewhere.yaml")
    try:
        world.run("14_not_initialized.py", raises=(0, RuntimeError))
    finally:
        (world.place / "elsewhere.yaml").rename(world.place / "clusters.yaml")


def test_a_cluster_that_does_not_exist(
    world: World, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    world.run("15_no_such_cluster.py")
    assert "集群不可用" not in capsys.readouterr().out  # it went to another
    assert 'there is no cluster "non_existent_cluster"' in caplog.text


def test_a_job_that_is_too_large(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.run("16_too_large.py")
    assert "资源不足: no cluster could ever take a job that asks for 1000 cpu" in capsys.readouterr().out


def test_logging(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "basicConfig", lambda level: None)  # for all that follows
    world.run("17_debug_logging.py")


def test_the_output_of_a_job(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    submission_id = jobs.submit_job(f"python {world.place}/files/script.py hello")
    jobs.wait_for_all_jobs([submission_id])
    world.run("18_job_logs.py", submission_id=submission_id, cluster_name="whichever")
    assert "作业日志:\n" in (out := capsys.readouterr().out)
    assert "script.py hello" in out


def test_the_clusters(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    names = world.run("19_clusters.py")
    assert "可用集群: {'cpu_cluster': {" in capsys.readouterr().out
    found = names["clusters"]
    assert list(found) == ["cpu_cluster", "gpu_cluster"]
    assert [found[name]["state"] for name in found] == ["healthy", "healthy"]
    assert found["gpu_cluster"]["free"]["gpu"] == 4
    assert (found["cpu_cluster"]["prefer"], found["cpu_cluster"]["tags"]) == (True, ["cpu", "stable"])
    assert found["cpu_cluster"]["runtime_env"]["env_vars"] == {"PYTHONPATH": "/opt/code"}


def test_the_configuration_as_it_is(world: World) -> None:
    """Its addresses are nobody's: it is taken all the same, and nothing there is healthy."""
    file = world.place / "theirs.yaml"
    shutil.copy(BLOCKS / "20_clusters.yaml", file)
    file.write_text(file.read_text().replace("cpu_cluster", "their_cpu").replace("gpu_cluster", "their_gpu"))
    client = jobs.initialize_scheduler_environment(file).client
    try:
        found = until(lambda: [c for c in client.clusters() if c["state"] == "unhealthy"])
        assert {one["name"] for one in found} <= {"their_cpu", "their_gpu"}
        assert client.cluster("their_gpu")["dashboard"] == "http://123.456.789.1:8265"
    finally:
        for name in ("their_cpu", "their_gpu"):
            client.delete_cluster(name)


def test_ways_to_initialize(world: World) -> None:
    jobserver.reset()
    world.run("21_initialize.py")
    jobserver.reset()
    assert world.names["submit_job"](f"python {world.place}/files/script.py").startswith("sub_")


def test_the_server_goes_on_after_the_script(world: World) -> None:
    [entry] = local.servers()
    assert entry.parent == 0
    assert entry.data == str(world.place / "data" / "jobs")
