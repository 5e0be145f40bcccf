"""Starting and ending offsets, input splits, and checkpoint offsets.

Pure functions: watermarks and offsets by time are passed in.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from sluiceway import Connection
from sluiceway.errors import CheckpointMismatch, OffsetOutOfRange, OptionError
from sluiceway.spi import KnownCommit, Watermarks

EARLIEST: Final = -2
"""The first retained offset of a partition."""
LATEST: Final = -1
"""The end of a partition at planning time."""
_MAX_OFFSET = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class AtTime:
    """The first offset of every partition with a timestamp of at least `timestamp_ms`."""

    timestamp_ms: int


OffsetBound = int | Mapping[int, int] | AtTime
"""EARLIEST or LATEST for all partitions; an offset, EARLIEST or LATEST by partition; or a time."""
OffsetsForTime = Callable[[int], Mapping[int, int]]
"""Maps a Unix time in milliseconds to the first offset of each partition not older than it."""
LossHandler = Callable[[OffsetOutOfRange], None]
"""Called for an offset that Kafka does not hold. Raises, or returns to read the existing ones."""


@dataclass(frozen=True, kw_only=True)
class OffsetRange:
    """Offsets of one partition from `start` up to, not including, `end`."""

    partition: int
    start: int
    end: int

    @property
    def messages(self) -> int:
        """Number of offsets in the range. Gaps in the log hold no message."""
        return self.end - self.start


def parse_offsets(option: str, text: str, channel: str) -> OffsetBound:
    """Parse `earliest`, `latest` or JSON such as `{"0": 5, "1": -2}`.

    Also accepts the form of Spark's Kafka source, `{"flights": {"0": 5}}`, if its only topic is
    the channel. Raises OptionError.
    """
    bound = {"earliest": EARLIEST, "latest": LATEST}.get(text.strip().lower())
    if bound is not None:
        return bound
    expected = (
        'earliest, latest, or JSON with an offset for each partition such as {"0": 5, "1": -2} or '
        f"{json.dumps({channel: {'0': 5, '1': -2}})}"
    )
    try:
        parsed = json.loads(text)
    except ValueError:
        raise OptionError(f"{option} is {text!r}; it takes {expected}") from None
    if isinstance(parsed, dict) and list(parsed) == [channel] and isinstance(parsed[channel], dict):
        parsed = parsed[channel]
    if not isinstance(parsed, dict) or not parsed:
        raise OptionError(f"{option} is {text!r}; it takes {expected}")
    offsets = {}
    for key, offset in parsed.items():
        if not (key.isascii() and key.isdigit()):
            what = "not a partition, which is a whole number from 0"
            if isinstance(offset, dict):
                what = f"not the channel {channel!r}"
            raise OptionError(f"{option} has the key {key!r}: {what}. It takes {expected}")
        if type(offset) is not int or not EARLIEST <= offset <= _MAX_OFFSET:
            raise OptionError(
                f"{option} has the offset {offset!r} for partition {key}; an offset is a whole "
                "number from 0, or -2 for the earliest, or -1 for the latest"
            )
        offsets[int(key)] = offset
    return offsets


def resolve_ranges(
    starting: OffsetBound,
    ending: OffsetBound,
    watermarks: Mapping[int, Watermarks],
    offsets_for_time: OffsetsForTime,
    on_loss: LossHandler,
    *,
    removed: Mapping[int, OffsetOutOfRange],
) -> tuple[OffsetRange, ...]:
    """Return the non-empty ranges to read, in partition order.

    `watermarks` covers every partition of the channel. `removed` has an error for each partition
    whose first records are gone, although the read begins with them; `on_loss` is called for those
    without an explicit start. Raises OptionError for missing or unknown partitions and for an end
    before its start.
    """
    starts = resolve_bound("startingOffsets", starting, watermarks, offsets_for_time)
    ends = resolve_bound("endingOffsets", ending, watermarks, offsets_for_time)
    at_time: Mapping[int, int] = {}
    if removed and isinstance(starting, AtTime):
        # Not cut to the watermarks, as the starts are.
        at_time = offsets_for_time(starting.timestamp_ms)
    for partition, error in removed.items():
        start = starting.get(partition) if isinstance(starting, Mapping) else starting
        if start == EARLIEST or at_time.get(partition, _MAX_OFFSET) <= watermarks[partition].begin:
            on_loss(error)
    ranges = ranges_between(starts, ends, watermarks, on_loss)
    if isinstance(starting, Mapping) or isinstance(ending, Mapping):
        for partition in sorted(watermarks):
            if ends[partition] < starts[partition]:
                raise OptionError(
                    f"partition {partition} has the start {starts[partition]} after the end "
                    f"{ends[partition]}: set endingOffsets to at least startingOffsets"
                )
    return ranges


def ranges_between(
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    watermarks: Mapping[int, Watermarks],
    on_loss: LossHandler,
) -> tuple[OffsetRange, ...]:
    """Return the non-empty ranges from `starts` to `ends`, clipped to the watermarks.

    Partitions without a start begin at 0. `on_loss` is called for each clipped offset.
    """
    ranges = []
    for partition in sorted(watermarks):
        marks = watermarks[partition]
        clipped = []
        for offset in (starts.get(partition, 0), ends[partition]):
            if not marks.begin <= offset <= marks.end:
                on_loss(
                    OffsetOutOfRange(
                        partition=partition, offset=offset, begin=marks.begin, end=marks.end
                    )
                )
            clipped.append(max(marks.begin, min(offset, marks.end)))
        start, end = clipped
        if end > start:
            ranges.append(OffsetRange(partition=partition, start=start, end=end))
    return tuple(ranges)


def resolve_bound(
    option: str,
    bound: OffsetBound,
    watermarks: Mapping[int, Watermarks],
    offsets_for_time: OffsetsForTime,
) -> dict[int, int]:
    """Return the offset of each partition for `bound`, the value of `option`."""
    if isinstance(bound, AtTime):
        # Messages may have arrived after the watermarks, which are the limit.
        at_time = offsets_for_time(bound.timestamp_ms)
        return {
            partition: max(marks.begin, min(at_time[partition], marks.end))
            for partition, marks in watermarks.items()
        }
    offsets = dict.fromkeys(watermarks, bound) if isinstance(bound, int) else bound
    for partition in sorted(offsets.keys() ^ watermarks.keys()):
        verb = "names" if partition in offsets else "lacks"
        raise OptionError(
            f"{option} {verb} partition {partition}: the channel has partitions 0 to "
            f"{len(watermarks) - 1}, each needs an offset, or -2 for the earliest, or -1 for the "
            "latest"
        )
    return {
        partition: {EARLIEST: marks.begin, LATEST: marks.end}.get(offset, offset)
        for partition, marks in watermarks.items()
        for offset in [offsets[partition]]
    }


DEFAULT_MAX_MESSAGES = {
    **dict.fromkeys(("avro", "json", "protobuf", "bytes"), 1_000_000),
    "arrow": 1_000,
}
"""Default limit of messages per task, by format.

An `arrow` message holds thousands of records. The limit does not affect a task's memory. It limits
the work lost with a failed task, and distributes a long partition over the executors.
"""


def split_ranges(
    ranges: Sequence[OffsetRange], *, max_messages: int, min_splits: int
) -> tuple[OffsetRange, ...]:
    """Split ranges into at least `min_splits` ranges of at most `max_messages` offsets.

    Covers every offset exactly once, in order. Splits of one range differ by at most one offset,
    and none is empty, so there are fewer than `min_splits` only if there are fewer offsets. Long
    ranges are split first.
    """
    counts = [-(-offset_range.messages // max_messages) for offset_range in ranges]
    total = sum(offset_range.messages for offset_range in ranges)
    wanted = min(min_splits, total)
    if wanted > sum(counts):
        counts = [
            max(count, wanted * offset_range.messages // total)
            for offset_range, count in zip(ranges, counts, strict=True)
        ]
        # Rounding leaves fewer missing splits than there are ranges of two or more offsets.
        longest = sorted(range(len(ranges)), key=lambda index: -ranges[index].messages)
        for index in longest[: max(0, wanted - sum(counts))]:
            counts[index] += 1
    return tuple(
        OffsetRange(partition=offset_range.partition, start=start, end=end)
        for offset_range, count in zip(ranges, counts, strict=True)
        for start, end in pairwise(
            offset_range.start + offset_range.messages * i // count for i in range(count + 1)
        )
    )


_VERSION: Final = 1
_ADVICE: Final = (
    "Give the query a new checkpointLocation to start over (startingOffsets says where), or "
    "the checkpoint's own channel to resume"
)


def _parse_partitions(stored: Mapping[str, Any]) -> dict[int, int]:
    return {int(p): int(offset) for p, offset in stored.items()}


def _partitions_json(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(p): offsets[p] for p in sorted(offsets)}


def _parse_commit(stored: Mapping[str, Any]) -> KnownCommit:
    return KnownCommit(number=int(stored["number"]), at=datetime.fromisoformat(stored["at"]))


@dataclass(frozen=True, kw_only=True)
class StreamOffset:
    """Checkpoint offset: the next offset of every partition known to the query.

    Valid for one topic only, identified by the channel's uid and the topic id. `group` is the
    query's group if an option sets it; the query listener gets it from Spark's progress.

    Spark does not store the start of a query's first batch, and requests it again for a replay,
    after retention or `latest` may have moved it. So the end of this batch contains it,
    `query_start`; a start offset contains itself.

    `commit` is the last commit of an exactly-once channel that the query knew. If the gateway does
    not have it when the query is started again, its database was restored to an earlier state.
    """

    channel: str
    uid: str
    topic_id: str
    next_offsets: Mapping[int, int]
    group: str | None = None
    query_start: Mapping[int, int] | None = None
    commit: KnownCommit | None = None

    @classmethod
    def of(
        cls,
        connection: Connection,
        next_offsets: Mapping[int, int],
        group: str | None = None,
        commit: KnownCommit | None = None,
    ) -> "StreamOffset":
        """Return the offset of these partitions in the topic of `connection`."""
        return cls(
            channel=connection.channel_name,
            uid=connection.channel_uid,
            topic_id=connection.topic_id or "",
            next_offsets=next_offsets,
            group=group,
            commit=commit,
        )

    @classmethod
    def parse(cls, stored: Any) -> "StreamOffset":
        """Parse the output of `to_json`. Raises CheckpointMismatch."""
        try:
            version = stored["version"]
            if type(version) is not int or version > _VERSION:
                raise CheckpointMismatch(
                    f"the checkpoint has version {version!r}, this client reads versions up "
                    f"to {_VERSION}: install the version of sluiceway that wrote it, or a later "
                    "one, on the driver"
                )
            return cls(
                channel=str(stored["channel"]),
                uid=str(stored["uid"]),
                topic_id=str(stored["topic_id"]),
                next_offsets=_parse_partitions(stored["offsets"]),
                group=None if stored.get("group") is None else str(stored["group"]),
                query_start=_parse_partitions(stored["start"]) if "start" in stored else None,
                commit=_parse_commit(stored["commit"]) if "commit" in stored else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointMismatch(
                f"the checkpoint has {stored!r}, which are not offsets of a channel. {_ADVICE}"
            ) from error

    def to_json(self) -> dict[str, Any]:
        """Return JSON values in a fixed order, because Spark compares offsets as text."""
        fields = {
            "version": _VERSION,
            "channel": self.channel,
            "uid": self.uid,
            "topic_id": self.topic_id,
            "offsets": _partitions_json(self.next_offsets),
        }
        if self.group is not None:
            fields["group"] = self.group
        if self.query_start is not None:
            fields["start"] = _partitions_json(self.query_start)
        if self.commit is not None:
            fields["commit"] = {"number": self.commit.number, "at": self.commit.at.isoformat()}
        return fields

    @property
    def is_query_start(self) -> bool:
        """Whether the query begins at this offset."""
        return self.query_start == self.next_offsets

    def as_query_start(self) -> "StreamOffset":
        """Return this offset as the start of a query without a checkpoint."""
        return replace(self, query_start=self.next_offsets)

    def as_end_after(self, start: "StreamOffset") -> "StreamOffset":
        """Return this offset as the end of the batch that begins at `start`.

        Offsets without new records are equal, or Spark would run an empty batch.
        """
        if self.next_offsets == start.next_offsets:
            return replace(self, query_start=start.query_start, commit=start.commit)
        if start.is_query_start:
            return replace(self, query_start=start.query_start)
        return self

    def starts_until(self, end: "StreamOffset") -> Mapping[int, int]:
        """Return the offsets at which the batch up to `end` begins.

        The replay of a query's first batch begins where the batch began, and at 0 in partitions
        that were added after it had begun.
        """
        first = end.query_start
        if first is None or not self.is_query_start:
            return self.next_offsets
        return {p: min(offset, first.get(p, 0)) for p, offset in self.next_offsets.items()}

    def require_topic_of(self, connection: Connection) -> None:
        """Raise CheckpointMismatch unless the offsets belong to the topic of `connection`."""
        if self.uid != connection.channel_uid:
            reason = (
                f"the channel {self.channel!r} was deleted and recreated since the checkpoint "
                f"was written: its uid was {self.uid} and is {connection.channel_uid} now, with "
                "other records"
                if self.channel == connection.channel_name
                else f"the checkpoint belongs to the channel {self.channel!r} ({self.uid}), not "
                f"to {connection.channel_name!r} ({connection.channel_uid})"
            )
            raise CheckpointMismatch(f"{reason}. {_ADVICE}")
        if connection.topic_id is not None and self.topic_id != connection.topic_id:
            raise CheckpointMismatch(
                f"the topic of the channel {self.channel!r} was deleted and recreated since the "
                f"checkpoint was written: its id was {self.topic_id} and is "
                f"{connection.topic_id} now. {_ADVICE}"
            )
