"""Reading what a user's script pickled, inside the worker that is to run it.

Travels to workers by value, as :mod:`schedulemesh.bridge.worker` does: the standard library only. What a
script pickles comes in an envelope that is readable with any Python, so that a worker of another version
can say so in place of failing somewhere inside.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any

#: The envelope this package writes and reads.
FORMAT = 1


class Mismatch(Exception):
    """Pickled with other versions than the worker's; the message is one sentence for the user."""


def load(pickled: bytes) -> Any:
    """What was pickled: in an envelope, or as it is.

    An envelope is a pickle of ``{"format": 1, "sys_path": [directories], "python": "3.11", "ray": "2.60.0",
    "body": bytes}``. Directories of it that exist here are put in front of ``sys.path``, in their order.

    Raises:
        Mismatch: before the body is looked at.
        Exception: whatever unpickling raises.
    """
    outer = pickle.loads(pickled)
    if not (isinstance(outer, dict) and "format" in outer):
        return outer
    if outer["format"] != FORMAT:
        raise Mismatch(
            f"it was pickled in format {outer['format']!r}, this server reads format {FORMAT}: "
            "install the schedulemesh package that belongs to the server"
        )
    theirs, ours = (str(outer.get("python")), str(outer.get("ray"))), _versions()
    if theirs != ours:
        raise Mismatch(
            f"it was pickled with Python {theirs[0]} and Ray {theirs[1]}, workers of this cluster run "
            f"Python {ours[0]} and Ray {ours[1]}: run the script with the versions of the cluster"
        )
    missing = [
        entry for entry in outer.get("sys_path") or () if entry not in sys.path and os.path.exists(entry)
    ]
    sys.path[:0] = missing
    return pickle.loads(outer["body"])


def _versions() -> tuple[str, str]:
    import ray

    return "{}.{}".format(*sys.version_info[:2]), ray.__version__
