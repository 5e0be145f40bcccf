"""Work that Python's collector gives rise to, done where nobody holds a lock."""

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["aside", "when_forgotten"]


def aside(work: Callable[[], object]) -> None:
    """Do it in a thread of its own, which the process waits for; at its end, at once."""
    # Then no thread is waited for any more, and none holds a lock either.
    if threading.main_thread().is_alive():
        threading.Thread(target=work, name="sluiceway-forgotten").start()
    else:
        work()


def when_forgotten(
    owner: object, work: Callable[..., object], *given: Any
) -> "weakref.finalize[..., Any]":
    """Do `work` when `owner` is collected, or the process ends before; not in forked processes.

    An object is collected in the middle of whatever some thread does, which may hold any lock.
    """
    return weakref.finalize(owner, _begin, os.getpid(), work, given)


def _begin(process: int, work: Callable[..., object], given: tuple[Any, ...]) -> None:
    if os.getpid() == process:
        aside(lambda: work(*given))
