"""``schedulemesh top``: pools, tasks and preemptions on one screen, as they are now."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from schedulemesh.cli import output
from schedulemesh.cli.context import SECONDS, Command, Settings, pass_settings
from schedulemesh.cli.output import Column
from schedulemesh.cli.pools import balances, hold_words, limit, share_words, taken
from schedulemesh.cli.preemption import REASONS
from schedulemesh.cli.tasks import note, ran, starts

if TYPE_CHECKING:
    from schedulemesh.client import Client
    from schedulemesh.types import Balance, Pool, Preemption, PreemptionStats, Task

#: How wide bars may be, where there is room.
_BARS = (12, 8, 4, 0)
_TASKS = 500
_RECENT = 10


@dataclass
class Picture:
    """What the server said at one moment."""

    pools: list[Pool]
    tasks: list[Task]
    preemptions: list[Preemption]
    stats: PreemptionStats
    at: float = field(default_factory=time.time)


@click.command(cls=Command, short_help="Pools, tasks and preemptions, live.")
@click.option("--interval", type=SECONDS, default=1.0, metavar="TIME", help="Between two looks; 1s.")
@click.option("--once", is_flag=True, help="One picture, as when its output is piped.")
@pass_settings
def top(settings: Settings, interval: float, once: bool) -> None:
    """Pools, tasks and preemptions, drawn anew each second. q or Ctrl-C ends it."""
    client = settings.client()
    picture = _look(client)
    if settings.json:
        output.document(
            {
                "pools": picture.pools,
                "tasks": picture.tasks,
                "preemptions": picture.preemptions,
                "stats": picture.stats,
            }
        )
    elif once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        for text in frame(settings, client.url, picture, output.terminal_width(), None, ""):
            output.say(text)
    else:
        _live(settings, client, picture, max(0.1, interval))


def _look(client: Client) -> Picture:
    return Picture(
        client.pools(),
        list(client.tasks(live=True, limit=_TASKS)),
        list(client.preemptions(limit=_RECENT)),
        client.stats(),
    )


def _live(settings: Settings, client: Client, picture: Picture, interval: float) -> None:
    from schedulemesh.errors import ScheduleMeshError

    client.retry_for, client.timeout = 0.0, 5.0
    trouble = ""
    with _screen() as key:
        while True:
            columns, rows = output.screen()
            lines = frame(settings, client.url, picture, columns, rows, trouble)
            # Over the old picture, line by line: nothing flickers.
            drawn = "\x1b[H" + "".join(f"{line}\x1b[K\r\n" for line in lines[: rows - 1]) + "\x1b[J"
            sys.stdout.write(drawn)
            sys.stdout.flush()
            if key(interval) in ("q", "Q", "\x1b", "\x03", "\x04"):
                return
            try:
                picture, trouble = _look(client), ""
            except ScheduleMeshError:
                trouble = f"no answer since {datetime.fromtimestamp(picture.at):%H:%M:%S}, trying on"


@contextlib.contextmanager
def _screen() -> Iterator[Any]:
    """A screen of our own, without a cursor, and keys without Enter. All is as before at the end."""
    import select
    import signal
    import termios
    import tty

    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)

    def key(seconds: float) -> str:
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        # End of input: the terminal is gone.
        return (sys.stdin.read(1) or "q") if ready else ""

    # Ended from outside, the terminal is put right, too.
    before_term = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.stdout.write("\x1b[?1049h\x1b[?25l")
    try:
        tty.setcbreak(handle)
        yield key
    finally:
        signal.signal(signal.SIGTERM, before_term)
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()


def frame(
    settings: Settings, url: str, picture: Picture, columns: int, lines: int | None, trouble: str
) -> list[str]:
    """The screen's lines; as many as there are when ``lines`` is None."""
    running = [task for task in picture.tasks if task["state"] != "queued"]
    waiting = [task for task in picture.tasks if task["state"] == "queued"]
    # Who would make way last stands first.
    running.sort(key=lambda task: (-task["priority"], task["submitted_at"], task["task_id"]))
    waiting.sort(key=lambda task: (task["pool"], task.get("queue_position") or 1 << 30))
    stats = picture.stats
    queued = sum(pool["queued"] for pool in picture.pools)
    summary = (
        f"{stats['running_tasks']:,} running · {queued:,} queued · "
        f"{output.count(stats['total_preemptions'], 'preemption')}"
    )
    if stats["failed_cancels"]:
        summary += f", {stats['failed_cancels']:,} did not stop"
    moment = output.paint(trouble, "red") if trouble else f"{datetime.fromtimestamp(picture.at):%H:%M:%S}"
    sections = [
        ("pools", *_pools(picture.pools, columns)),
        ("running", *_running(running, picture.at)),
        ("in line", *_waiting(waiting, picture.at)),
        ("preempted", *_preemptions(picture.preemptions, picture.at)),
    ]
    tables = [(name, output.table(heads, rows, columns)) for name, heads, rows in sections if rows]
    title = output.paint("ScheduleMesh", bold=True)
    out = [f"{title}  {settings.namespace}  {moment}  {output.dim(url)}", summary]
    room = None if lines is None else lines - 1 - len(out)
    for (name, body), share in zip(tables, _shares([len(body) for _, body in tables], room), strict=True):
        if share < 2:
            continue
        left = len(body) - share
        out.append("")
        out += body[:share] if not left else body[: share - 1]
        if left:
            out.append(output.dim(f"… {left + 1:,} more {name}"))
    if not picture.pools:
        out += ["", f"There are no pools in namespace {settings.namespace}."]
    return [output.cut_painted(line, columns) for line in out]


def _shares(wanted: list[int], room: int | None) -> list[int]:
    """How many lines each table gets: small ones what they need, large ones equal parts of the rest."""
    if room is None:
        return wanted
    shares = [0] * len(wanted)
    room -= len(wanted)  # an empty line above each
    for n, i in enumerate(sorted(range(len(wanted)), key=lambda i: wanted[i])):
        shares[i] = max(0, min(wanted[i], room // (len(wanted) - n)))
        room -= shares[i]
    return shares


Table = tuple[list[Column | str], list[list[str]]]


def _pools(pools: list[Pool], columns: int) -> Table:
    """Pools with bars as wide as fit."""
    for wide in _BARS:
        found = _pools_with(pools, wide)
        if all(output.width(text) <= columns for text in output.table(*found)):
            break
    return found


def _pools_with(pools: list[Pool], wide: int) -> Table:
    names = output.in_order(name for pool in pools for name in balances(pool))
    heads: list[Column | str] = ["POOL", "STATE", Column("RUNNING", right=True), Column("QUEUED", right=True)]
    heads += [output.resource_name(name).upper() for name in names]
    rows = []
    for pool in pools:
        has = balances(pool)
        bars = [_bar(name, has[name], wide) if name in has else "" for name in names]
        rows.append([pool["name"], hold_words(pool), f"{pool['running']:,}", f"{pool['queued']:,}", *bars])
    return heads, rows


def _bar(name: str, balance: Balance, wide: int) -> str:
    """Used, reserved and free as a bar, and in figures."""
    most = max(limit(balance), taken(balance))
    used = round(wide * balance["used"] / most) if most else 0
    reserved = min(wide - used, round(wide * balance["reserved"] / most)) if most else 0
    share = taken(balance) / most if most else 0
    colour = "red" if share > 0.95 else "yellow" if share > 0.75 else "green"
    bar = output.paint("█" * used + "▒" * reserved, colour) + output.dim("░" * (wide - used - reserved))
    return f"{bar}{' ' if wide else ''}{share_words(name, balance, ' of ')}"


def _running(tasks: list[Task], now: float) -> Table:
    heads: list[Column | str] = [
        "TASK",
        "STATE",
        "POOL",
        Column("PRIORITY", right=True),
        "RESOURCES",
        Column("RAN", right=True),
        Column("LEFT", right=True),
        Column("NOTE", flexible=True),
    ]
    return heads, [
        [
            task["task_id"],
            output.state(task["state"]),
            task["pool"],
            output.number(task["priority"]),
            output.amounts(task["held"] or task["resources"]),
            ran(task, now),
            _left(task, now),
            note(task, now),
        ]
        for task in tasks
    ]


def _left(task: Task, now: float) -> str:
    """What is left of the estimate."""
    estimate, began = task.get("estimated_duration"), output.moment(task.get("started_at"))
    if not estimate:
        return output.dim(output.NONE)
    left = estimate - (now - began if began else 0)
    return output.duration(int(left)) if left >= 1 else output.dim("over")


def _waiting(tasks: list[Task], now: float) -> Table:
    heads: list[Column | str] = [
        Column("LINE", right=True),
        "TASK",
        "POOL",
        Column("PRIORITY", right=True),
        "RESOURCES",
        Column("WAITED", right=True),
        Column("STARTS", right=True),
        Column("WHY", flexible=True),
    ]
    return heads, [
        [
            str(task.get("queue_position") or output.NONE),
            task["task_id"],
            task["pool"],
            output.number(task["priority"]),
            output.amounts(task["resources"]),
            output.age(task.get("queued_at") or task["submitted_at"], now),
            starts(task, now),
            output.one_line((task.get("queue") or {}).get("reason") or task.get("reason") or ""),
        ]
        for task in tasks
    ]


def _preemptions(found: list[Preemption], now: float) -> Table:
    heads: list[Column | str] = [
        "PREEMPTED",
        "POOL",
        Column("PRIORITY", right=True),
        "FOR",
        "WHY",
        Column("SCORE", right=True),
        Column("AGO", right=True),
        Column("HOW IT WENT", flexible=True),
    ]
    return heads, [
        [
            p["task_id"],
            p["pool_name"],
            output.number(p["priority"]),
            p["preemptor_task_id"],
            REASONS.get(p["reason"], p["reason"]),
            output.number(p["preempt_score"]) if p["preemptor_task_id"] else "",
            output.age(p["decided_at"], now),
            _outcome(p),
        ]
        for p in found
    ]


def _outcome(p: Preemption) -> str:
    if p["phase"] not in ("gone", "undone"):
        return output.paint(p["phase"], "magenta")
    if p["phase"] == "undone":
        return "undone"
    words = "stopped" if p["cancel_success"] else "was ended"
    trouble = p["cancel_error"] or p["save_error"]
    if trouble:
        return output.paint(f"{words}: {output.one_line(trouble)}", "yellow")
    return words + (", state saved" if p["saved_state"] is not None else "")
