"""Placement groups of a pool beside plain Ray, on one cluster; prints lines ``BENCH name value unit``.

``pg_reuse_to_running`` is a ``submit_with_pg_preemption`` that takes over the group of a running task
(cancelled, its state saved, killed, seen gone), until the new agent is ready, beside plain Ray's kill, remove
group, create group, create actor, answer. Then 200 submissions go through 20 groups and are counted.
"""

from __future__ import annotations

import concurrent.futures
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.simple import SimpleScheduler

TIMES = 21
REST = 0.7  # seconds after each, for the spare workers of both
RESOURCES = {"cpu": 1.0, "memory": 256.0}
GROUPS, SUBMISSIONS = 20, 200


@ray.remote(num_cpus=1, memory=256 << 20, max_restarts=0)
class Plain:
    def ready(self) -> bool:
        return True


def create() -> tuple[Any, Any]:
    group = placement_group([{"CPU": 1, "memory": 256 << 20}])
    ray.get(group.ready())
    actor = Plain.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group)).remote()
    ray.get(actor.ready.remote())
    return group, actor


def reuse(scheduler: SimpleScheduler) -> None:
    scheduler.ensure_pool(
        "reuse", resources=RESOURCES, pg_pool_config={"enable": True, "high_priority_pg_specs": [RESOURCES]}
    )
    wait_for(lambda: scheduler.pg_pool_stats("reuse")["reuse"]["available_pgs"] == 1)

    def submit(number: int) -> None:
        answer = scheduler.submit_with_pg_preemption(
            f"t{number}", "reuse", AgentActor, RESOURCES, 8.0 + 2 * number, preempt_for_quota=True
        )
        if not answer["success"]:
            raise SystemExit(f"t{number}: {answer}")

    submit(0)
    group, actor = create()
    ours, plain = [], []
    for number in range(1, TIMES + 1):
        time.sleep(REST)
        began = time.perf_counter()
        submit(number)
        ours.append((time.perf_counter() - began) * 1000)
        time.sleep(REST)
        began = time.perf_counter()
        ray.kill(actor)
        remove_placement_group(group)
        group, actor = create()
        plain.append((time.perf_counter() - began) * 1000)
    ray.kill(actor)
    remove_placement_group(group)
    sums = scheduler.pg_pool_stats("reuse")["reuse"]
    if sums["created"] != 1 or sums["total_reuse_count"] != TIMES:
        raise SystemExit(f"the group was not reused in place: {sums}")
    ours, plain = ours[1:], plain[1:]  # the first of each is warm-up
    print(f"BENCH pg_reuse_to_running {statistics.median(ours):.4g} ms_p50")
    print(f"BENCH pg_reuse_raw_ray {statistics.median(plain):.4g} ms_p50")
    print(f"BENCH pg_reuse_ratio {statistics.median(ours) / statistics.median(plain):.3g} x", flush=True)
    scheduler.complete(f"t{TIMES}")


def many(scheduler: SimpleScheduler) -> None:
    """All of them at once: each runs, or waits for its turn, or makes way, and none is lost."""
    size = {"cpu": 0.1, "memory": 16.0}
    scheduler.ensure_pool(
        "many",
        resources={"cpu": 0.1 * GROUPS, "memory": 16.0 * GROUPS},
        pg_pool_config={"enable": True, "max_dynamic_pgs": GROUPS, "high_priority_threshold": 1000},
    )
    began = time.perf_counter()

    def submit(number: int) -> Any:
        answer = scheduler.submit_with_pg_preemption(
            f"m{number}",
            "many",
            AgentActor,
            size,
            float(number % 10),
            preempt_for_quota=True,
            on_insufficient="queue",
            on_preempted="requeue",
        )
        return answer["success"] or answer

    with concurrent.futures.ThreadPoolExecutor(20) as threads:
        wrong = [answer for answer in threads.map(submit, range(SUBMISSIONS)) if answer is not True]
    done = 0
    while done < SUBMISSIONS:
        running = [t["task_id"] for t in scheduler.client.tasks(state="running", pool="many")]
        with concurrent.futures.ThreadPoolExecutor(20) as threads:
            done += sum(answer["success"] for answer in threads.map(scheduler.complete, running))
        if time.perf_counter() - began > 300:
            raise SystemExit(f"after 300 s only {done} of {SUBMISSIONS} were run to their end")
        verify()
    took = time.perf_counter() - began
    preempted = scheduler.get_preemption_stats()["total_preemptions"] - TIMES
    if wrong:
        raise SystemExit(f"{len(wrong)} submissions went wrong, such as {wrong[0]}")
    print(f"BENCH pg_many {SUBMISSIONS / took:.3g} tasks_per_s")
    print(f"BENCH pg_many_preempted {preempted} tasks")
    print(f"BENCH pg_many_groups {scheduler.pg_pool_stats('many')['many']['created']} made", flush=True)


def verify() -> None:
    """Every balance is what tasks and loans say, in the middle of it all."""
    said = subprocess.run([os.environ["SCHEDULEMESH_SERVER"], "verify"], capture_output=True, text=True)
    if said.returncode != 0:
        raise SystemExit(f"the ledger does not verify: {said.stdout}{said.stderr}")


def wait_for(what: Any) -> None:
    end = time.monotonic() + 30
    while not what():
        if time.monotonic() > end:
            raise SystemExit("it never came")
        time.sleep(0.05)


def main() -> None:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error", namespace="bench")
    free = ray.available_resources()["CPU"]
    with SimpleScheduler("bench-groups") as scheduler:
        reuse(scheduler)
        many(scheduler)
    wait_for(lambda: ray.available_resources().get("CPU") == free)
    left = [g for g in placement_group_table().values() if g["state"] not in ("REMOVED",)]
    print(f"BENCH pg_leaked {len(left)} groups", flush=True)


main()
