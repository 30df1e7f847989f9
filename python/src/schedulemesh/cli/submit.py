"""``schedulemesh submit``."""

from __future__ import annotations

import json
from typing import IO, Any

import click

from schedulemesh.cli import output
from schedulemesh.cli.context import (
    JSON,
    JSON_OBJECT,
    LONG_PATIENCE,
    NUMBER,
    SECONDS,
    Command,
    Settings,
    complete_pool,
    label_option,
    pass_settings,
    resource_options,
    resources,
)
from schedulemesh.cli.tasks import finish, until


@click.command(cls=Command, short_help="Submit a task, from options or a JSON file.")
@click.argument("file", type=click.File("rb"), required=False, metavar="[FILE]")
@click.option("--id", "task_id", metavar="ID", help="Unique among live tasks; made up when left out.")
@click.option("--pool", shell_complete=complete_pool, metavar="POOL", help="The pool that is charged.")
@click.option("--class", "actor_class", metavar="MODULE:CLASS", help="The class its agent is made of.")
@click.option(
    "--actor-arg", type=JSON, multiple=True, metavar="JSON", help="For its constructor. Repeatable."
)
@click.option("--actor-kwargs", type=JSON_OBJECT, metavar="JSON", help="The same by name, as an object.")
@click.option("--entry", metavar="METHOD", help="Called once it runs; its return completes the task.")
@click.option("--arg", type=JSON, multiple=True, metavar="JSON", help="For the method. Repeatable.")
@click.option("--kwargs", type=JSON_OBJECT, metavar="JSON", help="The same by name, as an object.")
@resource_options
@click.option("--priority", type=NUMBER, metavar="N", help="Higher goes first; 5 when left out.")
@label_option
@click.option("--estimate", type=SECONDS, metavar="TIME", help="How long it runs: 90, 15m, 2h.")
@click.option("--max-runtime", type=SECONDS, metavar="TIME", help="After which it is stopped as failed.")
@click.option("--queue", is_flag=True, help="Wait in line when there is no room, rather than fail.")
@click.option("--queue-timeout", type=SECONDS, metavar="TIME", help="The longest wait in line.")
@click.option("--requeue", is_flag=True, help="Once preempted, wait for another turn with the saved state.")
@click.option("--attempts", type=click.IntRange(1, 1000), metavar="N", help="Try so often when it fails.")
@click.option("--wait", is_flag=True, help="Until it has ended; the exit code is 1 unless it completed.")
@pass_settings
def submit(
    settings: Settings,
    file: IO[bytes] | None,
    task_id: str | None,
    pool: str | None,
    actor_class: str | None,
    actor_arg: tuple[Any, ...],
    actor_kwargs: dict[str, Any] | None,
    entry: str | None,
    arg: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    cpu: float | None,
    gpu: float | None,
    memory: float | None,
    resource: tuple[tuple[str, float], ...],
    priority: float | None,
    labels: tuple[tuple[str, str], ...],
    estimate: float | None,
    max_runtime: float | None,
    queue: bool,
    queue_timeout: float | None,
    requeue: bool,
    attempts: int | None,
    wait: bool,
) -> None:
    """Submit a task.

    FILE has one as JSON, as POST /api/v1/tasks takes it, with - for the standard input; options go before
    what it says. Whoever has to make way for the task is preempted.

    \b
    schedulemesh submit --pool train --gpu 1 --class my_project.train:Trainer --entry run --requeue
    """
    task = _read(file) if file else {}
    given: dict[str, Any] = {
        "task_id": task_id,
        "pool": pool,
        "actor_class": actor_class,
        "actor_args": list(actor_arg) or None,
        "actor_kwargs": actor_kwargs,
        "priority": priority,
        "estimated_duration": estimate,
        "max_runtime": max_runtime,
        "on_insufficient": "queue" if queue or queue_timeout is not None else None,
        "queue_timeout": queue_timeout,
        "on_preempted": "requeue" if requeue else None,
        "on_failure": "requeue" if attempts and attempts > 1 else None,
        "max_attempts": attempts,
    }
    task.update({name: value for name, value in given.items() if value is not None})
    if wanted := resources(cpu, gpu, memory, resource):
        task["resources"] = {**_object(task, "resources"), **wanted}
    if labels:
        task["labels"] = {**_object(task, "labels"), **dict(labels)}
    if entry or arg or kwargs:
        call = _object(task, "entry")
        call.update({k: v for k, v in {"method": entry, "args": list(arg), "kwargs": kwargs}.items() if v})
        if "method" not in call:
            raise click.UsageError(
                "--arg and --kwargs are for the method that --entry names; "
                "for the constructor there are --actor-arg and --actor-kwargs"
            )
        task["entry"] = call
    if "pool" not in task:
        raise click.UsageError("name the pool to charge with --pool; `schedulemesh pools` lists them")

    client = settings.client()
    submitted = client.submit(task)
    if wait:
        if not settings.json:
            click.echo(f"Task {submitted['task_id']} is {submitted['state']}.", err=True)
        client.retry_for = LONG_PATIENCE
        finish(settings, until(client, submitted))
    elif settings.json:
        output.document(submitted)
    else:
        because = output.one_line(submitted.get("reason") or "")
        output.say(
            f"Task {submitted['task_id']} is {output.state(submitted['state'])} in {submitted['pool']}"
            + (f": {because}" if because else ".")
        )


def _read(file: IO[bytes]) -> dict[str, Any]:
    try:
        task = json.loads(file.read())
    except (ValueError, RecursionError) as error:
        raise click.ClickException(f"{file.name} is not JSON: {error}") from None
    if not isinstance(task, dict):
        raise click.ClickException(f"{file.name} must have one task, as a JSON object")
    return task


def _object(task: dict[str, Any], field: str) -> dict[str, Any]:
    value = task.get(field) or {}
    if not isinstance(value, dict):
        raise click.ClickException(f"{field} in the file must be a JSON object")
    return dict(value)
