"""The ``schedulemesh`` command."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from schedulemesh import local


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] != ["up"]:
        print("usage: schedulemesh up [SETTINGS]; `schedulemesh up --help` lists them", file=sys.stderr)
        return 2
    try:
        return up(arguments[1:])
    except local.LocalError as error:
        print(f"schedulemesh: {error}", file=sys.stderr)
        return 1


def up(arguments: Sequence[str]) -> int:
    """Become ``server up``, with this Python for Ray and the sidecar.

    Raises:
        LocalError: there is no server program to become.
    """
    program = local.binary()
    os.environ.setdefault("SCHEDULEMESH_PYTHON", sys.executable)
    try:
        os.execv(program, [program, "up", *arguments])
    except OSError as error:
        raise local.LocalError(f"the server program {program} does not run here: {error}") from None
