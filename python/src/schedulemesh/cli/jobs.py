"""Commands on jobs."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from schedulemesh.cli import output
from schedulemesh.cli.context import (
    LONG_PATIENCE,
    NUMBER,
    PAIR,
    SECONDS,
    Group,
    Settings,
    complete_cluster,
    complete_job,
    pass_settings,
    resource_options,
    resources,
)
from schedulemesh.cli.output import Column
from schedulemesh.cli.tasks import timeline

if TYPE_CHECKING:
    from schedulemesh.client import Client
    from schedulemesh.types import Job

STATES = ("QUEUED", "SUBMITTING", "PENDING", "RUNNING", "UNKNOWN", "SUCCEEDED", "FAILED", "STOPPED")
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")

job_argument = click.argument("job_id", metavar="JOB", shell_complete=complete_job)
jobs_argument = click.argument(
    "job_ids", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_job
)


@click.group(cls=Group, default="list", short_help="Submit, list, stop and wait for jobs on any Ray cluster.")
def jobs() -> None:
    """Jobs on many Ray clusters. Without a command: list them.

    JOB is a submission id. What one printed is in `schedulemesh logs JOB`.
    """


@jobs.command("list")
@click.option("--state", metavar="STATE,…", help=", ".join(STATES) + ".")
@click.option("--cluster", default="", shell_complete=complete_cluster, metavar="NAME", help="Only there.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only with this tag. Repeatable.")
@click.option("--metadata", type=PAIR, multiple=True, metavar="KEY=VALUE", help="Only with this. Repeatable.")
@click.option("--job-id", default="", metavar="NAME", help="Only those that are called so.")
@click.option("--text", "-q", default="", metavar="TEXT", help="Only with this in an id or the command.")
@click.option(
    "--limit", default=50, type=click.IntRange(min=0), show_default=True, help="The most; 0 for all."
)
@pass_settings
def list_jobs(
    settings: Settings,
    state: str | None,
    cluster: str,
    tags: tuple[str, ...],
    metadata: tuple[tuple[str, str], ...],
    job_id: str,
    text: str,
    limit: int,
) -> None:
    """Jobs, newest first."""
    states = [word.strip().upper() for word in (state or "").split(",") if word.strip()]
    for word in states:
        if word not in STATES:
            raise click.UsageError(f"{word!r} is not a state; they are {', '.join(STATES)}")
    found = list(
        settings.client().jobs(
            state=",".join(states),
            cluster=cluster,
            job_id=job_id,
            tags=list(tags),
            metadata=dict(metadata),
            text=text,
            limit=limit and limit + 1,
        )
    )
    more = bool(limit) and len(found) > limit
    found = found[:limit] if limit else found
    if settings.json:
        output.document(found)
    elif found:
        output.show(*job_table(found))
        if more:
            output.say(output.dim(f"These are the {limit} newest; --limit 0 shows all."))
    else:
        narrowed = states or cluster or tags or metadata or job_id or text
        output.say(f"There are no {'such ' if narrowed else ''}jobs.")


def job_table(found: Sequence[Job]) -> tuple[list[Column | str], list[list[str]]]:
    """Columns and rows of a list of jobs."""
    columns: list[Column | str] = [
        "JOB",
        "NAME",
        "STATE",
        "CLUSTER",
        Column("AGE", right=True),
        Column("RAN", right=True),
        Column("NOTE", flexible=True),
    ]
    now = time.time()
    return columns, [
        [
            job["submission_id"],
            output.one_line(job["job_id"]),
            output.state(job["state"]),
            job["cluster"],
            output.age(job["created_at"], now),
            ran(job, now),
            note(job) or output.dim(output.one_line(job["entrypoint"])),
        ]
        for job in found
    ]


def ran(job: Job, now: float) -> str:
    """For how long the latest attempt ran, or runs."""
    began, ended = output.moment(job.get("started_at")), output.moment(job.get("ended_at"))
    if began is None:
        return output.dim(output.NONE)
    return output.duration(max(0, int((ended or now) - began)))


def note(job: Job) -> str:
    """What is worth knowing of a job beyond its state."""
    position = job.get("queue_position")
    words = [
        f"number {position} in line" if position else "",
        f"attempt {job['attempt']}" if job["attempt"] > 1 else "",
        output.one_line(job.get("reason") or ""),
    ]
    return "; ".join(word for word in words if word)


def _environment(
    runtime_env: str, working_dir: str | None, env: tuple[tuple[str, str], ...]
) -> dict[str, Any] | None:
    """What --runtime-env, --working-dir and --env say."""
    found: Any = {}
    if runtime_env:
        text = runtime_env
        if not text.lstrip().startswith("{"):
            try:
                text = Path(runtime_env).read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise click.UsageError(
                    f"--runtime-env is neither JSON nor a file that can be read: {error}"
                ) from None
        try:
            found = json.loads(text)
        except ValueError as error:
            raise click.UsageError(f"--runtime-env is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise click.UsageError("--runtime-env must be a JSON object")
    if working_dir is not None:
        found["working_dir"] = working_dir
    if env:
        found["env_vars"] = {**(found.get("env_vars") or {}), **dict(env)}
    return found or None


@jobs.command("submit", context_settings={"ignore_unknown_options": False})
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND...")
@click.option("--id", "submission_id", metavar="ID", help="The submission id; made up when left out.")
@click.option("--job-id", metavar="NAME", help="What people call it; need not be unique.")
@click.option(
    "--cluster", shell_complete=complete_cluster, metavar="NAME", help="Where to go when it has room."
)
@resource_options
@click.option(
    "--reserve",
    type=click.Choice(["entrypoint", "none"]),
    help="Whether Ray keeps the resources for the command itself; else its own tasks take them.",
)
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Repeatable.")
@click.option("--metadata", type=PAIR, multiple=True, metavar="KEY=VALUE", help="Repeatable.")
@click.option("--working-dir", metavar="DIR", help="Packed, uploaded, and where the command runs.")
@click.option("--env", type=PAIR, multiple=True, metavar="NAME=VALUE", help="For the command. Repeatable.")
@click.option("--runtime-env", default="", metavar="JSON|FILE", help="Ray's; the two above go before it.")
@click.option("--priority", type=NUMBER, metavar="N", help="Higher goes first in line; 5 when left out.")
@click.option("--queue-timeout", type=SECONDS, metavar="TIME", help="The longest wait in line.")
@click.option("--max-retries", type=click.IntRange(0, 100), metavar="N", help="When cluster or node is lost.")
@click.option("--wait", is_flag=True, help="Until it has ended; the exit code is 1 unless it succeeded.")
@pass_settings
def submit(
    settings: Settings,
    /,
    command: tuple[str, ...],
    submission_id: str | None,
    job_id: str | None,
    cluster: str | None,
    cpu: float | None,
    gpu: float | None,
    memory: float | None,
    resource: tuple[tuple[str, float], ...],
    reserve: str | None,
    tags: tuple[str, ...],
    metadata: tuple[tuple[str, str], ...],
    working_dir: str | None,
    env: tuple[tuple[str, str], ...],
    runtime_env: str,
    priority: float | None,
    queue_timeout: float | None,
    max_retries: int | None,
    wait: bool,
) -> None:
    """Submit a job to the cluster that suits it best; it waits in line when none has room.

    Its program, and the script of a Python or shell, need absolute paths.

    \b
    schedulemesh jobs submit --cpu 4 --memory 16GiB --wait -- python /home/user/train.py --epochs 100
    """
    from schedulemesh._sync.jobs import job_request, send
    from schedulemesh.errors import InvalidArgument

    asked = resources(cpu, gpu, None, resource)
    names = {"cpu": "CPU", "gpu": "GPU"}
    wanted = {names.get(name, name): amount for name, amount in asked.items()}
    if memory is not None:
        wanted["memory"] = memory / 1024
    try:
        body, packages = job_request(
            command[0] if len(command) == 1 else shlex.join(command),
            _environment(runtime_env, working_dir, env),
            job_id,
            dict(metadata) or None,
            submission_id,
            cluster,
            wanted or None,
            list(tags) or None,
            priority=priority,
            queue_timeout=queue_timeout,
            max_retries=max_retries,
            reserve=reserve,
        )
    except InvalidArgument as error:
        raise click.UsageError(str(error)) from None
    client = settings.client()
    job = send(client, body, packages)
    for remark in job.get("notes") or []:
        click.echo(f"schedulemesh: {remark}", err=True)
    if not wait:
        job = client.job(job["submission_id"])  # where it went, if that was quick
        if settings.json:
            output.document(job)
        else:
            output.say(_sentence(job))
        return
    if not settings.json:
        click.echo(f"Job {job['submission_id']} is {job['state']}.", err=True)
    if not _wait(settings, client, (job["submission_id"],), None):
        raise click.exceptions.Exit(1)


def _sentence(job: Job) -> str:
    where = f" on {job['cluster']}" if job["cluster"] else ""
    because = output.one_line(job.get("reason") or "")
    return f"Job {job['submission_id']} is {output.state(job['state'])}{where}" + (
        f": {because}" if because else "."
    )


def _wait(settings: Settings, client: Client, job_ids: Sequence[str], timeout: float | None) -> bool:
    """Wait for all, and say how they ended; whether all succeeded."""
    from schedulemesh.waitline import WaitLine

    client.retry_for = LONG_PATIENCE
    end = None if timeout is None else time.monotonic() + timeout
    waited = {job_id: client.job(job_id) for job_id in job_ids}
    with WaitLine(len(waited)) as progress:
        while live := [job_id for job_id, job in waited.items() if job["state"] not in ENDED]:
            progress.show(waited.values())
            left = 10.0 if end is None else end - time.monotonic()
            if left <= 0:
                states = ", ".join(f"{job_id} is {waited[job_id]['state']}" for job_id in live)
                raise click.ClickException(f"after {output.duration(timeout or 0)} job {states}")
            waited[live[0]] = client.job(live[0], wait=min(10.0, left))
            for job_id in live[1:]:
                waited[job_id] = client.job(job_id)
    found = list(waited.values())
    if settings.json:
        output.document(found if len(found) > 1 else found[0])
    else:
        for job in found:
            output.say(_sentence(job))
    return all(job["state"] == "SUCCEEDED" for job in found)


@jobs.command("show")
@job_argument
@pass_settings
def show(settings: Settings, job_id: str) -> None:
    """One job: where it is and why, and its history."""
    client = settings.client()
    job, events = client.job(job_id), client.job_events(job_id)
    if settings.json:
        output.document({**job, "events": events})
        return
    now = time.time()
    placement = job.get("placement") or {}
    wanted = {key.lower(): value for key, value in (job.get("resource_requirements") or {}).items()}
    if "memory" in wanted:
        wanted["memory"] *= 1024
    position = job.get("queue_position")
    output.facts(
        [
            ("Job", output.paint(job["submission_id"], bold=True)),
            ("Name", output.one_line(job["job_id"])),
            ("State", output.state(job["state"])),
            ("Reason", output.one_line(job.get("reason") or "")),
            ("Cluster", job["cluster"]),
            ("In Ray", job["ray_submission_id"] if job["ray_submission_id"] != job["submission_id"] else ""),
            ("Why there", output.one_line(placement.get("reason") or "")),
            ("Command", output.one_line(job["entrypoint"])),
            ("Resources", output.amounts(wanted) + (", not reserved" if job["reserve"] == "none" else "")),
            ("Preferred", job["preferred_cluster"]),
            ("Priority", output.number(job["priority"])),
            ("Line", f"number {position}" if position else ""),
            ("Attempt", f"{job['attempt']} of {job['max_retries'] + 1}" if job["max_retries"] else ""),
            ("Tags", ", ".join(map(output.one_line, job["tags"]))),
            ("Metadata", output.labels(job["metadata"])),
            ("Exit code", "" if job.get("exit_code") is None else str(job["exit_code"])),
            ("Ray says", output.cut(output.one_line(job.get("message") or ""), 2000)),
            ("Stop asked", f"by {job['stop_requested_by']}" if job.get("stop_requested_by") else ""),
            (
                "Submitted",
                f"{output.age(job['created_at'], now)} ago by {job.get('submitted_by') or 'nobody'}",
            ),
            ("Ran", ran(job, now).removeprefix(output.dim(output.NONE))),
            ("Page", client.url + job["links"]["page"]),
        ]
    )
    for remark in [
        *job.get("notes", []),
        *(f"{one['cluster']}: {one['why']}" for one in job.get("tried") or []),
    ]:
        output.say(output.dim("- ") + output.one_line(remark))
    for other in (placement.get("others") or [])[:5]:
        output.say(output.dim("- ") + f"not {other['cluster']}: {output.one_line(other['reason'])}")
    output.say()
    output.show(*timeline(events))  # type: ignore[arg-type]


@jobs.command("stop")
@jobs_argument
@click.option("--wait", is_flag=True, help="Until they have stopped.")
@pass_settings
def stop(settings: Settings, job_ids: tuple[str, ...], wait: bool) -> None:
    """Stop jobs. The exit code is 1 when one of them is not known."""
    from schedulemesh.errors import ServerError

    client = settings.client()
    done, refused = [], 0
    for job_id in job_ids:
        try:
            done.append(client.stop_job(job_id))
        except ServerError as error:
            refused += 1
            click.echo(f"schedulemesh: {error}", err=True)
    if wait:
        done = [_ended(client, job) for job in done]
    if settings.json:
        output.document(done if len(job_ids) > 1 else (done[0] if done else None))
    else:
        for job in done:
            asked = job["state"] not in ENDED
            output.say(_sentence(job).rstrip(".") + (", asked to stop." if asked else "."))
    if refused:
        raise click.exceptions.Exit(1)


def _ended(client: Client, job: Job) -> Job:
    client.retry_for = LONG_PATIENCE
    while job["state"] not in ENDED:
        job = client.job(job["submission_id"], wait=30.0)
    return job


@jobs.command("wait")
@jobs_argument
@click.option("--timeout", type=SECONDS, metavar="TIME", help="The longest wait; for ever when left out.")
@pass_settings
def wait_command(settings: Settings, job_ids: tuple[str, ...], timeout: float | None) -> None:
    """Wait until jobs have ended. The exit code is 1 unless all succeeded."""
    if not _wait(settings, settings.client(), job_ids, timeout):
        raise click.exceptions.Exit(1)
