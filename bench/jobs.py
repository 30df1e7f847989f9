"""Submitting through the server beside Ray's own client, on one cluster; prints ``BENCH name value unit``.

``job_accepted`` is from the call until Ray has accepted the job, which was taken, placed and written down
on the way; ``job_accepted_raw_ray`` is ``JobSubmissionClient.submit_job`` on the same dashboard, in turns
with it. ``job_submit`` is how long ``submit_job`` takes to return: the job is on disk then, and on its way.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

from ray.job_submission import JobSubmissionClient

from schedulemesh import jobs
from schedulemesh.client import Client

TIMES = 16


def main(dashboard: str) -> None:
    plain, client = JobSubmissionClient(dashboard), Client()

    def ended(name: str) -> bool:
        try:
            return bool(plain.get_job_status(name).is_terminal())
        except RuntimeError:  # not there yet
            return False

    def timed(submit: Callable[[], str]) -> float:
        began = time.perf_counter()
        name = submit()
        took = (time.perf_counter() - began) * 1000
        while not ended(name):  # the next is measured on a cluster where nothing else happens
            time.sleep(0.05)
        return took

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
    took: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(TIMES):
        for name, submit in kinds.items():
            took[name].append(timed(submit))
    medians = {name: statistics.median(figures[1:]) for name, figures in took.items()}  # the first is warm-up
    for name, figure in medians.items():
        print(f"BENCH {name} {figure:.4g} ms_p50")
    overhead = medians["job_accepted"] - medians["job_accepted_raw_ray"]
    print(f"BENCH job_accepted_overhead {overhead:.3g} ms_p50", flush=True)


main(sys.argv[1])
