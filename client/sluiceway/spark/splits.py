"""Cutting offset ranges into the pieces that tasks read. Pure."""

from collections.abc import Sequence
from itertools import pairwise

from sluiceway.spark.offsets import OffsetRange

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
