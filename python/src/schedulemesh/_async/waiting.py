"""What coroutines and plain functions do differently: sleeping, and calls that block."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar

T = TypeVar("T")

#: What ends a call from outside, and must not leave half of it behind.
INTERRUPTIONS = (KeyboardInterrupt, SystemExit, asyncio.CancelledError)


async def sleep(seconds: float) -> None:
    """Let others go on for so long."""
    await asyncio.sleep(seconds)


async def blocking(call: Callable[[], T]) -> T:
    """The result of a call that blocks, such as one of Ray's, made on a thread."""
    return await asyncio.to_thread(call)


#: What :func:`where` says, to what belongs there.
PerPlace = MutableMapping[Any, T]


def places() -> PerPlace[T]:
    """Room for something of each place in which calls are made."""
    return weakref.WeakKeyDictionary()


def where() -> Any:
    """What connections belong to: the event loop."""
    return asyncio.get_running_loop()
