from hypothesis import given
from hypothesis import strategies as st

from sluiceway.spark.offsets import OffsetRange, split


@st.composite
def plans(draw: st.DrawFn) -> tuple[OffsetRange, ...]:
    partitions = draw(st.lists(st.integers(0, 50), unique=True, max_size=6))
    return tuple(
        OffsetRange(partition=partition, start=start, end=start + length)
        for partition in partitions
        for start, length in [draw(st.tuples(st.integers(0, 2**60), st.integers(1, 400)))]
    )


@given(plans(), st.integers(1, 500), st.integers(1, 60))
def test_pieces_cover_each_offset_once_in_order_and_keep_the_bounds(
    ranges: tuple[OffsetRange, ...], max_messages: int, min_splits: int
) -> None:
    pieces = split(ranges, max_messages=max_messages, min_splits=min_splits)

    for whole in ranges:
        mine = [piece for piece in pieces if piece.partition == whole.partition]
        edges = [mine[0].start, *(piece.end for piece in mine)]
        assert (edges[0], edges[-1]) == (whole.start, whole.end)
        assert [piece.start for piece in mine] == edges[:-1]
        lengths = [piece.messages for piece in mine]
        assert 1 <= min(lengths) <= max(lengths) <= min(min(lengths) + 1, max_messages)
    order = [whole.partition for whole in ranges]
    assert [piece.partition for piece in pieces] == sorted(
        (piece.partition for piece in pieces), key=order.index
    )
    assert len(pieces) >= min(min_splits, sum(whole.messages for whole in ranges))


@given(plans(), st.integers(1, 500))
def test_without_a_wish_for_more_there_are_no_more_pieces_than_the_cap_asks_for(
    ranges: tuple[OffsetRange, ...], max_messages: int
) -> None:
    pieces = split(ranges, max_messages=max_messages, min_splits=1)

    assert len(pieces) == sum(-(-whole.messages // max_messages) for whole in ranges)


def test_long_ranges_are_cut_before_short_ones() -> None:
    ranges = [
        OffsetRange(partition=0, start=0, end=10),
        OffsetRange(partition=1, start=0, end=1000),
    ]

    pieces = split(ranges, max_messages=10_000, min_splits=5)

    assert [piece.partition for piece in pieces] == [0, 1, 1, 1, 1]


def test_nothing_to_read_gives_no_pieces() -> None:
    assert split([], max_messages=10, min_splits=8) == ()
