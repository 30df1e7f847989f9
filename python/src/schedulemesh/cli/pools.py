"""Commands on pools."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from schedulemesh.cli import output
from schedulemesh.cli.context import (
    JSON_OBJECT,
    SECONDS,
    Group,
    Settings,
    complete_pool,
    label_option,
    pass_settings,
    resource_options,
    resources,
)
from schedulemesh.cli.output import Column

if TYPE_CHECKING:
    from schedulemesh.types import Balance, Pool

name_argument = click.argument("name", shell_complete=complete_pool)


@click.group(cls=Group, default="list", short_help="List, make and change pools.")
def pools() -> None:
    """Pools: quota with a name. Without a command: list them."""


def limit(balance: Balance) -> float:
    """What the pool may use of a resource now."""
    return balance["capacity"] + balance["borrowed"] - balance["lent"]


def taken(balance: Balance) -> float:
    """What of it is used, or promised."""
    return balance["used"] + balance["reserved"]


def balances(pool: Pool) -> dict[str, Balance]:
    """The balances of resources that the pool has, or has on loan."""
    return {b["resource"]: b for b in pool["balances"] if limit(b) or taken(b) or b["capacity"]}


def hold_words(pool: Pool) -> str:
    """Whether the pool starts tasks."""
    hold = pool.get("hold")
    if not hold:
        return output.paint("open", "green")
    word = output.paint(hold["state"], "yellow")
    if hold.get("deadline"):
        left = (output.moment(hold["deadline"]) or 0) - time.time()
        word += f", {output.duration(int(left))} left" if left >= 1 else ", over"
    return word


def pool_table(found: Sequence[Pool]) -> tuple[list[Column | str], list[list[str]]]:
    """Columns and rows, a column for each resource any pool has."""
    names = output.in_order(name for pool in found for name in balances(pool))
    columns: list[Column | str] = [
        "POOL",
        "STATE",
        Column("RUNNING", right=True),
        Column("QUEUED", right=True),
    ]
    columns += [Column(output.resource_name(name).upper(), right=True) for name in names]
    columns.append(Column("LABELS", flexible=True))
    rows = []
    for pool in found:
        has = balances(pool)
        row = [pool["name"], hold_words(pool), f"{pool['running']:,}", f"{pool['queued']:,}"]
        row += [
            share_words(name, has[name], "/") if name in has else output.dim(output.NONE) for name in names
        ]
        rows.append([*row, output.labels(pool["labels"])])
    return columns, rows


def share_words(name: str, balance: Balance, of: str) -> str:
    """What is taken, and of how much: "3/4", "2/8 GiB"."""
    most = output.amount(name, limit(balance))
    now = output.amount(name, taken(balance))
    if now.split()[-1:] == most.split()[-1:]:
        now = now.split()[0]  # one unit is enough
    return f"{now}{of}{most}"


@pools.command("list")
@pass_settings
def list_pools(settings: Settings) -> None:
    """All pools: who runs and waits, and what is taken of their quota."""
    found = settings.client().pools()
    if settings.json:
        output.document(found)
    elif found:
        output.show(*pool_table(found))
    else:
        output.say(f"There are no pools in namespace {settings.namespace}.")


def show_pool(settings: Settings, pool: Pool) -> None:
    """Print one pool."""
    if settings.json:
        output.document(pool)
        return
    hold = pool.get("hold")
    output.facts(
        [
            ("Pool", output.paint(pool["name"], bold=True)),
            (
                "State",
                hold_words(pool)
                + (f": {output.one_line(hold['reason'])}" if hold and hold["reason"] else ""),
            ),
            ("Held by", f"{hold['by']}, {output.age(hold['since'])} ago" if hold else ""),
            ("Deadline", output.clock(hold["deadline"]) if hold and hold.get("deadline") else ""),
            ("Tasks", f"{pool['running']:,} running, {pool['queued']:,} queued"),
            ("Labels", output.labels(pool["labels"])),
            ("Agents", f"{pool['target_agents']} wanted" if pool["target_agents"] else ""),
            ("Placement", pool["placement_strategy"]),
            ("Longest run", output.duration(pool["max_runtime"] or 0) if pool.get("max_runtime") else ""),
            ("Cluster", pool["cluster"]),
            ("Made", f"{output.age(pool['created_at'])} ago"),
        ]
    )
    has = balances(pool)
    if has:
        output.say()
        heads = ["capacity", "used", "reserved", "borrowed", "lent", "free"]
        output.show(
            ["RESOURCE", *(Column(head.upper(), right=True) for head in heads)],
            [
                [output.resource_name(name), *(output.amount(name, has[name][head]) for head in heads)]  # type: ignore[literal-required]
                for name in output.in_order(has)
            ],
        )
    if pool["loans"]:
        output.say()
        output.show(
            ["LENT BY", "TO", Column("AMOUNT", right=True), "OF"],
            [
                [
                    loan["lender"],
                    loan["borrower"],
                    output.amount(loan["resource"], loan["amount"]),
                    output.resource_name(loan["resource"]),
                ]
                for loan in pool["loans"]
            ],
        )


@pools.command("show")
@name_argument
@pass_settings
def show_command(settings: Settings, name: str) -> None:
    """One pool: its balances, loans, labels and placement groups."""
    client = settings.client()
    pool = client.pool(name)
    show_pool(settings, pool)
    if not settings.json and pool.get("pg_pool_config"):
        show_groups(client.placement_groups(name))


def show_groups(groups: dict[str, Any]) -> None:
    """Print a pool's placement groups, with who sits in them."""
    output.say()
    if not groups["items"]:
        output.say("No placement groups.")
        return
    output.show(
        ["PLACEMENT GROUP", "TIER", "STATE", "SIZE", "TASKS", Column("REUSED", right=True)],
        [
            [
                group["name"],
                group["tier"],
                group["state"] + (", leaving" if group["leaving"] else ""),
                " + ".join(output.amounts(bundle) for bundle in group["bundles"]),
                ", ".join(one["task_id"] or one["agent_name"] for one in group["occupants"]) or "-",
                f"{group['reuse_count']:,}",
            ]
            for group in groups["items"]
        ],
    )


def _settings_of_a_pool(command: Any) -> Any:
    for option in (
        click.option("--cluster", metavar="NAME", help="The Ray cluster its agents run on."),
        click.option("--pg-pool-config", type=JSON_OBJECT, metavar="JSON", help="Placement groups it keeps."),
        click.option("--placement-strategy", metavar="NAME", help="Ray's: PACK, SPREAD, …"),
        click.option(
            "--max-runtime", type=SECONDS, metavar="TIME", help="Of any task in it; 0 for no bound."
        ),
        click.option(
            "--target-agents", type=int, metavar="N", help="An agent's default size is capacity / N."
        ),
        label_option,
        resource_options,
    ):
        command = option(command)
    return command


def _fields(
    cpu: float | None,
    gpu: float | None,
    memory: float | None,
    resource: tuple[tuple[str, float], ...],
    labels: tuple[tuple[str, str], ...],
    **more: Any,
) -> dict[str, Any]:
    fields = {name: value for name, value in more.items() if value is not None}
    if wanted := resources(cpu, gpu, memory, resource):
        fields["resources"] = wanted
    if labels:
        fields["labels"] = dict(labels)
    return fields


@pools.command("create")
@click.argument("name")
@_settings_of_a_pool
@pass_settings
def create(settings: Settings, /, name: str, **options: Any) -> None:
    """Make a pool with its quota."""
    show_pool(settings, settings.client().create_pool(name, **_fields(**options)))


@pools.command("set")
@name_argument
@_settings_of_a_pool
@click.option("--no-label", "without", multiple=True, metavar="KEY", help="Take a label away. Repeatable.")
@pass_settings
def set_command(settings: Settings, /, name: str, without: tuple[str, ...], **options: Any) -> None:
    """Change a pool. Resources and labels that are not named stay as they are; 0 takes a resource away."""
    fields = _fields(**options)
    client = settings.client()
    pool = client.pool(name)
    if "resources" in fields:
        fields["resources"] = {**pool["resources"], **fields["resources"]}
    if "labels" in fields or without:
        absent = [key for key in without if key not in pool["labels"]]
        if absent:
            raise click.ClickException(f"pool {name!r} has no label {absent[0]!r}")
        both = {**pool["labels"], **fields.get("labels", {})}
        fields["labels"] = {key: value for key, value in both.items() if key not in without}
    if not fields:
        raise click.UsageError("nothing to change: give --cpu, --label or another option")
    show_pool(settings, client.update_pool(name, **fields))


@pools.command("delete")
@name_argument
@pass_settings
def delete(settings: Settings, name: str) -> None:
    """Remove an empty pool."""
    settings.client().delete_pool(name)
    if settings.json:
        output.document({"name": name, "deleted": True})
    else:
        output.say(f"Pool {name} is gone.")


reason_option = click.option("--reason", default="", metavar="TEXT", help="For whoever wonders.")


@pools.command("hold")
@name_argument
@reason_option
@pass_settings
def hold(settings: Settings, name: str, reason: str) -> None:
    """Start nothing in a pool until it is resumed; what runs goes on."""
    show_pool(settings, settings.client().hold_pool(name, reason=reason))


@pools.command("drain")
@name_argument
@reason_option
@click.option(
    "--deadline", type=SECONDS, metavar="TIME", help="When what still runs is taken; never if left out."
)
@pass_settings
def drain(settings: Settings, name: str, reason: str, deadline: float | None) -> None:
    """Hold a pool and, at a deadline, preempt what still runs in it."""
    show_pool(settings, settings.client().drain_pool(name, reason=reason, deadline=deadline))


@pools.command("resume")
@name_argument
@pass_settings
def resume(settings: Settings, name: str) -> None:
    """End a hold or a drain."""
    show_pool(settings, settings.client().resume_pool(name))
