"""Submitting jobs, looking after them, waiting for them."""

from __future__ import annotations

import logging

from schedulemesh import jobs
from schedulemesh.errors import UnknownJob
from schedulemesh.jobs import (
    get_job_info,
    graceful_shutdown_on_keyboard_interrupt,
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

log = logging.getLogger("schedulemesh")


def get_job_status(submission_id: str, cluster_name: str | None = None) -> str:
    """:func:`schedulemesh.jobs.get_job_status`, which under this name never raises for an id that nobody has:
    that is ``UNKNOWN``, with a warning in the log."""
    try:
        return jobs.get_job_status(submission_id, cluster_name)
    except UnknownJob as error:
        log.warning("%s", error)
        return "UNKNOWN"


def stop_job(submission_id: str, cluster_name: str | None = None) -> bool:
    """:func:`schedulemesh.jobs.stop_job`, which under this name never raises for an id that nobody has: that
    is ``False``, with a warning in the log."""
    try:
        return jobs.stop_job(submission_id, cluster_name)
    except UnknownJob as error:
        log.warning("%s", error)
        return False
