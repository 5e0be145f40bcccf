"""Faults of a process: suspended, without new threads; failing calls and statements."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from sqlalchemy import event

from sluiceway_gateway.db.engine import Database
from waiting import until

__all__ = [
    "at_statements",
    "failing_call",
    "no_threads",
    "raising",
    "suspend",
]


def suspend(pid: int) -> None:
    """Send SIGSTOP, and return once no thread of the process runs.

    The threads run until one of them takes the signal, on a busy machine tens of milliseconds.
    """
    os.kill(pid, signal.SIGSTOP)
    until(lambda: not _runs(pid))


def _runs(pid: int) -> bool:
    """Whether any thread is neither stopped nor at its end."""
    for path in Path("/proc").glob(f"{pid}/task/*/stat"):
        # Threads and processes may end meanwhile.
        with suppress(FileNotFoundError, ProcessLookupError):
            state = path.read_text().rpartition(") ")[2][0]
            if state not in "TZX":
                return True
    return False


@contextmanager
def no_threads(named: str = "") -> Iterator[None]:
    """Let no thread start whose name begins with `named`."""
    start = Thread.start

    def refuse(thread: Thread) -> None:
        if thread.name.startswith(named):
            raise RuntimeError("can't start new thread")
        start(thread)

    with pytest.MonkeyPatch.context() as patched:
        # The limit of threads belongs to the whole process.
        patched.setattr(Thread, "start", refuse)
        yield


@contextmanager
def at_statements(
    database: Database, words: str, action: Callable[[], object], *, values: str = ""
) -> Iterator[None]:
    """Call `action` before each statement of SQL that begins with `words`.

    Only if its parameters contain `values`. An error that `action` raises is that of the statement.
    """

    def executing(
        _connection: Any, _cursor: Any, statement: str, parameters: Any, *_: object
    ) -> None:
        if statement.lstrip().startswith(words) and values in str(parameters):
            action()

    event.listen(database.engine, "before_cursor_execute", executing)
    try:
        yield
    finally:
        event.remove(database.engine, "before_cursor_execute", executing)


def raising(error: BaseException) -> Callable[[], None]:
    """Return a function that raises `error`."""

    def fail() -> None:
        raise error

    return fail


@contextmanager
def failing_call(
    owner: object, name: str, error: BaseException, *, arrives: bool
) -> Iterator[None]:
    """Raise `error` from `owner`'s method `name`, and expect it from the block.

    If the call `arrives`, it is done before.
    """
    call = getattr(owner, name)

    def fail(*arguments: Any, **options: Any) -> None:
        if arrives:
            call(*arguments, **options)
        raise error

    with pytest.MonkeyPatch.context() as patched:
        # One request of many, before or after it arrives.
        patched.setattr(owner, name, fail)
        with pytest.raises(type(error)) as raised:
            yield
    assert raised.value is error
