"""Classes and functions of a script, made ready to travel to a worker.

What can be imported anywhere goes as an import path. What is defined in a script or a notebook, or comes
with arguments that JSON cannot hold, is pickled, together with where this process looks for modules, so that
the worker finds a script's neighbours. Only the worker unpickles.
"""

from __future__ import annotations

import base64
import inspect
import logging
import math
import os
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from schedulemesh.errors import InvalidArgument, NotPicklable

log = logging.getLogger("schedulemesh")

#: The layout of what :func:`pack` makes; the worker refuses one it does not know.
FORMAT = 1
#: The most a launch may weigh, in bytes.
MAX_PICKLE = 40 << 20


def launch_fields(
    actor_class: Any, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The part of a request that says what to run.

    Args:
        actor_class: a class, decorated with ``@ray.remote`` or not, or an import path ``module:Class``.
        args: positional arguments after name and labels.
        kwargs: named arguments.

    Raises:
        InvalidArgument: it is not a class, or cannot be built with name, labels and these arguments.
        NotPicklable: the class or an argument cannot travel; the message says which.
    """
    positional, named = _arguments(args, kwargs)
    if isinstance(actor_class, str):
        return _by_path(actor_class, positional, named)
    cls = plain_class(actor_class)
    _check_constructor(cls, positional, named)
    if not callable(getattr(cls, "cancel", None)):
        log.warning(
            "%s has no cancel method: when it is preempted it is stopped without being asked first",
            cls.__name__,
        )
    methods = public_methods(cls)
    path = import_path(cls)
    if path and is_json([*positional]) and is_json(named):
        return {
            "actor_class": path,
            "actor_args": list(positional),
            "actor_kwargs": named,
            "methods": methods,
        }
    data = pack(_pickled_launch(cls, positional, named))
    return {
        "pickled": base64.b64encode(data).decode(),
        "pickled_name": cls.__qualname__[-200:],
        "methods": methods,
    }


def handler_fields(handler: Callable[..., Any] | None, what: str) -> tuple[str | None, str]:
    """A state handler as base64 of its pickle, and its name.

    Raises:
        InvalidArgument: it cannot be called with one argument.
        NotPicklable: it cannot travel.
    """
    if handler is None:
        return None, ""
    if not callable(handler):
        raise InvalidArgument(f"{what} is a {type(handler).__name__}; give a function of one argument")
    try:
        inspect.signature(handler).bind(None)
    except TypeError as error:
        raise InvalidArgument(f"{what} {_name_of(handler)} must take one argument: {error}") from None
    except ValueError:
        pass  # of something built in
    try:
        body = _dumps(handler)
    except Exception as error:
        raise NotPicklable(f"{what} {_name_of(handler)} cannot be pickled: {error}") from error
    return base64.b64encode(pack(body)).decode(), _name_of(handler)


def plain_class(actor_class: Any) -> type:
    """The class a user wrote, without Ray's decoration.

    Raises:
        InvalidArgument: it is not a class.
    """
    meta = getattr(actor_class, "__ray_metadata__", None)
    if meta is not None:
        actor_class = meta.modified_class
        actor_class = getattr(actor_class, "__ray_actor_class__", actor_class)
    if isinstance(actor_class, type):
        return actor_class
    hint = ""
    if type(actor_class).__name__ == "ActorOptionWrapper":
        hint = " without .options(): resources and ray_options are arguments of their own"
    raise InvalidArgument(
        f"actor_class is {_shown(actor_class)}; give a class, decorated with @ray.remote or not{hint}"
    )


def public_methods(cls: type) -> list[dict[str, Any]]:
    """Name, ``async``, ``generator`` and ``num_returns`` of each method a handle will have."""
    found = []
    for name, member in inspect.getmembers(cls, callable):
        if name.startswith("_") or isinstance(member, type):
            continue
        method: dict[str, Any] = {"name": name}
        if inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member):
            method["async"] = True
        if inspect.isgeneratorfunction(member) or inspect.isasyncgenfunction(member):
            method["generator"] = True
        returns = getattr(member, "__ray_num_returns__", None)
        if isinstance(returns, int) and returns != 1:
            method["num_returns"] = returns
        found.append(method)
    return found


def import_path(cls: type) -> str:
    """``module:Class`` when any worker of this environment can import it; empty when it lives in a script."""
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    if module is None or file is None or cls.__module__ == "__main__" or "<" in cls.__qualname__:
        return ""
    found: Any = module
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is not cls and getattr(found, "__ray_metadata__", None) is None:
        return ""
    return f"{cls.__module__}:{cls.__qualname__}" if _is_installed(file) else ""


def is_json(value: Any) -> bool:
    """Whether JSON brings a value back as it was."""
    if value is None or isinstance(value, (bool, int, str)):
        return type(value) in (type(None), bool, int, str)
    if isinstance(value, float):
        return type(value) is float and math.isfinite(value)
    if type(value) is list:
        return all(is_json(item) for item in value)
    if type(value) is dict:
        return all(type(key) is str and is_json(item) for key, item in value.items())
    return False


def pack(body: bytes) -> bytes:
    """A pickle with what the worker must know before it can read it.

    Raises:
        InvalidArgument: it is too large to send.
    """
    import ray

    if len(body) > MAX_PICKLE:
        raise InvalidArgument(
            f"class and arguments are {len(body) >> 20} MiB pickled, more than {MAX_PICKLE >> 20}: "
            "put what is large where the agent can read it, such as a file or ray.put in another actor"
        )
    envelope = {
        "format": FORMAT,
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "ray": ray.__version__,
        "sys_path": local_paths(),
        "body": body,
    }
    return _dumps(envelope)


def local_paths() -> list[str]:
    """Where this process finds modules that are not installed: the script's directory and its like."""
    found: dict[str, None] = {}
    for entry in sys.path:
        path = os.path.abspath(entry or os.getcwd())
        if os.path.isdir(path) and not _is_installed(os.path.join(path, "module.py")):
            found[path] = None
    return list(found)


def _is_installed(file: str) -> bool:
    file = os.path.realpath(file)
    return any(file.startswith(place) for place in _installed_places())


def _installed_places() -> list[str]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return [os.path.realpath(sysconfig.get_path(name)) + os.sep for name in names]


def _by_path(path: str, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    module, colon, name = path.partition(":")
    if not (colon and module and name):
        raise InvalidArgument(f'actor_class is {path!r}; give a class, or its import path as "module:Class"')
    for what, value in (("actor_args", args), ("actor_kwargs", kwargs)):
        if not is_json(value):
            raise InvalidArgument(f"{what} is not plain JSON; give the class itself instead of {path!r}")
    return {"actor_class": path, "actor_args": args, "actor_kwargs": kwargs}


def _arguments(
    args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> tuple[list[Any], dict[str, Any]]:
    if args is not None and (isinstance(args, (str, bytes)) or not isinstance(args, Sequence)):
        raise InvalidArgument(f"actor_args is {_shown(args)}; give a list")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise InvalidArgument(f"actor_kwargs is {_shown(kwargs)}; give a dict")
    named = dict(kwargs or {})
    for name in named:
        if not isinstance(name, str):
            raise InvalidArgument(f"actor_kwargs has the key {name!r}; names of arguments are text")
    return list(args or ()), named


def _check_constructor(cls: type, args: list[Any], kwargs: dict[str, Any]) -> None:
    """What the worker will find out as well, said before anything is sent."""
    try:
        signature = inspect.signature(cls)
    except (TypeError, ValueError):
        return
    try:
        signature.bind("name", {}, *args, **kwargs)
    except TypeError as error:
        try:
            signature.bind(*args, name="name", labels={}, **kwargs)
        except TypeError:
            raise InvalidArgument(
                f"{cls.__name__}{signature} cannot be built: {error}. An agent's class takes name and labels "
                "first, then actor_args and actor_kwargs"
            ) from None


def _pickled_launch(cls: type, args: list[Any], kwargs: dict[str, Any]) -> bytes:
    try:
        return _dumps({"class": cls, "args": tuple(args), "kwargs": kwargs})
    except Exception as error:
        parts = [(f"class {cls.__qualname__}", cls)]
        parts += [(f"actor_args[{i}]", value) for i, value in enumerate(args)]
        parts += [(f"actor_kwargs[{name!r}]", value) for name, value in kwargs.items()]
        for what, part in parts:
            try:
                _dumps(part)
            except Exception as cause:
                raise NotPicklable(f"{what} cannot be pickled: {cause}") from cause
        raise NotPicklable(f"class and arguments cannot be pickled: {error}") from error


def _dumps(value: Any) -> bytes:
    from ray import cloudpickle

    data: bytes = cloudpickle.dumps(value)
    return data


def _name_of(handler: Any) -> str:
    return str(getattr(handler, "__qualname__", type(handler).__qualname__))[-200:]


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text[:60]}… ({type(value).__name__})" if len(text) > 60 else text
