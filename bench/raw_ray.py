"""Plain Ray's kill + create + ready, once for each line on standard input; prints milliseconds."""

import json
import sys
import time

import ray


@ray.remote(num_cpus=1, memory=256 * 1024 * 1024, max_restarts=0)
class Agent:
    def ready(self) -> bool:
        return True


def main() -> None:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error", namespace="raw")
    agent = Agent.options(name="raw-0", lifetime="detached").remote()
    ray.get(agent.ready.remote())
    print("ready", flush=True)
    for count, _ in enumerate(sys.stdin, start=1):
        time.sleep(0.7)
        began = time.perf_counter()
        ray.kill(agent)
        agent = Agent.options(name=f"raw-{count}", lifetime="detached").remote()
        ray.get(agent.ready.remote())
        print(json.dumps((time.perf_counter() - began) * 1000), flush=True)
    ray.kill(agent)


main()
