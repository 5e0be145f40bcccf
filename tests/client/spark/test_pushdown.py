from collections.abc import Collection
from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
)

from sluiceway.spark.metadata_columns import OffsetFilter
from sluiceway.spark.offsets import OffsetRange

RANGES = tuple(OffsetRange(partition=p, start=10, end=20) for p in range(3))
PARTITION, OFFSET, TIMESTAMP = (
    ("_metadata", each) for each in ("partition", "offset", "timestamp")
)


def narrowed(*filters: Filter) -> list[tuple[int, int, int]]:
    def offsets_for_time(time_ms: int, partitions: Collection[int]) -> dict[int, int]:
        return {p: time_ms + p for p in partitions}

    ranges = OffsetFilter.of(filters).narrow(RANGES, offsets_for_time)
    return [(each.partition, each.start, each.end) for each in ranges]


ALL = [(0, 10, 20), (1, 10, 20), (2, 10, 20)]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], ALL),
        ([EqualTo(PARTITION, 1)], ALL[1:2]),
        ([EqualNullSafe(PARTITION, 1)], ALL[1:2]),
        ([In(PARTITION, (0, 2, 9))], [ALL[0], ALL[2]]),
        ([In(PARTITION, (0, 2)), In(PARTITION, (1, 2))], ALL[2:]),
        ([GreaterThan(PARTITION, 1)], ALL[2:]),
        ([LessThanOrEqual(PARTITION, 0)], ALL[:1]),
        ([EqualTo(PARTITION, 0), GreaterThanOrEqual(OFFSET, 15)], [(0, 15, 20)]),
        ([EqualTo(PARTITION, 0), GreaterThan(OFFSET, 15)], [(0, 16, 20)]),
        ([EqualTo(PARTITION, 0), LessThan(OFFSET, 15)], [(0, 10, 15)]),
        ([EqualTo(PARTITION, 0), LessThanOrEqual(OFFSET, 15)], [(0, 10, 16)]),
        ([EqualTo(PARTITION, 0), EqualTo(OFFSET, 15)], [(0, 15, 16)]),
        ([EqualTo(PARTITION, 0), In(OFFSET, (12, 15))], [(0, 12, 16)]),
        ([EqualTo(PARTITION, 0), EqualTo(PARTITION, 1)], []),
        ([GreaterThan(OFFSET, 19)], []),
        ([LessThan(OFFSET, -5)], []),
    ],
)
def test_filters_on_partition_and_offset_narrow_ranges(
    filters: list[Filter], expected: list[tuple[int, int, int]]
) -> None:
    assert narrowed(*filters) == expected


@pytest.mark.parametrize(
    ("filter_", "first_ms"),
    [
        (GreaterThanOrEqual(TIMESTAMP, datetime(1970, 1, 1, 0, 0, 0, 12_000, UTC)), 12),
        (GreaterThanOrEqual(TIMESTAMP, datetime(1970, 1, 1, 0, 0, 0, 12_001, UTC)), 13),
        (GreaterThan(TIMESTAMP, datetime(1970, 1, 1, 0, 0, 0, 12_000, UTC)), 13),
        (EqualTo(TIMESTAMP, datetime(1970, 1, 1, 0, 0, 0, 12_000, UTC)), 12),
    ],
)
def test_a_first_timestamp_skips_older_messages(filter_: Filter, first_ms: int) -> None:
    assert narrowed(filter_) == [(p, first_ms + p, 20) for p in range(3)]


@pytest.mark.parametrize(
    "filter_",
    [
        EqualTo(("offset",), 15),
        EqualTo(("_metadata", "key"), b"x"),
        EqualTo(("other", "offset"), 15),
        EqualNullSafe(OFFSET, None),
        In(OFFSET, (12, None)),
        Not(EqualTo(OFFSET, 15)),
        LessThan(TIMESTAMP, datetime(1970, 1, 1, 0, 0, 0, 12_000, UTC)),
        GreaterThan(TIMESTAMP, datetime(1960, 1, 1, tzinfo=UTC)),
        GreaterThan(TIMESTAMP, datetime(2020, 1, 1)),  # noqa: DTZ001 - of unknown time zone
    ],
)
def test_filters_without_offset_bounds_narrow_nothing(filter_: Filter) -> None:
    assert narrowed(filter_) == ALL
