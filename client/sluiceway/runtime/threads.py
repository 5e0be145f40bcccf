"""Threads for what neither the main thread nor a heartbeat may wait for."""

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from typing import Generic, TypeVar

__all__ = ["Background", "PendingCall", "Signal", "call", "start"]

LOGGER = logging.getLogger("sluiceway.runtime.threads")

T = TypeVar("T")
_Task = Callable[[], object]

_MAX_IDLE = 4
_WAIT_S = 0.2
# The queues of idle threads. No lock: signal handlers and garbage collection may interrupt a
# thread that holds it, and then need it themselves. A deque's operations are atomic.
_idle: deque["SimpleQueue[_Task]"] = deque()

# A forked child has none of these threads.
os.register_at_fork(after_in_child=_idle.clear)


def call(work: Callable[[], T]) -> T:
    """Run `work` where no signal handler runs; return its result, or raise its error.

    Signal handlers run in the main thread, and may raise at any instruction: an interrupt inside of
    httpx would leave a lock of its connections held for good. So the main thread only waits for
    another one; an interrupt ends the wait, and `work` goes on to its end. Each other thread runs
    `work` itself. The main thread waits for one call at a time, so there are as many threads as
    calls that were interrupted and have not ended, and one more: no call waits for another.
    """
    if threading.get_ident() != threading.main_thread().ident or sys.is_finalizing():
        return work()
    context = copy_context()
    pending = PendingCall(lambda: context.run(work))
    try:
        pending.start()
    except RuntimeError:  # no more threads, or none any more as the process ends
        return work()
    # In parts: a signal right before a thread blocks does not wake it.
    while not pending.wait(_WAIT_S):
        pass
    return pending.result()


class PendingCall(Generic[T]):
    """A call in another thread; `on_end` is called there at its end."""

    def __init__(self, work: Callable[[], T], on_end: Callable[[], object] | None = None) -> None:
        self._work = work
        self._on_end = on_end
        self._outcome: list[T] = []
        self._error: BaseException | None = None
        self._ended = Signal()

    def start(self) -> None:
        """Start the call. Raises RuntimeError without a thread."""
        start(self._run)

    def wait(self, timeout_s: float) -> bool:
        """Return whether it has ended, after `timeout_s` at most."""
        return self._ended.wait(timeout_s)

    def result(self) -> T:
        """Return the result of the ended call, or raise its error."""
        error, self._error = self._error, None
        if error is None:
            return self._outcome[0]
        try:
            raise error
        finally:
            # The traceback refers to this frame.
            del error

    def _run(self) -> None:
        try:
            self._outcome.append(self._work())
        except BaseException as error:
            self._error = error
        # The caller may have the last other reference to what it holds.
        del self._work
        self._ended.set()
        if self._on_end is not None:
            self._on_end()


class Background:
    """A place in the background where one task runs at a time, in a thread that nobody waits for.

    Errors are logged. `run` never waits, so the heartbeat thread may call it.
    """

    def __init__(self) -> None:
        self._next: deque[_Task] = deque(maxlen=1)
        self._running = threading.Lock()

    def run(self, task: _Task) -> None:
        """Run a task after the current one, in the place of one that has not begun.

        Without a thread, the next task's call runs it.
        """
        try:
            self.start(task)
        except RuntimeError as error:
            LOGGER.warning("work in the background waits: %s", error)

    def start(self, task: _Task) -> None:
        """Like `run`, but raises RuntimeError without a thread."""
        self._next.append(task)
        if not self._running.locked():
            start(self._run)

    def _run(self) -> None:
        # The lock is taken here, because an interrupt may hit the caller of `run` at any step. A
        # task that was added before the release found it taken.
        while self._next and self._running.acquire(blocking=False):
            while self._next:
                try:
                    self._next.popleft()()
                except BaseException:  # also a callback's SystemExit: the next task must run
                    LOGGER.exception("work in the background failed")
            self._running.release()


class Signal:
    """An event that an interrupt leaves usable, whichever of its methods it hits.

    threading.Event has a lock that is taken in a function: an interrupt at the end of that one
    leaves it held, and the heartbeat thread, which sets or awaits the event, would stop for good.
    """

    def __init__(self) -> None:
        # Held while the signal is not set. Its methods are single steps of the interpreter.
        self._unset = threading.Lock()
        self._unset.acquire()
        self.listener: Callable[[], object] | None = None
        """Called by each `set`, in its thread; takes no lock and does not wait."""

    def is_set(self) -> bool:
        """Whether it is set; in doubt, while another thread stops waiting, False."""
        return not self._unset.locked()

    def set(self) -> None:
        """Wake all threads that wait, until it is cleared."""
        try:  # noqa: SIM105 - `suppress` would take a tenth of the time of `call`
            self._unset.release()
        except RuntimeError:  # set already
            pass
        if self.listener is not None:
            self.listener()

    def clear(self) -> None:
        """Make the next `wait` wait."""
        self._unset.acquire(blocking=False)

    def wait(self, timeout: float) -> bool:
        """Wait until it is set, for `timeout` seconds at most; return whether it is."""
        if not self._unset.acquire(timeout=min(max(0.0, timeout), threading.TIMEOUT_MAX)):
            return False
        self.set()
        return True


def start(task: Callable[[], object]) -> None:
    """Run a task in an idle thread, or in a new one. Raises RuntimeError without a thread."""
    try:
        tasks = _idle.pop()
    except IndexError:
        tasks = SimpleQueue()
        threading.Thread(target=_serve, args=(tasks,), name="sluiceway-worker", daemon=True).start()
    tasks.put(task)


def _serve(tasks: "SimpleQueue[_Task]") -> None:
    """Run the tasks that this thread gets while it is idle."""
    while True:
        task = tasks.get()
        task()
        # Its arguments may keep abandoned endpoints alive.
        del task
        if len(_idle) >= _MAX_IDLE:
            return
        _idle.append(tasks)
