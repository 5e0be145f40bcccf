from hypothesis import given
from hypothesis import strategies as st

from sluiceway.spark.offsets import OffsetRange, split_ranges


@st.composite
def plans(draw: st.DrawFn) -> tuple[OffsetRange, ...]:
    partitions = draw(st.lists(st.integers(0, 50), unique=True, max_size=6))
    return tuple(
        OffsetRange(partition=partition, start=start, end=start + length)
        for partition in partitions
        for start, length in [draw(st.tuples(st.integers(0, 2**60), st.integers(1, 400)))]
    )


@given(plans(), st.integers(1, 500), st.integers(1, 60))
def test_splits_cover_each_offset_once_in_order_within_the_bounds(
    ranges: tuple[OffsetRange, ...], max_messages: int, min_splits: int
) -> None:
    splits = split_ranges(ranges, max_messages=max_messages, min_splits=min_splits)

    for whole in ranges:
        mine = [split for split in splits if split.partition == whole.partition]
        edges = [mine[0].start, *(split.end for split in mine)]
        assert (edges[0], edges[-1]) == (whole.start, whole.end)
        assert [split.start for split in mine] == edges[:-1]
        lengths = [split.messages for split in mine]
        assert 1 <= min(lengths) <= max(lengths) <= min(min(lengths) + 1, max_messages)
    order = [whole.partition for whole in ranges]
    assert [split.partition for split in splits] == sorted(
        (split.partition for split in splits), key=order.index
    )
    assert len(splits) >= min(min_splits, sum(whole.messages for whole in ranges))


@given(plans(), st.integers(1, 500))
def test_without_a_minimum_there_are_as_many_splits_as_the_limit_needs(
    ranges: tuple[OffsetRange, ...], max_messages: int
) -> None:
    splits = split_ranges(ranges, max_messages=max_messages, min_splits=1)

    assert len(splits) == sum(-(-whole.messages // max_messages) for whole in ranges)


def test_long_ranges_are_split_before_short_ones() -> None:
    ranges = [
        OffsetRange(partition=0, start=0, end=10),
        OffsetRange(partition=1, start=0, end=1000),
    ]

    splits = split_ranges(ranges, max_messages=10_000, min_splits=5)

    assert [split.partition for split in splits] == [0, 1, 1, 1, 1]


def test_no_ranges_give_no_splits() -> None:
    assert split_ranges([], max_messages=10, min_splits=8) == ()
