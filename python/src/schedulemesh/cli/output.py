"""Tables, colours and figures for people, and JSON for programs."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import click

NONE = "-"

#: The colour of each state.
STATES = {
    "queued": "yellow",
    "reserved": "cyan",
    "launching": "cyan",
    "running": "green",
    "stopping": "cyan",
    "preempting": "magenta",
    "preempted": "magenta",
    "completed": "blue",
    "failed": "red",
    "cancelled": "bright_black",
    # Of jobs and clusters.
    "submitting": "cyan",
    "pending": "cyan",
    "unknown": "magenta",
    "succeeded": "blue",
    "stopped": "bright_black",
    "healthy": "green",
    "unhealthy": "red",
    "unseen": "yellow",
}


def colourful() -> bool:
    """Whether colours are wanted: on a terminal, and not when NO_COLOR is set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str = "", *, bold: bool = False) -> str:
    """The text in a colour, where there are colours."""
    if not colourful() or not text.strip():
        return text
    return click.style(text, fg=colour or None, bold=bold or None)


def dim(text: str) -> str:
    """The text, less loud."""
    return paint(text, "bright_black")


def state(word: str) -> str:
    """A state in its colour."""
    return paint(word, STATES.get(word.lower(), ""))


def say(text: str = "") -> None:
    """A line for people."""
    print(text)


def document(value: Any) -> None:
    """One JSON document."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def line(value: Any) -> None:
    """One line of JSON, at once."""
    print(json.dumps(value, separators=(",", ":"), ensure_ascii=False), flush=True)


# Widths. Escape sequences have none; Chinese characters have two columns.

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def width(text: str) -> int:
    """How many columns the text takes."""
    if text.isascii():
        return len(_ESCAPES.sub("", text))
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in _ESCAPES.sub("", text)
    )


def pad(text: str, columns: int, right: bool = False) -> str:
    """The text with spaces up to a width."""
    space = " " * max(0, columns - width(text))
    return space + text if right else text + space


def cut(text: str, columns: int) -> str:
    """Plain text, shortened to a width."""
    if width(text) <= columns:
        return text
    taken, used = "", 1
    for c in text:
        used += width(c)
        if used > columns:
            break
        taken += c
    return taken.rstrip() + "…"


def cut_painted(text: str, columns: int) -> str:
    """The same for text with colours in it."""
    if width(text) <= columns:
        return text
    taken, used = "", 1
    for piece in re.split(r"(\x1b\[[0-9;]*m)", text):
        if piece.startswith("\x1b["):
            taken += piece
            continue
        for c in piece:
            if used + width(c) > columns:
                used = columns  # nothing more, but for the colours' ends
                break
            used += width(c)
            taken += c
    return taken + "…"


def one_line(text: str) -> str:
    """The text without line breaks, and without what would move the terminal's cursor."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def terminal_width() -> int:
    """Columns of the terminal; without one, lines may be as long as they are."""
    return screen()[0] if sys.stdout.isatty() else 10_000


def screen() -> tuple[int, int]:
    """Columns and lines of the terminal."""
    import shutil

    size = shutil.get_terminal_size()
    return size.columns, size.lines


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: its heading.
        right: figures stand at the right.
        flexible: the last column's words may be cut at the edge of the terminal.
    """

    title: str
    right: bool = False
    flexible: bool = False


def table(
    columns: Sequence[Column | str], rows: Iterable[Sequence[str]], room: int | None = None
) -> list[str]:
    """Aligned lines, the headings first. Columns in which nothing is are left out."""
    heads = [column if isinstance(column, Column) else Column(column) for column in columns]
    body = [[str(cell) for cell in row] for row in rows]
    used = [i for i in range(len(heads)) if not body or any(width(row[i]) for row in body)]
    widths = {i: max([width(heads[i].title), *(width(row[i]) for row in body)]) for i in used}
    room = terminal_width() if room is None else room
    lines = [
        "  ".join(
            pad(
                paint(heads[i].title, bold=True),
                widths[i] if i != used[-1] or heads[i].right else 0,
                heads[i].right,
            )
            for i in used
        ).rstrip()
    ]
    for row in body:
        before = sum(widths[i] + 2 for i in used[:-1])
        cells = []
        for i in used:
            cell = row[i]
            if heads[i].flexible and i == used[-1]:
                cell = cut_painted(cell, max(10, room - before))
            cells.append(pad(cell, widths[i] if i != used[-1] or heads[i].right else 0, heads[i].right))
        lines.append("  ".join(cells).rstrip())
    return lines


def show(columns: Sequence[Column | str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table."""
    for text in table(columns, rows):
        say(text)


def facts(pairs: Iterable[tuple[str, str]]) -> None:
    """Print names and values, those without a value left out."""
    kept = [(name, value) for name, value in pairs if value]
    wide = max((width(name) for name, _ in kept), default=0)
    for name, value in kept:
        say(f"{pad(dim(name), wide)}  {value}")


# Figures.


def number(value: float) -> str:
    """A figure as short as it is exact."""
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    return text if text not in ("-0", "") else "0"


def amount(resource: str, value: float) -> str:
    """An amount of a resource: memory in the largest fitting unit, anything else as a figure."""
    if resource != "memory" or not value:
        return number(value)
    for unit, size in (("TiB", 1024 * 1024), ("GiB", 1024)):
        if abs(value) >= size:
            return f"{value / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{number(value)} MiB"


_SHORT = {"cpu": "CPU", "gpu": "GPU", "memory": "memory"}


def resource_name(resource: str) -> str:
    """Its name in headings."""
    return _SHORT.get(resource, resource)


def in_order(names: Iterable[str]) -> list[str]:
    """Resources in the order people expect."""
    first = list(_SHORT)
    return sorted(set(names), key=lambda n: (first.index(n) if n in first else len(first), n))


def amounts(resources: Mapping[str, float]) -> str:
    """Several in words: "4 CPU, 1 GPU, 8 GiB"."""
    parts = []
    for name in in_order(resources):
        text = amount(name, resources[name])
        parts.append(text if name == "memory" else f"{text} {resource_name(name)}")
    return ", ".join(parts)


def labels(pairs: Mapping[str, str]) -> str:
    """Labels on one line."""
    return " ".join(one_line(f"{key}={value}") for key, value in sorted(pairs.items()))


def count(n: int, noun: str) -> str:
    """A number and its noun: "1 task", "2 tasks"."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def duration(seconds: float) -> str:
    """A length of time in at most two units: 45s, 3m, 2h10m, 5d4h."""
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f}s"
    whole = int(seconds)
    for size, unit, small, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // small
            # Seconds are of interest for the first minutes only.
            return f"{whole // size}{unit}" + (
                f"{rest}{small_unit}" if rest and (unit != "m" or whole < 600) else ""
            )
    return f"{whole}s"


def moment(stamp: str | None) -> float | None:
    """Seconds since the Unix epoch of a time in the API's form."""
    if not stamp:
        return None
    # Python 3.10 reads neither Z nor fractions of other than three or six digits.
    text, _, rest = stamp.rstrip("Z").partition(".")
    fraction = float("0." + rest) if rest.isdigit() else 0.0
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp() + fraction


def age(stamp: str | None, now: float | None = None) -> str:
    """How long ago something was, in one unit: 3m."""
    at = moment(stamp)
    if at is None:
        return NONE
    seconds = int(max(0.0, (time.time() if now is None else now) - at))
    for size, unit in ((2 * 86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // min(size, 86400)}{unit}"
    return f"{seconds}s"


def clock(stamp: str | None) -> str:
    """A time of day, here; with the date when it is not today's."""
    at = moment(stamp)
    if at is None:
        return NONE
    local = datetime.fromtimestamp(at)
    return local.strftime("%H:%M:%S" if local.date() == datetime.now().date() else "%Y-%m-%d %H:%M:%S")
