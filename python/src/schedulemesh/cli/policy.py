"""Commands on the policy: the rules by which tasks make way."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from schedulemesh.cli import output
from schedulemesh.cli.context import Group, Settings, pass_settings
from schedulemesh.cli.output import Column

comment_option = click.option("-m", "--comment", default="", metavar="TEXT", help="Why.")
version_type = click.IntRange(min=1)


@click.group(cls=Group, default="show", short_help="Show, edit, compare and roll back the rules.")
def policy() -> None:
    """The rules by which tasks make way, in versions. Without a command: show them."""


@policy.command("show")
@click.argument("version", type=version_type, required=False)
@pass_settings
def show(settings: Settings, version: int | None) -> None:
    """The active policy, or one VERSION of it."""
    client = settings.client()
    found: Mapping[str, Any] = client.policy() if version is None else client.policy_version(version)
    if settings.json:
        output.document(found)
        return
    _headline(found)
    output.facts((field, _words(value)) for field, value in found["policy"].items())
    _warn(found["warnings"])


def _headline(found: Mapping[str, Any]) -> None:
    by = f" by {found['author']}" if found["author"] else ""
    comment = f": {output.one_line(found['comment'])}" if found["comment"] else ""
    output.say(
        output.paint(f"Version {found['version']}", bold=True)
        + f", {output.age(found['created_at'])} ago{by}{comment}"
    )


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return output.number(value)
    if isinstance(value, str):
        return value
    if not value:
        return "none"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    rules = [
        f"{key}: {by} over {', '.join(over)}"
        for key, values in sorted(value.items())
        for by, over in values.items()
    ]
    return "; ".join(rules) or "none"


def _warn(warnings: list[str]) -> None:
    for warning in warnings:
        click.echo(f"warning: {output.one_line(warning)}", err=True)


@policy.command("edit")
@comment_option
@pass_settings
def edit(settings: Settings, comment: str) -> None:
    """Change the policy in your editor ($VISUAL or $EDITOR), as JSON.

    What you leave is checked first. It is refused when somebody else changed the policy meanwhile; your
    text is kept then.
    """
    import tempfile

    from schedulemesh.errors import ScheduleMeshError

    client = settings.client()
    active = client.policy()
    before = json.dumps(active["policy"], indent=2, ensure_ascii=False) + "\n"
    handle, name = tempfile.mkstemp(prefix="policy-", suffix=".json")
    path = Path(name)
    keep = False
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(before)
        while True:
            _open_editor(path)
            text = path.read_text(encoding="utf-8")
            changed, why = _changed(text, active["policy"])
            if changed is None and not why:
                output.say("Nothing was changed.")
                return
            if changed is not None and not (why := _faults(client.validate_policy(changed))):
                new = client.put_policy(changed, comment=comment, base=active["version"])
                break
            keep = True
            if not sys.stdin.isatty():
                raise click.ClickException(f"nothing was changed: {why}; your text is in {path}")
            click.echo(why, err=True)
            if not click.confirm("Edit it again?", default=True, err=True):
                raise click.ClickException(f"nothing was changed; your text is in {path}")
            keep = False
    except ScheduleMeshError as error:
        keep = True
        raise click.ClickException(f"{error}; nothing was changed, and your text is in {path}") from None
    finally:
        if not keep:
            path.unlink(missing_ok=True)
    _changed_to(settings, new, client.policy_version(new["version"])["changes"])


def _open_editor(path: Path) -> None:
    import shlex
    import shutil
    import subprocess

    named = os.environ.get("VISUAL") or os.environ.get("EDITOR") or ""
    try:
        command = shlex.split(named) if named else [e for e in ("nano", "vim", "vi") if shutil.which(e)][:1]
    except ValueError as error:
        raise click.ClickException(f"EDITOR is {named!r}, which is no command: {error}") from None
    if not command:
        raise click.ClickException("there is no editor here: name one in EDITOR")
    try:
        code = subprocess.run([*command, str(path)], check=False).returncode
    except OSError as error:
        raise click.ClickException(f"the editor {command[0]!r} does not start: {error.strerror}") from None
    if code:
        raise click.ClickException(f"nothing was changed: the editor {command[0]!r} ended with code {code}")


def _changed(text: str, active: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """The policy in the text, None when it is the active one; or else why it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        return None, f"this is not JSON: {error}"
    if not isinstance(found, dict):
        return None, "a policy is a JSON object"
    return (None, "") if found == active else (found, "")


def _faults(check: dict[str, Any]) -> str:
    if check["valid"]:
        return ""
    return "; ".join(f"{e['field'].removeprefix('policy.')}: {e['message']}" for e in check["errors"])


def _changed_to(settings: Settings, new: Mapping[str, Any], changes: list[dict[str, str]]) -> None:
    if settings.json:
        output.document({**new, "changes": changes})
        return
    output.say(f"Version {new['version']} is active.")
    _show_changes(changes)
    _warn(new["warnings"])


def _show_changes(changes: list[dict[str, str]]) -> None:
    if changes:
        output.show(
            ["FIELD", "BEFORE", "AFTER"],
            [
                [c["field"], output.paint(_gone(c["old"]), "red"), output.paint(_gone(c["new"]), "green")]
                for c in changes
            ],
        )


def _gone(text: str) -> str:
    return output.one_line(text) or output.NONE


@policy.command("diff")
@click.argument("old", metavar="[A]", type=version_type, required=False)
@click.argument("new", metavar="[B]", type=version_type, required=False)
@pass_settings
def diff(settings: Settings, old: int | None, new: int | None) -> None:
    """What differs from version A to version B.

    Without B: from A to the active one. Without both: what the latest change was.
    """
    client = settings.client()
    later = new or client.policy()["version"]
    found = client.policy_version(later, against=old or 0)
    if settings.json:
        output.document({"from": found["against"], "to": later, "changes": found["changes"]})
    elif found["changes"]:
        output.say(output.dim(f"From version {found['against']} to version {later}:"))
        _show_changes(found["changes"])
    elif found["against"]:
        output.say(f"Versions {found['against']} and {later} do not differ.")
    else:
        output.say("There is only version 1.")


@policy.command("rollback")
@click.argument("version", type=version_type)
@comment_option
@pass_settings
def rollback(settings: Settings, version: int, comment: str) -> None:
    """Make an old VERSION the active one, as a new version."""
    client = settings.client()
    new = client.rollback_policy(version, comment=comment)
    _changed_to(settings, new, client.policy_version(new["version"])["changes"])


@policy.command("history")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, metavar="N")
@pass_settings
def history(settings: Settings, limit: int) -> None:
    """The versions, newest first."""
    found = settings.client().policy_versions(limit=limit)
    if settings.json:
        output.document(found)
        return
    output.show(
        [Column("VERSION", right=True), Column("AGE", right=True), "BY", Column("COMMENT", flexible=True)],
        [
            [str(v["version"]), output.age(v["created_at"]), v["author"] or "", output.one_line(v["comment"])]
            for v in found
        ],
    )
