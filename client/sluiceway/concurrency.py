"""Concurrency: a fair lock, and the process that an object belongs to."""

import ctypes
import functools
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from sluiceway.errors import EndpointClosed, OptionError

__all__ = ["FairLock", "Process", "StatementExit", "keep_in_children", "this_process"]


class Process:
    """The process that an object with connections belongs to; `this_process` returns the current.

    A forked child shares its parent's connections but none of its threads: locks may stay held,
    and librdkafka would wait for its threads forever. A cache whose key contains the process has
    separate entries for each process.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()

    @property
    def forked(self) -> bool:
        """Whether the current process was forked from this one."""
        return self is not _current

    def check(self, name: str) -> None:
        """Raise EndpointClosed in a forked child; `name` is the name of the guarded object."""
        if self is not _current:
            raise EndpointClosed(
                f"{name} was opened by the process {self.pid} and cannot be used in a process "
                "forked from it: open a new one in this process"
            )

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: connections belong to this process, as Spark's closures may not know."""
        raise TypeError(
            "objects of sluiceway that hold connections cannot be pickled, so a function that runs "
            "in another process, such as those of foreachPartition and mapInPandas in Spark, "
            "cannot use a Gateway, channel, writer or reader from outside: open them inside of "
            "the function"
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
        """Like `finalize`, but in a thread that the process waits for, so it may take locks."""
        return self.finalize(owner, _run_in_thread, callback, *args)

    def _run(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not self.forked:
            callback(*args)


def this_process() -> Process:
    """Return the current process: the same object until a fork, and another one in the child."""
    return _current


def keep_in_children(client: object) -> None:
    """Have no forked child free a client of librdkafka, which may wait for its threads forever.

    Neither when its last reference goes, nor when the child ends.
    """
    _CLIENTS.add(client)


def _begin() -> None:
    global _current
    for client in _CLIENTS:
        # A reference in Python would be dropped as the child ends.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
    _current = Process()


_CLIENTS: "weakref.WeakSet[Any]" = weakref.WeakSet()
_current: Process
_begin()
os.register_at_fork(after_in_child=_begin)


def _run_in_thread(callback: Callable[..., object], *args: Any) -> None:
    # At exit no other thread runs, so none holds a lock, and new threads would not be waited for.
    if threading.main_thread().is_alive():
        threading.Thread(target=callback, args=args, name="sluiceway-abandoned").start()
    else:
        callback(*args)


class StatementExit:
    """The `__exit__` of a context manager that can tell whether its `with` statement still runs.

    An interrupt may end the statement after `__enter__`, but before its body, or before the first
    line of `__exit__`, so that nothing leaves the block. What the statement gets as `__exit__` is
    new each time, and only the statement holds it, also while a traceback holds the manager.
    """

    def __init__(self, leave: Callable[..., None]) -> None:
        """Leave a block by this function of the manager and the arguments of `__exit__`."""
        self._leave = leave

    def __get__(self, manager: Any, owner: type) -> Callable[..., None]:
        if manager is None:
            return self._leave
        held = functools.partial(self._leave, manager)
        manager.__dict__[_STATEMENT] = weakref.ref(held)
        return held

    @staticmethod
    def statement_of(manager: Any) -> Callable[[], object] | None:
        """Return, in `__enter__`, a function whose result is None once the statement has ended.

        None if there is no statement, as in an ExitStack.
        """
        statement: Callable[[], object] | None = manager.__dict__.pop(_STATEMENT, None)
        return statement


_STATEMENT = "_entering_statement"


class _Release(functools.partial[None]):
    """The release of a lock by a `with` statement, of which only the statement has a reference.

    An interrupt may end the statement before the first line of `__exit__`. Then this releases it.
    """

    depth: float = math.inf
    """The depth of the lock before the statement; no number before the statement has begun."""

    def __del__(self) -> None:
        """Release the lock unless the statement has."""
        (lock,) = self.args
        if lock.depth > self.depth:
            lock.release()


class _LockExit:
    """The `__exit__` of a FairLock, or of a request for it: a new one for each statement."""

    def __get__(self, manager: Any, owner: type) -> Callable[..., None]:
        lock = manager if owner is FairLock else manager.lock
        release = _Release(FairLock.release, lock)
        release.depth = lock.depth
        return release


class _UrgentRequest:
    """A request for a FairLock in a `with` statement, which becomes urgent at a time."""

    def __init__(self, lock: "FairLock", urgent_from_s: float) -> None:
        self.lock = lock
        self._urgent_from_s = urgent_from_s

    def __enter__(self) -> None:
        self.lock.acquire(self._urgent_from_s)

    __exit__ = _LockExit()


class _Waiter:
    """A queued thread, and the lock that blocks it until its turn."""

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.granted = threading.Lock()
        self.granted.acquire()


class FairLock:
    """A reentrant lock, first come, first served; urgent requests go before the others.

    A long-running holder checks `contended` from time to time, and yields. In a forked child the
    lock is free, as the threads that held it do not exist there. An interrupt (Ctrl-C) while
    it waits or hands on leaves it usable: `acquire` has not taken it, `release` has handed it on.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._process = this_process()
        # Guards the fields for a few instructions.
        self._guard = threading.Lock()
        self._owner: int | None = None
        self._depth = 0
        self._urgent: deque[_Waiter] = deque()
        self._ordinary: deque[_Waiter] = deque()

    @property
    def held(self) -> bool:
        """Whether the calling thread holds it."""
        return self._owner == threading.get_ident()

    def require_free(self, doing: str) -> None:
        """Raise OptionError in a signal handler that has interrupted the holder, in its thread.

        For work that cannot begin again in its middle; `doing` is the name of it.
        """
        if self.held:
            raise OptionError(
                f"this thread is {doing} already: a signal handler has interrupted it, and cannot "
                "do so in its middle. Set a flag in the handler, or call sys.exit(), and do it "
                "after that"
            )

    @property
    def depth(self) -> int:
        """The number of times that the calling thread has acquired it and not released it."""
        return self._depth if self._owner == threading.get_ident() else 0

    @property
    def waiting(self) -> int:
        """The number of threads that wait for it."""
        return len(self._urgent) + len(self._ordinary)

    @property
    def contended(self) -> bool:
        """Whether other threads wait for it."""
        return self.waiting > 0

    @property
    def urgently_contended(self) -> bool:
        """Whether a thread with an urgent request waits for it."""
        return bool(self._urgent)

    def acquire(self, urgent_from_s: float = math.inf) -> None:
        """Wait for the lock; the request becomes urgent at a time of the monotonic clock."""
        if self._process.forked:
            self._reset()
        me = threading.get_ident()
        if self._owner == me:
            self._depth += 1
            return
        waiter: _Waiter | None = None
        try:
            with self._guard:
                if self._owner is None:
                    self._owner, self._depth = me, 1
                    return
                waiter = _Waiter(me)
                self._ordinary.append(waiter)
            wait_s = min(max(0.0, urgent_from_s - time.monotonic()), threading.TIMEOUT_MAX)
            if not waiter.granted.acquire(timeout=wait_s):
                with self._guard:
                    if waiter in self._ordinary:
                        self._ordinary.remove(waiter)
                        self._urgent.append(waiter)
                waiter.granted.acquire()
        except BaseException:
            self._withdraw(waiter)
            raise

    def release(self, *_: object) -> None:
        """Hand the lock to the next thread; the arguments are those of `__exit__`.

        Raises RuntimeError if this thread does not hold it.
        """
        if self._owner != threading.get_ident():
            raise RuntimeError("this thread does not hold the lock")
        if self._depth > 1:
            self._depth -= 1
            return
        self._hand_on()

    def yield_to_waiters(self, urgent_from_s: float) -> None:
        """Release the lock, and acquire it again after the threads that wait."""
        depth = self._depth
        try:
            self.release()
        finally:
            try:
                self.acquire(urgent_from_s)
            finally:
                self._keep(depth)

    # Not a method that calls it: an interrupt between the two would leave the lock taken.
    __enter__ = acquire
    __exit__ = _LockExit()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Let other threads have the lock in the block; the thread holds it as often afterwards."""
        depth = self._depth
        try:
            self._hand_on()
            yield
        finally:
            try:
                self.acquire()
            finally:
                self._keep(depth)

    def urgent(self, from_s: float = -math.inf) -> _UrgentRequest:
        """Hold the lock in a block; the request becomes urgent at a time of the monotonic clock."""
        return _UrgentRequest(self, from_s)

    def _keep(self, depth: int) -> None:
        """Hold the lock also after an interrupt, because the caller will release it."""
        if not self.held:
            self.acquire(-math.inf)
        # An interrupt before the release would have added a level.
        self._depth = depth

    def _withdraw(self, waiter: _Waiter | None) -> None:
        """Leave the queue after an interrupt, or hand on a lock that was granted meanwhile."""
        with self._guard:
            for queue in (self._urgent, self._ordinary):
                if waiter is not None and waiter in queue:
                    queue.remove(waiter)
                    return
        if self._owner == threading.get_ident():
            self._hand_on()

    def _hand_on(self) -> None:
        """Give the lock to the next thread, also after an interrupt."""
        try:
            with self._guard:
                self._grant_next()
        except BaseException:
            if self._owner == threading.get_ident():
                with self._guard:
                    self._grant_next()
            raise

    def _grant_next(self) -> None:
        queue = self._urgent or self._ordinary
        if not queue:
            self._owner = None
            return
        # No call before the last line: the interpreter handles interrupts at calls.
        waiter = queue[0]
        del queue[0]
        self._owner, self._depth = waiter.thread, 1
        waiter.granted.release()
