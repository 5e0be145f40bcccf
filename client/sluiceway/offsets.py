"""Offset bounds of a read: start positions and end offsets."""

import math
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Literal

from sluiceway.api.arguments import whole_number
from sluiceway.api.endpoints import Position
from sluiceway.errors import OffsetOutOfRange, OptionError
from sluiceway.kafka.consumer import PartitionStream, Watermarks

__all__ = [
    "Start",
    "Until",
    "chosen_partitions",
    "end_offsets",
    "positions_at",
    "start_positions",
]

Positions = Mapping[int, Position | int]
Start = Literal["earliest", "latest"] | datetime | Positions
Until = Literal["finished", "now"] | Mapping[int, int] | None


def chosen_partitions(partitions: Sequence[int] | None, count: int) -> tuple[int, ...]:
    """Return the partitions to read, in order; all of `count` by default. Raises OptionError."""
    if partitions is None:
        return tuple(range(count))
    try:
        wanted = list(partitions)
    except TypeError as error:
        raise OptionError(
            f"partitions is {partitions!r}; it takes their numbers, such as [0, 1]"
        ) from error
    chosen = set()
    for partition in wanted:
        number = whole_number(partition, 0, count)
        if number is None:
            raise OptionError(
                f"partitions names {partition!r}; the channel has the partitions 0 to {count - 1}"
            )
        chosen.add(number)
    if not chosen:
        raise OptionError("partitions is empty; omit it to read all of them")
    return tuple(sorted(chosen))


def start_positions(
    start: Start,
    partitions: Sequence[int],
    stream: PartitionStream,
    committed: Mapping[int, Position] | None = None,
) -> dict[int, Position]:
    """Return the start position of each partition: `committed`, or else `start`.

    Partitions missing from a mapping start at the earliest. Raises OptionError and
    OffsetOutOfRange.
    """
    if start == "earliest" and not committed:
        # There is no offset to check against the end offsets, which saves a request.
        return {p: Position(offset=begin) for p, begin in stream.earliest(partitions).items()}
    marks = stream.watermarks(partitions)
    try:
        resumed = positions_at(committed or {}, marks)
    except OffsetOutOfRange as error:
        raise OffsetOutOfRange(
            partition=error.partition,
            offset=error.offset,
            begin=error.begin,
            end=error.end,
            advice="It was committed: reset the group's positions with channel.reset(group, …)",
        ) from error
    return _starts(start, partitions, stream, marks) | resumed


def _starts(
    start: Start,
    partitions: Sequence[int],
    stream: PartitionStream,
    marks: Mapping[int, Watermarks],
) -> dict[int, Position]:
    if start == "earliest":
        return {p: Position(offset=marks[p].begin) for p in partitions}
    if start == "latest":
        return {p: Position(offset=marks[p].end) for p in partitions}
    if isinstance(start, datetime):
        offsets = stream.offsets_at(_milliseconds(start), partitions)
        return {p: Position(offset=offsets[p]) for p in partitions}
    if isinstance(start, Mapping):
        positions = positions_at(start, marks)
        others = stream.earliest([p for p in partitions if p not in positions])
        return {p: Position(offset=begin) for p, begin in others.items()} | positions
    raise OptionError(
        f"start is {start!r}; it takes 'earliest', 'latest', a datetime with a time zone, or a "
        "Position for each partition"
    )


def positions_at(wanted: Positions, marks: Mapping[int, Watermarks]) -> dict[int, Position]:
    """Return `wanted` as positions, checked against the watermarks.

    Raises OptionError for partitions that are not read, and OffsetOutOfRange.
    """
    positions = {}
    for key, wanted_position in wanted.items():
        partition = whole_number(key)
        if partition is None or partition not in marks:
            raise OptionError(
                f"partition {key!r} is not assigned to this reader, which has "
                f"{', '.join(map(str, sorted(marks)))}"
            )
        mark = marks[partition]
        position = Position.of(wanted_position)
        last = mark.end - 1 if position.records else mark.end
        if not mark.begin <= position.offset <= last:
            raise OffsetOutOfRange(
                partition=partition, offset=position.offset, begin=mark.begin, end=mark.end
            )
        positions[partition] = position
    return positions


def end_offsets(
    until: Until, partitions: Collection[int], stream: PartitionStream
) -> dict[int, int] | None:
    """Return the end offset of each partition; None if reading never ends.

    Raises OptionError and OffsetOutOfRange.
    """
    if until is None:
        return None
    if until != "now" and not isinstance(until, Mapping):
        raise OptionError(
            f"until is {until!r}; it takes 'now', None (never), an offset for each partition, or "
            "'finished' for a reader opened with channel.reader()"
        )
    ends = stream.final_ends(partitions)
    if until == "now":
        return ends
    begins = stream.begins(partitions)
    marks = {p: Watermarks(begin=begins[p], end=max(begins[p], ends[p])) for p in partitions}
    missing = sorted(set(partitions) - set(until))
    if missing:
        raise OptionError(f"until lacks partition {missing[0]}; give its end offset")
    wanted = positions_at(until, marks)
    for partition, at in wanted.items():
        if at.records:
            raise OptionError(
                f"until is {at} in partition {partition}, which is inside a message, but reading "
                "ends between messages: give its offset, or the next one to include the message"
            )
    return {p: at.offset for p, at in wanted.items()}


def _milliseconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise OptionError(
            f"the time {moment.isoformat()} has no time zone; give one, such as timezone.utc"
        )
    return max(0, math.ceil(moment.timestamp() * 1000))
