"""Intervals of offsets from delivery reports."""

import itertools
import pickle
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.errors import DeliveryFailed
from sluiceway.ledger.facade_batches import ReportedOffsets
from sluiceway.ledger.intervals import DeliveredIntervals, WrittenRecords
from sluiceway.rest.ledger_models import Interval


class Report:
    """The partition and offset of a delivery report."""

    def __init__(self, partition: int, offset: int, value: bytes = b"1") -> None:
        self._partition, self._offset, self._value = partition, offset, value

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return self._value


class Reports:
    """Reports to a collector, and the failures that it detects."""

    def __init__(self, intervals: DeliveredIntervals) -> None:
        self.failures: list[str] = []
        self.deliver: Any = intervals.reporting(self._fail)

    def _fail(self, error: KafkaError | None, message: Any) -> None:
        del message
        assert error is not None
        self.failures.append(error.str())


def delivered(
    offsets: Sequence[tuple[int, int]], intervals: DeliveredIntervals | None = None
) -> WrittenRecords:
    intervals = intervals or DeliveredIntervals(4)
    reports = Reports(intervals)
    for partition, offset in offsets:
        reports.deliver(None, Report(partition, offset))
    assert reports.failures == []
    return intervals.take()


def test_consecutive_offsets_of_a_partition_are_one_interval() -> None:
    written = delivered([(0, 5), (1, 0), (0, 6), (0, 7), (1, 1)])
    assert written.manifest == {0: (Interval(5, 8),), 1: (Interval(0, 2),)}
    assert written.counts == {0: 3, 1: 2}
    assert written.records == 5


def test_offsets_of_others_in_between_separate_intervals() -> None:
    written = delivered([(0, 5), (0, 6), (0, 9), (0, 12), (0, 13)])
    assert written.manifest == {0: (Interval(5, 7), Interval(9, 10), Interval(12, 14))}


def test_each_batch_lists_only_its_own_offsets() -> None:
    intervals = DeliveredIntervals(4)
    assert delivered([(0, 5), (0, 6)], intervals).manifest == {0: (Interval(5, 7),)}
    assert intervals.take().manifest == {}
    assert delivered([(0, 7)], intervals).manifest == {0: (Interval(7, 8),)}
    assert delivered([(0, 9), (0, 10)], intervals).manifest == {0: (Interval(9, 11),)}


def test_records_within_messages_are_counted_by_partition() -> None:
    intervals = DeliveredIntervals(4, lambda value: int(value or b"0"))
    reports = Reports(intervals)
    reports.deliver(None, Report(0, 3, b"100"))
    reports.deliver(None, Report(0, 4, b"20"))
    reports.deliver(None, Report(2, 0, b"3"))
    written = intervals.take()
    assert written.manifest == {0: (Interval(3, 5),), 2: (Interval(0, 1),)}
    assert written.counts == {0: 120, 2: 3}
    assert intervals.take().counts == {}


@pytest.mark.parametrize(
    "offsets",
    [(-1,), (-1001,), (5, -1), (5, 5), (5, 6, 5), (5, 4), (0, -1)],
    ids=str,
)
def test_an_offset_that_is_missing_or_does_not_increase_is_a_failed_delivery(
    offsets: tuple[int, ...],
) -> None:
    """librdkafka may count up from -1 after a duplicate sequence number."""
    intervals = DeliveredIntervals(4)
    reports = Reports(intervals)
    for offset in offsets:
        reports.deliver(None, Report(0, offset))
    assert len(reports.failures) == 1
    assert str(offsets[-1]) in reports.failures[0] or "no offset" in reports.failures[0]


def test_offsets_do_not_go_back_in_the_next_batch_either() -> None:
    intervals = DeliveredIntervals(4)
    reports = Reports(intervals)
    reports.deliver(None, Report(0, 7))
    intervals.take()
    reports.deliver(None, Report(0, 7))
    assert len(reports.failures) == 1


def test_a_failed_delivery_is_passed_on_and_lists_nothing() -> None:
    intervals = DeliveredIntervals(4)
    reports = Reports(intervals)
    reports.deliver(KafkaError(KafkaError._MSG_TIMED_OUT, "late"), Report(0, 3))
    assert reports.failures == ["late"]
    assert intervals.take() == WrittenRecords()


@given(
    st.dictionaries(
        st.integers(0, 3), st.lists(st.integers(0, 60), unique=True, max_size=30), max_size=3
    )
)
def test_the_intervals_hold_exactly_the_reported_offsets(offsets: dict[int, list[int]]) -> None:
    reported = [(partition, each) for partition in offsets for each in sorted(offsets[partition])]
    written = delivered(reported)
    listed = [
        (partition, offset)
        for partition, intervals in written.manifest.items()
        for first, end in intervals
        for offset in range(first, end)
    ]
    assert sorted(listed) == sorted(reported)
    for intervals in written.manifest.values():
        assert all(a.end < b.first for a, b in itertools.pairwise(intervals))


@given(
    st.dictionaries(st.integers(0, 3), st.sets(st.integers(0, 60), min_size=1), max_size=3),
    st.randoms(use_true_random=False),
)
def test_offsets_reported_in_any_order_are_the_same_intervals(
    offsets: dict[int, set[int]], random: Random
) -> None:
    reported = [(partition, each) for partition in offsets for each in sorted(offsets[partition])]
    expected = delivered(reported)
    random.shuffle(reported)
    found = ReportedOffsets()
    for partition, offset in reported:
        found.add(partition, offset)
    assert len(found) == len(reported)
    assert found.take() == expected
    assert found.take() == WrittenRecords()


@pytest.mark.parametrize("offsets", [(-1,), (-1001, 5), (5, 4, 5), (6, -1, 7)], ids=str)
def test_missing_and_repeated_offsets_in_any_order_are_failed_deliveries(
    offsets: tuple[int, ...],
) -> None:
    found = ReportedOffsets()
    found.add(1, 9)
    for offset in offsets:
        found.add(0, offset)
    with pytest.raises(DeliveryFailed, match="lack the offsets"):
        found.take()


def test_the_parts_of_several_attempts_are_merged() -> None:
    parts = [
        WrittenRecords(manifest={0: (Interval(4, 6), Interval(9, 12))}, counts={0: 5}),
        WrittenRecords(manifest={0: (Interval(6, 9),), 3: (Interval(0, 1),)}, counts={0: 3, 3: 1}),
        WrittenRecords(),
    ]
    merged = WrittenRecords.merged(parts)
    assert merged.manifest == {0: (Interval(4, 12),), 3: (Interval(0, 1),)}
    assert merged.counts == {0: 8, 3: 1}
    assert pickle.loads(pickle.dumps(merged)) == merged  # noqa: S301


def test_overlapping_parts_stay_visible_to_the_gateway() -> None:
    part = WrittenRecords(manifest={0: (Interval(4, 6),)}, counts={0: 2})
    assert WrittenRecords.merged([part, part]).manifest == {0: (Interval(4, 6), Interval(4, 6))}
