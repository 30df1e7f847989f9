"""The actor class an agent runs in, made from method names alone, and the options it is made with."""

from __future__ import annotations

import logging
from typing import Any

import ray
from ray import cloudpickle
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from schedulemesh.bridge import pickled, worker
from schedulemesh.bridge.errors import bad_request
from schedulemesh.bridge.nodes import Resources, covers

log = logging.getLogger(__name__)

#: What a class is taken to offer when the server does not say.
DEFAULT_METHODS: tuple[tuple[str, bool, bool, int], ...] = tuple(
    (name, False, False, 1) for name in ("process", "run", "cancel", "save_state", "restore_state", "ping")
)

#: How many calls run at once on an agent whose class has coroutines.
ASYNC_CONCURRENCY = 100

#: Threads for cancel, save_state and ping; none of these holds one longer than its timeout.
_CONTROL_THREADS = 8
#: A new watcher displaces the one before it, so two would do.
_WATCH_THREADS = 4

_GROUPS = {
    "sm_ready": "control",
    "sm_status": "control",
    "sm_ping": "control",
    "sm_start": "control",
    "sm_cancel": "control",
    "sm_save": "control",
    "sm_watch": "watch",
}

#: What a request's ``ray_options`` may hold, besides ``name`` and ``namespace``.
ALLOWED_OPTIONS = frozenset(
    {"accelerator_type", "label_selector", "max_concurrency", "max_pending_calls", "enable_task_events"}
)

Methods = tuple[tuple[str, bool, bool, int], ...]

_classes: dict[Methods, Any] = {}


def methods_of(listed: list[dict[str, Any]] | None) -> Methods:
    """``(name, async, generator, num_returns)`` of each public method of a request."""
    if not listed:
        return DEFAULT_METHODS
    found = {}
    for method in listed:
        name = method.get("name")
        if not isinstance(name, str) or not name.isidentifier():
            raise bad_request(f"{name!r} is not the name of a method")
        if name.startswith("sm_"):
            raise bad_request(f"method {name!r}: names that begin with sm_ are ScheduleMesh's own")
        if name.startswith("_"):
            continue
        returns = int(method.get("num_returns") or 1)
        found[name] = (name, bool(method.get("async")), bool(method.get("generator")), returns)
    return tuple(sorted(found.values()))


def agent_class(methods: Methods) -> Any:
    """The Ray actor class with these public methods. The same one for the same methods."""
    found = _classes.get(methods)
    if found is None:
        # Workers need not have this package: the class travels whole.
        for module in (worker, pickled):
            cloudpickle.register_pickle_by_value(module)
        for name, group in _GROUPS.items():
            ray.method(concurrency_group=group)(getattr(worker.AgentHost, name))
        body: dict[str, Any] = {}
        for name, _, generator, returns in methods:
            call: Any = worker.forward(name, generator)
            options: dict[str, Any] = {}
            if name in worker.CONTROL_METHODS:
                options["concurrency_group"] = "control"
            if returns != 1 and not generator:
                options["num_returns"] = returns
            body[name] = ray.method(**options)(call) if options else call
        cls = type("Agent", (worker.AgentHost,), body)
        groups = {"control": _CONTROL_THREADS, "watch": _WATCH_THREADS}
        found = _classes[methods] = ray.remote(concurrency_groups=groups)(cls)
    return found


def export(methods: Methods = DEFAULT_METHODS) -> None:
    """Send a class to the cluster ahead of its first agent, which then starts a tenth of a second sooner.

    Ray does this at the first launch by itself; should its inside have changed, that is left to it.
    """
    try:
        cluster = ray._private.worker.global_worker
        meta = agent_class(methods).__ray_metadata__
        cluster.function_actor_manager.export_actor_class(
            meta.modified_class, meta.actor_creation_function_descriptor, meta.method_meta.methods.keys()
        )
        meta.last_export_cluster_and_job = cluster.current_cluster_and_job
    except Exception as error:
        log.info("the actor class is sent with the first launch: %s", error)


def options_of(
    name: str,
    namespace: str,
    resources: dict[str, int],
    node_id: str,
    runtime_env: dict[str, Any] | None,
    extra: dict[str, Any],
    methods: Methods,
) -> dict[str, Any]:
    """Arguments for Ray's ``.options()``. Resources are in the server's units."""
    unknown = set(extra) - ALLOWED_OPTIONS
    if unknown:
        raise bad_request(
            f"ray_options {sorted(unknown)} cannot be set; possible are {sorted(ALLOWED_OPTIONS)}"
        )
    options: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "lifetime": "detached",
        "max_restarts": 0,
        "max_task_retries": 0,
        **amounts(resources),
        **extra,
    }
    if any(asynchronous for _, asynchronous, _, _ in methods):
        options.setdefault("max_concurrency", ASYNC_CONCURRENCY)
    if node_id:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(
            node_id, soft=True, _spill_on_unavailable=True
        )
    if runtime_env:
        options["runtime_env"] = runtime_env
    return options


def amounts(resources: Resources) -> dict[str, Any]:
    """Resources in the server's units as Ray's options."""
    return {
        "num_cpus": resources.get("cpu", 0) / 1000,
        "num_gpus": resources.get("gpu", 0) / 1000,
        "memory": resources.get("memory", 0) * (1 << 20) or None,
        "resources": {k: v / 1000 for k, v in resources.items() if k not in ("cpu", "gpu", "memory") and v},
    }


def cut(resources: Resources, bundles: list[Resources]) -> Resources:
    """What an actor in a placement group asks of it: an actor is in one bundle only.

    A request for more than any bundle has is for the sum of several: the actor sits in the largest, and
    what it starts in the others.
    """
    if any(covers(bundle, resources) for bundle in bundles):
        return resources
    largest: Resources = max(
        bundles, key=lambda bundle: sum(bundle.get(k, 0) * v for k, v in resources.items())
    )
    return {name: min(value, largest.get(name, 0)) for name, value in resources.items()}


def into(group: PlacementGroup, bundle: int) -> PlacementGroupSchedulingStrategy:
    """Ray's strategy for an actor in a bundle of a group (-1 is any), and all that it starts in the group."""
    return PlacementGroupSchedulingStrategy(
        group, placement_group_bundle_index=bundle, placement_group_capture_child_tasks=True
    )
