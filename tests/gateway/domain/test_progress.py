"""Burrow's rules, and what is told beside them: how far, how fast, since when."""

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway_gateway.endpoints.model import Mode
from sluiceway_gateway.status.lag import (
    GroupLag,
    ReaderProgress,
    Sample,
    Stored,
    lives,
    outline,
    pace,
    passed_at,
    tracks,
    write_rate,
)
from sluiceway_gateway.status.progress import WINDOW, Progress, evaluate_lag

START = datetime(2030, 1, 1, tzinfo=UTC)
EVERY_S = 5

Points = list[tuple[int, int]]


def moving(positions: Sequence[int], ends: Sequence[int]) -> Points:
    return [(at, end - at) for at, end in zip(positions, ends, strict=True)]


WHOLE = range(WINDOW)
STOOD = [5] * WINDOW


@pytest.mark.parametrize(
    ("points", "lives", "expected"),
    [
        # Rule 1: with nothing left at any time of the window, all is well.
        (moving(STOOD, [5, *[9] * 9]), True, Progress.OK),
        (moving([9, *STOOD[1:]], [9] * 10), True, Progress.OK),
        (moving(STOOD, STOOD), False, Progress.OK),
        # Rule 2: standing while something is left.
        (moving(STOOD, [9] * 10), True, Progress.STALLED),
        (moving(STOOD, [9 + each for each in WHOLE]), True, Progress.STALLED),
        # What is left became less, as retention took it: the reader has not moved.
        ([(5, 20 - each) for each in WHOLE], True, Progress.STALLED),
        # The same, and nobody is heard of.
        (moving(STOOD, [9] * 10), False, Progress.STOPPED),
        # Going back.
        (moving([5, 6, 7, 6, 7, 8, 9, 9, 9, 9], [99] * 10), True, Progress.REWOUND),
        (moving([5, 4], [9, 9]), True, Progress.REWOUND),
        # Rule 3: it moves, and the lag is the same or grows.
        (moving(list(WHOLE), [9 + each for each in WHOLE]), True, "falling_behind"),
        (
            moving(list(WHOLE), [9 + 2 * each for each in WHOLE]),
            True,
            "falling_behind",
        ),
        (moving([0] * 9 + [1], [9] * 9 + [10]), False, Progress.FALLING_BEHIND),
        # The lag became less once.
        (moving(list(WHOLE), [20] * 10), True, Progress.OK),
        (moving([0] * 9 + [5], [9] * 9 + [12]), True, Progress.OK),
        # A window that is not full tells what cannot change any more, and nothing else.
        (moving([5] * 9, [9] * 9), True, None),
        (moving([5, 6, 7], [9, 10, 11]), True, None),
        (moving([5, 7], [9, 9]), True, Progress.OK),
        (moving([5], [5]), False, Progress.OK),
        ([], True, None),
    ],
)
def test_a_partition_is_judged_by_the_movement_of_its_position(
    points: Points, lives: bool, expected: Progress | None
) -> None:
    assert evaluate_lag(points, lives=lives, whole=len(points) == WINDOW) == expected


steps = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=WINDOW, max_size=WINDOW)


@given(steps, st.integers(0, 5), st.booleans())
def test_who_only_goes_forward_has_not_rewound_and_who_moves_has_not_stopped(
    moves: list[tuple[int, int]], left: int, living: bool
) -> None:
    position, end, points = 100, 100 + left, []
    for read, written in moves:
        end += written
        position = min(end, position + read)
        points.append((position, end - position))
    found = evaluate_lag(points, lives=living, whole=True)
    assert found is not None
    assert found is not Progress.REWOUND
    stood = points[0][0] == points[-1][0]
    assert (found in (Progress.STALLED, Progress.STOPPED)) == (
        stood and all(lag for _, lag in points)
    )
    if found is Progress.FALLING_BEHIND:
        assert all(after[1] >= before[1] for before, after in itertools.pairwise(points))


def sampled(
    number: int,
    ends: Sequence[int | None],
    *,
    starts: Sequence[int | None] | None = None,
    readers: Sequence[ReaderProgress] = (),
    stored: Sequence[Stored] = (),
) -> Sample:
    partitions = max(len(ends), 2)
    return Sample(
        at=START + timedelta(seconds=EVERY_S * number),
        starts=[0] * len(ends) if starts is None else list(starts),
        ends=list(ends),
        tracks=tracks(readers, stored, partitions=partitions),
    )


def member(index: int = 0, size: int | None = 1, **facts: object) -> ReaderProgress:
    given: dict[str, object] = {
        "group": "g",
        "mode": Mode.SHARED,
        "epoch": index + 1,
        "lives": True,
        "reached": {},
    }
    return ReaderProgress(index=index, size=size, **(given | facts))  # type: ignore[arg-type]


def pace_of(window: Sequence[Sample], *readers: ReaderProgress, key: str = "g") -> GroupLag:
    history = [(each.at.timestamp(), each.ends) for each in window]
    read = lives(readers, partitions=2)
    return pace(key, window[-WINDOW:], history, lives=read[key])


def test_lag_rates_and_the_age_of_the_next_message_are_told() -> None:
    window, readers = [], []
    for number in range(5):
        readers = [member(reached={0: 10 * number, 1: 100})]
        window.append(sampled(number, [20 * number, 100], readers=readers))
    found = pace_of(window, *readers)
    assert (found.lags, found.lag_messages) == ([40, 0], 40)
    assert (found.read_rate, found.trend, found.drain_s) == (2.0, 2.0, None)
    assert write_rate(window) == 4.0
    # The message 40 came when the end was at 40: after ten seconds.
    assert found.since == [(START + timedelta(seconds=10)).timestamp(), None]
    assert found.behind_since == found.since[0]
    assert found.progress == [Progress.OK, Progress.OK]
    assert found.worst is Progress.OK


def test_what_becomes_less_is_read_up_after_some_time() -> None:
    window, readers = [], []
    for number in range(3):
        readers = [member(reached={0: 30 * number, 1: 0})]
        window.append(sampled(number, [100, 0], readers=readers))
    found = pace_of(window, *readers)
    assert (found.lag_messages, found.trend, found.read_rate) == (40, -6.0, 6.0)
    assert found.drain_s == pytest.approx(40 / 6)
    done = sampled(3, [100, 0], readers=[member(reached={0: 100, 1: 0})])
    assert pace_of([*window, done], *readers).drain_s == 0.0


def test_what_is_not_known_is_none() -> None:
    alone = [member(0, 2, reached={0: 5})]
    # The partition of a member that never came has messages: nobody knows what is left of them.
    found = pace_of([sampled(0, [9, 9], readers=alone)], *alone)
    assert (found.lags, found.lag_messages, found.trend) == ([4, None], None, None)
    assert (found.read_rate, found.drain_s, found.since) == (None, None, [None, None])
    # Without messages in it, nothing is left.
    assert pace_of([sampled(0, [9, 0], readers=alone)], *alone).lag_messages == 4
    # Kafka was away.
    found = pace_of([sampled(0, [9, 9], readers=alone), sampled(1, [], readers=alone)], *alone)
    assert (found.lags, found.lag_messages, found.worst) == ([], None, None)
    assert write_rate([sampled(0, [9, 9]), sampled(1, [])]) is None
    assert write_rate([sampled(0, [9, 9])]) is None
    # One partition has no leader.
    both = [member(reached={0: 5, 1: 5})]
    found = pace_of([sampled(0, [9, None], starts=[0, None], readers=both)], *both)
    assert (found.lags, found.lag_messages) == ([4, None], None)


def test_what_retention_removed_is_not_left_to_be_read() -> None:
    late = [member(reached={0: 5, 1: 0})]
    found = pace_of([sampled(0, [30, 0], starts=[20, 0], readers=late)], *late)
    assert found.lags == [10, 0]


def test_a_reader_is_judged_by_its_own_samples_and_not_by_those_of_the_one_before() -> None:
    window = []
    for number in range(WINDOW):
        readers = [member(reached={0: 50, 1: 0}, epoch=1 if number < 9 else 2)]
        window.append(sampled(number, [60, 0], readers=readers))
    assert pace_of(window[:-1], *readers).progress[0] is None
    assert pace_of(window, *readers).progress[0] is None
    # Nor has it rewound where it begins behind the other.
    back = [member(reached={0: 40, 1: 0}, epoch=3)]
    window.append(sampled(WINDOW, [60, 0], readers=back))
    assert pace_of(window, *back).progress[0] is None
    same = [sampled(each, [60, 0], readers=readers) for each in range(WINDOW)]
    assert pace_of(same, *readers).progress[0] is Progress.STALLED


def test_a_clock_that_is_set_back_gives_no_rates() -> None:
    readers = [member(reached={0: 5, 1: 0})]
    window = [sampled(720, [9, 0], readers=readers), sampled(0, [9, 0], readers=readers)]
    found = pace_of(window, *readers)
    assert (found.read_rate, found.trend, write_rate(window)) == (None, None, None)


def test_between_two_samples_time_is_in_proportion() -> None:
    history = [(0.0, [0]), (10.0, [100]), (20.0, [100]), (30.0, [400])]
    assert passed_at(history, 0, 0) == 0.0
    assert passed_at(history, 0, 50) == 5.0
    assert passed_at(history, 0, 100) == 20.0
    assert passed_at(history, 0, 250) == 25.0
    assert passed_at(history, 0, 400) is None
    # What was there before the first look, nobody knows.
    assert passed_at(history[1:], 0, 50) is None
    # A partition that was not there yet held nothing.
    assert passed_at([(0.0, []), (10.0, [10])], 0, 5) == 5.0
    # One that could not be asked is passed over.
    assert passed_at([(0.0, [0]), (5.0, [None]), (10.0, [10])], 0, 5) == 5.0


def test_where_a_reader_is_goes_before_what_it_committed_and_what_one_said_that_left() -> None:
    stored = [Stored(group="g", member=None, partition=each, offset=7) for each in (0, 1)]
    found = tracks(
        [
            member(0, 2, reached={0: 9}, epoch=4),
            member(1, 2, reached={0: 3, 1: 9, 2: 9}, epoch=5, lives=False),
        ],
        stored[1:],
        partitions=4,
    )["g"]
    assert found.position == [9, 7, 9, None]
    assert found.committed == [None, 7, None, None]
    assert found.holder == [4, 0, -1, None]


def test_broadcast_members_and_readers_without_a_group_are_on_their_own() -> None:
    readers = [
        member(0, 2, mode=Mode.BROADCAST, reached={0: 1}),
        member(1, 2, mode=Mode.BROADCAST, reached={0: 2}),
        member(3, None, group="", reached={1: 5}),
        member(4, None, group="", reached={1: 6}, lives=False),
        member(7, None, group="d", share=(1, 2), reached={}),
    ]
    found = tracks(readers, [], partitions=3)
    assert list(found) == ["d", "/3", "g/0", "g/1"]
    assert found["g/1"].position[0] == 2
    read = lives(readers, partitions=3)
    assert read["g/0"] == [True] * 3
    assert (read["/3"], read["d"]) == ([False, True, False], [False, True, False])
    assert list(member(1, 2).reads(5)) == [1, 3]


def test_there_is_a_bound_to_what_is_sampled_of_a_channel() -> None:
    readers = [member(index, 1000, mode=Mode.BROADCAST) for index in range(1000)]
    readers.append(member(group="shared"))
    found = tracks(readers, [], partitions=1000)
    assert len(found) == 50
    assert next(iter(found)) == "shared"


def test_a_channels_line_is_that_of_its_slowest_readers() -> None:
    slow = [member(reached={0: 1, 1: 0})]
    window = [sampled(each, [0 if each == 0 else 9, 0], readers=slow) for each in range(WINDOW)]
    behind = pace_of(window, *slow)
    quick = [member(reached={0: 9, 1: 0})]
    ahead = pace_of([sampled(0, [9, 0], readers=quick)], *quick)
    line = outline([ahead, behind], 1.5)
    assert (line.lag_messages, line.progress, line.write_rate) == (8, Progress.OK, 1.5)
    assert line.behind_since == behind.behind_since is not None
    unknown = pace_of([sampled(0, [], readers=quick)], *quick)
    assert outline([behind, unknown], None).lag_messages is None
    assert outline([], None).lag_messages is None
