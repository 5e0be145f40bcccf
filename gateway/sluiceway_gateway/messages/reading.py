"""Reads of a few messages. They change no positions, and do not count as use."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from sluiceway_gateway.channels.model import Channel, Delivery
from sluiceway_gateway.channels.service import find_channel, require_usable
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.errors import ChannelNotReady, InvalidRequest, KafkaUnavailable
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.model import Interval, ReadMessage, Watermarks
from sluiceway_gateway.core.kafka.window_reader import window_reader
from sluiceway_gateway.ledger import store as ledger_store
from sluiceway_gateway.ledger.model import visible_below
from sluiceway_gateway.messages.model import (
    MAX_READ_PARTITIONS,
    READ_S,
    PartitionView,
    ReadProgress,
    StartPoint,
    holds,
    no_partition,
)
from sluiceway_gateway.schemas import store as schemas_store
from sluiceway_gateway.schemas.model import SchemaVersion

if TYPE_CHECKING:
    from sluiceway_gateway.messages.records import MessageContent

_MAX_RUNS = 2_000
"""Maximum runs of a partition that a request reads."""


@dataclass(frozen=True, kw_only=True)
class ShownMessage:
    """A message, its records, and whether it is committed (None without a ledger)."""

    message: ReadMessage
    content: MessageContent
    committed: bool | None


@dataclass(frozen=True, kw_only=True)
class MessagePage:
    """The messages of a page, in order, and the start point of the next page."""

    channel: Channel
    newest_first: bool
    partitions: tuple[PartitionView, ...]
    left_out: int
    """Partitions that were not read, because there are too many."""
    unavailable: tuple[int, ...]
    """Partitions whose leaders did not answer."""
    messages: tuple[ShownMessage, ...]
    following: StartPoint | None
    ended: Literal["time", "bytes"] | None
    """The reason why there are fewer messages than requested, although there are more."""


@dataclass(frozen=True, kw_only=True)
class PartitionOffsets:
    """Offsets of a partition; `offset` is that of the first message of a time or later.

    Without such a message, or without a time, it is where readers will find the next message:
    `stable_offset` of exactly-once channels, else `end_offset`.
    """

    partition: int
    begin_offset: int
    end_offset: int
    stable_offset: int | None
    offset: int


@dataclass(frozen=True, kw_only=True)
class TopicOffsets:
    """Offsets of a channel's partitions, without those of `unavailable` partitions."""

    topic_id: str
    partitions: tuple[PartitionOffsets, ...]
    unavailable: tuple[int, ...]
    """Partitions whose leaders did not answer."""


class MessageReads:
    """Reads of messages of one database's channels.

    Each read has its own connections to Kafka, and takes some megabytes of memory.
    """

    def __init__(self, database: Database, kafka: KafkaAdmin, *, read_s: float = READ_S) -> None:
        """Limit a read to `read_s`, with that of a new connection; it returns what it has."""
        self._database = database
        self._kafka = kafka
        self._read_s = read_s

    def read(self, name: str, start: StartPoint, *, limit: int, uncommitted: bool) -> MessagePage:
        """Return up to `limit` messages from a start point on; changes nothing.

        On exactly-once channels returns committed messages, or all with `uncommitted`. Returns
        fewer after some seconds. Raises ChannelNotFound, ChannelNotReady, KafkaUnavailable, and
        InvalidRequest for a partition or an offset out of range.
        """
        with self._database.read() as tx:
            channel = find_channel(tx, name)
            versions = schemas_store.versions(tx, channel.uid)
        require_usable(channel, writes=False)
        partitions = require_same_topic(self._kafka, channel)
        chosen = chosen_partitions(start, partitions)
        bounds = self.bounds(channel, chosen)
        at, left_out = self._start(channel, start, bounds)
        newest = start.newest_first
        views = self.views(channel, bounds, at, newest=newest, uncommitted=uncommitted)
        deadline_s = time.monotonic() + self._read_s
        progress = ReadProgress(views=views, at=at, newest=newest, limit=limit)
        with window_reader(self._kafka.client, channel.topic.name) as reader:
            while windows := progress.windows():
                selected = progress.selection()
                read = reader.read(windows, deadline_s, selected.add)
                progress.record(windows, selected, read)
        return MessagePage(
            channel=channel,
            newest_first=newest,
            partitions=tuple(views.values()),
            left_out=left_out,
            unavailable=tuple(partition for partition in chosen if partition not in bounds),
            messages=self.shown(channel, versions, progress.messages(), uncommitted=uncommitted),
            following=_following(start, progress, bounds),
            ended=progress.ended,
        )

    def offsets(self, name: str, *, since: datetime | None) -> TopicOffsets:
        """Return the offsets at a time, without one those of the end; changes nothing.

        Raises ChannelNotFound, ChannelNotReady, KafkaUnavailable.
        """
        with self._database.read() as tx:
            channel = find_channel(tx, name)
            ledger = ledger_store.find(tx, channel.uid)
        require_usable(channel, writes=False)
        partitions = range(require_same_topic(self._kafka, channel))
        bounds = self.bounds(channel, partitions)
        at = {} if since is None else self.offsets_at(channel, bounds, since)
        if since is not None:
            bounds = {partition: bounds[partition] for partition in at}
        exact = channel.spec.delivery is Delivery.EXACTLY_ONCE
        stable = {} if ledger is None else ledger.stable
        offsets = []
        for partition, marks in sorted(bounds.items()):
            readable = stable.get(partition, 0) if exact else None
            end = marks.end_offset if readable is None else readable
            offset = at.get(partition, -1)
            # A group that starts above `stable` would skip what may still become visible.
            offset = end if offset < 0 else min(offset, end)
            offsets.append(
                PartitionOffsets(
                    partition=partition,
                    begin_offset=marks.begin_offset,
                    end_offset=marks.end_offset,
                    stable_offset=readable,
                    # Retention may have passed the end of what is committed.
                    offset=max(marks.begin_offset, offset),
                )
            )
        return TopicOffsets(
            topic_id=str(channel.topic.id),
            partitions=tuple(offsets),
            unavailable=tuple(sorted(set(partitions) - bounds.keys())),
        )

    def offsets_at(
        self, channel: Channel, partitions: Iterable[int], since: datetime
    ) -> dict[int, int]:
        """Return by partition the offset of the first message of a time or later, or -1."""
        # Negative numbers have other meanings in Kafka.
        time_ms = max(0, round(since.timestamp() * 1000))
        return self._kafka.offsets_at(channel.topic.name, partitions, time_ms)

    def bounds(self, channel: Channel, partitions: Sequence[int]) -> dict[int, Watermarks]:
        """Return the watermarks of the partitions whose leaders answer.

        Raises KafkaUnavailable if none does.
        """
        watermarks = self._kafka.watermarks(channel.topic.name, partitions)
        bounds = {partition: marks for partition, marks in watermarks.items() if marks is not None}
        if not bounds:
            raise KafkaUnavailable(
                f"Kafka did not return the offsets of partition {partitions[0]} of the channel "
                f"{channel.name!r}: its leader is away. Repeat the request when it is back."
            )
        return bounds

    def _start(
        self, channel: Channel, start: StartPoint, bounds: Mapping[int, Watermarks]
    ) -> tuple[dict[int, int], int]:
        """Return the start offset by partition, and the number of omitted partitions."""
        if start.bounds is not None:
            # Retention may have removed a cursor's messages, and a client may send any offset.
            return {
                partition: min(
                    max(at, bounds[partition].begin_offset), bounds[partition].end_offset
                )
                for partition, at in start.bounds.items()
                if partition in bounds
            }, 0
        if start.offset is not None:
            assert start.partition is not None  # noqa: S101 - the wire requires it
            _require_offset(start.partition, start.offset, bounds[start.partition])
            return {start.partition: start.offset}, 0
        if start.since is not None:
            offsets = self.offsets_at(channel, bounds, start.since)
            at = {partition: offset for partition, offset in offsets.items() if offset >= 0}
        elif start.newest_first:
            at = {partition: marks.end_offset for partition, marks in bounds.items()}
        else:
            at = {partition: marks.begin_offset for partition, marks in bounds.items()}
        filled = [
            partition
            for partition in sorted(at)
            if bounds[partition].begin_offset < bounds[partition].end_offset
        ]
        chosen = filled[:MAX_READ_PARTITIONS] or sorted(bounds)[:1]
        starts = {
            partition: at.get(partition, bounds[partition].end_offset) for partition in chosen
        }
        return starts, len(filled) - len(filled[:MAX_READ_PARTITIONS])

    def views(
        self,
        channel: Channel,
        bounds: Mapping[int, Watermarks],
        at: Mapping[int, int],
        *,
        newest: bool,
        uncommitted: bool,
    ) -> dict[int, PartitionView]:
        """Return the visible parts of the partitions: from `at` on or, if `newest`, below it."""
        exact = channel.spec.delivery is Delivery.EXACTLY_ONCE
        parts = {
            partition: Interval(bounds[partition].begin_offset, bounds[partition].end_offset)
            for partition in at
        }
        runs: Mapping[int, Sequence[Interval]] = {
            partition: [part] for partition, part in parts.items()
        }
        stable: Mapping[int, int] = {}
        if exact:
            with self._database.read() as tx:
                ledger = ledger_store.find(tx, channel.uid)
                stable = {} if ledger is None else ledger.stable
                if not uncommitted:
                    parts = {
                        partition: Interval(part.first, min(part.end, stable.get(partition, 0)))
                        for partition, part in parts.items()
                    }
                    ahead = {
                        partition: Interval(first, min(end, at[partition]))
                        if newest
                        else Interval(max(first, at[partition]), end)
                        for partition, (first, end) in parts.items()
                    }
                    runs = ledger_store.runs_between(
                        tx, channel.uid, ahead, limit=_MAX_RUNS, newest=newest
                    )
        return {
            partition: PartitionView(
                partition=partition,
                begin_offset=bounds[partition].begin_offset,
                end_offset=bounds[partition].end_offset,
                stable_offset=stable.get(partition, 0) if exact else None,
                runs=visible_below(runs[partition], part.end, part.first),
                truncated=len(runs[partition]) >= _MAX_RUNS,
            )
            for partition, part in parts.items()
        }

    def shown(
        self,
        channel: Channel,
        versions: Sequence[SchemaVersion],
        messages: Sequence[ReadMessage],
        *,
        uncommitted: bool,
    ) -> tuple[ShownMessage, ...]:
        """Return messages with their records, and with `uncommitted` whether they are committed."""
        # Imported on use: the libraries take memory that most gateways do not need.
        from sluiceway_gateway.messages.records import MessageDecoder

        decoder = MessageDecoder(channel.spec.format, versions, compacted=channel.compacted)
        exact = channel.spec.delivery is Delivery.EXACTLY_ONCE
        listed = self._listed(channel, messages) if exact and uncommitted else None
        return tuple(
            ShownMessage(
                message=message,
                content=decoder.decode(message.value),
                committed=(exact or None) if listed is None else listed(message),
            )
            for message in messages
        )

    def _listed(
        self, channel: Channel, messages: Sequence[ReadMessage]
    ) -> Callable[[ReadMessage], bool | None]:
        """Return whether a message is committed; None if there are too many runs to check."""
        by_partition: defaultdict[int, list[int]] = defaultdict(list)
        for message in messages:
            by_partition[message.partition].append(message.offset)
        bounds = {
            partition: Interval(min(offsets), max(offsets) + 1)
            for partition, offsets in by_partition.items()
        }
        with self._database.read() as tx:
            runs = ledger_store.runs_between(tx, channel.uid, bounds, limit=_MAX_RUNS)

        def listed(message: ReadMessage) -> bool | None:
            partition_runs = runs[message.partition]
            if len(partition_runs) >= _MAX_RUNS and message.offset >= partition_runs[-1].end:
                return None
            return holds(partition_runs, message.offset)

        return listed


def require_same_topic(kafka: KafkaAdmin, channel: Channel) -> int:
    """Return the number of partitions of the channel's topic.

    Raises ChannelNotReady if it does not exist any more, KafkaUnavailable.
    """
    topic = kafka.describe_topic(channel.topic.name)
    if topic is None or topic.id != channel.topic.id:
        what = "does not exist" if topic is None else "was deleted, and created anew"
        raise ChannelNotReady(
            f"The topic {channel.topic.name!r} of the channel {channel.name!r} {what}. Wait until "
            "the channel's conditions say how it goes on."
        )
    return len(topic.partitions)


def chosen_partitions(start: StartPoint, partitions: int) -> Sequence[int]:
    """Return the partitions of a start point, by default all. Raises InvalidRequest."""
    if start.bounds is not None:
        named = sorted(start.bounds)
        if named[-1] >= partitions:
            raise no_partition("query:cursor", named[-1], partitions)
        return named
    if start.partition is None:
        return range(partitions)
    if start.partition >= partitions:
        raise no_partition("query:partition", start.partition, partitions)
    return [start.partition]


def _following(
    start: StartPoint, progress: ReadProgress, available: Collection[int]
) -> StartPoint | None:
    """Return the start point of the next page, with the offsets of unavailable partitions.

    None at the end.
    """
    following = progress.following()
    unread = {
        partition: at
        for partition, at in (start.bounds or {}).items()
        if partition not in available
    }
    if not unread:
        return following
    bounds = {} if following is None else following.bounds
    return StartPoint(newest_first=progress.newest, bounds={**(bounds or {}), **unread})


def _require_offset(partition: int, offset: int, marks: Watermarks) -> None:
    begin, end = marks.begin_offset, marks.end_offset
    if begin <= offset <= end:
        return
    which = "was removed by retention" if offset < begin else "is not written yet"
    message = (
        f"this offset of partition {partition} {which}: messages begin at {begin}, and the next "
        f"one will have {end}"
    )
    raise InvalidRequest.at("query:offset", message)
