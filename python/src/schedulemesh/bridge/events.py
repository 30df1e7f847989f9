"""What happened, in order, kept for those who come back."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

Event = dict[str, Any]

#: How many events are kept.
RING = 65536


class Events:
    """A ring of numbered events. Numbers start at the session's start in microseconds, so that no
    number of an earlier session is one of this.

    Args:
        session: the session's id, given with ``resync``.
    """

    def __init__(self, session: str, ring: int = RING) -> None:
        self.session = session
        self._last = time.time_ns() // 1000
        self._ring: deque[Event] = deque(maxlen=ring)
        self._news = asyncio.Event()

    def publish(self, type: str, **fields: Any) -> None:
        """Add an event. Only from the loop's thread."""
        self._last += 1
        self._ring.append({"seq": self._last, "type": type, **fields})
        self._news.set()
        self._news = asyncio.Event()

    async def follow(self, after: int, heartbeat: float) -> AsyncIterator[Event | None]:
        """Events after number ``after``, and ``None`` when nothing happened for ``heartbeat`` seconds."""
        while True:
            first = self._last - len(self._ring) + 1
            if after < first - 1 or after > self._last:
                after = self._last
                yield {"seq": after, "type": "resync", "session": self.session}
                continue
            fresh = [self._ring[i] for i in range(after - first + 1, len(self._ring))]
            if fresh:
                after = fresh[-1]["seq"]
                for event in fresh:
                    yield event
                continue
            try:
                await asyncio.wait_for(self._news.wait(), heartbeat)
            except asyncio.TimeoutError:
                yield None
