"""What jobs are submitted to: the server, and the clusters it knows."""

from __future__ import annotations

from schedulemesh.jobs import UnifiedScheduler, get_unified_scheduler, initialize_scheduler_environment

__all__ = ["UnifiedScheduler", "get_unified_scheduler", "initialize_scheduler_environment"]
