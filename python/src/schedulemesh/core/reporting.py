"""Metrics from inside an agent to the server."""

from __future__ import annotations

import sys
from typing import Any

# Set by the actor around the agent (schedulemesh.bridge.worker), which may not be importable here.
_HOST = "_schedulemesh_host"


def report_metrics(metrics: dict[str, Any]) -> bool:
    """Report metrics of the agent this process runs. It never waits: reports are gathered and sent together,
    and when they come faster than they can go, the oldest are dropped.

    Args:
        metrics: a JSON object, for example ``{"step": 10, "loss": 0.5}``; numpy numbers are fine.

    Returns:
        False when this process runs no ScheduleMesh agent: nothing was reported then.

    Raises:
        ValueError: the metrics are not JSON, for example NaN.
    """
    host = sys.modules.get(_HOST)
    if host is None:
        return False
    host.report(metrics)
    return True
