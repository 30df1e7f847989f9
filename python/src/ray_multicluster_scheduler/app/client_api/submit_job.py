"""Submitting jobs, looking after them, waiting for them."""

from __future__ import annotations

from schedulemesh.jobs import (
    get_job_info,
    get_job_status,
    graceful_shutdown_on_keyboard_interrupt,
    stop_job,
    submit_job,
    wait_for_all_jobs,
)

__all__ = [
    "get_job_info",
    "get_job_status",
    "graceful_shutdown_on_keyboard_interrupt",
    "stop_job",
    "submit_job",
    "wait_for_all_jobs",
]
