"""Jobs on many Ray clusters: submitted once, to the one that suits each best.

``schedulemesh.aio.jobs`` has the same as coroutines.
"""

from __future__ import annotations

from schedulemesh._sync.jobs import (
    UnifiedScheduler,
    get_job_info,
    get_job_status,
    get_unified_scheduler,
    graceful_shutdown_on_keyboard_interrupt,
    initialize_scheduler_environment,
    stop_job,
    submit_job,
    wait_for_all_jobs,
)

__all__ = [
    "UnifiedScheduler",
    "get_job_info",
    "get_job_status",
    "get_unified_scheduler",
    "graceful_shutdown_on_keyboard_interrupt",
    "initialize_scheduler_environment",
    "stop_job",
    "submit_job",
    "wait_for_all_jobs",
]
