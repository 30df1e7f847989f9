"""Calls of pickled callables, each in a worker process that ends with it.

The counterpart of :mod:`schedulemesh.bridge.calls`, on the sidecar's side.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
import time
from functools import partial
from typing import Any

import ray
from ray import cloudpickle
from ray import exceptions as ray_errors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from schedulemesh.bridge import calls, pickled, spares, worker
from schedulemesh.bridge.nodes import Nodes
from schedulemesh.core.actors.control import preemption_controller

log = logging.getLogger(__name__)

#: How many calls run at once; others wait for their turn, within their own timeout.
AT_ONCE = 32


class Caller:
    """Runs callables in workers of the cluster.

    Args:
        nodes: are told of the idle workers that calls use up.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._threads = concurrent.futures.ThreadPoolExecutor(4, "calls")
        for module in (worker, pickled, calls, preemption_controller):
            cloudpickle.register_pickle_by_value(module)
        # One call a process: what a user's code leaves behind must not meet the next agent there.
        self._function = ray.remote(num_cpus=0, max_retries=0, max_calls=1)(calls.run_call)

    async def call(
        self,
        code: bytes,
        kind: str,
        name: str,
        argument: dict[str, Any],
        node_id: str,
        runtime_env: dict[str, Any] | None,
        timeout: float,
    ) -> dict[str, Any]:
        """Call it, for at most ``timeout`` seconds, then its process is ended.

        Returns:
            ``{"result"}``, or ``{"error"[, "detail"][, "timed_out"]}``: a callable that fails is no error of
            the call.
        """
        what = f"the {kind} {name}" if name else f"the {kind}"
        deadline = time.monotonic() + timeout
        late = {"error": f"{what} did not return within {timeout:g} s", "timed_out": True}
        try:
            await asyncio.wait_for(self._turns.acquire(), timeout)
        except asyncio.TimeoutError:
            return late
        try:
            began = time.time()
            submit = partial(self._submit, code, kind, name, json.dumps(argument), node_id, runtime_env)
            try:
                ref = await self._off_loop(submit)
                done, _ = await asyncio.wait({_future(ref)}, timeout=max(0.0, deadline - time.monotonic()))
                if not done:
                    await self._off_loop(lambda: ray.cancel(ref, force=True))
                    return late
                answer = done.pop().result()
            except ray_errors.RuntimeEnvSetupError as error:
                return {"error": f"the runtime_env of {what} could not be set up: {error}"}
            except ray_errors.WorkerCrashedError:
                return {"error": f"the worker process ended while {what} ran"}
            except ray_errors.RayError as error:
                return {"error": f"{what} could not be run: {error}"}
            except (ValueError, TypeError) as error:
                return {"error": f"{what} could not be run: Ray refused it: {error}"}
        finally:
            self._turns.release()
        node, started = answer.pop("node_id"), answer.pop("process_started")
        self._nodes.spares.used(node, spares.key_of(runtime_env), 0 < started < began)
        if "result" in answer:
            answer["result"] = json.loads(answer["result"])
        return {name: value for name, value in answer.items() if name == "result" or value}

    def _submit(
        self,
        code: bytes,
        kind: str,
        name: str,
        argument: str,
        node_id: str,
        runtime_env: dict[str, Any] | None,
    ) -> Any:
        options: dict[str, Any] = {"name": f"schedulemesh {kind}"}
        if node_id:  # where the agent was: what it wrote to disk is there
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id, soft=True)
        if runtime_env:
            options["runtime_env"] = runtime_env
        return self._function.options(**options).remote(code, kind, name, argument)

    async def _off_loop(self, call: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def _future(ref: Any) -> asyncio.Future[dict[str, Any]]:
    async def wait() -> dict[str, Any]:
        answer: dict[str, Any] = await ref
        return answer

    return asyncio.ensure_future(wait())
