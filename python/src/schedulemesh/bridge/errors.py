"""The one error type of the sidecar. Its codes are the server's (``bridge.Code`` in Go)."""

from __future__ import annotations

from typing import Any


class BridgeError(Exception):
    """Something the server asked for did not happen.

    Args:
        code: stable, for programs.
        message: one sentence, for a person.
        detail: a traceback, if there is one.
        unknown: it may have happened all the same.
        holder: with ``claimed``, the claim that stands.
    """

    def __init__(
        self,
        code: str,
        message: str,
        detail: str = "",
        unknown: bool = False,
        holder: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.detail = detail
        self.unknown = unknown
        self.holder = holder

    def as_json(self) -> dict[str, Any]:
        """The error as it goes over the wire."""
        out: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.detail:
            out["detail"] = self.detail
        if self.unknown:
            out["unknown"] = True
        if self.holder:
            out["holder"] = self.holder
        return out


def bad_request(message: str) -> BridgeError:
    """What the server sent cannot be done as it stands."""
    return BridgeError("bad_request", message)
