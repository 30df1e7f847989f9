"""The scheduler most scripts need, and the task it takes."""

from __future__ import annotations

from schedulemesh._sync.simple import SimpleScheduler
from schedulemesh.specs import SimpleTaskSpec

__all__ = ["SimpleScheduler", "SimpleTaskSpec"]
