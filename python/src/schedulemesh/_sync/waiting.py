"""What coroutines and plain functions do differently: sleeping, and calls that block."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar

T = TypeVar("T")

#: What ends a call from outside, and must not leave half of it behind.
INTERRUPTIONS = (KeyboardInterrupt, SystemExit)


def sleep(seconds: float) -> None:
    """Do nothing for so long."""
    time.sleep(seconds)


def blocking(call: Callable[[], T]) -> T:
    """The result of a call, made here and now."""
    return call()


#: What :func:`where` says, to what belongs there.
PerPlace = MutableMapping[Any, T]


def places() -> PerPlace[T]:
    """Room for something of each place in which calls are made."""
    return {}


def where() -> Any:
    """What connections belong to: the process, which may be forked."""
    return os.getpid()
