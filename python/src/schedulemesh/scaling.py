"""Making what a script asks for fit a smaller cluster."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

from schedulemesh.errors import InvalidArgument, RayUnavailable

log = logging.getLogger("schedulemesh")

T = TypeVar("T")

#: What is left of an amount is rounded down to this; of memory to a MiB.
STEP = 0.01
_MIB = 1 << 20


def scale_to_cluster(specs: T, needed: Mapping[str, float] | None = None) -> T:
    """The same specs, smaller in proportion when the Ray cluster has less than they need together.

    Args:
        specs: resources (``{"cpu": 2, "memory": 2048}``, memory in MiB), or lists and dicts of them, nested
            as you like. What is no amount stays as it is.
        needed: what there must be in all; the sum of all specs when left out.

    Returns:
        The same shape. ``cpu``, ``gpu`` and the like are scaled each by itself, to no less than
        :data:`STEP`; where the cluster has enough nothing changes.

    Raises:
        RayUnavailable: this process is not connected to a Ray cluster.
        InvalidArgument: the cluster has none of a resource at all.
    """
    factors = _factors(dict(needed) if needed is not None else _sum(specs), _cluster())
    if any(factor < 1 for factor in factors.values()):
        log.warning(
            "the cluster is smaller than asked for: %s",
            ", ".join(f"{name} to {factor:.0%}" for name, factor in factors.items() if factor < 1),
        )
    return cast(T, _scaled(specs, factors))


def _cluster() -> dict[str, float]:
    import ray

    if not ray.is_initialized():
        raise RayUnavailable(
            "this process is not connected to Ray: call ray.init(), or make a scheduler first"
        )
    names = {"CPU": "cpu", "GPU": "gpu"}
    found = {names.get(name, name): float(amount) for name, amount in ray.cluster_resources().items()}
    found["memory"] = found.get("memory", 0.0) / _MIB
    return found


def _is_amounts(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in value.values())
    )


def _each(value: Any) -> Iterable[Mapping[str, float]]:
    if _is_amounts(value):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _each(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _each(item)


def _sum(specs: Any) -> dict[str, float]:
    total: dict[str, float] = {}
    for amounts in _each(specs):
        for name, amount in amounts.items():
            total[name] = total.get(name, 0.0) + amount
    return total


def _factors(needed: Mapping[str, float], there: Mapping[str, float]) -> dict[str, float]:
    factors = {}
    for name, amount in needed.items():
        if not amount > 0:
            continue
        if there.get(name, 0.0) <= 0:
            raise InvalidArgument(f"the cluster has no {name}, of which {amount:g} is needed")
        factors[name] = min(1.0, there[name] / amount)
    return factors


def _scaled(value: Any, factors: Mapping[str, float]) -> Any:
    if _is_amounts(value):
        return {name: _less(name, amount, factors.get(name, 1.0)) for name, amount in value.items()}
    if isinstance(value, Mapping):
        return {name: _scaled(item, factors) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_scaled(item, factors) for item in value]
    return value


def _less(name: str, amount: float, factor: float) -> float:
    if factor >= 1 or amount <= 0:
        return amount
    step = 1.0 if name == "memory" else STEP
    return max(step, round(math.floor(amount * factor / step) * step, 6))
