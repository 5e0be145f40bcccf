"""Timers: methods that run in the background after a time."""

import heapq
import itertools
import logging
import math
import time
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from sluiceway.concurrency import Process, this_process
from sluiceway.runtime.threads import Background, start

__all__ = ["Timer"]

LOGGER = logging.getLogger("sluiceway.runtime.timers")


class Timer:
    """Runs a method in a worker thread once its time has come, and logs its exception.

    It does not keep the method's object alive. An interrupt in `set` leaves the timer set or not;
    it can be set again. Thread-safe.
    """

    def __init__(self, method: Callable[..., object], *arguments: Any) -> None:
        self._method = weakref.WeakMethod(method)
        self._arguments = arguments
        self._due_s = math.inf
        # The time of an entry in the queue. There may be others, which do nothing.
        self._queued_s = math.inf

    @property
    def is_set(self) -> bool:
        """Whether the method will run; False from its start until the timer is set again."""
        return self._due_s < math.inf

    def set(self, delay_s: float) -> None:
        """Run the method after `delay_s`, instead of at the time that was set before.

        Raises RuntimeError if the process cannot have another thread.
        """
        now_s = time.monotonic()
        due_s = now_s + delay_s
        try:
            self._due_s = due_s
            # An entry that comes earlier is put back with the new time, so a timer that is set
            # often has few. The thread removes the entry first, and then looks at the time.
            if not now_s < self._queued_s <= due_s:
                self._queue(due_s)
        except BaseException:
            self._due_s = math.inf
            raise

    def cancel(self) -> None:
        """Do not run the method, unless it runs already."""
        self._due_s = math.inf

    def pop_due(self, now_s: float) -> float:
        """Start the method if its time has come; return its next time, infinity without one."""
        self._queued_s = math.inf
        if (due_s := self._due_s) > now_s:
            self._queued_s = due_s
            return due_s
        self._due_s = math.inf
        try:
            start(self._run)
        except RuntimeError:  # no more threads
            self._run()
        return math.inf

    def _queue(self, due_s: float) -> None:
        process = this_process()
        queue = _QUEUES.get(process) or _QUEUES.setdefault(process, _TimerQueue())
        queue.put(due_s, self)
        self._queued_s = due_s

    def _run(self) -> None:
        if (method := self._method()) is None:
            return
        try:
            method(*self._arguments)
        except Exception:
            LOGGER.exception("work of a timer failed")


class _TimerQueue:
    """The queue of a process's timers, and the thread that waits for the first one."""

    def __init__(self) -> None:
        self._new: SimpleQueue[tuple[float, int, Timer]] = SimpleQueue()
        self._numbers = itertools.count()
        self._thread = Background()

    def put(self, due_s: float, timer: Timer) -> None:
        """Add an entry. Raises RuntimeError without a thread."""
        self._new.put((due_s, next(self._numbers), timer))
        self._thread.start(self._serve)

    def _serve(self) -> None:
        """Run until there are no entries; the thread then does other work."""
        entries: list[tuple[float, int, Timer]] = []
        while True:
            wait_s = entries[0][0] - time.monotonic() if entries else 0
            try:
                heapq.heappush(entries, self._new.get(timeout=max(0, wait_s)))
                continue
            except Empty:
                if not entries:
                    return
            _, number, timer = heapq.heappop(entries)
            next_s = timer.pop_due(time.monotonic())
            if next_s < math.inf:
                heapq.heappush(entries, (next_s, number, timer))


_QUEUES: dict[Process, _TimerQueue] = {}
