"""``schedulemesh logs`` and ``events``: what happens, as it happens."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from schedulemesh.cli import output
from schedulemesh.cli.context import (
    LONG_PATIENCE,
    Command,
    Settings,
    complete_task,
    complete_task_or_job,
    pass_settings,
)
from schedulemesh.cli.tasks import event_word

if TYPE_CHECKING:
    from schedulemesh.client import Client
    from schedulemesh.types import Event

_CHUNK = 1024 * 1024
_TAIL = 256 * 1024


@click.command(cls=Command, short_help="What a job, or a task's agent, printed.")
@click.argument("name", metavar="JOB|TASK", shell_complete=complete_task_or_job)
@click.option("-f", "--follow", is_flag=True, help="Go on as it prints more, until it has ended.")
@click.option("--stderr", is_flag=True, help="An agent's standard error; a job has both in one.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Begin with the last N lines.")
@pass_settings
def logs(settings: Settings, name: str, follow: bool, stderr: bool, tail: int | None) -> None:
    """What the job of this submission id printed, or else the agent of this task.

    While it runs, and after it ended.
    """
    from schedulemesh.errors import NotFound

    client = settings.client()
    if not stderr:
        with contextlib.suppress(NotFound):
            client.job(name)
            _job_logs(settings, client, name, follow, tail)
            return
    _task_logs(settings, client, name, follow, "stderr" if stderr else "stdout", tail)


def _job_logs(settings: Settings, client: Client, name: str, follow: bool, tail: int | None) -> None:
    offset = 0
    if tail is not None:
        piece = client.job_logs(name, tail=tail) if tail else client.job_logs(name, offset=-1, limit=1)
        offset = piece["next"]
        _print_piece(settings, piece, piece["text"] if tail else "")
        if not follow:
            return
    if follow:
        client.retry_for = LONG_PATIENCE
        for piece in client.follow_job_logs(name, offset=offset):
            _print_piece(settings, piece, piece["text"])
        return
    while (piece := client.job_logs(name, offset=offset, limit=_CHUNK))["text"]:
        _print_piece(settings, piece, piece["text"])
        offset = piece["next"]


def _print_piece(settings: Settings, piece: Any, text: str) -> None:
    if text and settings.json:
        output.line(piece)
    elif text:
        sys.stdout.write(text)
        sys.stdout.flush()


def _task_logs(
    settings: Settings, client: Client, task_id: str, follow: bool, stream: str, tail: int | None
) -> None:
    offset, pause = (0 if tail is None else -_TAIL), 0.1
    while True:
        chunk = client.task_logs(task_id, stream=stream, offset=offset, limit=_CHUNK)
        offset, more = chunk["next_offset"], bool(chunk["text"])
        if tail is not None:
            lines = chunk["text"].splitlines(keepends=True)
            chunk["text"] = "".join(lines[-tail:] if tail else [])
            tail = None
        _print_piece(settings, chunk, chunk["text"])
        if more:
            pause = 0.1
            continue
        if chunk["ended"] or not follow:
            return
        client.retry_for = LONG_PATIENCE
        time.sleep(pause)
        pause = min(1.5 * pause, 1.0)


@click.command(cls=Command, short_help="What happened; -f follows.")
@click.option("-f", "--follow", is_flag=True, help="Go on as things happen. Without --after: from now on.")
@click.option(
    "--after", type=click.IntRange(min=0), metavar="ID", help="Only events after the one of this id."
)
@click.option("--task", default="", shell_complete=complete_task, metavar="TASK", help="Only of this task.")
@pass_settings
def events(settings: Settings, follow: bool, after: int | None, task: str) -> None:
    """What happened in the namespace, oldest first."""
    client = settings.client()
    seen = after or 0
    if not follow or after is not None:
        for event in client.past_events(after=seen):
            seen = event["id"]
            _print(settings, event, task)
    if follow:
        if not seen:
            client.server()  # says at once when nobody answers
        client.retry_for = LONG_PATIENCE
        for event in client.events(after=seen):
            _print(settings, event, task)


def _print(settings: Settings, event: Event, task: str) -> None:
    if task and event["task_id"] != task:
        return
    if settings.json:
        output.line(event)
        return
    subject = event["task_id"] or event["pool"]
    words = [
        output.dim(output.clock(event["at"])),
        output.pad(event_word(event), 11),
        output.pad(subject, 20),
        output.one_line(event["message"]),
    ]
    output.say("  ".join(words).rstrip())
    sys.stdout.flush()
