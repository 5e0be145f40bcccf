"""Long polls: waiting for a change without a thread or a connection per waiter.

One task looks at all awaited names with one query: at once when this process
committed a change, else every `poll_s`, for those that other replicas make.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from anyio import CapacityLimiter, to_thread

from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.channels.store import Tag
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.errors import DatabaseUnavailable, TooManyWaiters

View = Callable[[Tag], object]
"""What of a channel's state a waiter waits for."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Waiter:
    """One that waits for another state than the one that it has seen."""

    view: View
    seen: object
    future: "asyncio.Future[None]"


def _channel(tag: Tag) -> object:
    return tag.uid, tag.generation, tag.revision


def _endpoints(tag: Tag) -> object:
    return tag.uid, tag.endpoints_revision


def _status(tag: Tag) -> object:
    return tag


_EVERYTHING = ""
"""The name, which no channel has, of all channels together."""


class Watch:
    """The waiting requests of one process; lives in one event loop."""

    def __init__(self, database: Database, *, limit: int, poll_s: float) -> None:
        self._database = database
        self._limit = limit
        self._poll_s = poll_s
        self._waiters: dict[str, list[Waiter]] = defaultdict(list)
        self._count = 0
        self._looks: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._signal = asyncio.Event()
        # One of its own, so that looks go on while all others are busy.
        self._thread = CapacityLimiter(1)
        self._closed = False
        self._at_close: list[Callable[[], None]] = []

    @property
    def waiting(self) -> int:
        """How many wait at present."""
        return self._count

    @property
    def is_closed(self) -> bool:
        """Whether nobody waits any more, as the process shuts down."""
        return self._closed

    @contextmanager
    def place(self) -> Iterator[None]:
        """Have a place among those that wait; raises TooManyWaiters at the limit.

        Whoever waits time and again keeps one, and says so with `placed`.
        """
        if self._count >= self._limit:
            raise TooManyWaiters(
                "As many requests are waiting as this gateway allows; ask again in a moment, "
                "or without `wait`."
            )
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1

    async def changed(self, channel: Channel, *, timeout_s: float) -> bool:
        """Wait until the channel is not as given any more; False if the time was up first.

        Returns at once while the process shuts down. Raises TooManyWaiters at the limit.
        """
        seen = (channel.uid, channel.generation, channel.revision)
        return await self._changed(channel.name, _channel, seen, timeout_s)

    async def endpoints_changed(self, channel: Channel, revision: int, *, timeout_s: float) -> bool:
        """Wait, in the same way, until the channel's endpoints are at another revision."""
        return await self._changed(channel.name, _endpoints, (channel.uid, revision), timeout_s)

    async def status_changed(
        self, name: str, seen: Tag, *, timeout_s: float, placed: bool = False
    ) -> bool:
        """Wait, in the same way, until anything of the channel is not as given any more."""
        return await self._changed(name, _status, seen, timeout_s, placed=placed)

    async def anything_changed(self, seen: Tag, *, timeout_s: float, placed: bool = False) -> bool:
        """Wait, in the same way, until anything of any channel is not as given any more."""
        return await self._changed(_EVERYTHING, _status, seen, timeout_s, placed=placed)

    async def _changed(
        self, name: str, view: View, seen: object, timeout_s: float, *, placed: bool = False
    ) -> bool:
        if self._closed or timeout_s <= 0:
            return False
        with nullcontext() if placed else self.place():
            return await self._awaited(name, view, seen, timeout_s)

    async def _awaited(self, name: str, view: View, seen: object, timeout_s: float) -> bool:
        self._loop = asyncio.get_running_loop()
        waiter = Waiter(view=view, seen=seen, future=self._loop.create_future())
        self._waiters[name].append(waiter)
        # What changed between the caller's look and now is found by a look of our own.
        self._signal.set()
        if self._looks is None or self._looks.done():
            self._looks = self._loop.create_task(self._look_repeatedly())
        try:
            async with asyncio.timeout(timeout_s):
                await waiter.future
        except TimeoutError:
            return False
        else:
            return not self._closed
        finally:
            self._remove(name, waiter)

    def notify(self) -> None:
        """Look now: something was committed. May be called from any thread."""
        self._from_any_thread(self._signal.set)

    def at_close(self, call: Callable[[], None]) -> None:
        """Have `call` made when the process lets all go that wait."""
        self._at_close.append(call)

    def close(self) -> None:
        """Let all go that wait, and nobody wait any more. May be called from any thread."""
        self._closed = True
        for call in self._at_close:
            call()
        self._from_any_thread(self._release_all)

    def _from_any_thread(self, call: Callable[[], None]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    def _remove(self, name: str, waiter: Waiter) -> None:
        waiters = self._waiters[name]
        waiters.remove(waiter)
        if not waiters:
            del self._waiters[name]
        if not self._waiters:
            self._signal.set()

    async def _look_repeatedly(self) -> None:
        """Look as long as anybody waits."""
        while self._waiters:
            self._signal.clear()
            try:
                names = tuple(self._waiters)
                found = await to_thread.run_sync(self._tags, names, limiter=self._thread)
            except DatabaseUnavailable:
                # The requests find out by themselves when their time is up.
                pass
            else:
                self._release(names, found)
            try:
                async with asyncio.timeout(self._poll_s):
                    await self._signal.wait()
            except TimeoutError:
                continue

    def _tags(self, names: tuple[str, ...]) -> Mapping[str, Tag]:
        with self._database.read() as tx:
            found = dict(channels_store.tags(tx, names))
            if _EVERYTHING in names:
                found[_EVERYTHING] = channels_store.overall(tx)
            return found

    def _release(self, names: tuple[str, ...], found: Mapping[str, Tag]) -> None:
        for name in names:
            tag = found.get(name)
            for each in self._waiters.get(name, ()):
                same = tag is not None and each.view(tag) == each.seen
                if not same and not each.future.done():
                    each.future.set_result(None)

    def _release_all(self) -> None:
        for waiters in self._waiters.values():
            for each in waiters:
                if not each.future.done():
                    each.future.set_result(None)
