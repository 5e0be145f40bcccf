"""Starting and ending offsets, input splits, and checkpoint offsets.

Pure: what Kafka says (watermarks, offsets by time) is passed in.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from sluiceway.errors import CheckpointMismatch, OffsetOutOfRange, OptionError
from sluiceway.kafka.consumer import Watermarks
from sluiceway.rest.models import Connection

EARLIEST_OFFSET = -2
LATEST_OFFSET = -1
_MAX_OFFSET = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Earliest:
    """The first message that is kept, of every partition."""


@dataclass(frozen=True, kw_only=True)
class Latest:
    """The end of every partition when the read is planned."""


@dataclass(frozen=True, kw_only=True)
class Offsets:
    """One offset for each partition; -2 stands for the earliest, -1 for the latest."""

    by_partition: Mapping[int, int]


@dataclass(frozen=True, kw_only=True)
class AtTime:
    """The first message that is not older than `timestamp_ms` (Unix time), of every partition."""

    timestamp_ms: int


Bound = Earliest | Latest | Offsets | AtTime


@dataclass(frozen=True, kw_only=True)
class OffsetRange:
    """The messages of one partition from offset `start` up to, not including, `end`."""

    partition: int
    start: int
    end: int

    @property
    def messages(self) -> int:
        """How many offsets the range spans; with gaps in the log, fewer messages."""
        return self.end - self.start


def parse_offsets(option: str, text: str, channel: str) -> Bound:
    """Read `earliest`, `latest` or JSON such as `{"0": 5, "1": -2}`.

    The form of Spark's Kafka source, `{"flights": {"0": 5}}`, is read too, where its only topic
    is the channel's name. Raises OptionError.
    """
    word = text.strip().lower()
    if word == "earliest":
        return Earliest()
    if word == "latest":
        return Latest()
    wanted = 'earliest, latest, or an offset for each partition such as {"0": 5, "1": -2}'
    try:
        parsed = json.loads(text)
    except ValueError:
        raise OptionError(f"{option} is {text!r}; it takes {wanted}") from None
    if isinstance(parsed, dict) and list(parsed) == [channel] and isinstance(parsed[channel], dict):
        parsed = parsed[channel]
    if not isinstance(parsed, dict) or not parsed:
        raise OptionError(f"{option} is {text!r}; it takes {wanted}")
    offsets = {}
    for key, offset in parsed.items():
        if not (key.isascii() and key.isdigit()):
            raise OptionError(f"{option} names the partition {key!r}; it takes {wanted}")
        if type(offset) is not int or not EARLIEST_OFFSET <= offset <= _MAX_OFFSET:
            raise OptionError(
                f"{option} gives partition {key} the offset {offset!r}; an offset is a whole "
                "number from 0, or -2 for the earliest, or -1 for the latest"
            )
        offsets[int(key)] = offset
    return Offsets(by_partition=offsets)


OnLoss = Callable[[OffsetOutOfRange], None]
"""Told of each offset that Kafka does not hold; returns where the read may do without."""


def refuse_loss(error: OffsetOutOfRange) -> None:
    """Raise: what is to be read must be there."""
    raise error


def resolve(
    *,
    starting: Bound,
    ending: Bound,
    watermarks: Mapping[int, Watermarks],
    starting_at_time: Mapping[int, int],
    ending_at_time: Mapping[int, int],
    on_loss: OnLoss = refuse_loss,
) -> tuple[OffsetRange, ...]:
    """Return the range of every partition that has something to read, in partition order.

    `watermarks` has every partition of the channel. `starting_at_time` and `ending_at_time`
    give, for an `AtTime` bound, the first offset that is not older, or the end; they may be empty
    for other bounds. Raises OptionError for partitions that are missing
    or not there and for an end before its start.
    """
    starts = offsets_at("startingOffsets", starting, watermarks, starting_at_time)
    ends = offsets_at("endingOffsets", ending, watermarks, ending_at_time)
    ranges = ranges_between(starts, ends, watermarks, on_loss)
    if isinstance(starting, Offsets) or isinstance(ending, Offsets):
        for partition in sorted(watermarks):
            if ends[partition] < starts[partition]:
                raise OptionError(
                    f"partition {partition} would be read from offset {starts[partition]} to "
                    f"{ends[partition]}: let endingOffsets be no less than startingOffsets"
                )
    return ranges


def ranges_between(
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    watermarks: Mapping[int, Watermarks],
    on_loss: OnLoss,
) -> tuple[OffsetRange, ...]:
    """Return what lies between two offsets of each partition and is held by Kafka.

    Partitions without a start begin at 0. Offsets outside the watermarks go to `on_loss`; when it
    returns, the range is cut to what there is.
    """
    ranges = []
    for partition in sorted(watermarks):
        marks = watermarks[partition]
        within = []
        for offset in (starts.get(partition, 0), ends[partition]):
            if not marks.begin <= offset <= marks.end:
                on_loss(
                    OffsetOutOfRange(
                        partition=partition, offset=offset, begin=marks.begin, end=marks.end
                    )
                )
            within.append(max(marks.begin, min(offset, marks.end)))
        start, end = within
        if end > start:
            ranges.append(OffsetRange(partition=partition, start=start, end=end))
    return tuple(ranges)


def offsets_at(
    option: str,
    bound: Bound,
    watermarks: Mapping[int, Watermarks],
    at_time: Mapping[int, int],
) -> dict[int, int]:
    """Return the offset that `bound`, the value of `option`, comes to in each partition."""
    match bound:
        case Earliest():
            return {partition: marks.begin for partition, marks in watermarks.items()}
        case Latest():
            return {partition: marks.end for partition, marks in watermarks.items()}
        case AtTime():
            # A message may arrive between the two questions: never past the watermark.
            return {
                partition: max(marks.begin, min(at_time[partition], marks.end))
                for partition, marks in watermarks.items()
            }
        case Offsets(by_partition=chosen):
            _require_same_partitions(option, chosen, watermarks)
            ends = {EARLIEST_OFFSET: "begin", LATEST_OFFSET: "end"}
            return {
                partition: getattr(marks, ends[offset])
                if (offset := chosen[partition]) < 0
                else offset
                for partition, marks in watermarks.items()
            }


def _require_same_partitions(
    option: str, chosen: Mapping[int, int], watermarks: Mapping[int, Watermarks]
) -> None:
    missing = sorted(watermarks.keys() - chosen.keys())
    if missing:
        raise OptionError(
            f"{option} says nothing about partition {missing[0]}: name every partition from 0 to "
            f"{len(watermarks) - 1}, with -2 for the earliest offset and -1 for the latest"
        )
    unknown = sorted(chosen.keys() - watermarks.keys())
    if unknown:
        raise OptionError(
            f"{option} names partition {unknown[0]}, the channel has the partitions 0 to "
            f"{len(watermarks) - 1}: leave it out"
        )


DEFAULT_MAX_MESSAGES = {"avro": 1_000_000, "arrow": 1_000, "bytes": 1_000_000}
"""How many messages a task reads at most where the options say nothing, by format.

An `arrow` message holds thousands of records. A task's memory does not depend on this: it
bounds what is lost when a task fails, and spreads a long partition over the executors."""


def split(
    ranges: Sequence[OffsetRange], *, max_messages: int, min_splits: int
) -> tuple[OffsetRange, ...]:
    """Cut ranges into pieces of at most `max_messages` offsets, at least `min_splits` of them.

    Together the pieces cover every offset exactly once, in the order of the ranges; pieces of one
    range differ by at most one offset; none is empty. There are fewer than `min_splits` only
    where there are fewer offsets. Long ranges are cut first.
    """
    counts = [-(-piece.messages // max_messages) for piece in ranges]
    missing = min(min_splits, sum(piece.messages for piece in ranges)) - sum(counts)
    if missing > 0:
        counts = _spread(ranges, counts, missing)
    return tuple(
        piece for whole, count in zip(ranges, counts, strict=True) for piece in _cut(whole, count)
    )


def _spread(ranges: Sequence[OffsetRange], counts: Sequence[int], missing: int) -> list[int]:
    """Give each range a part of the missing cuts by its share of the offsets, then one by one."""
    total = sum(piece.messages for piece in ranges)
    wanted = sum(counts) + missing
    grown = [
        min(piece.messages, max(count, wanted * piece.messages // total))
        for piece, count in zip(ranges, counts, strict=True)
    ]
    by_length = sorted(range(len(ranges)), key=lambda i: -ranges[i].messages)
    while (missing := wanted - sum(grown)) > 0:
        for index in by_length:
            if missing > 0 and grown[index] < ranges[index].messages:
                grown[index] += 1
                missing -= 1
    return grown


def _cut(whole: OffsetRange, count: int) -> list[OffsetRange]:
    edges = [whole.start + whole.messages * i // count for i in range(count + 1)]
    return [
        OffsetRange(partition=whole.partition, start=start, end=end)
        for start, end in pairwise(edges)
    ]


_VERSION: Final = 1
_ADVICE: Final = (
    "Give the query a new checkpointLocation to begin anew (startingOffsets says where), or the "
    "checkpoint's own channel to go on"
)


@dataclass(frozen=True, kw_only=True)
class StreamOffset:
    """How far a query has come: the next offset of every partition that it knows.

    They mean something in one topic only, the channel's with this uid and topic id. `group` is
    what the query is seen as, where an option names it; Spark's progress tells of it, too.
    """

    channel: str
    uid: str
    topic_id: str
    next_offsets: Mapping[int, int]
    group: str | None = None

    @classmethod
    def at(
        cls, connection: Connection, next_offsets: Mapping[int, int], group: str | None = None
    ) -> "StreamOffset":
        """Return these offsets in the topic that `connection` leads to."""
        return cls(
            channel=connection.channel_name,
            uid=connection.channel_uid,
            topic_id=connection.topic_id or "",
            next_offsets=next_offsets,
            group=group,
        )

    @classmethod
    def parse(cls, stored: Any) -> "StreamOffset":
        """Read what `to_json` gave. Raises CheckpointMismatch for what it did not give."""
        try:
            version = stored["version"]
            if type(version) is not int or version > _VERSION:
                raise CheckpointMismatch(
                    f"the checkpoint has the version {version!r}, this client reads versions up "
                    f"to {_VERSION}: install the version of sluiceway that wrote it, or a later "
                    "one, on the driver"
                )
            return cls(
                channel=str(stored["channel"]),
                uid=str(stored["uid"]),
                topic_id=str(stored["topic_id"]),
                next_offsets={int(p): int(offset) for p, offset in stored["offsets"].items()},
                group=None if stored.get("group") is None else str(stored["group"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointMismatch(
                f"the checkpoint holds {stored!r}, which are no offsets of a channel. {_ADVICE}"
            ) from error

    def to_json(self) -> dict[str, Any]:
        """Return plain data; the same offsets always give the same text."""
        return {
            "version": _VERSION,
            "channel": self.channel,
            "uid": self.uid,
            "topic_id": self.topic_id,
            "offsets": {str(p): self.next_offsets[p] for p in sorted(self.next_offsets)},
        } | ({} if self.group is None else {"group": self.group})

    def require_of(self, connection: Connection) -> None:
        """Raise CheckpointMismatch unless the offsets are those of the connection's topic."""
        if self.uid != connection.channel_uid:
            same = self.channel == connection.channel_name
            what = (
                f"the channel {self.channel!r} was deleted and made anew since the checkpoint "
                f"was written: it was {self.uid} and is {connection.channel_uid} now, with other "
                "records"
                if same
                else f"the checkpoint belongs to the channel {self.channel!r} ({self.uid}), not "
                f"to {connection.channel_name!r} ({connection.channel_uid})"
            )
            raise CheckpointMismatch(f"{what}. {_ADVICE}")
        if connection.topic_id is not None and self.topic_id != connection.topic_id:
            raise CheckpointMismatch(
                f"the topic of the channel {self.channel!r} was deleted and made anew since the "
                f"checkpoint was written: its id was {self.topic_id} and is "
                f"{connection.topic_id} now. {_ADVICE}"
            )
