"""Commands on tasks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from schedulemesh.cli import output
from schedulemesh.cli.context import (
    LONG_PATIENCE,
    NUMBER,
    SECONDS,
    Group,
    Settings,
    complete_pool,
    complete_task,
    label_option,
    pass_settings,
)
from schedulemesh.cli.output import Column

if TYPE_CHECKING:
    from schedulemesh.client import Client
    from schedulemesh.types import Event, Task

LIVE = ("queued", "reserved", "launching", "running", "stopping", "preempting")
ENDED = ("preempted", "completed", "failed", "cancelled")

task_argument = click.argument("task_id", metavar="TASK", shell_complete=complete_task)
tasks_argument = click.argument(
    "task_ids", metavar="TASK...", nargs=-1, required=True, shell_complete=complete_task
)


@click.group(cls=Group, default="list", short_help="List, show, cancel and wait for tasks.")
def tasks() -> None:
    """Tasks. Without a command: list them; `schedulemesh tasks list --help` says how to narrow the list."""


@tasks.command("list")
@click.option("--state", metavar="STATE,…", help=", ".join(LIVE + ENDED) + ".")
@click.option("--live", is_flag=True, help="Only those that have not ended.")
@click.option("--pool", default="", shell_complete=complete_pool, metavar="POOL", help="Only of this pool.")
@click.option("--text", "-q", default="", metavar="TEXT", help="Only ids with this in them.")
@label_option
@click.option(
    "--limit", default=50, type=click.IntRange(min=0), show_default=True, help="The most; 0 for all."
)
@pass_settings
def list_tasks(
    settings: Settings,
    state: str | None,
    live: bool,
    pool: str,
    text: str,
    labels: tuple[tuple[str, str], ...],
    limit: int,
) -> None:
    """Tasks, newest first."""
    states = [word.strip() for word in (state or "").split(",") if word.strip()]
    for word in states:
        if word not in LIVE + ENDED:
            raise click.UsageError(f"{word!r} is not a state; they are {', '.join(LIVE + ENDED)}")
    found = list(
        settings.client().tasks(
            state=",".join(states),
            live=live,
            pool=pool,
            text=text,
            labels=dict(labels),
            limit=limit and limit + 1,
        )
    )
    more = bool(limit) and len(found) > limit
    found = found[:limit] if limit else found
    if settings.json:
        output.document(found)
    elif found:
        output.show(*task_table(found))
        if more:
            output.say(output.dim(f"These are the {limit} newest; --limit 0 shows all."))
    else:
        narrowed = states or live or pool or text or labels
        output.say(f"There are no {'such ' if narrowed else ''}tasks in namespace {settings.namespace}.")


def task_table(found: Sequence[Task]) -> tuple[list[Column | str], list[list[str]]]:
    """Columns and rows of a list of tasks."""
    columns: list[Column | str] = [
        "TASK",
        "STATE",
        "POOL",
        Column("PRIORITY", right=True),
        "RESOURCES",
        Column("AGE", right=True),
        Column("RAN", right=True),
        Column("NOTE", flexible=True),
    ]
    now = time.time()
    return columns, [
        [
            task["task_id"],
            output.state(task["state"]),
            task["pool"],
            output.number(task["priority"]),
            output.amounts(task["resources"]),
            output.age(task["submitted_at"], now),
            ran(task, now),
            note(task, now),
        ]
        for task in found
    ]


def ran(task: Task, now: float) -> str:
    """For how long the latest attempt ran, or runs."""
    began, ended = output.moment(task.get("started_at")), output.moment(task.get("ended_at"))
    if began is None or (ended is None and task["state"] in ("queued", "reserved", "launching")):
        return output.dim(output.NONE)
    return output.duration(max(0, int((ended or now) - began)))


def starts(task: Task, now: float) -> str:
    """When a task in the line is expected to start."""
    at = output.moment((task.get("queue") or {}).get("eta"))
    return "" if at is None else "in " + output.duration(max(0, int(at - now)))


def line(task: Task, now: float) -> str:
    """Where a task stands in the line, and when it is expected to start."""
    position = task.get("queue_position")
    start = starts(task, now)
    words = [f"number {position} in the line" if position else "", f"starts {start}" if start else ""]
    return ", ".join(word for word in words if word)


def note(task: Task, now: float) -> str:
    """What is worth knowing of a task beyond its state."""
    words = [
        line(task, now),
        f"attempt {task['attempt']}" if task["attempt"] > 1 else "",
        f"preempted {output.count(task['preemptions'], 'time')}" if task.get("preemptions") else "",
        output.one_line(task.get("reason") or ""),
    ]
    return "; ".join(word for word in words if word)


@tasks.command("show")
@task_argument
@pass_settings
def show(settings: Settings, task_id: str) -> None:
    """One task and its timeline."""
    client = settings.client()
    task, events = client.task(task_id), client.task_events(task_id)
    if settings.json:
        output.document({**task, "events": events})
        return
    now = time.time()
    agent, entry = task["agent"], task.get("entry")
    estimate = task.get("estimated_duration")
    output.facts(
        [
            ("Task", output.paint(task["task_id"], bold=True)),
            ("State", output.state(task["state"]) + (f" ({task['phase']})" if task.get("phase") else "")),
            ("Reason", output.one_line(task.get("reason") or "")),
            ("Pool", task["pool"]),
            ("Priority", output.number(task["priority"])),
            ("Resources", output.amounts(task["resources"])),
            ("Labels", output.labels(task["labels"])),
            ("Class", task.get("actor_class") or task.get("pickled_name") or ""),
            ("Calls", f"{entry['method']}()" if entry else ""),
            ("Agent", agent["name"]),
            ("Node", agent["node_id"]),
            ("Attempt", _attempt(task)),
            ("Preempted", output.count(task["preemptions"], "time") if task.get("preemptions") else ""),
            (
                "Submitted",
                f"{output.age(task['submitted_at'], now)} ago by {task.get('submitted_by') or 'nobody'}",
            ),
            ("Ran", ran(task, now).removeprefix(output.dim(output.NONE))),
            ("Estimate", output.duration(estimate) if estimate else ""),
            ("Line", "; ".join(filter(None, [line(task, now), (task.get("queue") or {}).get("note") or ""]))),
            ("Result", _compact(task.get("result"))),
            ("Saved state", _compact(task.get("saved_state"))),
        ]
    )
    output.say()
    output.show(*timeline(events))


def _attempt(task: Task) -> str:
    if task["max_attempts"] > 1:
        return f"{task['attempt']} of {task['max_attempts']}"
    return str(task["attempt"]) if task["attempt"] > 1 else ""


def _compact(value: Any) -> str:
    return "" if value is None else output.cut(output.one_line(json.dumps(value, ensure_ascii=False)), 2000)


def timeline(events: Sequence[Event]) -> tuple[list[Column | str], list[list[str]]]:
    """Columns and rows of a timeline: when, how long after the one before, what."""
    rows, last = [], None
    for event in events:
        at = output.moment(event["at"]) or 0.0
        after = "" if last is None else "+" + _short(at - last)
        last = at
        rows.append(
            [
                output.clock(event["at"]),
                after,
                event_word(event),
                event.get("actor") or "",
                output.one_line(event["message"]),
            ]
        )
    return ["TIME", Column("AFTER", right=True), "EVENT", "BY", Column("WHAT", flexible=True)], rows


def event_word(event: Event) -> str:
    """The type of an event, in the colour of the state it stands for."""
    return output.state(event["type"].removeprefix("phase:"))


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.0f}ms" if seconds < 1 else output.duration(seconds)


# What is done to tasks.


def _each(settings: Settings, task_ids: tuple[str, ...], do: Callable[[str], Task]) -> None:
    """Do it to each, going on after a refusal; the exit code is 1 when there was one."""
    from schedulemesh.errors import ServerError

    done, refused = [], 0
    for task_id in task_ids:
        try:
            task = do(task_id)
        except ServerError as error:
            refused += 1
            click.echo(f"schedulemesh: {error}", err=True)
            continue
        done.append(task)
        if not settings.json:
            output.say(f"Task {task['task_id']} is {output.state(task['state'])}.")
    if settings.json:
        output.document(done if len(task_ids) > 1 else (done[0] if done else None))
    if refused:
        raise click.exceptions.Exit(1)


@tasks.command("cancel")
@tasks_argument
@click.option("--wait", is_flag=True, help="Until its agent is gone.")
@pass_settings
def cancel(settings: Settings, task_ids: tuple[str, ...], wait: bool) -> None:
    """Cancel tasks: their agents are asked to stop, and removed."""
    client = settings.client()

    def do(task_id: str) -> Task:
        task = client.cancel(task_id)
        return until(client, task) if wait else task

    _each(settings, task_ids, do)


@tasks.command("complete")
@tasks_argument
@click.option("--wait", is_flag=True, help="Until its agent is gone.")
@pass_settings
def complete(settings: Settings, task_ids: tuple[str, ...], wait: bool) -> None:
    """End tasks as done."""
    client = settings.client()

    def do(task_id: str) -> Task:
        task = client.complete(task_id)
        return until(client, task) if wait else task

    _each(settings, task_ids, do)


@tasks.command("restore")
@tasks_argument
@pass_settings
def restore(settings: Settings, task_ids: tuple[str, ...]) -> None:
    """Run preempted tasks again, from their saved states.

    They wait in the line when there is no room yet.
    """
    _each(settings, task_ids, settings.client().resume)


@tasks.command("set")
@task_argument
@click.option("--priority", type=NUMBER, metavar="N", help="Who may preempt whom follows at once.")
@click.option("--estimate", type=SECONDS, metavar="TIME", help="How long it runs in all; 0 for unknown.")
@label_option
@pass_settings
def set_command(
    settings: Settings,
    task_id: str,
    priority: float | None,
    estimate: float | None,
    labels: tuple[tuple[str, str], ...],
) -> None:
    """Change the priority, the estimate or labels of a live task. Labels that are not named stay."""
    fields: dict[str, Any] = {"priority": priority, "estimated_duration": estimate}
    fields = {name: value for name, value in fields.items() if value is not None}
    client = settings.client()
    if labels:
        fields["labels"] = {**client.task(task_id)["labels"], **dict(labels)}
    if not fields:
        raise click.UsageError("nothing to change: give --priority, --estimate or --label")
    task = client.change_task(task_id, **fields)
    if settings.json:
        output.document(task)
    else:
        output.show(*task_table([task]))


@tasks.command("wait")
@task_argument
@click.option("--running", is_flag=True, help="Until it runs, rather than until it has ended.")
@click.option("--timeout", type=SECONDS, metavar="TIME", help="The longest wait; for ever when left out.")
@pass_settings
def wait_command(settings: Settings, task_id: str, running: bool, timeout: float | None) -> None:
    """Wait until a task has ended. The exit code is 1 unless it completed, or, with --running, runs."""
    client = settings.client()
    task = client.task(task_id)
    client.retry_for = LONG_PATIENCE
    finish(settings, until(client, task, running, timeout), running)


def until(client: Client, task: Task, running: bool = False, timeout: float | None = None) -> Task:
    """The task once it has ended, or runs, or the time is up."""
    end = None if timeout is None else time.monotonic() + timeout
    task_id, uid, pause = task["task_id"], task["uid"], 0.05
    while task["state"] not in ENDED and not (running and task["state"] == "running"):
        left = 60.0 if end is None else end - time.monotonic()
        if left <= 0:
            raise click.ClickException(
                f"task {task_id!r} is still {task['state']} after {output.duration(timeout or 0)}"
            )
        if task["state"] == "running":
            # No call waits for the end of one that runs.
            time.sleep(min(pause, left))
            pause = min(1.5 * pause, 1.0)
            latest = client.task(task_id)
        else:
            began = time.monotonic()
            latest = client.task(task_id, wait=min(60.0, left))
            if latest["state"] not in (*ENDED, "running") and time.monotonic() - began < 0.05:
                time.sleep(min(pause, left))
        if latest["uid"] != uid:
            raise click.ClickException(
                f"task {task_id!r} has ended, and another of the same id was submitted"
            )
        task = latest
    return task


def finish(settings: Settings, task: Task, running: bool = False) -> None:
    """Say how a wait ended; the exit code tells programs."""
    good = task["state"] == "completed" or (running and task["state"] == "running")
    if settings.json:
        output.document(task)
    else:
        because = output.one_line(task.get("reason") or "")
        output.say(
            f"Task {task['task_id']} is {output.state(task['state'])}" + (f": {because}" if because else ".")
        )
        if task.get("result") is not None:
            output.say(json.dumps(task["result"], indent=2, ensure_ascii=False))
    if not good:
        raise click.exceptions.Exit(1)
