import hashlib
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluiceway_gateway.core.errors import InvalidManifest
from sluiceway_gateway.core.kafka.model import Interval
from sluiceway_gateway.ledger.model import (
    clip,
    digest_of,
    first_overlap,
    manifest_of,
    merge_runs,
    slice_runs,
    visible_below,
    without_runs,
)

OFFSETS = st.sets(st.integers(0, 60))


def runs_of(offsets: set[int]) -> tuple[Interval, ...]:
    return merge_runs(Interval(offset, offset + 1) for offset in offsets)


def offsets_of(runs: tuple[Interval, ...]) -> set[int]:
    return {offset for run in runs for offset in range(run.first, run.end)}


@given(OFFSETS, OFFSETS)
def test_merged_runs_hold_the_same_offsets_and_are_apart(stored: set[int], added: set[int]) -> None:
    merged = merge_runs(runs_of(stored), runs_of(added))

    assert offsets_of(merged) == stored | added
    assert all(before.end < after.first for before, after in pairwise(merged))


@given(OFFSETS, st.integers(0, 70), st.integers(0, 70))
def test_visible_runs_are_the_offsets_below_stable(
    offsets: set[int], stable: int, start: int
) -> None:
    runs = runs_of(offsets)

    assert offsets_of(clip(runs, start)) == {offset for offset in offsets if offset >= start}
    visible = visible_below(runs, stable, start)
    assert offsets_of(visible) == {offset for offset in offsets if start <= offset < stable}
    assert all(run.first < run.end for run in visible)


@given(OFFSETS, OFFSETS)
@example({4, 5}, {5, 6})
def test_runs_without_others_hold_the_other_offsets(stored: set[int], removed: set[int]) -> None:
    left = without_runs(runs_of(stored), runs_of(removed))

    assert offsets_of(tuple(left)) == stored - removed
    assert all(run.first < run.end for run in left)
    # Stored runs of different batches may touch.
    apart = [Interval(offset, offset + 1) for offset in sorted(removed)]
    assert without_runs(runs_of(stored), apart) == left


@given(OFFSETS, OFFSETS)
def test_an_overlap_is_found_where_there_is_one(stored: set[int], added: set[int]) -> None:
    overlap = first_overlap(runs_of(stored), runs_of(added))

    assert (overlap is not None) == bool(stored & added)
    if overlap is not None:
        assert offsets_of((overlap,)) & stored


@given(st.dictionaries(st.integers(0, 3), OFFSETS), st.integers(0, 70), st.integers(1, 5))
def test_slices_of_visible_runs_are_complete_together(
    offsets: dict[int, set[int]], stable: int, limit: int
) -> None:
    runs = {at: runs_of(stored) for at, stored in offsets.items()}
    ends = dict.fromkeys(offsets, stable)
    seen: dict[int, set[int]] = {at: set() for at in offsets}
    starts = dict.fromkeys(offsets, 0)
    while starts:
        part = slice_runs(runs, ends, starts, limit)
        assert sum(map(len, part.runs.values())) <= limit
        for at, some in part.runs.items():
            seen[at] |= offsets_of(some)
        starts = dict(part.truncated)

    assert seen == {at: {o for o in stored if o < stable} for at, stored in offsets.items()}


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([(3, 3)], "holds no offsets"),
        ([(4, 2)], "holds no offsets"),
        ([(-1, 2)], "holds no offsets"),
        ([(0, 3), (2, 5)], "overlap or are not sorted"),
        ([(5, 6), (0, 1)], "overlap or are not sorted"),
        ([(5, 6, 7)], "not \\[first, end\\]"),
    ],
)
def test_a_manifest_of_other_intervals_is_refused(pairs: list[tuple[int, ...]], words: str) -> None:
    with pytest.raises(InvalidManifest, match=words):
        manifest_of({0: pairs})


def test_a_digest_is_that_of_the_json_sorted_by_partition() -> None:
    manifest = manifest_of({10: [(1, 2)], 2: [(5, 9), (9, 12)]})

    text = b'{"2":[[5,9],[9,12]],"10":[[1,2]]}'
    assert digest_of(manifest) == hashlib.sha256(text).hexdigest()
    assert digest_of({}) == hashlib.sha256(b"{}").hexdigest()
