"""What all commands share: which server they ask, their global options, and how values are written."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from schedulemesh.client import Client

    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # not generic before click 8.2

F = TypeVar("F", bound=Callable[..., Any])

#: For how long a command looks for a server that does not answer, in seconds. A person waits.
PATIENCE = 1.0
#: The same for one that follows something, and should outlast a restart of the server.
LONG_PATIENCE = 60.0


@dataclass
class Settings:
    """The global options."""

    url: str = ""
    token_file: str = ""
    namespace: str = "default"
    json: bool = False

    def client(self, patience: float = PATIENCE) -> Client:
        """The server these options name.

        Raises:
            click.ClickException: the token file cannot be read.
        """
        from schedulemesh.client import Client

        token = None
        if self.token_file:
            try:
                token = Path(self.token_file).read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise click.ClickException(
                    f"the token file {self.token_file} cannot be read: {error}"
                ) from None
        return Client(self.url or None, token, namespace=self.namespace, retry_for=patience)


pass_settings = click.make_pass_decorator(Settings, ensure=True)


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    settings = ctx.ensure_object(Settings)
    if value and param.name:
        setattr(settings, param.name.removeprefix("global_"), value)


def _global_options(hidden: bool) -> list[click.Option]:
    def option(*names: str, **more: Any) -> click.Option:
        return click.Option(list(names), expose_value=False, callback=_keep, hidden=hidden, **more)

    return [
        option("--url", metavar="URL", help="The server; SCHEDULEMESH_URL, or the one on this machine."),
        option("--token-file", metavar="FILE", help="The access token; found by itself on this machine."),
        option(
            "-n",
            "--namespace",
            metavar="NAME",
            envvar=None if hidden else "SCHEDULEMESH_NAMESPACE",
            shell_complete=complete_namespace,
            help="A scheduler's name; SCHEDULEMESH_NAMESPACE, or default.",
        ),
        option(
            "--json", "global_json", is_flag=True, help="JSON instead of tables; a line each when following."
        ),
    ]


class Command(click.Command):
    """A command that takes the global options, too: people write them last."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _global_options(hidden=True)


class Group(click.Group):
    """Commands on one kind of thing. Without the name of one it lists them."""

    command_class = Command

    def __init__(self, *args: Any, default: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.default = default
        self.params += _global_options(hidden=bool(default))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order they were added, the most used first."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default command in where none is named."""
        if self.default and not ctx.resilient_parsing and not {"--help", *self.commands} & set(args[:1]):
            rest = list(args)
            while rest and rest[0] in ("--json", "-n", "--namespace", "--url", "--token-file"):
                rest = rest[1:] if rest[0] == "--json" else rest[2:]
            if not rest or rest[0].startswith("-"):
                args = [self.default, *args]
        return super().parse_args(ctx, args)


# Values.


class _Type(_ParamType):
    """A value read by a function, whose ValueError says what is wrong."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not a number")
    return number


def _seconds(text: str) -> float:
    match = re.fullmatch(r"([\d.]+)\s*(s|m|min|h|d)?", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a time; write seconds, or 90s, 15m, 2h, 1d")
    return _number(match[1]) * {"m": 60, "min": 60, "h": 3600, "d": 86400}.get(match[2] or "", 1)


def _memory(text: str) -> float:
    match = re.fullmatch(r"([\d.]+)\s*([mgt])?(i?b)?", text.strip(), re.IGNORECASE)
    if match is None or (match[3] and not match[2]):
        raise ValueError(f"{text!r} is not an amount of memory; write MiB, or 512MiB, 4GiB, 1TiB")
    return _number(match[1]) * {"g": 1024, "t": 1024 * 1024}.get((match[2] or "").lower(), 1)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        hint = f"; a string needs quotes of its own, as in '\"{text}\"'" if text.isidentifier() else ""
        raise ValueError(f"{text!r} is not JSON ({error}){hint}") from None


def _json_object(text: str) -> Any:
    value = _json(text)
    if not isinstance(value, dict):
        raise ValueError(f'{text!r} is not a JSON object; one looks like {{"steps": 100}}')
    return value


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"{text!r} is not key=value")
    return key, value


def _amount(text: str) -> tuple[str, float]:
    name, value = _pair(text)
    return name, _number(value)


NUMBER = _Type("number", _number)
SECONDS = _Type("time", _seconds)
MEMORY = _Type("memory", _memory)
JSON = _Type("json", _json)
JSON_OBJECT = _Type("json", _json_object)
PAIR = _Type("key=value", _pair)
AMOUNT = _Type("name=amount", _amount)


def resource_options(command: F) -> F:
    """--cpu, --gpu, --memory and --resource; :func:`resources` puts them together."""
    for option in (
        click.option("--resource", type=AMOUNT, multiple=True, metavar="NAME=N", help="Of anything else."),
        click.option("--memory", type=MEMORY, metavar="N", help="MiB, or 512MiB, 4GiB."),
        click.option("--gpu", type=NUMBER, metavar="N", help="Cards."),
        click.option("--cpu", type=NUMBER, metavar="N", help="Cores."),
    ):
        command = option(command)
    return command


def resources(
    cpu: float | None, gpu: float | None, memory: float | None, resource: tuple[tuple[str, float], ...]
) -> dict[str, float]:
    """The resources that were named."""
    named = {"cpu": cpu, "gpu": gpu, "memory": memory}
    return {name: amount for name, amount in named.items() if amount is not None} | dict(resource)


label_option = click.option(
    "--label", "labels", type=PAIR, multiple=True, metavar="KEY=VALUE", help="Repeatable."
)


# Completion in the shell: what the server knows. Silent when there is none.


def _completer(names: Callable[[Client, str], list[str]]) -> Callable[..., list[CompletionItem]]:
    def complete(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        try:
            client = ctx.ensure_object(Settings).client(patience=0.0)
            client.timeout = 2.0
            return [CompletionItem(name) for name in names(client, typed) if name.startswith(typed)]
        except Exception:
            return []

    return complete


def _task_names(client: Client, typed: str) -> list[str]:
    return list(dict.fromkeys(task["task_id"] for task in client.tasks(text=typed, limit=200)))


def _job_names(client: Client, typed: str) -> list[str]:
    return [job["submission_id"] for job in client.jobs(text=typed, limit=200)]


complete_task = _completer(_task_names)
complete_task_or_job = _completer(
    lambda client, typed: _task_names(client, typed) + _job_names(client, typed)
)
complete_job = _completer(lambda client, typed: _job_names(client, typed))
complete_cluster = _completer(lambda client, _: [cluster["name"] for cluster in client.clusters()])
complete_pool = _completer(lambda client, _: [pool["name"] for pool in client.pools()])
complete_agent = _completer(lambda client, _: [agent["name"] for agent in client.agents()])
complete_namespace = _completer(lambda client, _: [space["name"] for space in client.namespaces()])
