"""The same as coroutines, for programs with an event loop.

async with aio.SimpleScheduler("training") as scheduler:
    await scheduler.ensure_pool("gpus", resources={"gpu": 8})
await aio.jobs.wait_for_all_jobs([await aio.jobs.submit_job("python /home/user/train.py")])
"""

from __future__ import annotations

from schedulemesh._async import jobs
from schedulemesh._async.client import AsyncClient as Client
from schedulemesh._async.scheduler import RayScheduler
from schedulemesh._async.simple import SimpleScheduler
from schedulemesh.specs import SimpleTaskSpec

__all__ = ["Client", "RayScheduler", "SimpleScheduler", "SimpleTaskSpec", "jobs"]
