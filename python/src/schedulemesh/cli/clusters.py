"""Commands on the Ray clusters that jobs may go to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from schedulemesh.cli import output
from schedulemesh.cli.context import Group, Settings, complete_cluster, pass_settings
from schedulemesh.cli.output import Column

if TYPE_CHECKING:
    from schedulemesh.types import Cluster

name_argument = click.argument("name", shell_complete=complete_cluster)


@click.group(cls=Group, default="list", short_help="List, hold and import the clusters that jobs may go to.")
def clusters() -> None:
    """Ray clusters that jobs may go to. Without a command: list them."""


def state_words(cluster: Cluster) -> str:
    """How it is, and whether jobs may go there."""
    word = output.state(cluster["state"])
    return word + ", " + output.paint("held", "yellow") if cluster.get("hold") else word


def cluster_table(found: Sequence[Cluster]) -> tuple[list[Column | str], list[list[str]]]:
    """Columns and rows, a column for each resource any cluster has."""
    names = output.in_order(name for one in found for name in one["resources"]["total"])
    columns: list[Column | str] = [
        "CLUSTER",
        "STATE",
        Column("HEALTH", right=True),
        Column("JOBS", right=True),
    ]
    columns += [Column(output.resource_name(name).upper(), right=True) for name in names]
    columns.append(Column("NOTE", flexible=True))
    rows = []
    for one in found:
        total, used = one["resources"]["total"], one["resources"]["used"]
        row = [one["name"], state_words(one), f"{one['score']:.2f}", f"{sum(one['jobs'].values()):,}"]
        for name in names:
            if name not in total:
                row.append(output.dim(output.NONE))
                continue
            most, now = output.amount(name, total[name]), output.amount(name, used.get(name, 0.0))
            if now.split()[-1:] == most.split()[-1:] or not used.get(name):
                now = now.split()[0]  # one unit is enough
            row.append(f"{now}/{most}")
        rows.append([*row, output.one_line(one["error"] or "; ".join(one["reasons"]))])
    return columns, rows


@clusters.command("list")
@pass_settings
def list_clusters(settings: Settings) -> None:
    """All clusters: how they are, and what of their resources is taken."""
    found = settings.client().clusters()
    if settings.json:
        output.document(found)
    else:
        _show_all(found)


def _show_all(found: Sequence[Cluster]) -> None:
    if found:
        output.show(*cluster_table(found))
    else:
        output.say("There are no clusters; `schedulemesh clusters import clusters.yaml` makes some.")


def _show(settings: Settings, cluster: Cluster) -> None:
    if settings.json:
        output.document(cluster)
        return
    hold, room = cluster.get("hold"), cluster["resources"]
    output.facts(
        [
            ("Cluster", output.paint(cluster["name"], bold=True)),
            ("State", state_words(cluster)),
            ("Error", output.one_line(cluster["error"])),
            ("Held", f"by {hold['by']}: {output.one_line(hold['reason'])}".rstrip(": ") if hold else ""),
            ("Health", f"{cluster['score']:.2f}" + "".join(f"; {why}" for why in cluster["reasons"])),
            ("Breaker", cluster["breaker"] if cluster["breaker"] != "closed" else ""),
            ("Head", cluster["head_address"]),
            ("Dashboard", cluster["dashboard"]),
            ("Ray", cluster["ray_version"]),
            ("Has", output.amounts(room["total"])),
            ("Free", output.amounts(room["free"])),
            ("Nodes", str(cluster["alive_nodes"]) if cluster["alive_nodes"] else ""),
            ("Weight", output.number(cluster["weight"]) + (", preferred" if cluster["prefer"] else "")),
            ("Tags", ", ".join(map(output.one_line, cluster["tags"]))),
            ("Jobs", ", ".join(f"{count:,} {state}" for state, count in sorted(cluster["jobs"].items()))),
            ("Said by", {"file": "clusters.yaml", "local": "this server"}.get(cluster["source"], "")),
        ]
    )


@clusters.command("show")
@name_argument
@pass_settings
def show(settings: Settings, name: str) -> None:
    """One cluster."""
    _show(settings, settings.client().cluster(name))


@clusters.command("hold")
@name_argument
@click.option("--reason", default="", metavar="TEXT", help="For whoever wonders.")
@pass_settings
def hold(settings: Settings, name: str, reason: str) -> None:
    """Send no new jobs to a cluster until it is resumed; what runs there goes on."""
    _show(settings, settings.client().hold_cluster(name, reason=reason))


@clusters.command("resume")
@name_argument
@pass_settings
def resume(settings: Settings, name: str) -> None:
    """End a hold."""
    _show(settings, settings.client().resume_cluster(name))


@clusters.command("import")
@click.argument("file", type=click.Path(allow_dash=True))
@pass_settings
def import_command(settings: Settings, file: str) -> None:
    """Make or change the clusters that a clusters.yaml names; none is removed. - is the standard input."""
    from schedulemesh.errors import Invalid

    try:
        with click.open_file(file, encoding="utf-8") as opened:
            text = opened.read()
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file} cannot be read: {error}") from None
    try:
        found = settings.client().import_clusters(text, file="" if file == "-" else file)
    except Invalid as error:
        raise click.ClickException(str(error)) from None
    if settings.json:
        output.document(found)
    else:
        _show_all(found)


@clusters.command("delete")
@name_argument
@pass_settings
def delete(settings: Settings, name: str) -> None:
    """Forget a cluster on which no job is live. Ray itself is left alone."""
    settings.client().delete_cluster(name)
    if settings.json:
        output.document({"name": name, "deleted": True})
    else:
        output.say(f"Cluster {name} is gone.")
