"""The policy of preemption as a value."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


@dataclass
class PreemptionPolicy:
    """Who may take whose place. ``score = Δpriority + remaining_time_weight · remaining seconds``.

    Attributes:
        same_pool_priority_threshold: least priority difference within a pool.
        cross_pool_priority_threshold: least priority difference to take from another pool.
        remaining_time_weight: score for each second a victim still has to run.
        min_preempt_score: least score of a victim.
        enable_cross_pool_preemption: whether tasks may take from other pools.
        protected_pools: pools that lose nothing to others.
        label_preemption_rules: label → value → the values it may preempt, as written, not transitive.
        label_priority_threshold: least score base of a victim by label.
        enable_label_preemption: whether label rules count.
        cancel_timeout: seconds a victim may take to stop.
        save_timeout: seconds a victim may take to save its state.
        victim_coverage: what victims must free: what is missing (``deficit``) or the whole ``request``.
        min_runtime_seconds: a task is safe for so long after its start.
        max_preemptions_per_minute: a pool is safe once it lost so many in a minute; 0: no limit.
        max_preemptions_per_task: a task is safe once it was preempted so often; 0: no limit.
        ageing_weight: priority a queued task gains for each minute it waits.
    """

    same_pool_priority_threshold: float = 1.0
    cross_pool_priority_threshold: float = 5.0
    remaining_time_weight: float = 0.1
    min_preempt_score: float = 0.5
    enable_cross_pool_preemption: bool = True
    protected_pools: list[str] = field(default_factory=list)
    label_preemption_rules: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    label_priority_threshold: float = 0.5
    enable_label_preemption: bool = True
    cancel_timeout: float = 5.0
    save_timeout: float = 60.0
    victim_coverage: str = "deficit"
    min_runtime_seconds: float = 0.0
    max_preemptions_per_minute: int = 0
    max_preemptions_per_task: int = 0
    ageing_weight: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """The fields, as the API takes them."""
        return {item.name: getattr(self, item.name) for item in fields(self)}
