"""Jobs on two Ray clusters: each goes where it suits, is followed to its end, and is submitted once.

Two small Ray heads are started on this machine, and are gone again at the end. Jobs are spread over them, a
directory travels along, what is too large is refused at once, and Ctrl-C stops what a function submitted.

    python examples/multi_cluster_jobs_demo.py
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from story import Story, tell

from schedulemesh import local
from schedulemesh.errors import NoClusterLargeEnough
from schedulemesh.jobs import (
    get_job_info,
    get_unified_scheduler,
    graceful_shutdown_on_keyboard_interrupt,
    initialize_scheduler_environment,
    submit_job,
    wait_for_all_jobs,
)

CLUSTERS = """
clusters:
  demo_small:
    head_address: "127.0.0.1:10001"
    dashboard: "{small}"
    tags: ["quick"]
  demo_large:
    head_address: "127.0.0.1:10001"
    dashboard: "{large}"
    runtime_env:
      env_vars: ["GREETING=hello"]
"""

# `demo` is a resource that only the two clusters have, should the server know others.
CORE = {"CPU": 1, "demo": 1}


def main() -> None:
    story = Story(__doc__)
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(own_directory())
        stack.enter_context(own_server(place))

        story.part("1. Two Ray clusters, of 2 and of 4 cores, and a configuration that names them")
        small, large = stack.enter_context(heads(place, [2, 4]))
        (place / "clusters.yaml").write_text(CLUSTERS.format(small=small, large=large))
        scheduler = initialize_scheduler_environment(place / "clusters.yaml")
        stack.callback(forget, ["demo_small", "demo_large"])
        story.begin(scheduler)
        ours = story.wait_for(healthy, within=60)
        for name, cluster in ours.items():
            story.say(f"{name}: {cluster['total']['cpu']:g} cores, health {cluster['score']:g}")

        story.part("2. Six jobs of one core each: the emptier cluster gets the next one")
        jobs = [
            submit_job(
                "python -c \"import time; print('job', flush=True); time.sleep(1)\"",
                job_id=f"part-{n}",
                resource_requirements=CORE,
                tags=["demo"],
            )
            for n in range(6)
        ]
        story.check("all succeed", wait_for_all_jobs(jobs, timeout=120))
        infos = [get_job_info(one) for one in jobs]
        there = collections.Counter(info["cluster"] for info in infos)
        story.say(", ".join(f"{count} on {name}" for name, count in sorted(there.items())))
        story.check("both clusters had work", set(there) == {"demo_small", "demo_large"})
        story.say(f"why {infos[0]['cluster']} for the first: {infos[0]['placement']['reason']}")

        story.part("3. A directory travels along, and the cluster's own environment is under the job's")
        project = place / "project"
        project.mkdir()
        (project / "main.py").write_text("import os, words\nprint(os.environ['GREETING'], words.WHO)\n")
        (project / "words.py").write_text("WHO = 'from afar'\n")
        job = submit_job(
            "python -m main", {"working_dir": str(project)}, preferred_cluster="demo_large", tags=["demo"]
        )
        wait_for_all_jobs([job], timeout=120)
        info = get_job_info(job)
        story.say(info["logs"].splitlines()[-1])
        story.check("it printed both", info["logs"].endswith("hello from afar\n"))
        story.check("where it wished to be", info["cluster"] == "demo_large")

        story.part("4. What no cluster could ever take is refused, and says why")
        try:
            submit_job("python -m main", resource_requirements={"CPU": 1_000_000})
            story.check("it was refused", False)
        except NoClusterLargeEnough as error:
            story.say(str(error))
            story.check("it was refused", True)

        story.part("5. Ctrl-C in a function stops what was submitted in it")
        kept = submit_job("sleep 5", resource_requirements=CORE, tags=["demo"])
        started: list[str] = []

        @graceful_shutdown_on_keyboard_interrupt
        def workflow() -> None:
            started.extend(submit_job("sleep 600", resource_requirements=CORE) for _ in range(2))
            os.kill(os.getpid(), signal.SIGINT)  # as if somebody pressed it
            wait_for_all_jobs(started)

        with contextlib.suppress(KeyboardInterrupt):
            workflow()
        states = [get_job_info(one)["status"] for one in started]
        story.check("both are stopped", states == ["STOPPED", "STOPPED"])
        story.check("the one from before goes on", wait_for_all_jobs([kept], timeout=60))
    story.end()


def healthy() -> dict[str, dict[str, object]] | None:
    """The two clusters, once both can take jobs."""
    found = get_unified_scheduler().list_clusters()
    ours = {name: one for name, one in found.items() if name in ("demo_small", "demo_large")}
    return ours if all(one["state"] == "healthy" for one in ours.values()) and len(ours) == 2 else None


def forget(names: list[str]) -> None:
    """The server does not know these clusters any more."""
    client = get_unified_scheduler().client
    for job in client.jobs(state="QUEUED,SUBMITTING,PENDING,RUNNING", tags=["demo"]):
        client.stop_job(job["submission_id"])
        client.job(job["submission_id"], wait=20.0)
    for name in names:
        client.delete_cluster(name)


@contextlib.contextmanager
def own_directory() -> Iterator[Path]:
    """A place for all of it."""
    place = Path(tempfile.mkdtemp(prefix="smjobs", dir="/tmp"))  # names of sockets must be short
    place.chmod(0o755)  # whoever runs Postgres for root passes through
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def own_server(place: Path) -> Iterator[None]:
    """Where no server runs, the one that is started ends with the demo, and leaves nothing."""
    before = {entry.pid for entry in local.servers()}
    if not before and not os.environ.get("SCHEDULEMESH_URL"):
        os.environ["SCHEDULEMESH_DATA"] = str(place / "data")
    try:
        yield
    finally:
        for entry in local.servers():
            if entry.pid not in before and entry.data.startswith(str(place)):
                os.kill(entry.pid, signal.SIGTERM)
                while any(one.pid == entry.pid for one in local.servers()):
                    time.sleep(0.1)


@contextlib.contextmanager
def heads(place: Path, cores: list[int]) -> Iterator[list[str]]:
    """Ray heads of their own on this machine; where their dashboards are."""
    processes, urls = [], []
    try:
        for number, cpus in enumerate(cores):
            names = ("port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port")
            ports = dict(zip(names, free(len(names)), strict=True))
            command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
            command += [f"--{name}={port}" for name, port in ports.items()]
            command += ["--resources", json.dumps({"demo": cpus})]
            command += [f"--num-cpus={cpus}", "--num-gpus=0", "--node-ip-address=127.0.0.1"]
            command += ["--metrics-export-port=0", "--min-worker-port=0", "--max-worker-port=0"]
            command += [f"--object-store-memory={75 << 20}"]
            command += [
                f"--temp-dir={place / f'ray{number}'}",
                "--disable-usage-stats",
                "--include-dashboard=true",
            ]
            processes.append(
                subprocess.Popen(
                    command,
                    env={**os.environ, "RAY_AUTH_MODE": "disabled"},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C is for the demo, which ends them
                )
            )
            urls.append(f"http://127.0.0.1:{ports['dashboard-port']}")
        for url, process in zip(urls, processes, strict=True):
            await_head(url, process)
        yield urls
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


def await_head(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        with (
            contextlib.suppress(OSError, ValueError),
            urllib.request.urlopen(f"{url}/api/version", timeout=5) as answer,
        ):
            if json.load(answer)["ray_version"]:
                return
        time.sleep(0.2)
    raise TimeoutError(f"the Ray head at {url} does not answer")


def free(count: int) -> list[int]:
    """Ports that nobody listens on."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


if __name__ == "__main__":
    tell(main)
