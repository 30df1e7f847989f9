"""Commands about the server itself: up, status, namespaces, completion, version."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from schedulemesh import __version__
from schedulemesh.cli import output
from schedulemesh.cli.context import Command, Group, Settings, complete_namespace, pass_settings
from schedulemesh.cli.pools import pool_table


@click.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Start everything on this machine; Ctrl-C stops it.",
)
@click.argument("settings", nargs=-1, type=click.UNPROCESSED)
def up(settings: tuple[str, ...]) -> None:
    """Become `server up` with this Python for Ray and the sidecar; SETTINGS are the server's own."""
    from schedulemesh import local

    program = local.binary()
    os.environ.setdefault("SCHEDULEMESH_PYTHON", sys.executable)
    sys.stdout.flush()
    try:
        os.execv(program, [program, "up", *settings])
    except OSError as error:
        raise local.LocalError(f"the server program {program} does not run here: {error}") from None


@click.command(cls=Command, short_help="Server, Ray and pools at a glance.")
@pass_settings
def status(settings: Settings) -> None:
    """Server, Ray and pools at a glance. The exit code is 1 when the server cannot do its work."""
    from schedulemesh.errors import ServerUnavailable

    client = settings.client(patience=0.0)
    try:
        checks = client.readiness()
    except ServerUnavailable:
        sentence = (
            f"no server answers at {client.url}: start one with `schedulemesh up`, "
            "or name one with --url or SCHEDULEMESH_URL"
        )
        if settings.json:
            output.document({"url": client.url, "ready": False, "error": sentence})
        raise click.ClickException(sentence) from None
    faults = [f"{part}: {why}" for part, why in checks.items() if why != "ok"]
    if "ledger" not in checks:
        raise click.ClickException(f"what answers at {client.url} is not a ScheduleMesh server")
    ready = not faults
    server, nodes, found, stats = client.server(), client.nodes(), client.pools(), client.stats()
    if settings.json:
        output.document(
            {
                "url": client.url,
                "ready": ready,
                "checks": checks,
                "server": server,
                "nodes": nodes,
                "namespace": settings.namespace,
                "running_tasks": stats["running_tasks"],
                "queued_tasks": sum(pool["queued"] for pool in found),
                "total_preemptions": stats["total_preemptions"],
                "pools": found,
            }
        )
    else:
        word = output.paint("ready", "green") if ready else output.paint("not ready", "red")
        queued = sum(pool["queued"] for pool in found)
        output.facts(
            [
                ("Server", f"{client.url}  {word}  {output.dim('version ' + server.get('version', '?'))}"),
                *(("", output.paint(fault, "red")) for fault in faults),
                ("Ray", _ray(server, nodes)),
                (
                    "Tasks",
                    f"{stats['running_tasks']:,} running, {queued:,} queued, "
                    f"{output.count(stats['total_preemptions'], 'preemption')} so far"
                    + output.dim(f"  in namespace {settings.namespace}"),
                ),
            ]
        )
        output.say()
        if found:
            output.show(*pool_table(found))
        else:
            output.say(
                f"There are no pools in namespace {settings.namespace}: "
                "`schedulemesh pools create NAME --cpu 4` makes one."
            )
    if not ready:
        raise click.exceptions.Exit(1)


def _ray(server: Any, nodes: Any) -> str:
    address = str(server.get("ray_address") or "")
    if not address:
        return output.paint("not connected", "yellow")
    known = [node for node in nodes if node.get("known", True)]
    total: dict[str, float] = {}
    for node in known:
        for name, value in node["total"].items():
            total[name] = total.get(name, 0) + value
    if address == "fake":
        return "none; agents are only pretended"
    has = f", {output.count(len(known), 'node')}: {output.amounts(total)}" if known else ""
    versions = f"  Ray {server.get('ray_version')}, Python {server.get('python_version')}"
    return address + has + output.dim(versions)


@click.group(cls=Group, default="list", short_help="Schedulers' names on the server.")
def namespaces() -> None:
    """The namespaces of the server: what schedulers' names stand for. Without a command: list them."""


name_argument = click.argument("name", shell_complete=complete_namespace)


@namespaces.command("list")
@pass_settings
def list_namespaces(settings: Settings) -> None:
    """All namespaces, and who holds them."""
    found = settings.client().namespaces()
    if settings.json:
        output.document(found)
        return
    output.show(
        ["NAMESPACE", "KIND", "HELD BY", "UNTIL"],
        [
            [
                space["name"],
                _kind(space),
                output.one_line(space.get("session_owner") or ""),
                output.clock(space["expires_at"]) if space.get("expires_at") else "",
            ]
            for space in found
        ],
    )


def _kind(space: Any) -> str:
    if space.get("closing"):
        return output.paint("being cleared", "yellow")
    return "of a session" if space.get("ephemeral") else "kept"


@namespaces.command("show")
@name_argument
@pass_settings
def show_namespace(settings: Settings, name: str) -> None:
    """Who holds a namespace, and how much there is in it."""
    space = settings.client().within(name).get_namespace()
    if settings.json:
        output.document(space)
        return
    output.facts(
        [
            ("Namespace", output.paint(space["name"], bold=True)),
            ("Kind", _kind(space)),
            ("Held by", output.one_line(space.get("session_owner") or "")),
            ("Until", output.clock(space["expires_at"]) if space.get("expires_at") else ""),
            ("Pools", f"{space['pools']:,}"),
            ("Live tasks", f"{space['live_tasks']:,}"),
            ("Agents", f"{space['agents']:,}"),
        ]
    )


@namespaces.command("delete")
@name_argument
@click.option("--force", is_flag=True, help="Whoever holds it, and whatever lives in it.")
@pass_settings
def delete_namespace(settings: Settings, name: str, force: bool) -> None:
    """Remove a namespace with its pools, policy and history.

    It is refused while something lives in it, or a session holds it, unless --force is given: that stops
    all of it.
    """
    settings.client().within(name).delete_namespace(force=force)
    if settings.json:
        output.document({"name": name, "deleted": True})
    else:
        output.say(f"Namespace {name} is {'empty' if name == 'default' else 'gone'}.")


@click.command(cls=Command, short_help="A script that completes commands and names.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script with which SHELL completes commands, options, pools and tasks.

    \b
    bash: add to ~/.bashrc      eval "$(schedulemesh completion bash)"
    zsh:  add to ~/.zshrc       eval "$(schedulemesh completion zsh)"
    fish: schedulemesh completion fish > ~/.config/fish/completions/schedulemesh.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    script = found(ctx.find_root().command, {}, "schedulemesh", "_SCHEDULEMESH_COMPLETE")
    # Not .source(): it asks the bash of this machine whether it is new enough, and prints about it.
    print(script.source_template % script.source_vars())


@click.command(cls=Command, short_help="Versions of this command and of the server.")
@pass_settings
def version(settings: Settings) -> None:
    """The versions of this command and of the server, when one answers."""
    from schedulemesh.errors import ScheduleMeshError

    url, server = "", None
    try:
        client = settings.client(patience=0.0)
        url, server = client.url, client.server()
    except ScheduleMeshError:
        pass
    if settings.json:
        output.document({"version": __version__, "python": sys.version.split()[0], "server": server})
        return
    output.facts(
        [
            ("schedulemesh", __version__),
            ("Python", sys.version.split()[0]),
            ("server", f"{server['version']} at {url}" if server else "none answers"),
        ]
    )
