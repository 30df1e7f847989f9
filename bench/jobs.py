"""Submitting through the server beside Ray's own client, on one cluster; prints ``BENCH name value unit``.

``job_accepted`` is from the call until Ray has accepted the job, which was taken, placed and written down
on the way; ``job_accepted_raw_ray`` is ``JobSubmissionClient.submit_job`` on the same dashboard, in turns
with it. ``job_submit`` is how long ``submit_job`` takes to return: the job is on disk then, and on its way.
Ray's own share of a submission differs from one to the next by more than what is measured here, so for each
it is known (a proxy in front of the dashboard says), and the rest is ``job_own`` and ``job_own_raw_ray``.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable

from ray.job_submission import JobSubmissionClient

from schedulemesh import jobs
from schedulemesh.client import Client

TIMES = 11


def main(dashboard: str) -> None:
    plain, client = JobSubmissionClient(dashboard), Client()

    def ended(name: str) -> bool:
        try:
            return bool(plain.get_job_status(name).is_terminal())
        except RuntimeError:  # not there yet
            return False

    def accepted() -> str:
        job = client.submit_job({"entrypoint": "true"}, wait=10)
        if job["accepted_at"] is None:
            raise SystemExit(f"it was not accepted: {job}")
        return job["submission_id"]

    kinds: dict[str, Callable[[], str]] = {
        "job_accepted": accepted,
        "job_accepted_raw_ray": lambda: plain.submit_job(entrypoint="true"),
        "job_submit": lambda: jobs.submit_job("true"),
    }
    took: dict[str, dict[str, float]] = {name: {} for name in kinds}
    for number in range(TIMES):
        order = list(kinds)
        for kind in order[number % 3 :] + order[: number % 3]:
            began = time.perf_counter()
            name = kinds[kind]()
            spent = (time.perf_counter() - began) * 1000
            if number:  # the first of each is warm-up
                took[kind][name] = spent
            while not ended(name):  # the next is measured on a cluster where nothing else happens
                time.sleep(0.05)
    medians = {kind: statistics.median(figures.values()) for kind, figures in took.items()}
    for kind, figure in medians.items():
        print(f"BENCH {kind} {figure:.4g} ms_p50")
    with urllib.request.urlopen(dashboard + "/took") as answer:
        of_ray = json.load(answer)
    own = {
        kind: statistics.median(spent - of_ray[name] for name, spent in took[kind].items())
        for kind in ("job_accepted", "job_accepted_raw_ray")
    }
    print(f"BENCH job_own {own['job_accepted']:.3g} ms_p50")
    print(f"BENCH job_own_raw_ray {own['job_accepted_raw_ray']:.3g} ms_p50")
    overhead = own["job_accepted"] - own["job_accepted_raw_ray"]
    print(f"BENCH job_overhead {overhead:.3g} ms_p50", flush=True)


main(sys.argv[1])
