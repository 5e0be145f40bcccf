"""The lag history: merging of points, the choice of a resolution, and series with gaps."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sluiceway_gateway.status.lag import GroupSummary
from sluiceway_gateway.status.lag_history.model import (
    FINEST,
    MAX_GROUPS,
    RESOLUTIONS,
    GroupPoint,
    HistoryPoint,
    LagHistory,
    history_of,
    merged,
    point_of,
    resolution_for,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
NOW_S = int(NOW.timestamp())
_, MINUTES, COARSEST = RESOLUTIONS


def group(
    lag: int | None, *, seconds: float | None = None, rate: float | None = None
) -> GroupPoint:
    return GroupPoint(
        lag_messages=lag,
        lag_seconds=seconds,
        lag_seconds_at_least=seconds == 9,
        read_rate=rate,
    )


def point(at_s: int, write_rate: float | None = None, **groups: GroupPoint) -> HistoryPoint:
    return HistoryPoint(at_s=at_s, write_rate=write_rate, groups=groups)


def test_each_resolution_is_a_multiple_of_the_finer_one_and_reaches_further() -> None:
    steps = [resolution.step_s for resolution in RESOLUTIONS]
    assert all(coarse % fine == 0 for fine, coarse in pairwise(steps))
    assert all(resolution.kept_s % resolution.step_s == 0 for resolution in RESOLUTIONS)
    # A resolution is merged from the finer one before that has expired.
    assert all(fine.kept_s >= 2 * coarse.step_s for fine, coarse in pairwise(RESOLUTIONS))
    assert COARSEST.kept_s >= 24 * 3600
    assert max(resolution.slots for resolution in RESOLUTIONS) <= 300


def test_a_merged_point_has_the_largest_lag_and_mean_rates_of_what_is_known() -> None:
    points = [
        point(NOW_S, 4.0, a=group(3, seconds=9, rate=1.0), b=group(None)),
        point(NOW_S + 10, None, a=group(7, seconds=2, rate=None), b=group(None)),
        point(NOW_S + 50, 1.0, a=group(None, seconds=None, rate=2.0), c=group(0, seconds=0)),
        point(NOW_S + 60, 8.0),
    ]
    first, second = merged(points, MINUTES)
    assert (first.at_s, first.write_rate) == (NOW_S, 2.5)
    assert first.groups["a"] == GroupPoint(
        lag_messages=7, lag_seconds=9, lag_seconds_at_least=True, read_rate=1.5
    )
    assert first.groups["b"] == group(None)
    assert first.groups["c"] == group(0, seconds=0)
    assert second == point(NOW_S + 60, 8.0)


@given(st.lists(st.integers(0, 5_000), max_size=40))
def test_merging_in_two_steps_gives_the_same_lag_as_in_one(seconds: list[int]) -> None:
    points = [point(NOW_S + second, g=group(second)) for second in seconds]
    direct = merged(points, COARSEST)
    stepwise = merged(merged(points, MINUTES), COARSEST)
    assert [
        (history_point.at_s, history_point.groups["g"].lag_messages) for history_point in stepwise
    ] == [(history_point.at_s, history_point.groups["g"].lag_messages) for history_point in direct]


def test_a_sample_becomes_a_point_of_its_interval() -> None:
    at = NOW + timedelta(seconds=17)
    summary = GroupSummary(
        lag_messages=4,
        behind_since=NOW_S + 10.0,
        behind_or_before=False,
        progress=None,
        read_rate=0.12345,
    )
    read = GroupSummary(
        lag_messages=0, behind_since=None, behind_or_before=False, progress=None, read_rate=None
    )
    assert point_of(at, write_rate=None, groups={"g": summary, "r": read}) == point(
        NOW_S + 10, g=group(4, seconds=7.0, rate=0.123), r=group(0, seconds=0.0)
    )


def test_a_point_keeps_the_groups_with_the_largest_lag() -> None:
    groups = {f"g{number}": group(number) for number in range(3 * MAX_GROUPS)}
    (kept,) = merged([HistoryPoint(at_s=NOW_S, write_rate=None, groups=groups)], FINEST)
    assert set(kept.groups) == {f"g{n}" for n in range(2 * MAX_GROUPS, 3 * MAX_GROUPS)}
    history = LagHistory(
        since=NOW, until=NOW, step_s=10, points=[kept, point(NOW_S + 10, first=group(10_000))]
    )
    assert len(history.group_names()) == MAX_GROUPS
    assert "first" in history.group_names()


def test_the_finest_resolution_that_goes_back_far_enough_is_chosen() -> None:
    for resolution in RESOLUTIONS:
        since = NOW - timedelta(seconds=resolution.kept_s)
        assert resolution_for(since, now=NOW) is resolution
    assert resolution_for(NOW - timedelta(days=9), now=NOW) is COARSEST


def test_the_interval_that_has_not_ended_is_merged_from_finer_points() -> None:
    stored = {
        300: [point(NOW_S - 900, g=group(1))],
        60: [point(NOW_S - 600 + at, g=group(at)) for at in range(-120, 541, 60)],
        10: [point(NOW_S + at, g=group(1000 + at)) for at in range(-120, 1, 10)],
    }
    history = history_of(
        stored, COARSEST, since=NOW - timedelta(hours=24), until=NOW + timedelta(1)
    )
    assert history.step_s == 300
    assert [
        (history_point.at_s - NOW_S, history_point.groups["g"].lag_messages)
        for history_point in history.points
    ] == [
        (-900, 1),
        (-600, 240),
        (-300, 540),
        (0, 1000),
    ]
    short = history_of(stored, FINEST, since=NOW - timedelta(seconds=30), until=NOW)
    assert (short.step_s, [history_point.at_s - NOW_S for history_point in short.points]) == (
        10,
        [-30, -20, -10, 0],
    )


def test_a_group_is_unknown_where_a_point_does_not_have_it() -> None:
    points = [point(0, a=group(1, seconds=9, rate=2)), point(10), point(20, a=group(0))]
    series = LagHistory(since=NOW, until=NOW, step_s=10, points=points).series("a")
    assert series.lag_messages == [1, None, 0]
    assert series.lag_seconds == [9, None, None]
    assert series.lag_seconds_at_least == [True, False, False]
    assert series.read_rate == [2, None, None]
