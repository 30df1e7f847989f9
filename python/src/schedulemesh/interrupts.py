"""Ctrl-C in a function that submitted jobs stops those jobs, and no others."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Any, TypeVar, cast

from schedulemesh.errors import ScheduleMeshError, ServerError, UnknownJob

F = TypeVar("F", bound=Callable[..., Any])

#: How long jobs may take to stop before they are left to it, in seconds. A second Ctrl-C leaves them at once.
PATIENCE = 30.0
#: How many are stopped at the same time.
AT_ONCE = 16

_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


class Scope:
    """The jobs that were submitted within a call of a decorated function, and within those it calls."""

    def __init__(self, parent: Scope | None) -> None:
        self.parent = parent
        self.jobs: dict[str, str] = {}  # submission ids, and the server of each
        self.dealt_with: set[str] = set()
        self.on_its_way: set[str] = set()


_scope: ContextVar[Scope | None] = ContextVar("schedulemesh_jobs", default=None)


@contextlib.contextmanager
def submitting(submission_id: str, url: str) -> Iterator[None]:
    """A job is submitted: it belongs to the functions around it, unless the server refuses it."""
    scopes = list(_around())
    for scope in scopes:
        scope.jobs[submission_id] = url
        scope.on_its_way.add(submission_id)
    try:
        yield
    except ServerError:
        for scope in scopes:
            scope.jobs.pop(submission_id, None)
        raise
    for scope in scopes:
        scope.on_its_way.discard(submission_id)


def _around(scope: Scope | None = None) -> Iterator[Scope]:
    scope = scope or _scope.get()
    while scope is not None:
        yield scope
        scope = scope.parent


def graceful_shutdown_on_keyboard_interrupt(function: F) -> F:
    """Have Ctrl-C in this function stop the jobs that were submitted in it, then go on as usual.

    Jobs count that were submitted between the function's begin and end: by itself, by what it calls, and by
    threads started in it. Those that have ended are left alone. While they are being stopped, a second Ctrl-C
    gives up waiting for that. Functions and coroutine functions can be decorated. Python interrupts the main
    thread alone, so that is where the function has to run.
    """
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def decorated_coroutine(*args: Any, **kwargs: Any) -> Any:
            with _Entered() as entered:
                try:
                    return await function(*args, **kwargs)
                except (KeyboardInterrupt, asyncio.CancelledError) as error:
                    # Ctrl-C cancels coroutines; so may the program, which is none of our business.
                    if isinstance(error, KeyboardInterrupt) or entered.interrupted():
                        stopping = _Stopping(entered.scope)
                        while stopping.goes_on():  # noqa: ASYNC110 - threads do it
                            await asyncio.sleep(0.05)
                        stopping.say()
                    raise

        return cast(F, decorated_coroutine)

    @functools.wraps(function)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        with _Entered() as entered:
            try:
                return function(*args, **kwargs)
            except KeyboardInterrupt:
                stopping = _Stopping(entered.scope)
                while stopping.goes_on():
                    time.sleep(0.05)
                stopping.say()
                raise

    return cast(F, decorated)


class _Stopping:
    """The jobs of a scope are stopped, several at a time, in threads that nobody has to wait for."""

    def __init__(self, scope: Scope) -> None:
        self._left = {id: url for id, url in scope.jobs.items() if id not in scope.dealt_with}
        for around in _around(scope):
            around.dealt_with |= set(self._left)
        self._found: dict[str, str] = {}
        self._end = time.monotonic() + PATIENCE
        if self._left:
            _say(f"Interrupted: stopping {_jobs(len(self._left))}; Ctrl-C again leaves them to it.")
        waiting = [(id, url, id in scope.on_its_way) for id, url in self._left.items()]

        def work() -> None:
            with contextlib.suppress(IndexError):
                while True:
                    submission_id, url, on_its_way = waiting.pop()
                    self._found[submission_id] = _stop_one(submission_id, url, on_its_way, self._end)

        self._threads = [
            threading.Thread(target=work, daemon=True) for _ in range(min(AT_ONCE, len(waiting)))
        ]
        for thread in self._threads:
            thread.start()

    def goes_on(self) -> bool:
        """Whether there is something to wait for."""
        return time.monotonic() < self._end + 5.0 and any(thread.is_alive() for thread in self._threads)

    def say(self) -> None:
        """Tell what became of them."""
        if not self._left:
            return
        words = list(self._found.values())
        stopped, ended = words.count("stopped"), words.count("ended")
        parts = [f"{_jobs(stopped)} stopped"] if stopped else []
        parts += [f"{_jobs(ended)} had ended already"] if ended else []
        if parts:
            _say(", ".join(parts) + ".")
        for submission_id in self._left:
            what = self._found.get(submission_id, "its server does not answer")
            if what not in ("stopped", "ended"):
                _say(f"Job {submission_id}: {what}.")


def _stop_one(submission_id: str, url: str, on_its_way: bool, end: float) -> str:
    """Stop a job and wait until it is, and say what became of it."""
    from schedulemesh._sync.client import Client

    try:
        with Client(url, retry_for=5.0) as client:
            # One whose submission was cut short may arrive yet.
            grace = time.monotonic() + (2.0 if on_its_way else 0.0)
            while True:
                try:
                    before = client.job(submission_id)
                    break
                except UnknownJob:
                    if time.monotonic() > grace:
                        return "ended"
                    time.sleep(0.2)
            if before["state"] in _ENDED:
                return "ended"
            job = client.stop_job(submission_id)
            while job["state"] not in _ENDED and (left := end - time.monotonic()) > 0:
                job = client.job(submission_id, wait=min(left, 10.0))
            if job["state"] not in _ENDED:
                return f"it is asked to stop, and was still {job['status']} after {PATIENCE:g} s"
            return "stopped" if job["state"] == "STOPPED" else "ended"
    except ScheduleMeshError as error:
        return f"it could not be stopped: {error}"


def _jobs(n: int) -> str:
    return "1 job" if n == 1 else f"{n} jobs"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# Who is in a decorated function.


class _Entered:
    """A decorated function runs: what is submitted now is its own."""

    def __init__(self) -> None:
        self.scope = Scope(_scope.get())

    def __enter__(self) -> _Entered:
        self._token = _scope.set(self.scope)
        self._seen = _watch.enter()
        return self

    def __exit__(self, *_: object) -> None:
        _watch.leave()
        _scope.reset(self._token)

    def interrupted(self) -> bool:
        """Whether Ctrl-C came since."""
        return _watch.seen > self._seen


class _Watch:
    """While any decorated function runs: threads started in one belong to it, and interruptions are
    counted."""

    def __init__(self) -> None:
        self.seen = 0
        self._lock = threading.RLock()  # a handler of a signal may come in between
        self._users = 0
        self._in_main_thread = 0
        self._start: Callable[[threading.Thread], None] | None = None
        self._before: Any = None
        self._mine: Any = None

    def enter(self) -> int:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._start = threading.Thread.start
                threading.Thread.start = _start_inside(self._start)  # type: ignore[method-assign, assignment]
            if threading.current_thread() is threading.main_thread():
                self._in_main_thread += 1
                before = signal.getsignal(signal.SIGINT)
                if self._in_main_thread == 1 and callable(before):
                    self._before, self._mine = before, self._noting(before)
                    signal.signal(signal.SIGINT, self._mine)
            return self.seen

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._start is not None:
                threading.Thread.start = self._start  # type: ignore[method-assign, assignment]
            if threading.current_thread() is threading.main_thread():
                self._in_main_thread -= 1
                if self._in_main_thread == 0 and self._mine is not None:
                    if signal.getsignal(signal.SIGINT) is self._mine:
                        signal.signal(signal.SIGINT, self._before)
                    self._before = self._mine = None

    def _noting(self, before: Callable[[int, FrameType | None], Any]) -> Any:
        def handler(number: int, frame: FrameType | None) -> Any:
            self.seen += 1
            return before(number, frame)

        return handler


_watch = _Watch()


def _start_inside(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """Thread.start that hands the scope over, which threads do not inherit."""

    @functools.wraps(start)
    def start_thread(self: threading.Thread) -> None:
        scope = _scope.get()
        if scope is not None:
            run = self.run

            def run_inside() -> None:
                _scope.set(scope)
                run()

            self.run = run_inside  # type: ignore[method-assign]
        start(self)

    return start_thread
