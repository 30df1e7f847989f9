"""``schedulemesh preempt`` and ``evaluate``."""

from __future__ import annotations

import json
from typing import Any

import click

from schedulemesh.cli import output
from schedulemesh.cli.context import (
    NUMBER,
    Command,
    Settings,
    complete_agent,
    complete_pool,
    complete_task,
    label_option,
    pass_settings,
    resource_options,
    resources,
)
from schedulemesh.cli.output import Column

#: Why a task may be preempted, in words.
REASONS = {
    "label_based_preemption": "by label",
    "same_pool_preemption": "same pool",
    "cross_pool_preemption": "other pool",
    "manual": "by hand",
}


@click.command(cls=Command, short_help="Preempt a task by hand.")
@click.argument("task_id", metavar="[TASK]", required=False, default="", shell_complete=complete_task)
@click.option(
    "--agent", default="", shell_complete=complete_agent, metavar="NAME", help="What runs on this agent."
)
@pass_settings
def preempt(settings: Settings, task_id: str, agent: str) -> None:
    """Preempt TASK by hand: it is cancelled and its state saved; its agent stays, idle."""
    if not task_id and not agent:
        raise click.UsageError("name a task, or an agent with --agent")
    done = settings.client().execute(task_id=task_id, agent_name=agent)
    if settings.json:
        output.document(done)
    elif done["success"]:
        stopped = "stopped" if done["cancel_success"] else "did not say that it stopped"
        saved = "its state is saved" if done["saved_state"] is not None else "it saved no state"
        output.say(f"Task {done['task_id']} is preempted: it {stopped}, {saved}.")
        if done["error"]:
            output.say(output.paint(output.one_line(done["error"]), "yellow"))
        if done["saved_state"] is not None:
            output.say(json.dumps(done["saved_state"], indent=2, ensure_ascii=False))
    else:
        raise click.ClickException(
            f"task {done['task_id']!r} was not preempted: {done['error'] or done['phase']}"
        )
    if not done["success"]:
        raise click.exceptions.Exit(1)


@click.command(cls=Command, short_help="Who would make way for a task; changes nothing.")
@click.option(
    "--pool", required=True, shell_complete=complete_pool, metavar="POOL", help="Where it would be submitted."
)
@click.option("--priority", type=NUMBER, metavar="N", help="5 when left out.")
@label_option
@resource_options
@click.option("--limit", type=click.IntRange(1, 10_000), metavar="N", help="The most candidates; 100.")
@pass_settings
def evaluate(
    settings: Settings,
    pool: str,
    priority: float | None,
    labels: tuple[tuple[str, str], ...],
    cpu: float | None,
    gpu: float | None,
    memory: float | None,
    resource: tuple[tuple[str, float], ...],
    limit: int | None,
) -> None:
    """Who would make way for a task, were it submitted now. Nothing is changed.

    With resources it also says whether the task fits, and whom exactly it would take.
    """
    request: dict[str, Any] = {"pool": pool, "priority": priority, "limit": limit}
    request = {name: value for name, value in request.items() if value is not None}
    if labels:
        request["labels"] = dict(labels)
    if wanted := resources(cpu, gpu, memory, resource):
        request["resources"] = wanted
    found = settings.client().evaluate(**request)
    if settings.json:
        output.document(found)
        return
    decision = found.get("decision")
    if decision:
        output.say(_decision(decision))
    elif found["candidates"]:
        output.say(f"{output.count(len(found['candidates']), 'task')} could be preempted for it.")
    else:
        output.say("Nobody could be preempted for it.")
    victims = {task["task_id"] for victim in (decision or {}).get("victims", []) for task in victim["tasks"]}
    if found["candidates"]:
        output.say()
        output.show(
            [
                "CANDIDATE",
                "POOL",
                Column("PRIORITY", right=True),
                Column("SCORE", right=True),
                Column("LEFT", right=True),
                "WHY",
                "AGENT",
                "",
            ],
            [
                [
                    candidate["task_id"],
                    candidate["pool_name"],
                    output.number(candidate["priority"]),
                    output.number(candidate["preempt_score"]),
                    output.duration(candidate["remaining_time"])
                    if candidate["remaining_time"]
                    else output.NONE,
                    _why(candidate),
                    candidate["agent_name"],
                    output.paint("would be taken", "magenta") if candidate["task_id"] in victims else "",
                ]
                for candidate in found["candidates"]
            ],
        )
    output.say()
    output.say(output.dim(f"By version {found['policy_version']} of the policy."))


def _decision(decision: dict[str, Any]) -> str:
    if decision["outcome"] == "admit":
        return output.paint("It fits as things are.", "green")
    if decision["outcome"] == "refuse":
        return output.paint("It does not fit: ", "red") + output.one_line(decision["refusal"]["message"])
    n = sum(len(victim["tasks"]) for victim in decision["victims"])
    return output.paint(f"It fits once {output.count(n, 'task')} made way.", "magenta")


def _why(candidate: Any) -> str:
    words = REASONS.get(candidate["reason"], candidate["reason"])
    rule = candidate.get("label")
    return f"{words}: {rule['key']} {rule['by']} over {rule['over']}" if rule else words
