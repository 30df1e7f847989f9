"""What the examples share: lines with a clock, a link to the dashboard, checks that all happened as told."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from schedulemesh import local
from schedulemesh.errors import ScheduleMeshError


class Story:
    """One run of an example. It reads the command line.

    Args:
        about: the example's own docstring, for ``--help``.
        **numbers: options of its own with their defaults; what was given is in ``numbers``.
    """

    def __init__(self, about: str | None, **numbers: int) -> None:
        text = about or ""
        parser = argparse.ArgumentParser(
            description=text, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("--stay", action="store_true", help="keep all of it until Enter is pressed")
        for name, value in numbers.items():
            parser.add_argument(f"--{name}", type=int, default=value, help="default %(default)s")
        options = parser.parse_args()
        self._stay = options.stay
        self.numbers: dict[str, int] = {name: getattr(options, name) for name in numbers}
        self._began = time.monotonic()
        self._failed: list[str] = []
        self._overview = ""
        print(text.strip().partition("\n")[0], flush=True)
        # What the scheduler decides, and why, is in its log.
        logging.basicConfig(format="          log: %(message)s", stream=sys.stdout)
        logging.getLogger("schedulemesh").setLevel(logging.INFO)

    def begin(self, scheduler: Any) -> None:
        """Say where all of it can be watched."""
        url, name = scheduler.client.url, quote(scheduler.client.namespace, safe="")
        self._overview = f"{url}/?namespace={name}"
        self.say(f"watch it at {self._overview}")

    def part(self, title: str) -> None:
        print(f"\n{title}", flush=True)

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", flush=True)

    def check(self, what: str, true: bool) -> None:
        """Something that must be so, said either way."""
        print(f"     {'yes' if true else 'NO '}  {what}", flush=True)
        if not true:
            self._failed.append(what)

    def wait_for(self, what: Callable[[], Any], within: float = 30.0) -> Any:
        """What it returns, once that is true. Raises TimeoutError after so many seconds."""
        end = time.monotonic() + within
        while not (found := what()):
            if time.monotonic() > end:
                raise TimeoutError(f"{what} is still {found} after {within:g} s")
            time.sleep(0.05)
        return found

    def end(self) -> None:
        """Exit with 1 when something did not happen as told."""
        if self._stay:
            self._wait()
        if self._failed:
            sys.exit(f"\nThis did not happen as told: {'; '.join(self._failed)}")
        print("\nAll of it happened as told.", flush=True)

    def _wait(self) -> None:
        url, _, rest = self._overview.partition("/?")
        for server in local.servers():
            if server.url == url and server.token_file:
                with open(server.token_file) as file:
                    token = file.read().strip()
                print(f"\nSign in: {url}/sign-in?token={token}&next={quote('/?' + rest, safe='')}")
        print("Look around; Enter ends it and removes what it made.", flush=True)
        sys.stdin.readline()


def tell(main: Callable[[], None]) -> None:
    """Run an example; what stops it is a sentence."""
    try:
        main()
    except KeyboardInterrupt:
        print("\nInterrupted: what it made is removed.", file=sys.stderr)
        sys.exit(130)
    except (ScheduleMeshError, TimeoutError) as error:
        sys.exit(f"\n{error}")
