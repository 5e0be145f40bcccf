"""Admission control: the size of a micro-batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from sluiceway.errors import OptionError
from sluiceway.spark import microbatch
from sluiceway.spark.microbatch import limit_batch
from sluiceway.spark.options import ReadOptions
from sluiceway.spark.worker import RefreshableConnection

Offsets = dict[int, int]
some_offsets = st.dictionaries(st.integers(0, 20), st.integers(0, 10**6), max_size=20)


def test_a_batch_within_the_limit_contains_everything() -> None:
    assert limit_batch({0: 5}, {0: 10, 1: 3}, 8) == {0: 10, 1: 3}


def test_partitions_contribute_in_proportion_to_their_backlog() -> None:
    assert limit_batch({0: 0, 1: 100}, {0: 300, 1: 200}, 40) == {0: 30, 1: 110}


def test_the_remainder_goes_to_the_shortest_backlog_first() -> None:
    assert limit_batch({}, {0: 1_000_000, 1: 1}, 2) == {0: 1, 1: 1}


@given(some_offsets, some_offsets, st.integers(1, 10**7))
def test_a_batch_advances_within_the_limit_and_the_end(
    start: Offsets, waiting: Offsets, limit: int
) -> None:
    end = {p: start.get(p, 0) + count for p, count in waiting.items()}

    limited_end = limit_batch(start, end, limit)

    taken = {p: limited_end[p] - start.get(p, 0) for p in limited_end}
    assert limited_end.keys() == end.keys()
    assert all(0 <= taken[p] <= waiting[p] for p in taken)
    assert sum(taken.values()) == min(limit, sum(waiting.values()))


def test_a_limit_before_spark_4_2_is_an_error_with_the_needed_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As with an older PySpark, which `make test-pythons` has not.
    monkeypatch.setattr(microbatch, "limits", None)
    options = ReadOptions.parse({"path": "c", "maxOffsetsPerTrigger": "5"})
    source: RefreshableConnection = object()  # type: ignore[assignment]

    with pytest.raises(OptionError, match=r"maxOffsetsPerTrigger, .* needs Spark 4\.2 or later"):
        microbatch.stream_reader(source, options, StructType())
