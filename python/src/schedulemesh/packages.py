"""Local directories as packages, which Ray unpacks where a job runs.

What is the same content has the same name, whoever packs it, so that nothing is uploaded twice. Ray itself is
not needed; its settings RAY_RUNTIME_ENV_IGNORE_GITIGNORE and RAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES count.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from schedulemesh.errors import InvalidArgument

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

log = logging.getLogger("schedulemesh")

#: The most that a package may have in it, in bytes: what Ray takes.
LIMIT = 500 << 20
#: From so many bytes on it is said how far packing and uploading are.
TOLD_FROM = 5 << 20

_PIECE = 1 << 20
# Changes when the same content makes another package.
_LAYOUT = b"schedulemesh package 1\0"


@dataclass
class Package:
    """Files that are one package, or a wheel, which is one already.

    Attributes:
        source: the directory or file it is made of.
        name: what servers and Ray know it by, without ``gcs://``.
        files: the names inside and where they are; a name that ends with a slash is an empty directory.
        size: of all files, in bytes.
    """

    source: Path
    name: str
    files: list[tuple[str, Path]] = field(repr=False)
    size: int
    as_is: bool = False

    @property
    def uri(self) -> str:
        """What a runtime environment says."""
        return "gcs://" + self.name

    def pack(self) -> IO[bytes]:
        """The package as a temporary file, which is gone once it is closed.

        Raises:
            InvalidArgument: a file cannot be read, or was changed meanwhile.
        """
        if self.as_is:
            return _opened(self.source)
        packed = tempfile.TemporaryFile(prefix="schedulemesh-")  # noqa: SIM115 - the caller closes it
        told = Progress(f"packing {self.source}", self.size)
        sums = _Sum()
        try:
            with zipfile.ZipFile(
                packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1, strict_timestamps=False
            ) as out:
                for name, path in self.files:
                    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    mode = _mode(name, path)
                    entry.external_attr = mode << 16 | (0x10 if name.endswith("/") else 0)
                    sums.begin(name, mode)
                    with out.open(entry, "w") as inside:
                        for piece in _pieces(name, path):
                            inside.write(piece)
                            sums.add(piece)
                            told.more(len(piece))
            if f"_ray_pkg_{sums.digest()}.zip" != self.name:
                raise InvalidArgument(
                    f"files in {self.source} were changed while they were packed: try again"
                )
            packed.seek(0)
        except BaseException:
            packed.close()
            raise
        finally:
            told.end()
        return packed


class Progress:
    """Says how far something large is: a line that changes on a terminal, else lines of the log."""

    def __init__(self, what: str, size: int) -> None:
        self._what, self._size, self._done = what, size, 0
        self._next = time.monotonic() + (0.2 if sys.stderr.isatty() else 5.0)
        self._shown = False
        if size >= TOLD_FROM:
            log.info("%s, %s", what, mib(size))

    def more(self, size: int) -> None:
        """So many bytes more are done."""
        self._done += size
        if self._size < TOLD_FROM or time.monotonic() < self._next:
            return
        text = f"{self._what}: {mib(self._done)} of {mib(self._size)}"
        if sys.stderr.isatty():
            self._shown, self._next = True, time.monotonic() + 0.2
            print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)
        else:
            self._next = time.monotonic() + 5.0
            log.info("%s", text)

    def end(self) -> None:
        """Take the line away."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def mib(size: int) -> str:
    """Bytes for people."""
    return f"{size / (1 << 20):,.1f} MiB"


def package_directory(directory: Path, excludes: Sequence[str] = (), *, keep_name: bool = False) -> Package:
    """A directory as a package.

    Left out are what ``excludes`` and the files .gitignore and .rayignore in it name, in Git's patterns, and
    .git, .venv, venv and __pycache__. Links are followed; what is neither file nor directory is left out.

    Args:
        directory: where it is.
        excludes: patterns, relative to it.
        keep_name: the directory itself is in the package, too, as of a module.

    Raises:
        InvalidArgument: something cannot be read, or it is too large.
    """
    top = directory.name + "/" if keep_name else ""
    files = [(top + name, path) for name, path in _walk(directory, excludes)]
    return _package(directory, files)


def package_module(file: Path) -> Package:
    """A module of one file as a package."""
    return _package(file, [(file.name, file)])


def package_archive(file: Path) -> Package:
    """A zip file with a directory's content as the package it is."""
    size = _sized([("", file)], file)
    if not zipfile.is_zipfile(file):
        raise InvalidArgument(f"{file} is not a zip file")
    return Package(file, f"_ray_pkg_{_hash(file)}.zip", [], size, as_is=True)


def package_wheel(file: Path) -> Package:
    """A wheel as a package. Its build tag becomes its content's, so that a wheel built anew is a new one."""
    match = re.fullmatch(r"([^-]+-[^-]+)(?:-[0-9][^-]*)?(-[^-]+-[^-]+-[^-]+\.whl)", file.name)
    if match is None:
        raise InvalidArgument(f"{file} is not the name of a wheel: those are like mine-1.0-py3-none-any.whl")
    size = _sized([("", file)], file)
    return Package(file, f"{match[1]}-0{_hash(file)[:16]}{match[2]}", [], size, as_is=True)


def _package(source: Path, files: list[tuple[str, Path]]) -> Package:
    size = _sized(files, source)
    told = Progress(f"reading {source}", size)
    sums = _Sum()
    try:
        for name, path in files:
            sums.begin(name, _mode(name, path))
            for piece in _pieces(name, path):
                sums.add(piece)
                told.more(len(piece))
    finally:
        told.end()
    return Package(source, f"_ray_pkg_{sums.digest()}.zip", files, size)


class _Sum:
    """The hash of all there is to a package."""

    def __init__(self) -> None:
        self._all = hashlib.sha256(_LAYOUT)
        self._file: hashlib._Hash | None = None

    def begin(self, name: str, mode: int) -> None:
        self._end()
        self._all.update(f"{len(name.encode())} {mode:o} ".encode() + name.encode())
        self._file = hashlib.sha256()

    def add(self, piece: bytes) -> None:
        assert self._file is not None
        self._file.update(piece)

    def _end(self) -> None:
        if self._file is not None:
            self._all.update(self._file.digest())

    def digest(self) -> str:
        self._end()
        self._file = None
        return self._all.hexdigest()[:40]


def _hash(file: Path) -> str:
    sums = hashlib.sha256()
    for piece in _pieces("", file):
        sums.update(piece)
    return sums.hexdigest()[:40]


def _mode(name: str, path: Path) -> int:
    """What of a file's mode is kept: whether it can be executed."""
    if name.endswith("/"):
        return stat.S_IFDIR | 0o755
    try:
        return stat.S_IFREG | (0o755 if path.stat().st_mode & 0o100 else 0o644)
    except OSError as error:
        raise _unreadable(path, error) from None


def _pieces(name: str, path: Path) -> Iterator[bytes]:
    if name.endswith("/"):
        return
    with _opened(path) as file:
        try:
            while piece := file.read(_PIECE):
                yield piece
        except OSError as error:
            raise _unreadable(path, error) from None


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> InvalidArgument:
    return InvalidArgument(
        f"{path} cannot be read for the job's package ({error.strerror}): make it readable, or name it in "
        "runtime_env's excludes"
    )


def _sized(files: list[tuple[str, Path]], source: Path) -> int:
    """The size of all of them, in bytes.

    Raises:
        InvalidArgument: it is too large, or one cannot be looked at.
    """
    sizes = []
    for name, path in files:
        try:
            sizes.append((0 if name.endswith("/") else path.stat().st_size, name or path.name))
        except OSError as error:
            raise _unreadable(path, error) from None
    total = sum(size for size, _ in sizes)
    if total > LIMIT:
        largest = ", ".join(f"{name} ({mib(size)})" for size, name in sorted(sizes, reverse=True)[:5])
        raise InvalidArgument(
            f"{source} has {mib(total)}, and {mib(LIMIT)} is the most a package may have. The largest files "
            f"are {largest}: name what the job does not need in runtime_env's excludes, .gitignore or "
            ".rayignore, or put data where the clusters can read it"
        )
    return total


# Which files.

Ignored = Callable[[str, bool], bool]


def _walk(directory: Path, excludes: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Names, relative to the directory, and paths of what is to be packed, always in the same order."""
    default = os.environ.get("RAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES", ".git,.venv,venv,__pycache__")
    own = [word.strip() for word in default.split(",") if word.strip()]
    names = [".rayignore"]
    if os.environ.get("RAY_RUNTIME_ENV_IGNORE_GITIGNORE") != "1":
        names.append(".gitignore")
    rules = [("", _spec([*own, *excludes], "excludes"))]
    yield from _walk_in(directory, "", names, rules, ())


def _walk_in(
    directory: Path,
    inside: str,
    ignore_files: list[str],
    rules: list[tuple[str, GitIgnoreSpec]],
    above: tuple[tuple[int, int], ...],
) -> Iterator[tuple[str, Path]]:
    try:
        found = directory.stat()
        entries = sorted(os.listdir(directory))
    except OSError as error:
        raise _unreadable(directory, error) from None
    if (found.st_dev, found.st_ino) in above:
        log.warning("%s is left out of the package: it is a link to a directory it is in", directory)
        return
    above = (*above, (found.st_dev, found.st_ino))
    for name in ignore_files:
        if name in entries and (directory / name).is_file():
            try:
                lines = (directory / name).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
            except OSError as error:
                raise _unreadable(directory / name, error) from None
            rules = [*rules, (inside, _spec(lines, str(directory / name)))]
    empty = True
    for entry in entries:
        path, name = directory / entry, inside + entry
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(f"{str(path)!r} cannot be packed: its name is not text in UTF-8") from None
        try:
            is_directory, is_file = path.is_dir(), path.is_file()
        except OSError as error:
            raise _unreadable(path, error) from None
        if _ignored(name + "/" if is_directory else name, rules):
            continue
        if is_directory:
            yield from _walk_in(path, name + "/", ignore_files, rules, above)
        elif is_file:
            yield name, path
        else:
            why = "its target is not there" if path.is_symlink() else "it is neither a file nor a directory"
            log.warning("%s is left out of the package: %s", path, why)
            continue
        empty = False
    if empty and inside:
        yield inside, directory


def _ignored(name: str, rules: list[tuple[str, GitIgnoreSpec]]) -> bool:
    """Whether a rule leaves it out; of one kind, the innermost that says anything counts."""
    for base, spec in reversed(rules[1:]):
        says = spec.check_file(name[len(base) :]).include
        if says is not None:
            if says:
                return True
            break
    return rules[0][1].check_file(name).include is True


def _spec(lines: Sequence[str], where: str) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(lines)
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"a pattern in {where} cannot be used: {error}") from None
