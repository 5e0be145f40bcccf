"""Long polls: requests that wait for a change, without a thread or a query each."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from anyio import CapacityLimiter, to_thread

from sluiceway_gateway.core.errors import TooManyWaiters
from sluiceway_gateway.core.passes import PassRecord

#: Maximum fraction of the time that is spent on reading states.
_SHARE = 0.1

Key = TypeVar("Key", bound=Hashable)
State = TypeVar("State")


@dataclass(frozen=True, eq=False, kw_only=True)
class _Waiter(Generic[State]):
    is_done: Callable[[State | None], bool]
    future: "asyncio.Future[None]"


class Poller(Generic[Key, State]):
    """Waits of one process for states; belongs to one event loop.

    One task reads the states of all awaited keys together: at once after `notify`, else every
    `poll_s`, which finds the changes that other replicas make.
    """

    def __init__(
        self,
        read: Callable[[tuple[Key, ...]], Mapping[Key, State]],
        *,
        passes: PassRecord,
        limit: int,
        poll_s: float,
        immediate: bool,
    ) -> None:
        """Allow `limit` waits; `passes` records the reads.

        `read` runs on a thread, and at once for a new wait if `immediate`. Without
        that, a change just before a wait is found with the next regular read.
        """
        self._read = read
        self._passes = passes
        self._limit = limit
        self._poll_s = poll_s
        self._immediate = immediate
        self._waiters: dict[Key, list[_Waiter[State]]] = defaultdict(list)
        self._count = 0
        self._polling: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._signal = asyncio.Event()
        # A separate thread, so that reads continue while the worker threads are busy.
        self._thread = CapacityLimiter(1)
        self._closed = False

    @property
    def waiting(self) -> int:
        """The number of waits at present."""
        return self._count

    @property
    def is_closed(self) -> bool:
        """Whether waits end at once, because the process shuts down."""
        return self._closed

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Count as one wait; raises TooManyWaiters at the limit."""
        if self._count >= self._limit:
            raise TooManyWaiters(
                "This gateway has reached its limit of waiting requests; retry in a moment, "
                "or without `wait`."
            )
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1

    async def wait(
        self,
        key: Key,
        is_done: Callable[[State | None], bool],
        *,
        timeout_s: float,
        has_slot: bool = False,
    ) -> bool:
        """Wait until the key's state, None for a missing one, is done; False after `timeout_s`.

        Returns False at once while the process shuts down. A caller that waits repeatedly keeps a
        `slot` and says so with `has_slot`. Raises TooManyWaiters at the limit.
        """
        if self._closed or timeout_s <= 0:
            return False
        with nullcontext() if has_slot else self.slot():
            return await self._wait(key, is_done, timeout_s)

    async def _wait(
        self, key: Key, is_done: Callable[[State | None], bool], timeout_s: float
    ) -> bool:
        self._loop = asyncio.get_running_loop()
        waiter: _Waiter[State] = _Waiter(is_done=is_done, future=self._loop.create_future())
        self._waiters[key].append(waiter)
        if self._closed:
            # An earlier `close` did not know this wait's event loop.
            self._release_all()
        if self._immediate:
            # Finds a change between the caller's read and now.
            self._signal.set()
        if self._polling is None or self._polling.done():
            self._polling = self._loop.create_task(self._poll())
        try:
            async with asyncio.timeout(timeout_s):
                await waiter.future
        except TimeoutError:
            return False
        else:
            return not self._closed
        finally:
            self._remove(key, waiter)

    def notify(self) -> None:
        """Read now: something was committed. May be called from any thread."""
        self._from_any_thread(self._signal.set)

    def publish(self, key: Key, state: State) -> None:
        """End the key's waits that are done with a committed state, without a read of it.

        May be called from any thread, and late: a state that others have replaced ends waits too.
        """
        self._from_any_thread(lambda: self._release((key,), {key: state}))

    def close(self) -> None:
        """End all waits, and allow no more. May be called from any thread."""
        self._closed = True
        self._from_any_thread(self._release_all)

    def _from_any_thread(self, call: Callable[[], None]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    def _remove(self, key: Key, waiter: _Waiter[State]) -> None:
        waiters = self._waiters[key]
        waiters.remove(waiter)
        if not waiters:
            del self._waiters[key]
        if not self._waiters:
            self._signal.set()

    async def _poll(self) -> None:
        """Read states while there are waits."""
        while self._waiters:
            self._signal.clear()
            begun_s = time.monotonic()
            keys = tuple(self._waiters)
            try:
                states = await to_thread.run_sync(self._read, keys, limiter=self._thread)
                self._release(keys, states)
            except Exception as error:
                # Requests fail by their own reads at their timeout.
                self._passes.fail(error)
            else:
                self._passes.succeed()
            pause_s = max(self._poll_s, (time.monotonic() - begun_s) / _SHARE)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._signal.wait()
        self._passes.reset()

    def _release(self, keys: tuple[Key, ...], states: Mapping[Key, State]) -> None:
        for key in keys:
            state = states.get(key)
            for waiter in self._waiters.get(key, ()):
                if not waiter.future.done() and waiter.is_done(state):
                    waiter.future.set_result(None)

    def _release_all(self) -> None:
        for waiters in self._waiters.values():
            for waiter in waiters:
                if not waiter.future.done():
                    waiter.future.set_result(None)
