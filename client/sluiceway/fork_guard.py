"""Fork guard: keeps objects of a parent process from being used in its forked children."""

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sluiceway.errors import EndpointClosed

__all__ = ["ForkGuard"]


@dataclass(frozen=True)
class ForkGuard:
    """The process that created it.

    A forked child has no threads of its parent's, and shares its connections: locks may stay
    held, and librdkafka would wait for its threads forever. Guards of one process are equal, so
    a guard as part of a key keeps a cache's entries per process.
    """

    pid: int = field(default_factory=os.getpid)

    @property
    def forked(self) -> bool:
        """Whether the current process is a forked child of the one that created the guard."""
        return os.getpid() != self.pid

    def check(self, name: str) -> None:
        """Raise EndpointClosed in a forked child; `name` says what was created by the parent."""
        if self.forked:
            raise EndpointClosed(
                f"{name} was opened by the process {self.pid} and cannot be used in a process "
                "forked from it: open a new one in this process"
            )

    def finalize(
        self, owner: object, callback: Callable[..., object], *args: Any
    ) -> "weakref.finalize[..., Any]":
        """Call `callback` once `owner` is garbage collected; never in a forked child.

        Garbage collection may interrupt a thread that holds any lock, so the callback must take
        none. It also runs when the process exits, unless `atexit` of the result is set to False.
        """
        return weakref.finalize(owner, self._run, callback, args)

    def finalize_in_thread(
        self, owner: object, callback: Callable[..., object], *args: Any
    ) -> "weakref.finalize[..., Any]":
        """Do as `finalize` in a thread that the process waits for: `callback` may take locks."""
        return self.finalize(owner, _run_in_thread, callback, *args)

    def _run(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not self.forked:
            callback(*args)


def _run_in_thread(callback: Callable[..., object], *args: Any) -> None:
    # At exit no other thread runs, so none holds a lock, and new threads would not be waited for.
    if threading.main_thread().is_alive():
        threading.Thread(target=callback, args=args, name="sluiceway-abandoned").start()
    else:
        callback(*args)
