"""Where a read begins and ends: the words of an option, and the offsets they come to.

Pure: what Kafka says (watermarks, offsets by time) is passed in.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sluiceway.errors import OffsetOutOfRange, OptionError
from sluiceway.kafka.consumer import Watermarks

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
