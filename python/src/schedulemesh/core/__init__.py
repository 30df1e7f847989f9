"""Agents and schedulers, as user code names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from schedulemesh._sync.scheduler import RayScheduler as RayScheduler

__all__ = ["RayScheduler"]


def __getattr__(name: str) -> Any:
    # Loaded when it is asked for: agents import this package in their workers, and need none of it.
    if name == "RayScheduler":
        from schedulemesh._sync.scheduler import RayScheduler

        return RayScheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
