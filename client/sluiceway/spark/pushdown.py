"""Filters on the column `_metadata` that narrow the offsets of a batch read."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from sluiceway.spark.metadata_columns import METADATA
from sluiceway.spark.offsets import OffsetRange

OffsetsForTime = Callable[[int, Collection[int]], Mapping[int, int]]
"""Maps a Unix time in ms, and partitions, to the first offset in each that is not older."""

_MAX: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class OffsetFilter:
    """What the filters of a query say of each record: a superset of the offsets that pass.

    Bounds are inclusive. There is no last timestamp: writers may set any, so an older message may
    follow a newer one.
    """

    partitions: frozenset[int] | None = None
    first_partition: int = 0
    last_partition: int = _MAX
    first_offset: int = 0
    last_offset: int = _MAX
    first_timestamp_ms: int = 0

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> "OffsetFilter":
        """Return what `filters`, all of which must be true, say of partition and offset."""
        found = cls()
        for each in filters:
            found = found._and(each)
        return found

    def narrow(
        self, ranges: Sequence[OffsetRange], offsets_for_time: OffsetsForTime
    ) -> tuple[OffsetRange, ...]:
        """Return the parts of `ranges` with records that may pass; others are left out."""
        kept = [each for each in ranges if self._has_partition(each.partition)]
        starts: Mapping[int, int] = {}
        if kept and self.first_timestamp_ms > 0:
            starts = offsets_for_time(self.first_timestamp_ms, [each.partition for each in kept])
        narrowed = (
            replace(
                each,
                start=max(each.start, self.first_offset, starts.get(each.partition, 0)),
                end=min(each.end, self.last_offset + 1),
            )
            for each in kept
        )
        return tuple(each for each in narrowed if each.start < each.end)

    def _has_partition(self, partition: int) -> bool:
        return self.first_partition <= partition <= self.last_partition and (
            self.partitions is None or partition in self.partitions
        )

    def _and(self, condition: Filter) -> "OffsetFilter":
        path: tuple[str, ...] = getattr(condition, "attribute", ())
        bounds = _bounds(condition)
        if bounds is None or len(path) != 2 or path[0] != METADATA:
            return self
        first, last = bounds
        match path[1]:
            case "partition":
                values = self.partitions
                if isinstance(condition, In):
                    named = frozenset(condition.value)
                    values = named if values is None else values & named
                return replace(
                    self,
                    partitions=values,
                    first_partition=max(self.first_partition, first),
                    last_partition=min(self.last_partition, last),
                )
            case "offset":
                return replace(
                    self,
                    first_offset=max(self.first_offset, first),
                    last_offset=min(self.last_offset, last),
                )
            case "timestamp":
                # Rounded up to the messages' milliseconds.
                first_ms = max(self.first_timestamp_ms, -(-first // 1000))
                return replace(self, first_timestamp_ms=first_ms)
        return self


def _bounds(condition: Filter) -> tuple[int, int] | None:
    """Return the first and the last number that pass `condition`; None: unknown.

    The number of a timestamp is that of its microseconds since 1970.
    """
    match condition:
        case EqualTo(value=value) | EqualNullSafe(value=value):
            number = _number(value)
            return None if number is None else (number, number)
        case GreaterThan(value=value) if (number := _number(value)) is not None:
            return number + 1, _MAX
        case GreaterThanOrEqual(value=value) if (number := _number(value)) is not None:
            return number, _MAX
        case LessThan(value=value) if (number := _number(value)) is not None:
            return 0, number - 1
        case LessThanOrEqual(value=value) if (number := _number(value)) is not None:
            return 0, number
        case In(value=values):
            numbers = [number for value in values if (number := _number(value)) is not None]
            return (min(numbers), max(numbers)) if len(numbers) == len(values) > 0 else None
    return None


def _number(value: Any) -> int | None:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return (value - _EPOCH) // timedelta(microseconds=1)
    return value if type(value) is int else None
