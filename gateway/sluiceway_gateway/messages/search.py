"""Searches of a channel's messages: bounded scans, and scans that follow new messages.

They change no positions, and do not count as use.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.channels.service import find_channel, require_usable
from sluiceway_gateway.core.clock import Clock, system_clock
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.errors import ChannelNotFound, SluicewayGatewayError
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.model import Interval, ReadMessage, Watermarks
from sluiceway_gateway.core.kafka.window_reader import WindowReader, window_reader
from sluiceway_gateway.messages.model import (
    MAX_READ_PARTITIONS,
    MessageSelection,
    PartitionView,
    ReadProgress,
    SearchCondition,
    StartPoint,
)
from sluiceway_gateway.messages.reading import (
    MessageReads,
    ShownMessage,
    chosen_partitions,
    require_same_topic,
)
from sluiceway_gateway.schemas import store as schemas_store
from sluiceway_gateway.schemas.model import SchemaVersion

MAX_MATCHES = 1_000
"""Maximum of a search."""
_FIRST_ROUND, _ROUND_MESSAGES, _ROUND_BYTES = 500, 50_000, 64 * 1024 * 1024
"""Messages of the first round, and maximum of a later one, whose size is that of the one before."""
_CHUNK_MESSAGES, _CHUNK_BYTES = 500, 1024 * 1024
"""Maximum messages that are decoded and matched at once."""
_PROGRESS_S = 1.0
_PAUSE_S = 0.5
_FOLLOWING_ROUND_S = 5.0

EndReason = Literal["end", "limit", "time", "messages", "bytes", "error", "stopped"]


@dataclass(frozen=True, kw_only=True)
class SearchLimits:
    """What a search may take before it ends; another one continues it."""

    messages: int = 1_000_000
    size_bytes: int = 1024**3
    time_s: float = 60.0
    follow_s: float = 3_600.0
    """The time of a search that follows new messages, which has no other limit."""


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """A search from a start point on, by default from the newest message back.

    Messages lie between the first one of `since` or later and the first one of `until` or later.
    With `follow`, it goes on with new messages; it begins at the end, unless it has another start.
    On exactly-once channels, those are the messages that are not visible yet.
    """

    condition: SearchCondition
    start: StartPoint
    since: datetime | None = None
    until: datetime | None = None
    uncommitted: bool = False
    limit: int = 50
    follow: bool = False


@dataclass(frozen=True, kw_only=True)
class SearchProgress:
    """What a search has read: messages, and `passed` of `total` offsets.

    Offsets without a visible message are passed without a read. `total` grows while it follows.
    """

    scanned: int
    scanned_bytes: int
    passed: int
    total: int


@dataclass(frozen=True, kw_only=True)
class SearchEnd:
    """The end of a search, and the start point that continues it, None if nothing is left."""

    reason: EndReason
    following: StartPoint | None = None
    left_out: int = 0
    """Partitions that were not searched, because there are too many."""
    unavailable: tuple[int, ...] = ()
    """Partitions whose leaders did not answer."""
    error: SluicewayGatewayError | None = None
    """The failure that ended it."""


@dataclass(frozen=True, kw_only=True)
class SearchEvents:
    """The recipient of a search, called on its thread."""

    on_match: Callable[[Channel, ShownMessage], None]
    on_progress: Callable[[SearchProgress], None]
    on_end: Callable[[SearchEnd], None]
    stopped: Callable[[], bool]
    """Whether nobody waits for the search any more."""


class MessageSearches:
    """Searches of messages of one database's channels.

    Each has its own connections to Kafka, and takes some megabytes of memory.
    """

    def __init__(
        self,
        database: Database,
        kafka: KafkaAdmin,
        reads: MessageReads,
        *,
        limits: SearchLimits | None = None,
        clock: Clock = system_clock,
    ) -> None:
        self.clock = clock
        self.database = database
        self.kafka = kafka
        self.reads = reads
        self.limits = limits or SearchLimits()

    def run(self, name: str, request: SearchRequest, events: SearchEvents) -> None:
        """Search until the end, a limit, or until it is stopped.

        The first event is its progress, the last one its end, also after an error. Before the first
        one, raises ChannelNotFound, ChannelNotReady, KafkaUnavailable, and InvalidRequest for a
        condition or a partition that cannot be searched.
        """
        search = _Search(self, name, request, events)
        events.on_progress(search.progress)
        error = None
        try:
            with window_reader(self.kafka.client, search.channel.topic.name) as reader:
                reason = search.run(reader)
        except SluicewayGatewayError as failure:
            reason, error = "error", failure
        events.on_end(search.end(reason, error))


class _Search:
    """One search: its ranges of offsets, and its position in them."""

    def __init__(
        self, searches: MessageSearches, name: str, request: SearchRequest, events: SearchEvents
    ) -> None:
        # Imported on use: the libraries take memory that most gateways do not need.
        from sluiceway_gateway.messages.matching import Matcher

        self._searches = searches
        self._request = request
        self._events = events
        self.channel, self._versions = self._read_channel(name)
        self._matcher = Matcher(request.condition, self.channel.spec.format, self._versions)
        limits, begun_s = searches.limits, time.monotonic()
        self._begun_at = searches.clock()
        self._places = request.start.bounds or {}
        self._deadline_s = begun_s + (limits.follow_s if request.follow else limits.time_s)
        self._reported_s = begun_s
        self._scanned = self._scanned_bytes = 0
        partitions = require_same_topic(searches.kafka, self.channel)
        chosen = chosen_partitions(request.start, partitions)
        self._ranges = self._find_ranges(chosen)
        self._unavailable = set(chosen) - self._ranges.keys()
        at = self._start()
        self._left_out = len(at) - MAX_READ_PARTITIONS if len(at) > MAX_READ_PARTITIONS else 0
        at = dict(sorted(at.items())[:MAX_READ_PARTITIONS])
        self._ranges = {partition: self._ranges[partition] for partition in at}
        self._rounds = ReadProgress(
            views={},
            at=at,
            newest=request.start.newest_first,
            limit=MAX_MATCHES if request.follow else request.limit,
            round_messages=_FIRST_ROUND,
        )

    @property
    def progress(self) -> SearchProgress:
        """What it has read."""
        rounds = self._rounds
        return SearchProgress(
            scanned=self._scanned,
            scanned_bytes=self._scanned_bytes,
            passed=sum(
                end - rounds.at[partition] if rounds.newest else rounds.at[partition] - first
                for partition, (first, end) in self._ranges.items()
            ),
            total=sum(end - first for first, end in self._ranges.values()),
        )

    def run(self, reader: WindowReader) -> EndReason:
        """Search round by round, and return the reason of the end."""
        rounds, stopped = self._rounds, self._events.stopped
        rounds.views = self._views()
        while not stopped():
            if windows := rounds.windows():
                selected = rounds.selection()
                before = self._scanned, self._scanned_bytes
                chunk = _Chunk(self._match, rounds.views, selected)
                read = reader.read(windows, self._round_deadline_s, chunk.add, stopped=stopped)
                if stopped():
                    break
                chunk.flush()
                rounds.record(windows, selected, read)
                self._report(rounds.take())
                rounds.round_messages = self._next_round(*before)
            elif any(view.truncated for view in rounds.views.values()):
                rounds.views = self._views()
            elif not self._request.follow:
                return "end"
            else:
                self._wait()
            if (reason := self._limit_reached()) is not None:
                return reason
        return "stopped"

    @property
    def _round_deadline_s(self) -> float:
        """The end of a round; one that follows reports in between, also if Kafka is silent."""
        if not self._request.follow:
            return self._deadline_s
        return min(self._deadline_s, time.monotonic() + _FOLLOWING_ROUND_S)

    def end(self, reason: EndReason, error: SluicewayGatewayError | None) -> SearchEnd:
        """Return its end, with the start point of what is left."""
        rounds = self._rounds
        left = {
            partition: at
            for partition, at in rounds.at.items()
            if self._request.follow
            or (
                at > self._ranges[partition].first
                if rounds.newest
                else at < self._ranges[partition].end
            )
            if reason != "end"
        }
        # A cursor's places in partitions that were not searched stay.
        left |= {at: self._places[at] for at in self._places.keys() & self._unavailable}
        return SearchEnd(
            reason=reason,
            following=StartPoint(newest_first=rounds.newest, bounds=left) if left else None,
            left_out=self._left_out,
            unavailable=tuple(sorted(self._unavailable)),
            error=error,
        )

    def _read_channel(self, name: str) -> tuple[Channel, tuple[SchemaVersion, ...]]:
        with self._searches.database.read() as tx:
            channel = find_channel(tx, name)
            versions = tuple(schemas_store.versions(tx, channel.uid))
        require_usable(channel, writes=False)
        return channel, versions

    def _find_ranges(self, partitions: Sequence[int]) -> dict[int, Interval]:
        """Return the offsets to search by partition, by the watermarks and the times."""
        request, reads = self._request, self._searches.reads
        bounds = reads.bounds(self.channel, partitions)
        ranges = {
            at: Interval(marks.begin_offset, marks.end_offset) for at, marks in bounds.items()
        }
        if request.since is not None:
            offsets = reads.offsets_at(self.channel, ranges, request.since)
            ranges = {
                at: Interval(ranges[at].end if first < 0 else first, ranges[at].end)
                for at, first in offsets.items()
            }
        if request.until is not None:
            offsets = reads.offsets_at(self.channel, ranges, request.until)
            ranges = {
                at: ranges[at]
                if end < 0
                else Interval(ranges[at].first, max(ranges[at].first, end))
                for at, end in offsets.items()
            }
        return ranges

    def _start(self) -> dict[int, int]:
        """Return the offsets at which it begins, without partitions that have no messages."""
        request, ranges = self._request, self._ranges
        bounds = request.start.bounds
        if bounds is not None:
            # Retention may have removed a cursor's messages, and a client may send any offset.
            return {at: min(max(bounds[at], first), end) for at, (first, end) in ranges.items()}
        if request.follow and request.since is None:
            return self._ends()
        if request.follow:
            return {at: first for at, (first, end) in ranges.items()}
        newest = request.start.newest_first
        return {at: end if newest else first for at, (first, end) in ranges.items() if first < end}

    def _ends(self) -> dict[int, int]:
        """Return the ends of what is visible; records of open batches lie behind them."""
        ends = {at: end for at, (first, end) in self._ranges.items()}
        if self._request.uncommitted:
            return ends
        return {
            at: ends[at]
            if view.stable_offset is None
            else max(view.begin_offset, min(ends[at], view.stable_offset))
            for at, view in self._views_from(ends, newest=False).items()
        }

    def _views(self) -> dict[int, PartitionView]:
        """Return the visible parts of the ranges, from its position on."""
        return self._views_from(self._rounds.at, newest=self._rounds.newest)

    def _views_from(self, at: Mapping[int, int], *, newest: bool) -> dict[int, PartitionView]:
        return self._searches.reads.views(
            self.channel,
            {
                partition: Watermarks(begin_offset=first, end_offset=end)
                for partition, (first, end) in self._ranges.items()
            },
            at,
            newest=newest,
            uncommitted=self._request.uncommitted,
        )

    def _match(self, chunk: Sequence[ReadMessage], size_bytes: int) -> list[ReadMessage]:
        """Return the matches of a chunk; reports the progress once a second."""
        matches = self._matcher.matching(chunk)
        self._scanned += len(chunk)
        self._scanned_bytes += size_bytes
        if time.monotonic() - self._reported_s >= _PROGRESS_S:
            self._reported_s = time.monotonic()
            self._events.on_progress(self.progress)
        return matches

    def _report(self, messages: Sequence[ReadMessage]) -> None:
        shown = self._searches.reads.shown(
            self.channel, self._versions, messages, uncommitted=self._request.uncommitted
        )
        for message in shown:
            self._events.on_match(self.channel, message)
        self._events.on_progress(self.progress)

    def _next_round(self, scanned: int, scanned_bytes: int) -> int:
        """Return the size of the next round by that of the last, which began at these sums."""
        before = self._rounds.round_messages or _FIRST_ROUND
        count, size = self._scanned - scanned, self._scanned_bytes - scanned_bytes
        fitting = _ROUND_BYTES * max(1, count) // max(1, size)
        return max(1, min(4 * before, fitting, _ROUND_MESSAGES))

    def _limit_reached(self) -> EndReason | None:
        rounds, limits = self._rounds, self._searches.limits
        if self._request.follow:
            rounds.limit, rounds.ended = MAX_MATCHES, None
            return "time" if time.monotonic() >= self._deadline_s else None
        if rounds.ended == "time":
            return "time"
        if rounds.limit <= 0:
            return "limit"
        if self._scanned >= limits.messages:
            return "messages"
        return "bytes" if self._scanned_bytes >= limits.size_bytes else None

    def _wait(self) -> None:
        """Pause, then look for new messages, partitions and schemas."""
        until_s = time.monotonic() + _PAUSE_S
        while (left_s := until_s - time.monotonic()) > 0 and not self._events.stopped():
            time.sleep(min(0.1, left_s))
        channel, versions = self._read_channel(self.channel.name)
        if channel.uid != self.channel.uid:
            raise ChannelNotFound(f"The channel {channel.name!r} was deleted, and created anew.")
        if versions != self._versions:
            from sluiceway_gateway.messages.matching import Matcher

            self._matcher = Matcher(self._request.condition, channel.spec.format, versions)
        self.channel, self._versions = channel, versions
        at, start = self._rounds.at, self._request.start
        partitions = set(range(require_same_topic(self._searches.kafka, channel)))
        added = partitions - at.keys() - self._unavailable
        if start.partition is not None or start.bounds is not None or self._left_out:
            added = set()
        bounds = self._searches.reads.bounds(channel, sorted(at.keys() | added | self._unavailable))
        returned = self._starts_of_returned(bounds)
        self._unavailable -= returned.keys()
        for partition in sorted(bounds.keys() - self._unavailable):
            if partition not in at and len(at) >= MAX_READ_PARTITIONS:
                # No cursor would hold it.
                self._left_out += 1
                continue
            marks = bounds[partition]
            first = returned.get(partition, marks.begin_offset)
            before = self._ranges.get(partition, Interval(first, 0))
            self._ranges[partition] = Interval(before.first, marks.end_offset)
            at.setdefault(partition, before.first)
        self._rounds.views = self._views()
        self._events.on_progress(self.progress)

    def _starts_of_returned(self, bounds: Mapping[int, Watermarks]) -> dict[int, int]:
        """Return where it begins in partitions whose leaders answer again, by the time."""
        returned = bounds.keys() & self._unavailable
        if not returned:
            return {}
        since = self._request.since or self._begun_at
        offsets = self._searches.reads.offsets_at(self.channel, sorted(returned), since)
        # A cursor has places of its own.
        offsets |= {at: self._places[at] for at in returned & self._places.keys()}
        return {
            at: bounds[at].end_offset
            if first < 0
            else min(max(first, bounds[at].begin_offset), bounds[at].end_offset)
            for at, first in offsets.items()
        }


class _Chunk:
    """Visible messages of a round, which are matched some hundred at a time."""

    def __init__(
        self,
        match: Callable[[Sequence[ReadMessage], int], list[ReadMessage]],
        views: dict[int, PartitionView],
        selected: MessageSelection,
    ) -> None:
        self._match = match
        self._views = views
        self._selected = selected
        self._messages: list[ReadMessage] = []
        self._size_bytes = 0

    def add(self, message: ReadMessage) -> None:
        """Add a message, and select the matches once there are many."""
        if not self._views[message.partition].shows(message.offset):
            return
        self._messages.append(message)
        self._size_bytes += message.size_bytes
        if len(self._messages) >= _CHUNK_MESSAGES or self._size_bytes >= _CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Select the matches of the messages that were added."""
        messages, size_bytes = self._messages, self._size_bytes
        self._messages, self._size_bytes = [], 0
        for message in self._match(messages, size_bytes):
            self._selected.add(message)
