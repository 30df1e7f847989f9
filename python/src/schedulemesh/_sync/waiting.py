"""What coroutines and plain functions do differently: sleeping, and calls that block."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: What ends a call from outside, and must not leave half of it behind.
INTERRUPTIONS = (KeyboardInterrupt, SystemExit)


def sleep(seconds: float) -> None:
    """Do nothing for so long."""
    time.sleep(seconds)


def blocking(call: Callable[[], T]) -> T:
    """The result of a call, made here and now."""
    return call()
