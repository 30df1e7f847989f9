"""Saved states as files, for those who want them on a disk of their own besides the server's database."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

from schedulemesh._sync.client import Client
from schedulemesh.errors import InvalidArgument, ScheduleMeshError

log = logging.getLogger("schedulemesh")

#: How often states saved elsewhere are looked for, in seconds.
PERIOD = 2.0

# What a file's name may have, in bytes, less the ending and what is written beside it.
_MOST = 200


class Mirror:
    """A directory with one JSON file a task: ``<state_path>/<scheduler>/<task_id>.json``.

    Each file is the state last saved, as ``restore_task`` takes it, and is replaced at once and as a whole.
    States saved by other means than this process's calls follow within :data:`PERIOD` seconds.

    Raises:
        InvalidArgument: the directory cannot be made or written to.
    """

    def __init__(self, state_path: str | os.PathLike[str], scheduler: str) -> None:
        self.directory = Path(state_path).expanduser() / _file_name(scheduler)
        self._client: Client | None = None
        self._seen = 0  # preemptions up to this one are on disk
        self._lock = threading.Lock()
        self._ended = threading.Event()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.directory):
                pass
        except OSError as error:
            raise InvalidArgument(
                f"state_path {os.fspath(state_path)!r} cannot be used: {error.strerror or error}; "
                "name a directory this user may write to"
            ) from None

    def follow(self, client: Client) -> None:
        """Write what was saved so far, and from now on whatever is saved, until :meth:`close`."""
        self._client = client
        self.update()
        threading.Thread(target=self._follow, name="schedulemesh-mirror", daemon=True).start()

    def close(self) -> None:
        """Write what is missing, and stop following."""
        self._ended.set()
        if self._client is not None:
            try:
                self.update()
            except ScheduleMeshError as error:
                log.warning("the last states may be missing in %s: %s", self.directory, error)
            self._client.close()

    def update(self) -> None:
        """Write the states saved since the last time."""
        if self._client is None:
            return
        with self._lock:
            newest = oldest_open = 0
            states: dict[str, dict[str, Any]] = {}
            for item in self._client.preemptions():
                if item["id"] <= self._seen:
                    break
                newest = max(newest, item["id"])
                if item["phase"] not in ("gone", "undone"):
                    oldest_open = item["id"]
                elif item["task_id"] not in states:
                    state = self._client.preemption(item["id"])["saved_state"]
                    if state is not None:
                        states[item["task_id"]] = state
            for task_id, state in states.items():
                self._write(task_id, state)
            self._seen = max(self._seen, oldest_open - 1 if oldest_open else newest)

    def _follow(self) -> None:
        while not self._ended.wait(PERIOD):
            try:
                self.update()
            except ScheduleMeshError as error:
                log.warning("states are not mirrored to %s for now: %s", self.directory, error)

    def path_of(self, task_id: str) -> Path:
        """Where a task's state is, or would be."""
        return self.directory / (_file_name(task_id) + ".json")

    def _write(self, task_id: str, state: dict[str, Any]) -> None:
        """Keep a task's state. A disk that refuses is a warning: the server has the state too."""
        path = self.path_of(task_id)
        text = json.dumps(state, ensure_ascii=False, indent=1)
        try:
            if path.is_file() and path.read_text(encoding="utf-8") == text:
                return
            descriptor, beside = tempfile.mkstemp(dir=self.directory, prefix=".", suffix=".new")
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(beside, path)
            except BaseException:
                os.unlink(beside)
                raise
        except OSError as error:
            log.warning("the state of %s could not be written to %s: %s", task_id, path, error)


def _file_name(name: str) -> str:
    safe = quote(name, safe=" ()+,=@[]{}~")
    if safe.startswith("."):
        safe = "%2E" + safe[1:]
    if len(safe) <= _MOST:
        return safe
    return safe[: _MOST - 20] + "~" + hashlib.sha256(name.encode()).hexdigest()[:16]
