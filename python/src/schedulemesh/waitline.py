"""What people see while jobs are waited for."""

from __future__ import annotations

import collections
import logging
import sys
import time
from collections.abc import Collection

from schedulemesh import types

log = logging.getLogger("schedulemesh")

#: Without a terminal it is said again after so many seconds that nothing changed.
STILL = 60.0

_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


class WaitLine:
    """How far jobs are: a line that changes on a terminal, else lines of the log when something changed."""

    def __init__(self, all_of_them: int) -> None:
        self._all = all_of_them
        self._began = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._said = ""
        self._said_at = 0.0

    def __enter__(self) -> WaitLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal and self._said:
            print(file=sys.stderr, flush=True)

    def show(self, jobs: Collection[types.Job]) -> None:
        """Say how far these are."""
        states = collections.Counter(job["status"] for job in jobs)
        ended = sum(states[state] for state in _ENDED)
        counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        text = f"{ended} of {self._all} {'job' if self._all == 1 else 'jobs'} ended: {counts}"
        now = time.monotonic()
        if self._terminal:
            print(f"\r{text}, {now - self._began:.0f} s\x1b[K", end="", file=sys.stderr, flush=True)
        elif text != self._said or now - self._said_at > STILL:
            log.info("%s", text)
            self._said_at = now
        self._said = text
