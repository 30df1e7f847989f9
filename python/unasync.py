#!/usr/bin/env python3
"""Writes python/src/schedulemesh/_sync from _async: the same code as plain functions.

Word by word: `async` and `await` go, names change as below, and what stands behind `# sync:` is code here.
What differs by more than words (waiting.py) is written twice.
"""

from __future__ import annotations

import re
from pathlib import Path

NAMES = {
    "_async": "_sync",
    "AsyncClient": "Client",
    "AsyncIterator": "Iterator",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aclose": "close",
    "aread": "read",
    "aiter_lines": "iter_lines",
    "StopAsyncIteration": "StopIteration",
}
BY_HAND = {"waiting.py"}
HEADER = "# Generated from schedulemesh/_async by python/unasync.py; edit that.\n"

root = Path(__file__).resolve().parent / "src/schedulemesh"
for source in sorted((root / "_async").glob("*.py")):
    if source.name in BY_HAND:
        continue
    text = re.sub(r"\basync (?=def|with|for)|\bawait ", "", source.read_text())
    text = text.replace("# sync: ", "")
    text = re.sub(r"\w+", lambda word: NAMES.get(word[0], word[0]), text)
    text = text.replace("as coroutines. ``schedulemesh._sync`` is generated from here.", "as plain calls.")
    (root / "_sync" / source.name).write_text(HEADER + text)
