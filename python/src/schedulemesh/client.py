"""The server's REST API from Python, typed; ``schedulemesh.aio`` has it as coroutines."""

from __future__ import annotations

from schedulemesh._sync.client import Client

__all__ = ["Client"]
