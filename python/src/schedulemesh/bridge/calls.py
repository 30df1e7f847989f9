"""What runs inside the worker process of one call: a pickled callable with one argument.

Travels to workers by value, as :mod:`schedulemesh.bridge.worker` does: what it uses of ours comes along, and
every answer is plain values, so that the sidecar never unpickles a user's object.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import sys
import types
from typing import Any

from schedulemesh.bridge.pickled import Mismatch, load
from schedulemesh.bridge.worker import NotJson, _await, _process_started, _result_json, describe, to_json
from schedulemesh.core.actors.control.preemption_controller import TaskState

#: What may be called: a pool's state handlers.
KINDS = ("preserver", "restorer")


def run_call(pickled: bytes, kind: str, name: str, argument: str) -> dict[str, Any]:
    """Call it.

    Args:
        pickled: the callable, see :func:`schedulemesh.bridge.pickled.load`.
        kind: ``preserver``: is called with a TaskState and must return a dict. ``restorer``: is called with
            a dict; ``False``, or a dict with ``success`` false, says that it did not work.
        name: the callable's name, for messages.
        argument: the argument as JSON text.

    Returns:
        ``{"result": JSON text}`` or ``{"error", "detail"}``, with ``node_id`` and ``process_started``.
    """
    import ray

    where = {"node_id": ray.get_runtime_context().get_node_id(), "process_started": _process_started()}
    what = f"{kind} {name}" if name else kind
    values = json.loads(argument)
    if kind == "preserver":
        values = _task_state(values)
    try:
        target = load(pickled)
    except Mismatch as error:
        return {"error": f"the {what} cannot be loaded: {error}", **where}
    except BaseException as error:
        message, detail = describe(error)
        return {"error": f"the {what} cannot be unpickled: {message}", "detail": detail, **where}
    if not callable(target):
        return {"error": f"the {what} is a {type(target).__name__}, which cannot be called", **where}
    try:
        value = target(values)
        if inspect.isawaitable(value):
            value = asyncio.run(_await(value))
    except BaseException as error:
        frame = error.__traceback__
        message, detail = describe(error.with_traceback(frame and frame.tb_next))
        return {"error": f"the {what} raised {message}", "detail": detail, **where}
    try:
        return {"result": _result_of(kind, value), **where}
    except NotJson as error:
        return {"error": f"the {what} {error}", **where}


def _result_of(kind: str, value: Any) -> str:
    if kind == "preserver":
        if not isinstance(value, dict):
            raise NotJson(f"returned a {type(value).__name__}, it must return a dict")
        try:
            return to_json(value)
        except NotJson as error:
            raise NotJson(f"returned what cannot be kept: {error}") from None
    if value is False:
        raise NotJson("returned False")
    if isinstance(value, dict) and not value.get("success", True):
        raise NotJson(f"did not succeed: {value.get('error') or 'it returned success: false'}")
    return _result_json(value)


def _task_state(values: dict[str, Any]) -> Any:
    """A TaskState, of the class that came along where the package is not installed."""
    module = TaskState.__module__
    try:
        return importlib.import_module(module).TaskState(**values)
    except Exception:
        # A handler may name the class in an annotation, which is pickled as an import.
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
        sys.modules[module].TaskState = TaskState  # type: ignore[attr-defined]
        return TaskState(**values)
