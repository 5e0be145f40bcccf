"""Visible runs: the union of responses of the ledger."""

import itertools
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.api.ledger import Committed, Interval
from sluiceway.errors import IncompatibleGateway
from sluiceway.ledger.visible_runs import VisibleRuns


def response(
    number: int, stable: Mapping[int, int], runs: Mapping[int, Sequence[tuple[int, int]]]
) -> Committed:
    return Committed(
        uid="u",
        topic_id="t",
        number=number,
        stable=stable,
        visible_end=stable,
        runs={p: tuple(Interval(*bounds) for bounds in intervals) for p, intervals in runs.items()},
    )


def test_nothing_is_visible_of_a_partition_without_an_answer() -> None:
    runs = VisibleRuns()
    assert runs.stable == {}
    assert runs.stable_of(3) == 0
    assert runs.next_run(3, 0) is None
    assert runs.between(3, 0, 10) == ()


def test_the_next_run_begins_at_or_after_the_offset() -> None:
    runs = VisibleRuns()
    runs.add(response(1, {0: 20}, {0: [(2, 5), (9, 20)]}))
    assert runs.next_run(0, 0) == (2, 5)
    assert runs.next_run(0, 3) == (3, 5)
    assert runs.next_run(0, 5) == (9, 20)
    assert runs.next_run(0, 20) is None
    assert runs.between(0, 3, 11) == ((3, 5), (9, 11))
    assert runs.between(0, 5, 9) == ()


def test_a_run_that_continues_in_the_next_response_stays_one_run() -> None:
    runs = VisibleRuns()
    runs.add(response(1, {0: 10}, {0: [(0, 10)]}))
    runs.add(response(2, {0: 15}, {0: [(10, 15)]}))
    runs.add(response(3, {0: 20}, {0: [(0, 20)]}))
    assert runs.next_run(0, 0) == (0, 20)


def test_nothing_above_stable_is_visible() -> None:
    runs = VisibleRuns()
    runs.add(response(1, {0: 10}, {0: [(0, 30)]}))
    assert runs.next_run(0, 0) == (0, 10)
    assert runs.between(0, 10, 11) == ()


def test_an_older_answer_changes_nothing() -> None:
    runs = VisibleRuns()
    runs.add(response(2, {0: 10, 1: 5}, {0: [(0, 10)], 1: [(0, 5)]}))
    runs.add(response(1, {0: 4, 1: 0}, {0: [(0, 4)], 1: []}))
    assert runs.stable == {0: 10, 1: 5}
    assert runs.next_run(0, 0) == (0, 10)


def test_runs_may_end_below_stable_only_where_a_repair_removed_them() -> None:
    cut = response(3, {0: 30}, {0: [(0, 12)]})
    with pytest.raises(IncompatibleGateway, match="listed up to 12, but committed up to 30"):
        VisibleRuns().add(cut)
    for first, end in ((12, 29), (30, 40)):
        with pytest.raises(IncompatibleGateway):
            VisibleRuns().add(replace(cut, given_up={0: (Interval(first, end),)}))
    runs = VisibleRuns()
    runs.add(replace(cut, given_up={0: (Interval(15, 30),)}))
    assert (runs.stable_of(0), runs.next_run(0, 0), runs.next_run(0, 12)) == (30, (0, 12), None)


def test_visible_runs_can_be_pickled() -> None:
    runs = VisibleRuns()
    runs.add(response(1, {0: 20}, {0: [(2, 5), (9, 20)]}))
    copy = pickle.loads(pickle.dumps(runs))  # noqa: S301 - the test's own
    assert copy.between(0, 0, 20) == runs.between(0, 0, 20)


@pytest.mark.long
@given(
    st.lists(st.booleans(), min_size=1, max_size=60),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=6),
)
def test_responses_in_any_order_add_up_to_the_committed_runs(
    committed: list[bool], asked: list[tuple[int, int]]
) -> None:
    everything = set()
    runs = VisibleRuns()
    for start, stable in [*asked, (0, len(committed))]:
        # The end of a run, as every `stable` is.
        bound = max([o + 1 for o in range(min(stable, len(committed))) if committed[o]], default=0)
        start = min(start, runs.stable_of(0))
        offsets = [o for o in range(start, bound) if committed[o]]
        runs.add(response(1, {0: bound}, {0: [(o, o + 1) for o in offsets]}))
        everything = {o for o in range(runs.stable_of(0)) if committed[o]}
        seen = {o for run in runs.between(0, 0, len(committed) + 2) for o in range(*run)}
        assert seen == everything
    for first in range(0, len(committed), 7):
        pieces = runs.between(0, first, len(committed))
        assert {o for piece in pieces for o in range(*piece)} == {
            o for o in everything if o >= first
        }
        assert all(a.end < b.first for a, b in itertools.pairwise(pieces))
