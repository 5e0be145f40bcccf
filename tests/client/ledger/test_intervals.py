"""Intervals of offsets from delivery reports."""

import itertools
import pickle
import sys
import threading
import tracemalloc
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faults import interrupted_at_call
from sluiceway.api.ledger import Interval
from sluiceway.errors import DeliveryFailed
from sluiceway.kafka.messages import DeliveryReport
from sluiceway.ledger import intervals as collector
from sluiceway.ledger.intervals import DeliveredIntervals, WrittenRecords


def report(partition: int, first: int, messages: int = 1, records: int = 1) -> DeliveryReport:
    return DeliveryReport(partition=partition, first=first, messages=messages, records=records)


def delivered(
    offsets: Sequence[tuple[int, int]], intervals: DeliveredIntervals | None = None
) -> WrittenRecords:
    intervals = intervals or DeliveredIntervals()
    for partition, offset in offsets:
        assert intervals.add(report(partition, offset)) is None
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
    intervals = DeliveredIntervals()
    assert delivered([(0, 5), (0, 6)], intervals).manifest == {0: (Interval(5, 7),)}
    assert intervals.take().manifest == {}
    assert delivered([(0, 7)], intervals).manifest == {0: (Interval(7, 8),)}
    assert delivered([(0, 9), (0, 10)], intervals).manifest == {0: (Interval(9, 11),)}


def test_records_within_messages_are_counted_by_partition() -> None:
    intervals = DeliveredIntervals()
    assert intervals.add(report(0, 3, records=100)) is None
    assert intervals.add(report(0, 4, messages=2, records=20)) is None
    assert intervals.add(report(2, 0, records=3)) is None
    written = intervals.take()
    assert written.manifest == {0: (Interval(3, 6),), 2: (Interval(0, 1),)}
    assert written.counts == {0: 120, 2: 3}
    assert intervals.take().counts == {}


@pytest.mark.parametrize(
    ("offsets", "problem"),
    [
        ((-1,), "no offset"),
        ((-1001,), "no offset"),
        ((5, -1), "no offset"),
        ((5, 5), "the offset 5 after 5"),
        ((5, 6, 5), "the offset 5 after 6"),
        ((5, 4), "the offset 4 after 5"),
        ((0, -1), "no offset"),
        ((0, 0), "the offset 0 after 0"),
    ],
    ids=str,
)
def test_an_offset_that_is_missing_or_does_not_increase_is_a_failed_delivery(
    offsets: tuple[int, ...], problem: str
) -> None:
    """librdkafka may count up from -1 after a duplicate sequence number."""
    intervals = DeliveredIntervals()
    *_, error = [intervals.add(report(0, offset)) for offset in offsets]
    assert error is not None
    assert error.str() == f"the delivery report has {problem}"


def test_offsets_do_not_go_back_in_the_next_batch_either() -> None:
    intervals = DeliveredIntervals()
    assert intervals.add(report(0, 7)) is None
    intervals.take()
    assert intervals.add(report(0, 7)) is not None


@given(
    st.dictionaries(
        st.integers(0, 3), st.lists(st.integers(0, 60), unique=True, max_size=30), max_size=3
    )
)
def test_the_intervals_hold_exactly_the_reported_offsets(offsets: dict[int, list[int]]) -> None:
    reported = [
        (partition, offset) for partition in offsets for offset in sorted(offsets[partition])
    ]
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
    st.integers(1, 20),
)
def test_messages_reported_in_any_order_are_the_same_intervals(
    offsets: dict[int, set[int]], random: Random, max_loose: int
) -> None:
    reported = [
        (partition, offset) for partition in offsets for offset in sorted(offsets[partition])
    ]
    expected = delivered(reported)
    random.shuffle(reported)
    intervals = DeliveredIntervals(max_loose=max_loose)
    for partition, offset in reported:
        intervals.add_message(partition, offset)
    assert len(intervals) == len(reported)
    assert intervals.take() == expected
    assert intervals.take() == WrittenRecords()


@pytest.mark.parametrize("max_loose", [1, 2, 100])
@pytest.mark.parametrize(
    "offsets", [(-1,), (-1001, 5), (5, 4, 5), (6, -1, 7), (5, 6, 7, 8, 6, 9), (2, 3, 9, 2)], ids=str
)
def test_missing_and_repeated_offsets_in_any_order_are_failed_deliveries(
    offsets: tuple[int, ...], max_loose: int
) -> None:
    intervals = DeliveredIntervals(max_loose=max_loose)
    intervals.add_message(1, 9)
    for offset in offsets:
        intervals.add_message(0, offset)
    with pytest.raises(DeliveryFailed, match="a delivery report with its offset") as raised:
        intervals.written().require(len(intervals))
    assert (raised.value.written_records, raised.value.failed_records) == (1, len(offsets))


def test_threads_that_report_messages_of_one_partition_lose_none() -> None:
    intervals = DeliveredIntervals(max_loose=10)
    offsets = iter(range(20_000))

    def add() -> None:
        for offset in offsets:
            intervals.add_message(0, offset)

    threads = [threading.Thread(target=add) for _ in range(4)]
    switching_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switching_s)
    assert intervals.take().manifest == {0: (Interval(0, 20_000),)}


def test_memory_is_in_proportion_to_intervals_not_to_messages() -> None:
    intervals = DeliveredIntervals(max_loose=100)
    tracemalloc.start()
    try:
        for offset in range(100_000):
            intervals.add_message(0, offset)
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    # Other threads allocate memory meanwhile.
    own = snapshot.filter_traces([tracemalloc.Filter(True, collector.__file__)])
    size_bytes = sum(statistic.size for statistic in own.statistics("filename"))
    assert len(intervals) == 100_000
    assert size_bytes < 50_000


@pytest.mark.parametrize("number", range(0, 30, 2))
def test_offsets_that_an_interrupt_loses_are_missing_in_the_number_of_records(number: int) -> None:
    intervals = DeliveredIntervals(max_loose=4)
    intervals.add_message(0, 7)

    def report() -> None:
        for offset in (4, 6, 1, 2, 3, 5):
            intervals.add_message(0, offset)

    interrupted = interrupted_at_call(number, report)
    written = intervals.take()
    listed = sum(end - first for first, end in written.manifest.get(0, ()))
    assert written.records <= listed
    assert interrupted or written.manifest == {0: (Interval(1, 8),)}


def test_records_without_a_delivery_report_are_a_failed_delivery() -> None:
    written = WrittenRecords(counts={0: 3, 1: 4})
    written.require(7)
    with pytest.raises(DeliveryFailed, match="not every message has a delivery report") as raised:
        written.require(9)
    assert (raised.value.written_records, raised.value.failed_records) == (7, 2)


def test_the_parts_of_several_attempts_are_merged() -> None:
    parts = [
        WrittenRecords(manifest={0: (Interval(4, 6), Interval(9, 12))}, counts={0: 5}),
        WrittenRecords(manifest={0: (Interval(6, 9),), 3: (Interval(0, 1),)}, counts={0: 3, 3: 1}),
        WrittenRecords(manifest={0: (Interval(0, 2),)}, counts={0: 2}),
        WrittenRecords(),
    ]
    merged = WrittenRecords.merged(parts)
    assert merged.manifest == {0: (Interval(0, 2), Interval(4, 12)), 3: (Interval(0, 1),)}
    assert merged.counts == {0: 10, 3: 1}
    assert pickle.loads(pickle.dumps(merged)) == merged  # noqa: S301


def test_overlapping_parts_stay_visible_to_the_gateway() -> None:
    part = WrittenRecords(manifest={0: (Interval(4, 6),)}, counts={0: 2})
    assert WrittenRecords.merged([part, part]).manifest == {0: (Interval(4, 6), Interval(4, 6))}
