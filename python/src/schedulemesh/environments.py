"""Runtime environments of jobs: what is on this machine becomes what a cluster can have."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from schedulemesh.errors import InvalidArgument
from schedulemesh.packages import (
    Package,
    package_archive,
    package_directory,
    package_module,
    package_wheel,
)

#: The largest runtime environment, in bytes of JSON, without what is packed.
LIMIT = 1 << 20


def portable(runtime_env: Mapping[str, Any]) -> tuple[dict[str, Any], list[Package]]:
    """A runtime environment without paths of this machine, and the packages it names instead.

    Local directories, modules, wheels and zip files of ``working_dir`` and ``py_modules`` become packages,
    files with requirements (``pip``, ``uv``) or an environment (``conda``) what is in them.

    Raises:
        InvalidArgument: it is not what Ray calls a runtime environment, or a file of it cannot be read.
    """
    if not isinstance(runtime_env, Mapping):
        raise InvalidArgument(f"runtime_env must be a dict, not {type(runtime_env).__name__}")
    env = {key: value if key == "py_modules" else _copy(key, value) for key, value in runtime_env.items()}
    excludes = env.get("excludes") or []
    if not isinstance(excludes, list) or not all(isinstance(pattern, str) for pattern in excludes):
        raise InvalidArgument(f"runtime_env's excludes must be a list of patterns, not {excludes!r}")
    packages = []
    if env.get("working_dir") is not None:
        made = _working_dir(env["working_dir"], excludes)
        env["working_dir"] = made.uri if isinstance(made, Package) else made
        packages += [made] if isinstance(made, Package) else []
    if env.get("py_modules") is not None:
        if not isinstance(env["py_modules"], (list, tuple)):
            raise InvalidArgument(f"runtime_env's py_modules must be a list, not {env['py_modules']!r}")
        modules = [_py_module(module, excludes) for module in env["py_modules"]]
        env["py_modules"] = [made.uri if isinstance(made, Package) else made for made in modules]
        packages += [made for made in modules if isinstance(made, Package)]
    if packages:
        env.pop("excludes", None)  # done
    for kind in ("pip", "uv"):
        if env.get(kind) is not None:
            env[kind] = _requirements(kind, env[kind])
    if isinstance(env.get("conda"), str) and env["conda"].endswith((".yml", ".yaml")):
        env["conda"] = _conda(env["conda"])
    try:
        size = len(json.dumps(env, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"runtime_env cannot be sent as JSON: {error}") from None
    if size > LIMIT:
        raise InvalidArgument(
            f"runtime_env has {size} bytes as JSON, and {LIMIT} is the most: put files into working_dir or "
            "py_modules, and data where the clusters can read it"
        )
    return env, packages


def _copy(key: Any, value: Any) -> Any:
    if not isinstance(key, str):
        raise InvalidArgument(f"runtime_env's keys must be strings, not {key!r}")
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    try:
        return copy.deepcopy(value)
    except (TypeError, RecursionError) as error:
        raise InvalidArgument(f"runtime_env's {key} cannot be sent as JSON: {error}") from None


def _local(what: str, value: Any) -> Path | None:
    """The path it is on this machine; None for a URI.

    Raises:
        InvalidArgument: it is neither.
    """
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidArgument(f"runtime_env's {what} must be a path or a URI, not {value!r}")
    if "://" in value:
        return None
    path = Path(os.path.abspath(os.path.expanduser(value)))
    if not path.exists():
        raise InvalidArgument(f"runtime_env's {what} is {value!r}, and there is no {path} on this machine")
    return path


def _working_dir(value: Any, excludes: list[str]) -> Package | str:
    path = _local("working_dir", value)
    if path is None:
        return str(value)
    if path.is_dir():
        return package_directory(path, excludes)
    if path.suffix == ".zip":
        return package_archive(path)
    raise InvalidArgument(
        f"runtime_env's working_dir must be a directory or a .zip file, which {path} is not"
    )


def _py_module(value: Any, excludes: list[str]) -> Package | str:
    if isinstance(value, ModuleType):
        paths = list(getattr(value, "__path__", None) or filter(None, [value.__file__]))
        if len(paths) != 1:
            raise InvalidArgument(
                f"module {value.__name__} of runtime_env's py_modules is in {len(paths)} places, and one is "
                "needed: give the paths instead"
            )
        value = paths[0]
    path = _local("py_modules", value)
    if path is None:
        return str(value)
    if path.is_dir():
        return package_directory(path, excludes, keep_name=True)
    if path.suffix == ".py":
        return package_module(path)
    if path.suffix == ".whl":
        return package_wheel(path)
    raise InvalidArgument(
        f"an item of runtime_env's py_modules must be a directory, a .py or a .whl file, which {path} is not"
    )


def _requirements(kind: str, value: Any) -> Any:
    """The requirements, where a file with them is named."""
    if isinstance(value, str):
        return [line.strip() for line in _text(kind, value).splitlines() if line.strip()]
    if isinstance(value, dict) and isinstance(value.get("packages"), str):
        return {**value, "packages": _requirements(kind, value["packages"])}
    return value


def _conda(file: str) -> Any:
    import yaml

    try:
        found = yaml.safe_load(_text("conda", file))
    except yaml.YAMLError as error:
        raise InvalidArgument(f"{file} of runtime_env's conda is not YAML: {error}") from None
    if not isinstance(found, dict):
        raise InvalidArgument(f"{file} of runtime_env's conda has no environment in it")
    return found


def _text(kind: str, file: str) -> str:
    try:
        return Path(file).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"the file {file!r} of runtime_env's {kind} cannot be read: {error}") from None
