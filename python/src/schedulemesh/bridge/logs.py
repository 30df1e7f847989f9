"""What agents printed, from the files Ray keeps of each worker process."""

from __future__ import annotations

import os
from typing import Any

#: Lines Ray writes for itself.
_MARKS = (b":actor_name:", b":task_name:", b":job_id:")

DEFAULT_LIMIT = 64 << 10


def read(path: str, offset: int, limit: int) -> dict[str, Any]:
    """A piece of a file: ``{"text", "next", "size", "eof"}``, in bytes but for the text.

    The piece ends with a whole line where it can, so that characters and Ray's own marks, which are
    left out, are not cut in two.

    Raises:
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        offset = min(offset, size)
        file.seek(offset)
        data = file.read(limit)
    return piece(data, offset, size, limit)


def piece(data: bytes, offset: int, size: int, limit: int) -> dict[str, Any]:
    """What :func:`read` answers, for bytes that were read already."""
    end = data.rfind(b"\n") + 1
    if end and (len(data) == limit or offset + len(data) < size):
        data = data[:end]
    lines = data.splitlines(keepends=True)
    kept = b"".join(line for line in lines if not line.startswith(_MARKS))
    after = offset + len(data)
    return {"text": kept.decode("utf-8", "replace"), "next": after, "size": size, "eof": after >= size}


def read_remote(node_id: str, path: str, offset: int, limit: int) -> dict[str, Any]:
    """The same for a file on another node, through Ray's log service, which sends the whole file."""
    from ray.util.state import get_log

    data = b"".join(
        part.encode("utf-8", "replace") if isinstance(part, str) else part
        for part in get_log(node_id=node_id, filename=os.path.basename(path), tail=-1)
    )
    return piece(data[offset : offset + limit], offset, len(data), limit)
