"""What runs inside an agent's worker process, around the user's object.

This module travels to the worker by value (see :func:`schedulemesh.bridge.actors.agent_class`), so that a
worker needs nothing of ours installed. It may import the standard library and what travels along with it
(:mod:`schedulemesh.bridge.pickled`), and every answer to the sidecar is made of plain values or JSON text:
the sidecar must never unpickle a user's object.

Threads: the user's entry and public methods run in Ray's default group, ``cancel``, ``save_state`` and
``ping`` in the group ``control``, and the sidecar's one outstanding question (:meth:`AgentHost.sm_watch`)
in the group ``watch``. Coroutines run on a loop in a thread of its own, so that they hold up none of these.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import inspect
import json
import math
import os
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

from schedulemesh.bridge.pickled import Mismatch, load

#: The largest entry result, in characters of JSON, that is kept; of a longer one only its start.
MAX_RESULT = 1 << 20
#: How many metrics reports wait for the sidecar; older ones are dropped first.
MAX_METRICS = 64
#: Reports go to the sidecar together, so often (seconds).
METRICS_PERIOD = 0.25
#: The name in ``sys.modules`` under which code in the worker finds its :class:`AgentHost`.
HOST_MODULE = "_schedulemesh_host"

Answer = dict[str, Any]


class NotJson(ValueError):
    """A value that is not JSON; the message names the place in it."""


def plain(value: Any, path: str = "state") -> Any:
    """Turn a value into plain JSON types.

    numpy and torch scalars and arrays become numbers and lists, tuples become lists, numeric keys
    strings. What has no faithful form is refused: NaN and infinities, NUL characters and lone
    surrogates (a database cannot hold them), sets, bytes and other objects.

    Raises:
        NotJson: naming the place, for example ``state.loss is nan``.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if "\0" in value:
            raise NotJson(f"{path} contains a NUL character")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise NotJson(f"{path} contains a lone surrogate") from None
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NotJson(f"{path} is {value}, which JSON cannot hold")
        return float(value)
    if isinstance(value, dict):
        out: dict[str, Any] = {}
        for key, item in value.items():
            if hasattr(key, "tolist"):
                key = key.tolist()
            if isinstance(key, bool) or not isinstance(key, (str, int, float)):
                raise NotJson(f"{path} has the key {key!r}, only strings and numbers can be keys")
            name = plain(key if isinstance(key, str) else str(key), f"a key of {path}")
            out[name] = plain(item, f"{path}.{name}")
        return out
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        if hasattr(value, "detach"):
            value = value.detach().cpu()
        listed = value.tolist()
        if not hasattr(listed, "tolist"):
            return plain(listed, path)
    raise NotJson(f"{path} is a {type(value).__module__}.{type(value).__qualname__}, which JSON cannot hold")


def to_json(value: Any, path: str = "state") -> str:
    """JSON text of :func:`plain`'s value. Raises :class:`NotJson`."""
    try:
        return json.dumps(plain(value, path), allow_nan=False)
    except RecursionError:
        raise NotJson(f"{path} is nested too deeply, or contains itself") from None


def describe(error: BaseException) -> tuple[str, str]:
    """``(message, traceback)`` of an exception, without the frames of this module."""
    try:
        message = f"{type(error).__name__}: {error}"
    except Exception:
        message = type(error).__name__
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_globals.get("AgentHost") is AgentHost:
        tb = tb.tb_next
    text = "".join(traceback.format_exception(type(error), error, tb))
    return clean(message)[:4000], clean(text)[-40000:]


def clean(text: str) -> str:
    """Text any database and any terminal can take."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


class _Refused(Exception):
    """A launch that cannot go on, with the code the server knows."""

    def __init__(self, code: str, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.detail = detail


class AgentHost:
    """The actor. Its constructor loads and builds the user's object; it never raises, so that
    :meth:`sm_ready` can say what was wrong.

    Args:
        spec: ``launch_id, deployment, agent_name, labels, task_id, pool, class_path | pickled, args,
            kwargs, saved_state, created_at`` (epoch seconds); absent ones as ``None``.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        self.sm_began = time.time()
        self.sm_spec = spec
        self.sm_object: Any = None
        self.sm_failure: Answer | None = None
        self.sm_entry_state = ""
        self.sm_entry: tuple[str, list[Any], dict[str, Any]] = ("", [], {})
        self.sm_outcome: Answer | None = None
        self.sm_metrics: list[str] = []
        self.sm_metrics_sent = 0.0
        self.sm_cancel_asked = False
        self.sm_changed = threading.Condition()
        self.sm_watcher = ""
        self.sm_loop: asyncio.AbstractEventLoop | None = None
        self.sm_bounded_calls: dict[str, threading.Thread] = {}
        self.sm_serial = threading.RLock()
        self.sm_loop_lock = threading.Lock()
        host = types.ModuleType(HOST_MODULE)
        host.__dict__.update(report=self.sm_report, task_id=spec["task_id"], pool_name=spec["pool"])
        sys.modules[HOST_MODULE] = host
        try:
            self._sm_build()
        except _Refused as error:
            self.sm_failure = {"code": error.code, "message": str(error), "detail": error.detail}
        spec["pickled"] = spec["args"] = spec["kwargs"] = spec["saved_state"] = None  # may be large
        self.sm_ended = time.time()

    def _sm_build(self) -> None:
        spec = self.sm_spec
        cls, args, kwargs = self._sm_load()
        bound = self._sm_bind(cls, args, kwargs)
        try:
            self.sm_object = self._sm_on_loop(bound) if _has_coroutines(cls) else bound()
        except BaseException as error:
            message, detail = describe(error)
            raise _Refused("constructor_failed", message, detail) from None
        if spec["saved_state"] is not None:
            restore = getattr(self.sm_object, "restore_state", None)
            if restore is None:
                return
            try:
                self._sm_finish(restore(spec["saved_state"]))
            except BaseException as error:
                message, detail = describe(error)
                raise _Refused("restore_failed", message, detail) from None

    def _sm_load(self) -> tuple[type, list[Any], dict[str, Any]]:
        spec = self.sm_spec
        args, kwargs = list(spec["args"] or []), dict(spec["kwargs"] or {})
        try:
            if spec["pickled"]:
                loaded = load(base64.b64decode(spec["pickled"]))
                if not (isinstance(loaded, dict) and "class" in loaded):
                    raise _Refused(
                        "import_failed",
                        f"the pickle holds a {type(loaded).__name__}, not a class to be built",
                    )
                found: Any = loaded["class"]
                args = [*loaded.get("args", ()), *args]
                kwargs = {**loaded.get("kwargs", {}), **kwargs}
                name = getattr(found, "__name__", "the pickled object")
            else:
                module, _, name = spec["class_path"].partition(":")
                found = importlib.import_module(module)
                for part in name.split("."):
                    found = getattr(found, part)
        except _Refused:
            raise
        except Mismatch as error:
            raise _Refused("version_mismatch", f"the class cannot be loaded: {error}") from None
        except BaseException as error:
            message, detail = describe(error)
            raise _Refused("import_failed", message, detail) from None
        decorated = getattr(found, "__ray_metadata__", None)
        if decorated is not None:
            found = decorated.modified_class
        found = getattr(found, "__ray_actor_class__", found)
        if not isinstance(found, type):
            raise _Refused("invalid_class", f"{name} is a {type(found).__name__}, not a class")
        return found, args, kwargs

    def _sm_bind(self, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Callable[[], Any]:
        """The constructor call: name and labels go first, or by keyword where the class wants that."""
        name, labels = self.sm_spec["agent_name"], dict(self.sm_spec["labels"] or {})
        try:
            signature = inspect.signature(cls)
        except (TypeError, ValueError):
            return lambda: cls(name, labels, *args, **kwargs)
        try:
            signature.bind(name, labels, *args, **kwargs)
            return lambda: cls(name, labels, *args, **kwargs)
        except TypeError as error:
            refusal = str(error)
        try:
            signature.bind(*args, name=name, labels=labels, **kwargs)
            return lambda: cls(*args, name=name, labels=labels, **kwargs)
        except TypeError:
            raise _Refused(
                "invalid_class",
                f"{cls.__name__}{signature} cannot be built with (name, labels"
                + "".join(", …" for _ in args)
                + "".join(f", {key}=…" for key in kwargs)
                + f"): {refusal}",
            ) from None

    # What the sidecar asks. All of it answers with plain values.

    def sm_ready(self) -> Answer:
        """Who and where this is, or why there is no agent. Times are epoch seconds."""
        if self.sm_failure is not None:
            return {
                "failure": self.sm_failure,
                "launch_id": self.sm_spec["launch_id"],
                "deployment": self.sm_spec["deployment"],
                "pid": os.getpid(),
            }
        return {
            **self.sm_status(),
            "began": self.sm_began,
            "ended": self.sm_ended,
            "process_started": _process_started(),
        }

    def sm_status(self) -> Answer:
        """Identity, process, log files, and how far the entry is."""
        import ray

        context = ray.get_runtime_context()
        with self.sm_changed:
            return {
                "launch_id": self.sm_spec["launch_id"],
                "deployment": self.sm_spec["deployment"],
                "pid": os.getpid(),
                "started": _start_ticks(),
                "node_id": context.get_node_id(),
                "actor_id": context.get_actor_id(),
                "stdout": _path_of(1),
                "stderr": _path_of(2),
                "entry": self.sm_entry_state,
                "outcome": self.sm_outcome,
            }

    def sm_ping(self) -> None:
        """Returns."""

    def sm_start(self, method: str, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Take the entry over. Once this has returned it will run, whatever becomes of the sidecar: the
        next one sees it accepted and calls :meth:`sm_run`. A second call does nothing."""
        with self.sm_changed:
            if not self.sm_entry_state:
                self.sm_entry_state, self.sm_entry = "accepted", (method, args, kwargs)

    def sm_run(self) -> None:
        """Run the accepted entry, once, and remember how it ended."""
        with self.sm_changed:
            if self.sm_entry_state != "accepted":
                return
            self.sm_entry_state = "running"
            (method, args, kwargs), self.sm_entry = self.sm_entry, ("", [], {})
        try:
            target = getattr(self.sm_object, method, None)
            if not callable(target):
                raise AttributeError(f"{type(self.sm_object).__name__} has no method {method}")
            outcome: Answer = {"result": _result_json(self._sm_finish(target(*args, **kwargs)))}
            state = "completed"
        except Exception as error:  # SystemExit and its like end the worker, as they should
            message, text = describe(error)
            outcome, state = {"error": message, "traceback": text}, "failed"
        with self.sm_changed:
            outcome["cancelled"] = self.sm_cancel_asked
            self.sm_outcome, self.sm_entry_state = outcome, state
            self.sm_changed.notify_all()

    def sm_watch(self, token: str, knows_outcome: bool) -> Answer:
        """Wait until there is news, or until another watcher comes: the newest is the one that counts."""
        with self.sm_changed:
            self.sm_watcher = token
            self.sm_changed.notify_all()
            while True:
                if self.sm_watcher != token:
                    return {"superseded": True}
                news = self.sm_outcome is not None and not knows_outcome
                early = self.sm_metrics_sent + METRICS_PERIOD - time.monotonic()
                if news or (self.sm_metrics and early <= 0):
                    metrics, self.sm_metrics = self.sm_metrics, []
                    self.sm_metrics_sent = time.monotonic()
                    return {"entry": self.sm_entry_state, "outcome": self.sm_outcome, "metrics": metrics}
                self.sm_changed.wait(early if self.sm_metrics else None)

    def sm_report(self, metrics: dict[str, Any]) -> None:
        """Hand metrics to the sidecar; returns at once. Raises :class:`NotJson`."""
        text = to_json(metrics, "metrics")
        with self.sm_changed:
            self.sm_metrics.append(text)
            del self.sm_metrics[:-MAX_METRICS]
            self.sm_changed.notify_all()

    def sm_cancel(self, task_id: str, timeout: float) -> Answer:
        """Call the user's ``cancel``, for at most ``timeout`` seconds."""
        self.sm_cancel_asked = True
        target = getattr(self.sm_object, "cancel", None)
        if not callable(target):
            return {"success": False, "error": f"{type(self.sm_object).__name__} has no cancel method"}
        answer = self._sm_bounded("cancel", lambda: target(task_id), timeout)
        if "error" in answer:
            return {"success": False, **answer}
        value = answer["value"]
        success, error = value is not False, ""
        if isinstance(value, dict):
            success = bool(value.get("success", True))
            error = "" if success else str(value.get("error", "") or "cancel answered success: false")
        elif not success:
            error = "cancel returned False"
        return {"success": success, "error": clean(error), "result": _result_json(value)}

    def sm_save(self, timeout: float) -> Answer:
        """The user's state as JSON text, or the default one with the reason."""
        target = getattr(self.sm_object, "save_state", None)
        if not callable(target):
            return {"state": self._sm_state({"labels": self.sm_spec["labels"] or {}}), "default": True}
        answer = self._sm_bounded("save_state", target, timeout)
        if "error" not in answer:
            try:
                value = answer["value"]
                if not isinstance(value, dict):
                    raise NotJson(f"save_state returned a {type(value).__name__}, it must return a dict")
                return {"state": self._sm_state(value)}
            except NotJson as error:
                answer = {"error": f"the state cannot be kept: {error}"}
        default = self._sm_state({"labels": self.sm_spec["labels"] or {}})
        return {"state": default, "default": True, **answer}

    def _sm_state(self, state: dict[str, Any]) -> str:
        spec = self.sm_spec
        return to_json({**state, "task_id": spec["task_id"] or "", "pool_name": spec["pool"] or ""})

    # How things are called.

    def _sm_bounded(self, what: str, call: Callable[[], Any], timeout: float) -> Answer:
        """``{"value"}`` or ``{"error"[, "timed_out"]}``. A call that hangs keeps its thread, once."""
        before = self.sm_bounded_calls.get(what)
        if before is not None and before.is_alive():
            return {"error": f"an earlier {what} has not returned yet", "timed_out": True}
        answer: Answer = {}

        def work() -> None:
            try:
                answer["value"] = self._sm_finish(call())
            except BaseException as error:
                message, text = describe(error)
                answer.update(error=message, detail=text)

        thread = threading.Thread(target=work, name=f"schedulemesh-{what}", daemon=True)
        self.sm_bounded_calls[what] = thread
        thread.start()
        thread.join(timeout)
        if thread.is_alive():
            return {"error": f"{what} did not return within {timeout:g} s", "timed_out": True}
        return answer

    def _sm_finish(self, value: Any) -> Any:
        """Wait for what a call returned: a coroutine on the loop, a generator to its end."""
        if inspect.isawaitable(value):
            return asyncio.run_coroutine_threadsafe(_await(value), self._sm_get_loop()).result()
        if inspect.isasyncgen(value):
            return asyncio.run_coroutine_threadsafe(_drain(value), self._sm_get_loop()).result()
        if inspect.isgenerator(value):
            for _ in value:
                pass
            return None
        return value

    def _sm_on_loop(self, call: Callable[[], Any]) -> Any:
        """Call on the loop's thread, where constructors of asynchronous classes expect to be."""

        async def run() -> Any:
            return call()

        return asyncio.run_coroutine_threadsafe(run(), self._sm_get_loop()).result()

    def _sm_get_loop(self) -> asyncio.AbstractEventLoop:
        with self.sm_loop_lock:
            if self.sm_loop is None:
                self.sm_loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self.sm_loop.run_forever, name="schedulemesh-loop", daemon=True
                ).start()
            return self.sm_loop

    def sm_forward(self, method: str, args: Any, kwargs: Any) -> Any:
        """A public method of the user's class, called by another driver or actor."""
        if self.sm_object is None:
            raise RuntimeError("the agent could not be built")
        target = getattr(self.sm_object, method)
        if inspect.iscoroutinefunction(target) or method in CONTROL_METHODS:
            return self._sm_finish(target(*args, **kwargs))
        with self.sm_serial:  # as in any Ray actor: one plain method at a time
            return self._sm_finish(target(*args, **kwargs))

    def sm_stream(self, method: str, args: Any, kwargs: Any) -> Iterator[Any]:
        """A public generator of the user's class."""
        if self.sm_object is None:
            raise RuntimeError("the agent could not be built")
        stream = getattr(self.sm_object, method)(*args, **kwargs)
        if not inspect.isasyncgen(stream):
            # Not "yield from": Ray sends values in, which plain iterators refuse.
            for item in stream:  # noqa: UP028
                yield item
            return
        loop = self._sm_get_loop()
        while True:
            try:
                yield asyncio.run_coroutine_threadsafe(_await(anext(stream)), loop).result()
            except StopAsyncIteration:
                return


#: Methods that answer while the agent is busy, when other drivers call them on the actor's handle.
CONTROL_METHODS = frozenset({"cancel", "save_state", "ping"})


def forward(method: str, generator: bool) -> Callable[..., Any]:
    """A method for the actor class that leads to the user's method of that name."""
    call: Callable[..., Any]
    if generator:

        def call(self: AgentHost, *args: Any, **kwargs: Any) -> Iterator[Any]:
            yield from self.sm_stream(method, args, kwargs)
    else:

        def call(self: AgentHost, *args: Any, **kwargs: Any) -> Any:
            return self.sm_forward(method, args, kwargs)

    call.__name__ = method
    call.__qualname__ = f"Agent.{method}"
    return call


async def _await(value: Any) -> Any:
    return await value


async def _drain(stream: Any) -> None:
    async for _ in stream:
        pass


def _has_coroutines(cls: type) -> bool:
    return any(
        inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)
        for _, member in inspect.getmembers(cls, inspect.isfunction)
    )


def _result_json(value: Any) -> str:
    """A result as JSON text; what is not JSON, or too long, by its look: ``{"repr": "…"}``."""
    try:
        text = to_json(value, "result")
        if len(text) <= MAX_RESULT:
            return text
    except NotJson:
        pass
    try:
        look = repr(value)
    except Exception:
        look = f"<{type(value).__name__}>"
    return json.dumps({"repr": clean(look[:1000])})


def _path_of(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return str(getattr(sys.stdout if fd == 1 else sys.stderr, "name", ""))


def _start_ticks() -> int:
    """When this process started, in clock ticks since boot: with the pid it names one process."""
    try:
        with open("/proc/self/stat") as stat:
            return int(stat.read().rsplit(")", 1)[1].split()[19])
    except OSError:
        return 0


def _process_started() -> float:
    """When this process started, in epoch seconds; 0 when unknown."""
    try:
        with open("/proc/uptime") as uptime:
            now = float(uptime.read().split()[0])
        return time.time() - now + _start_ticks() / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 0.0
