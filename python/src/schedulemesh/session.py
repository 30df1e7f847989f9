"""The session of a scheduler that is not detached: while it lives, what the scheduler made stays."""

from __future__ import annotations

import atexit
import contextlib
import getpass
import logging
import os
import socket
import sys
import threading
import uuid

from schedulemesh import types
from schedulemesh._sync.client import Client
from schedulemesh.errors import (
    NamespaceInUse,
    NamespaceKept,
    ScheduleMeshError,
    SchedulerInUse,
    ServerError,
    ServerUnavailable,
)

log = logging.getLogger("schedulemesh")

#: The server clears what belongs to a session it has not heard of for so long, in seconds.
TTL = 20.0
#: How often it hears of one, in seconds.
RENEW = 4.0

_lock = threading.Lock()
_open: dict[tuple[str, str], Session] = {}


class Session:
    """A session on a server, renewed in the background.

    Args:
        client: the server, seen from the scheduler's namespace.

    Raises:
        SchedulerInUse: another process has a scheduler of this name, or a kept one has it.
    """

    def __init__(self, client: Client) -> None:
        self.id = uuid.uuid4().hex
        self.lost = ""
        self._client = client
        self._ended = threading.Event()
        self._key = (client.url, client.namespace)
        with _lock:
            # A cell of a notebook that runs again: the same name in the same process starts anew.
            earlier = _open.get(self._key)
            if earlier is not None:
                earlier.lost = "another scheduler of this name was made in this process"
                earlier._ended.set()
            try:
                self._hold(earlier.id if earlier else "")
            except (NamespaceInUse, NamespaceKept) as error:
                raise SchedulerInUse(str(error)) from None
            _open[self._key] = self
        self._thread = threading.Thread(target=self._renew, name="schedulemesh-session", daemon=True)
        self._thread.start()
        atexit.register(self._at_exit)

    def close(self) -> None:
        """End it: whatever the scheduler made is stopped and removed before this returns."""
        with _lock:
            if _open.get(self._key) is self:
                del _open[self._key]
        atexit.unregister(self._at_exit)
        if self._ended.is_set():
            return
        self._ended.set()
        self._client.delete_namespace(session=self.id)

    def _hold(self, replace: str = "") -> types.Namespace:
        return self._client.open_namespace(
            detached=False, session=self.id, owner=_owner(), ttl=TTL, replace=replace, timeout=90.0
        )

    def _renew(self) -> None:
        while not self._ended.wait(RENEW):
            try:
                held = self._hold()
                if held.get("created") or held.get("cleared"):
                    self.lost = f"the server had not heard of it for {TTL:g} s, and cleared what it had made"
                    log.error("the session of scheduler %s has ended: %s", self._key[1], self.lost)
                    return
            except ServerUnavailable as error:
                log.warning("the session of scheduler %s could not be renewed: %s", self._key[1], error)
            except ServerError as error:
                if self._ended.is_set():
                    return
                self.lost = str(error)
                log.error("the session of scheduler %s has ended: %s", self._key[1], error)
                return
            except Exception:
                log.exception("in the background of scheduler %s", self._key[1])

    def _at_exit(self) -> None:
        with contextlib.suppress(ScheduleMeshError):
            self.close()


def _owner() -> str:
    """Who this is, for people who find the name taken."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    script = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
    return f"{user}@{socket.gethostname()}, process {os.getpid()} ({script})"[:200]
