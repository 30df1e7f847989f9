"""The scheduler of Ray actors."""

from __future__ import annotations

from schedulemesh._sync.scheduler import RayScheduler

__all__ = ["RayScheduler"]
