"""What outlives a sidecar: the claim on the cluster and the registry of launches, in Ray's internal KV.

Everything here blocks for about a millisecond; call it off the event loop.
"""

from __future__ import annotations

import json
import time
from typing import Any

from ray.experimental import internal_kv

from schedulemesh.bridge.errors import BridgeError

#: Ray's KV has namespaces of its own; this is ours. The SDK reads :data:`CLAIM` in it.
KV_NAMESPACE = b"schedulemesh"
CLAIM = b"claim"

#: A claim that was not renewed for so many seconds is dead.
CLAIM_TTL = 15.0
#: How often it is renewed, in seconds.
CLAIM_RENEW = 4.0


def read_claim() -> dict[str, Any] | None:
    """The live claim on the cluster: ``{"deployment", "url", "session", "renewed_at"}``, or ``None``."""
    value = internal_kv._internal_kv_get(CLAIM, namespace=KV_NAMESPACE)
    if value is None:
        return None
    claim: dict[str, Any] = json.loads(value)
    if time.time() - claim.get("renewed_at", 0) > CLAIM_TTL:
        return None
    return claim


def read_dashboard() -> str:
    """The URL of Ray's dashboard as Ray knows it; empty when there is none, or not yet.

    One that listens on loopback is only for the head's own machine.
    """
    value = internal_kv._internal_kv_get(b"webui:url", namespace=b"dashboard")
    return f"http://{value.decode()}" if value else ""


class Store:
    """The KV as one deployment sees it.

    Args:
        deployment: whose records these are.
        session: this run of the sidecar.
    """

    def __init__(self, deployment: str, session: str) -> None:
        self.deployment = deployment
        self.session = session

    def put(self, name: str, record: dict[str, Any], kind: str = "launch") -> None:
        """Keep the record of a launch, or of something of another kind."""
        internal_kv._internal_kv_put(
            self._prefix(kind) + name.encode(), json.dumps(record).encode(), True, namespace=KV_NAMESPACE
        )

    def delete(self, name: str, kind: str = "launch") -> None:
        """Forget a launch, or something of another kind."""
        internal_kv._internal_kv_del(self._prefix(kind) + name.encode(), namespace=KV_NAMESPACE)

    def all(self, kind: str = "launch") -> list[dict[str, Any]]:
        """Every record of a kind that the deployment has."""
        records = []
        for key in internal_kv._internal_kv_list(self._prefix(kind), namespace=KV_NAMESPACE):
            value = internal_kv._internal_kv_get(key, namespace=KV_NAMESPACE)
            if value is not None:
                records.append(json.loads(value))
        return records

    def _prefix(self, kind: str) -> bytes:
        return f"{kind}:{self.deployment}:".encode()

    def claim(self, url: str, force: bool) -> None:
        """Claim the cluster for this deployment.

        Raises:
            BridgeError: ``claimed``, when another live deployment has it.
        """
        held = read_claim()
        if held is not None and held["deployment"] != self.deployment and not force:
            raise BridgeError(
                "claimed",
                f"the Ray cluster belongs to deployment {held['deployment']!r} at {held['url']}",
                holder={"deployment": held["deployment"], "url": held["url"]},
            )
        if held is not None and (held["deployment"] == self.deployment or force):
            self._put_claim(url, overwrite=True)
            return
        # Nobody has it, or somebody dead: of several who come now, one wins.
        internal_kv._internal_kv_del(CLAIM, namespace=KV_NAMESPACE)
        if self._put_claim(url, overwrite=False):
            self.claim(url, force)

    def renew(self, url: str) -> bool:
        """Keep the claim alive. False when another deployment has taken it over."""
        held = read_claim()
        if held is not None and held["deployment"] != self.deployment:
            return False
        self._put_claim(url, overwrite=True)
        return True

    def release_claim(self) -> None:
        """Give the claim back, if this sidecar holds it."""
        held = read_claim()
        if held is not None and held["session"] == self.session:
            internal_kv._internal_kv_del(CLAIM, namespace=KV_NAMESPACE)

    def _put_claim(self, url: str, overwrite: bool) -> bool:
        value = {
            "deployment": self.deployment,
            "url": url,
            "session": self.session,
            "renewed_at": time.time(),
        }
        existed: bool = internal_kv._internal_kv_put(
            CLAIM, json.dumps(value).encode(), overwrite, namespace=KV_NAMESPACE
        )
        return existed
