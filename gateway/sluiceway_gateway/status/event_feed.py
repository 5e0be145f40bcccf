"""Status feed: one read of the database for all watchers, and events that are encoded once."""

import asyncio
import secrets
import time
import zlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from anyio import CapacityLimiter, to_thread
from pydantic_core import to_json

from sluiceway_gateway.api.json import JsonCache, time_json
from sluiceway_gateway.channels.change import status_etag
from sluiceway_gateway.channels.store import Tag
from sluiceway_gateway.core.auth.model import Action, Principal
from sluiceway_gateway.core.changes import Changes, Subscription, of_status
from sluiceway_gateway.core.clock import Clock
from sluiceway_gateway.core.db.statements import chunks
from sluiceway_gateway.core.passes import OnPass, PassRecord, run_steps, unobserved
from sluiceway_gateway.status.service import FeedUpdate, Statuses
from sluiceway_gateway.status.store import StatusReport
from sluiceway_gateway.status.wire import status_body, status_rest, summary_json

RETRY_MS = 2000
"""Pause before a reconnect that is recommended to clients."""

_SHARE = 0.1
"""Maximum fraction of the time that is spent on reads."""
_MAX_CHANGES = 100
"""Changes of the list from which a stream can be resumed."""
_MAX_UPDATES = 50
"""Encoded events of a state that are kept, one for each permission and compression."""
_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_LEVEL = 4
"""Level of compression: a higher one takes longer, and saves little."""


def _compressed(data: bytes) -> bytes:
    """Return a piece of a gzip stream, which may follow any other piece.

    It refers to nothing before it and ends on a whole byte, so streams can share it.
    """
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH)


_COMMENT = b": \n\n"
_START = f"retry: {RETRY_MS}\n\n".encode()
_PIECES = {
    False: (_START, _COMMENT),
    True: (_GZIP_HEADER + _compressed(_START), _compressed(_COMMENT)),
}
"""The first bytes of a stream, and a comment: plain and compressed."""


@dataclass(frozen=True, kw_only=True)
class _Update:
    """The event that updates a watcher to the current state."""

    position: str
    """The event's id."""
    kind: str | None
    """The type of an event that begins with the time, which is inserted when it is sent."""
    body: bytes
    """The rest of the event, or all of it; empty if no change is visible to the watcher."""

    def data(self, now: datetime, *, compress: bool) -> bytes:
        """Return the event."""
        if self.kind is None:
            return self.body
        head = f'id: {self.position}\nevent: {self.kind}\ndata: {{"at":"{time_json(now)}",'
        return (_compressed(head.encode()) if compress else head.encode()) + self.body


_Event = tuple[tuple[object, ...], str | None, Callable[[], bytes]]
"""An event: the key of watchers that get the same one, its type as in `_Update`, its encoder."""


@dataclass(kw_only=True)
class _Subject:
    """The subject of watchers: the list, or one channel. Used in the event loop only."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the next change, and then replaced."""
    watchers: int = 0
    is_read: bool = False
    """Whether the current state was read."""
    is_gone: bool = False
    updates: dict[object, "asyncio.Future[_Update]"] = field(default_factory=dict)
    """Updates to the current state, by the states and permissions of watchers."""

    def publish(self) -> None:
        """Wake the watchers after a change of the state."""
        self.is_read = True
        self.updates.clear()
        self.wake()

    def wake(self) -> None:
        """Wake the watchers."""
        event, self.changed = self.changed, asyncio.Event()
        event.set()


@dataclass(kw_only=True)
class _List(_Subject):
    """The lines of all channels, and the names of the last changed channels."""

    run: str = field(default_factory=lambda: secrets.token_hex(4))
    """The prefix of this gateway's ids."""
    number: int = 0
    tags: dict[str, Tag] = field(default_factory=dict)
    lines: dict[str, bytes] = field(default_factory=dict)
    changes: deque[tuple[str, ...]] = field(default_factory=lambda: deque(maxlen=_MAX_CHANGES))
    """Names of changed and removed channels; the last item led to `number`."""
    unpublished: dict[str, tuple[Tag, bytes]] = field(default_factory=dict)
    """Lines that were read since `number`, with their tags."""

    @property
    def read_tags(self) -> dict[str, Tag]:
        """The tags of all lines that were read."""
        return {**self.tags, **{name: tag for name, (tag, _) in self.unpublished.items()}}

    def change(self, names: Container[str]) -> None:
        """Publish the lines that were read, and remove those of other channels than `names`."""
        removed = [name for name in self.lines if name not in names]
        lines = {name: line for name, (_, line) in self.unpublished.items() if name in names}
        if not lines and not removed and self.is_read:
            return
        self.tags = {name: tag for name, tag in self.read_tags.items() if name in names}
        self.lines = {**{name: line for name, line in self.lines.items() if name in names}, **lines}
        self.unpublished = {}
        self.number += 1
        self.changes.append((*lines, *removed))
        # Changes that concern more lines than there are cost more than all lines do.
        while sum(map(len, self.changes)) > max(1, len(self.lines)) and len(self.changes) > 1:
            self.changes.popleft()
        self.publish()

    @property
    def id(self) -> str:
        """The id of an event that leads to the present state."""
        return f"{self.run}-{self.number}"

    def event_after(self, position: str | None, prefixes: tuple[str, ...]) -> _Event | None:
        """Return the event after this position, for a watcher of these prefixes."""
        since = self._since(position)
        if since == self.number:
            return None
        if since is None:
            return (prefixes, None), "state", partial(_state, self.lines, prefixes)
        names = self._changed_since(since)
        return (prefixes, since), "change", partial(_changes, self.lines, prefixes, names)

    def _since(self, position: str | None) -> int | None:
        """Return the number in an event's id; None if the changes since then are not kept."""
        run, _, number = (position or "").partition("-")
        if run != self.run or not number.isdecimal():
            return None
        oldest = self.number - len(self.changes)
        return int(number) if oldest <= int(number) <= self.number else None

    def _changed_since(self, number: int) -> set[str]:
        """Return the names of channels that changed or were removed after `number`."""
        return set().union(*list(self.changes)[len(self.changes) - (self.number - number) :])


def _state(lines: dict[str, bytes], prefixes: tuple[str, ...]) -> bytes:
    items = b",".join(lines[name] for name in sorted(lines) if name.startswith(prefixes))
    return b'"items":[' + items + b"]}\n\n"


def _changes(lines: dict[str, bytes], prefixes: tuple[str, ...], names: set[str]) -> bytes:
    visible = sorted(name for name in names if name.startswith(prefixes))
    if not visible:
        return b""
    changed = b",".join(lines[name] for name in visible if name in lines)
    removed = to_json([name for name in visible if name not in lines])
    return b'"changed":[' + changed + b'],"removed":' + removed + b"}\n\n"


@dataclass(kw_only=True)
class _OneChannel(_Subject):
    """The status of one channel."""

    tag: Tag | None = None
    event: bytes = b""

    @property
    def id(self) -> str:
        """The ETag of the state, as in responses of reads."""
        return "" if self.tag is None else f"W/{status_etag(**vars(self.tag))}"

    def event_after(self, position: str | None, _prefixes: tuple[str, ...]) -> _Event | None:
        """Return the event with the state; None if the position has it."""
        # Proxies may remove or add the prefix of weak tags.
        if position is not None and position.removeprefix("W/") == self.id.removeprefix("W/"):
            return None
        event = self.event
        return (), None, lambda: event

    def change(self, tag: Tag, text: bytes) -> None:
        """Replace the state."""
        self.tag = tag
        self.event = f"id: {self.id}\ndata: ".encode() + text + b"\n\n"
        self.publish()


@dataclass(eq=False, kw_only=True)
class _Watcher:
    """A stream."""

    by: Principal
    channel: str | None
    """None watches the list."""
    is_compressed: bool
    has_ended: bool = False

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Prefixes of the channel names that it may see."""
        return self.by.prefixes(Action.VIEW)


class StatusFeed:
    """Streams of one gateway: of the list, and of single channels. Lives in one event loop.

    While there are watchers, one task reads the database: after each change, at most once per
    `pace_s`, and at once for the first watcher of a subject. The same read checks all tokens. A
    read that fails is recorded (`PassRecord`) and repeated. An event is encoded once for all
    watchers with the same state and permissions. A watcher has no queue: a slow one gets the
    difference between its state and the current one, or the whole state.
    """

    def __init__(
        self,
        statuses: Statuses,
        changes: Changes,
        *,
        fragments: JsonCache,
        clock: Clock,
        on_pass: OnPass = unobserved,
        pace_s: float = 1.0,
        max_pause_s: float = 5.0,
        heartbeat_s: float = 2.0,
    ) -> None:
        """`pace_s` is the minimum time between two reads, and so between two events of a stream.

        `max_pause_s` is the maximum, and so the time between the end of a token and of its
        streams. After `heartbeat_s` without an event, a stream has a comment.
        """
        self._pace_s = pace_s
        self._max_pause_s = max_pause_s
        self._heartbeat_s = heartbeat_s
        self._passes = PassRecord("status-feed", on_pass=on_pass)
        self._statuses = statuses
        self._changes = changes
        self._fragments = fragments
        self._clock = clock
        self._watchers: set[_Watcher] = set()
        self._list = _List()
        self._channels: dict[str, _OneChannel] = {}
        self._task: asyncio.Task[None] | None = None
        self._urgent = Subscription()
        """Set for the first watcher of a subject, and at the shutdown."""
        self._changed = Subscription()
        """Set after changes, and with `_urgent`."""
        # A separate thread, so that reads continue while the worker threads are busy.
        self._thread = CapacityLimiter(1)

    async def events(
        self, by: Principal, *, channel: str | None, last_id: str | None, compress: bool
    ) -> AsyncGenerator[bytes]:
        """Yield the current state, then changes, each after the previous one was sent.

        `channel`: None for the list of the channels that `by` may see. `last_id`, an event's id,
        names a state that is not repeated. Ends when the channel is deleted, when the token is no
        longer valid, and when the gateway stops.
        """
        start, comment = _PIECES[compress]
        watcher = _Watcher(by=by, channel=channel, is_compressed=compress)
        with self._watching(watcher) as subject:
            yield start
            position = last_id
            due_s = time.monotonic() + self._heartbeat_s
            while not self._has_ended(watcher, subject):
                changed = subject.changed
                update = await self._update(watcher, subject, position)
                if self._has_ended(watcher, subject):
                    return
                if update is not None:
                    position = update.position
                    if update.body:
                        yield update.data(self._clock(), compress=compress)
                        due_s = time.monotonic() + self._heartbeat_s
                        continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(due_s - time.monotonic()):
                        await changed.wait()
                if time.monotonic() >= due_s and not self._has_ended(watcher, subject):
                    yield comment
                    due_s = time.monotonic() + self._heartbeat_s

    @contextmanager
    def _watching(self, watcher: _Watcher) -> Iterator[_List | _OneChannel]:
        name = watcher.channel
        subject: _List | _OneChannel = self._list
        if name is not None:
            subject = self._channels.setdefault(name, _OneChannel())
        subject.watchers += 1
        self._watchers.add(watcher)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        elif not subject.is_read:
            self._urgent.set()
            self._changed.set()
        try:
            yield subject
        finally:
            self._watchers.discard(watcher)
            subject.watchers -= 1
            if not subject.watchers:
                # Omitted from reads from now on.
                subject.is_read = False
                if name is not None and self._channels.get(name) is subject:
                    del self._channels[name]

    def _has_ended(self, watcher: _Watcher, subject: _Subject) -> bool:
        return watcher.has_ended or subject.is_gone or self._changes.is_closed

    def _wake_all(self) -> None:
        for subject in (self._list, *self._channels.values()):
            subject.wake()

    async def _update(
        self, watcher: _Watcher, subject: _List | _OneChannel, position: str | None
    ) -> _Update | None:
        """Return the watcher's update to the current state; None if it has that state.

        It is encoded on the thread, once for all watchers that get the same one.
        """
        event = subject.event_after(position, watcher.prefixes) if subject.is_read else None
        if event is None:
            return None
        key, kind, encode = event
        state, compress = subject.id, watcher.is_compressed

        def run() -> bytes:
            data = encode()
            return _compressed(data) if compress and data else data

        async def encoded() -> _Update:
            body = await to_thread.run_sync(run, limiter=self._thread)
            return _Update(position=state, kind=kind, body=body)

        update = subject.updates.get((*key, compress))
        if update is None:
            if len(subject.updates) >= _MAX_UPDATES:
                subject.updates.clear()
            update = subject.updates[*key, compress] = asyncio.ensure_future(encoded())
        # Other watchers await it too, so it is not cancelled with this one.
        return await asyncio.shield(update)

    async def _run(self) -> None:
        """Read while there are watchers, then end their streams."""
        try:
            with (
                self._changes.subscribe(()) as self._urgent,
                self._changes.subscribe(of_status()) as self._changed,
            ):
                await self._keep_reading()
        finally:
            self._passes.reset()
            # Without reads, tokens are not checked.
            for watcher in self._watchers:
                watcher.has_ended = True
            self._wake_all()

    async def _keep_reading(self) -> None:
        while self._watchers and not self._changes.is_closed:
            self._urgent.clear()
            self._changed.clear()
            begun_s = time.monotonic()
            try:
                await self._read()
            except Exception as error:
                # States are unchanged until a read succeeds.
                self._passes.fail(error)
                self._changed.set()
            else:
                self._passes.succeed()
            pause_s = max(self._pace_s, (time.monotonic() - begun_s) / _SHARE)
            if not await self._urgent.set_within(pause_s):
                await self._changed.set_within(self._max_pause_s)

    async def _read(self) -> None:
        principals = {watcher.by for watcher in self._watchers}
        listed = self._list.read_tags if self._list.watchers else None
        subjects = dict(self._channels)
        watched = {name: subject.tag for name, subject in subjects.items()}

        def run() -> tuple[FeedUpdate, dict[str, bytes]]:
            update = self._statuses.feed_update(by=principals, listed=listed, watched=watched)
            return update, {name: self._text(status) for name, status in update.statuses.items()}

        update, texts = await to_thread.run_sync(run, limiter=self._thread)
        if update.refused:
            for watcher in self._watchers:
                watcher.has_ended = watcher.has_ended or watcher.by in update.refused
            self._wake_all()
        for name, subject in subjects.items():
            if name in update.gone:
                subject.is_gone = True
                subject.wake()
                # A later channel of the name has a subject of its own.
                if self._channels.get(name) is subject:
                    del self._channels[name]
            elif name in texts:
                subject.change(update.statuses[name].version.tag, texts[name])
        if update.tags is not None and self._list.watchers:
            await self._read_list(update.tags, update.changed)

    async def _read_list(self, names: Container[str], changed: Sequence[str]) -> None:
        """Read the changed lines, some hundred at a time, and publish them.

        After an error, those that were read are kept. The first state is published once all are.
        """

        def read(some: Sequence[str]) -> None:
            for summary in self._statuses.summaries(some):
                line = summary.version.tag, to_json(summary_json(summary))
                self._list.unpublished[summary.version.channel.name] = line

        complete = False
        try:
            steps = (partial(read, some) for some in chunks(changed))
            await to_thread.run_sync(run_steps, steps, limiter=self._thread)
            complete = True
        finally:
            if self._list.watchers and (complete or self._list.is_read):
                self._list.change(names)

    def _text(self, status: StatusReport) -> bytes:
        """Return the JSON of a status, as in responses of reads."""
        return status_body(status.version.sampled_at, status_rest(status, self._fragments))
