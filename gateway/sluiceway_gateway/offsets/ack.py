"""Acknowledgement: waiting for groups to commit past given offsets.

One task looks at all groups that are waited for, with one query, so that a thousand writers who
wait ask the database no oftener than one.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from anyio import CapacityLimiter, to_thread

from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.service import require_channel
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.errors import DatabaseUnavailable, TooManyWaiters
from sluiceway_gateway.offsets.ack_store import GroupKey, Progress, progress

#: Of the time, how much is spent on looking at most.
_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a group is to come to: past these offsets, by partition, of the topic of this id."""

    topic_id: str
    offsets: Mapping[int, int]


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Where a group is not there yet."""

    member: int
    """-1 where members share."""
    partition: int
    committed: int | None
    """None: nothing of this topic."""
    wanted: int


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What is missing; `known` tells whether anybody was ever in the group."""

    known: bool
    missing: tuple[Missing, ...]

    @property
    def passed(self) -> bool:
        """Whether the group has come past all of it."""
        return self.known and not self.missing


@dataclass(eq=False, kw_only=True)
class _Waiter:
    bounds: Bounds
    future: "asyncio.Future[None]"


class Acknowledgements:
    """The waits of one process; lives in one event loop."""

    def __init__(self, database: Database, *, limit: int, poll_s: float) -> None:
        self._database = database
        self._limit = limit
        self._poll_s = poll_s
        self._waiters: dict[GroupKey, list[_Waiter]] = defaultdict(list)
        self._count = 0
        self._looks: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # One of its own, so that looks go on while all others are busy.
        self._thread = CapacityLimiter(1)
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many wait at present."""
        return self._count

    async def passed(
        self, name: str, group: str, bounds: Bounds, *, uid: str, timeout_s: float
    ) -> Standing:
        """Return how the group stands: when it has passed all of the bounds, or the time is up.

        A group that nobody was in yet may come. Raises ChannelNotFound and UidMismatch, and
        TooManyWaiters at the limit.
        """
        key = (uid, group)
        standing = await to_thread.run_sync(self._look, name, key, bounds)
        if standing.passed or timeout_s <= 0 or self._closed:
            return standing
        if self._count >= self._limit:
            raise TooManyWaiters(
                "As many requests are waiting as this gateway allows; ask again in a moment, "
                "or without `wait`."
            )
        self._loop = asyncio.get_running_loop()
        waiter = _Waiter(bounds=bounds, future=self._loop.create_future())
        self._waiters[key].append(waiter)
        self._count += 1
        if self._looks is None or self._looks.done():
            self._looks = self._loop.create_task(self._look_repeatedly())
        try:
            async with asyncio.timeout(timeout_s):
                await waiter.future
        except TimeoutError:
            pass
        finally:
            self._waiters[key].remove(waiter)
            if not self._waiters[key]:
                del self._waiters[key]
            self._count -= 1
        return await to_thread.run_sync(self._look, name, key, bounds)

    def close(self) -> None:
        """Let all go that wait, and nobody wait any more. May be called from any thread."""
        self._closed = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._release_all)

    def _look(self, name: str, key: GroupKey, bounds: Bounds) -> Standing:
        with self._database.read() as tx:
            require_channel(name, channels_store.find(tx, name), key[0])
            return standing(progress(tx, [key]).get(key), bounds)

    async def _look_repeatedly(self) -> None:
        """Look as long as anybody waits."""
        while self._waiters:
            begun_s = time.monotonic()
            try:
                found = await to_thread.run_sync(
                    self._progress, tuple(self._waiters), limiter=self._thread
                )
            except DatabaseUnavailable:
                # The requests find out by themselves when their time is up.
                pass
            else:
                for key, progressed in found.items():
                    for each in self._waiters.get(key, ()):
                        if standing(progressed, each.bounds).passed and not each.future.done():
                            each.future.set_result(None)
            await asyncio.sleep(max(self._poll_s, (time.monotonic() - begun_s) / _SHARE))

    def _progress(self, keys: tuple[GroupKey, ...]) -> dict[GroupKey, Progress]:
        with self._database.read() as tx:
            return progress(tx, keys)

    def _release_all(self) -> None:
        for waiters in self._waiters.values():
            for each in waiters:
                if not each.future.done():
                    each.future.set_result(None)


def standing(progressed: Progress | None, bounds: Bounds) -> Standing:
    """Return what a group lacks that has come so far; None: nobody was ever in it."""
    if progressed is None:
        return Standing(known=False, missing=())
    missing = []
    for member in progressed.members:
        for partition, wanted in bounds.offsets.items():
            topic_id, committed = progressed.offsets.get((member, partition), (None, 0))
            if topic_id != bounds.topic_id or committed < wanted:
                missing.append(
                    Missing(
                        member=member,
                        partition=partition,
                        committed=committed if topic_id == bounds.topic_id else None,
                        wanted=wanted,
                    )
                )
    return Standing(known=True, missing=tuple(missing))
