"""What the schedulers say while they work: one line each on standard error, unless the script logs itself."""

from __future__ import annotations

import logging
import os

log = logging.getLogger("schedulemesh")


def show() -> None:
    """Make the lines visible where nobody has set logging up, from INFO, or SCHEDULEMESH_LOG_LEVEL, on."""
    if log.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("[%(levelname)s] %(message)s"))
    log.addHandler(handler)
    if log.level == logging.NOTSET:
        level = os.environ.get("SCHEDULEMESH_LOG_LEVEL", "INFO").upper()
        log.setLevel(level if isinstance(logging.getLevelName(level), int) else "INFO")
