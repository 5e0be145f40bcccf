"""Wakeup event of a consumer's polls, and cleanup of abandoned consumers and producers."""

import threading
from collections.abc import Callable

__all__ = ["WakeupEvent", "run_detached"]


class WakeupEvent(threading.Event):
    """Wakes a poll that waits. `due_s` (monotonic) is when a poll serves in any case.

    A poll compares one number per message: `due_s` is 0 while the event is set.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self.due_s = 0.0

    def set(self) -> None:
        """Make the next poll serve."""
        with self._lock:
            self.due_s = 0.0
            super().set()

    def postpone(self, due_s: float) -> None:
        """Serve at `due_s`, or earlier if the event is set."""
        with self._lock:
            self.clear()
            self.due_s = due_s


def run_detached(work: Callable[..., object], *args: object) -> None:
    """Run a finalizer in a thread that the process waits for; at exit, at once.

    A finalizer may interrupt a thread that holds any lock, so it must not take locks itself.
    """
    # At exit no other thread runs, so none holds a lock, and new threads would not be waited for.
    if threading.main_thread().is_alive():
        threading.Thread(target=work, args=args, name="sluiceway-abandoned").start()
    else:
        work(*args)
