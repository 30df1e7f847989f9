"""The SDK beside plain Ray, in one process on one cluster, in turns; prints lines ``BENCH name value unit``.

``sdk_submit`` is ``SimpleScheduler.submit`` with room for the task, until its handle is there and it runs,
beside ``Actor.remote()`` until it has answered. ``sdk_preempt`` is a ``submit`` for which a running task
makes way (cancelled, its state saved, killed, seen gone), beside plain Ray's kill, create, answer.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import ray

from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.simple import SimpleScheduler

TIMES = 21
REST = 0.7  # seconds after each, for the spare workers of both
RESOURCES = {"cpu": 1.0, "memory": 256.0}


class Agent(AgentActor):
    """Defined in a script, as users do: it travels pickled."""

    def ready(self) -> bool:
        return True


@ray.remote(num_cpus=1, memory=256 << 20, max_restarts=0)
class Plain:
    def ready(self) -> bool:
        return True


def timed(call: Any) -> tuple[float, Any]:
    time.sleep(REST)
    began = time.perf_counter()
    result = call()
    return (time.perf_counter() - began) * 1000, result


def say(name: str, ours: list[float], plain: list[float]) -> None:
    ours, plain = ours[1:], plain[1:]  # the first of each is warm-up
    print(f"BENCH {name} {statistics.median(ours):.4g} ms_p50")
    print(f"BENCH {name}_raw_ray {statistics.median(plain):.4g} ms_p50")
    print(f"BENCH {name}_ratio {statistics.median(ours) / statistics.median(plain):.3g} x", flush=True)


def create() -> Any:
    actor = Plain.remote()
    ray.get(actor.ready.remote())
    return actor


def replace(actor: Any) -> Any:
    ray.kill(actor)
    return create()


def main() -> None:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error", namespace="bench")
    with SimpleScheduler("bench-sdk") as scheduler:
        scheduler.ensure_pool("p", resources=RESOURCES)

        def submit(number: int, priority: float) -> None:
            answer = scheduler.submit(f"t{number}", "p", Agent, RESOURCES, priority)
            if not answer["success"] or answer["agent"].handle is None:
                raise SystemExit(f"t{number}: {answer}")

        ours, plain = [], []
        for i in range(TIMES):
            ours.append(timed(lambda i=i: submit(i, 5.0))[0])
            scheduler.complete(f"t{i}")
            took, actor = timed(create)
            plain.append(took)
            ray.kill(actor)
        say("sdk_submit", ours, plain)

        ours, plain = [], []
        submit(100, 0.0)
        actor = create()
        for i in range(1, TIMES + 1):
            ours.append(timed(lambda i=i: submit(100 + i, 2.0 * i))[0])
            took, actor = timed(lambda actor=actor: replace(actor))
            plain.append(took)
        ray.kill(actor)
        say("sdk_preempt", ours, plain)


main()
