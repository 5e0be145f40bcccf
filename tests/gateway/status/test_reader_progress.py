"""ProgressState by Burrow's rules; lag, rates and ages."""

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway_gateway.endpoints.model import Mode, Share
from sluiceway_gateway.status.lag import (
    GroupLag,
    Sample,
    group_lag,
    summarize,
    write_rate,
    written_at,
)
from sluiceway_gateway.status.reader_progress import (
    WINDOW,
    CommittedOffset,
    ProgressState,
    ReaderProgress,
    evaluate_lag,
    offset_tracks,
    partitions_read,
)
from sluiceway_gateway.status.sample_store import is_kept

START = datetime(2030, 1, 1, tzinfo=UTC)
EVERY_S = 5

Points = list[tuple[int, int]]


def moving(positions: Sequence[int], ends: Sequence[int]) -> Points:
    return [(at, end - at) for at, end in zip(positions, ends, strict=True)]


WHOLE = range(WINDOW)
STOOD = [5] * WINDOW


@pytest.mark.parametrize(
    ("points", "alive", "expected"),
    [
        # Rule 1: the lag was zero at some time of the window.
        (moving(STOOD, [5, *[9] * 9]), True, ProgressState.OK),
        (moving([9, *STOOD[1:]], [9] * 10), True, ProgressState.OK),
        (moving(STOOD, STOOD), False, ProgressState.OK),
        # Rule 2: no movement while there is a lag.
        (moving(STOOD, [9] * 10), True, ProgressState.STALLED),
        (moving(STOOD, [9 + number for number in WHOLE]), True, ProgressState.STALLED),
        # The lag shrank because of retention, and the reader did not move.
        ([(5, 20 - number) for number in WHOLE], True, ProgressState.STALLED),
        # The same without a live reader.
        (moving(STOOD, [9] * 10), False, ProgressState.STOPPED),
        # Moved backwards.
        (moving([5, 6, 7, 6, 7, 8, 9, 9, 9, 9], [99] * 10), True, ProgressState.REWOUND),
        (moving([5, 4], [9, 9]), True, ProgressState.REWOUND),
        # Rule 3: it moves, and the lag stays or grows.
        (moving(list(WHOLE), [10 + number for number in WHOLE]), True, "falling_behind"),
        # A small lag: it reads as much within the window.
        (moving(list(WHOLE), [9 + number for number in WHOLE]), True, ProgressState.OK),
        (moving(list(WHOLE), [1 + number for number in WHOLE]), True, ProgressState.OK),
        (
            moving(list(WHOLE), [9 + 2 * number for number in WHOLE]),
            True,
            "falling_behind",
        ),
        (moving([0] * 9 + [1], [9] * 9 + [10]), False, ProgressState.FALLING_BEHIND),
        # The lag shrank once.
        (moving(list(WHOLE), [20] * 10), True, ProgressState.OK),
        (moving([0] * 9 + [5], [9] * 9 + [12]), True, ProgressState.OK),
        # Before the window is full, only final states are returned.
        (moving([5] * 9, [9] * 9), True, None),
        (moving([5, 6, 7], [9, 10, 11]), True, None),
        (moving([5, 7], [9, 9]), True, ProgressState.OK),
        (moving([5], [5]), False, ProgressState.OK),
        ([], True, None),
    ],
)
def test_progress_depends_on_the_movement_of_the_position(
    points: Points, alive: bool, expected: ProgressState | None
) -> None:
    assert evaluate_lag(points, alive=alive, complete=len(points) == WINDOW) == expected


steps = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=WINDOW, max_size=WINDOW)


@given(steps, st.integers(0, 5), st.booleans())
def test_a_position_that_moves_forward_is_neither_rewound_nor_stopped(
    moves: list[tuple[int, int]], left: int, alive: bool
) -> None:
    position, end, points = 100, 100 + left, []
    for read, written in moves:
        end += written
        position = min(end, position + read)
        points.append((position, end - position))
    progress = evaluate_lag(points, alive=alive, complete=True)
    assert progress is not None
    assert progress is not ProgressState.REWOUND
    stood = points[0][0] == points[-1][0]
    assert (progress in (ProgressState.STALLED, ProgressState.STOPPED)) == (
        stood and all(lag for _, lag in points)
    )
    if progress is ProgressState.FALLING_BEHIND:
        assert all(after[1] >= before[1] for before, after in itertools.pairwise(points))


def sampled(
    number: int,
    ends: Sequence[int | None],
    *,
    starts: Sequence[int | None] | None = None,
    readers: Sequence[ReaderProgress] = (),
    committed: Sequence[CommittedOffset] = (),
) -> Sample:
    partitions = max(len(ends), 2)
    return Sample(
        at=START + timedelta(seconds=EVERY_S * number),
        starts=[0] * len(ends) if starts is None else list(starts),
        ends=list(ends),
        tracks=offset_tracks(readers, committed, partitions=partitions),
    )


def member(index: int = 0, size: int | None = 1, **facts: object) -> ReaderProgress:
    defaults: dict[str, object] = {
        "group": "g",
        "mode": Mode.SHARED,
        "epoch": index + 1,
        "alive": True,
        "positions": {},
    }
    return ReaderProgress(index=index, size=size, **(defaults | facts))  # type: ignore[arg-type]


def lag_of(window: Sequence[Sample], *readers: ReaderProgress, key: str = "/g") -> GroupLag:
    history = [(sample.at.timestamp(), sample.ends) for sample in window]
    read = partitions_read(readers, partitions=2)
    return group_lag(key, window[-WINDOW:], history, alive=read[key])


def test_a_track_has_lag_rates_and_the_age_of_the_next_message() -> None:
    window, readers = [], []
    for number in range(5):
        readers = [member(positions={0: 10 * number, 1: 100})]
        window.append(sampled(number, [20 * number, 100], readers=readers))
    lag = lag_of(window, *readers)
    assert (lag.lags, lag.lag_messages) == ([40, 0], 40)
    assert (lag.read_rate, lag.trend, lag.drain_s) == (2.0, 2.0, None)
    assert write_rate(window) == 4.0
    # Message 40 was written ten seconds later, when the end was 40.
    assert lag.since == [(START + timedelta(seconds=10)).timestamp(), None]
    assert lag.behind_since == lag.since[0]
    assert lag.progress == [ProgressState.OK, ProgressState.OK]
    assert lag.worst is ProgressState.OK


def test_a_shrinking_lag_has_a_time_to_drain() -> None:
    window, readers = [], []
    for number in range(3):
        readers = [member(positions={0: 30 * number, 1: 0})]
        window.append(sampled(number, [100, 0], readers=readers))
    lag = lag_of(window, *readers)
    assert (lag.lag_messages, lag.trend, lag.read_rate) == (40, -6.0, 6.0)
    assert lag.drain_s == pytest.approx(40 / 6)
    done = sampled(3, [100, 0], readers=[member(positions={0: 100, 1: 0})])
    assert lag_of([*window, done], *readers).drain_s == 0.0


def test_unknown_values_are_none() -> None:
    alone = [member(0, 2, positions={0: 5})]
    # A partition without a reader has messages, so the lag is unknown.
    lag = lag_of([sampled(0, [9, 9], readers=alone)], *alone)
    assert (lag.lags, lag.lag_messages, lag.trend) == ([4, None], None, None)
    assert (lag.read_rate, lag.drain_s) == (None, None)
    assert (lag.since, lag.since_or_before) == ([START.timestamp(), None], [True, False])
    # Without messages the lag is zero.
    assert lag_of([sampled(0, [9, 0], readers=alone)], *alone).lag_messages == 4
    # Kafka was unavailable.
    lag = lag_of([sampled(0, [9, 9], readers=alone), sampled(1, [], readers=alone)], *alone)
    assert (lag.lags, lag.lag_messages, lag.worst) == ([], None, None)
    assert write_rate([sampled(0, [9, 9]), sampled(1, [])]) is None
    assert write_rate([sampled(0, [9, 9])]) is None
    # One partition has no leader.
    both = [member(positions={0: 5, 1: 5})]
    lag = lag_of([sampled(0, [9, None], starts=[0, None], readers=both)], *both)
    assert (lag.lags, lag.lag_messages) == ([4, None], None)


def test_lag_does_not_count_messages_that_retention_removed() -> None:
    late = [member(positions={0: 5, 1: 0})]
    lag = lag_of([sampled(0, [30, 0], starts=[20, 0], readers=late)], *late)
    assert lag.lags == [10, 0]


def test_a_new_reader_is_not_evaluated_by_the_samples_of_its_predecessor() -> None:
    window = []
    for number in range(WINDOW):
        readers = [member(positions={0: 50, 1: 0}, epoch=1 if number < 9 else 2)]
        window.append(sampled(number, [60, 0], readers=readers))
    assert lag_of(window[:-1], *readers).progress[0] is None
    assert lag_of(window, *readers).progress[0] is None
    # Starting behind its predecessor is no rewind.
    back = [member(positions={0: 40, 1: 0}, epoch=3)]
    window.append(sampled(WINDOW, [60, 0], readers=back))
    assert lag_of(window, *back).progress[0] is None
    same = [sampled(number, [60, 0], readers=readers) for number in range(WINDOW)]
    assert lag_of(same, *readers).progress[0] is ProgressState.STALLED


def test_a_clock_set_back_gives_no_rates() -> None:
    readers = [member(positions={0: 5, 1: 0})]
    window = [sampled(720, [9, 0], readers=readers), sampled(0, [9, 0], readers=readers)]
    lag = lag_of(window, *readers)
    assert (lag.read_rate, lag.trend, write_rate(window)) == (None, None, None)


def test_the_time_of_an_offset_is_interpolated_between_samples() -> None:
    history = [(0.0, [0]), (10.0, [100]), (20.0, [100]), (30.0, [400])]
    assert written_at(history, 0, 0) == (0.0, False)
    assert written_at(history, 0, 50) == (5.0, False)
    assert written_at(history, 0, 100) == (20.0, False)
    assert written_at(history, 0, 250) == (25.0, False)
    assert written_at(history, 0, 400) == (None, False)
    # A new partition began empty.
    assert written_at([(0.0, []), (10.0, [10])], 0, 5) == (5.0, False)
    # A sample without the partition is skipped.
    assert written_at([(0.0, [0]), (5.0, [None]), (10.0, [10])], 0, 5) == (5.0, False)


def test_an_offset_before_the_first_sample_is_at_least_as_old_as_that_sample() -> None:
    assert written_at([(10.0, [100]), (20.0, [100]), (30.0, [400])], 0, 50) == (10.0, True)
    assert written_at([(10.0, [None]), (20.0, [100])], 0, 50) == (20.0, True)


def test_the_age_of_a_message_older_than_the_samples_is_a_lower_bound() -> None:
    reader = [member(positions={0: 5, 1: 7})]
    window = [sampled(number, [9, 7 + number], readers=reader) for number in range(4)]
    lag = lag_of(window, *reader)
    # Message 5 of partition 0 is older than the first sample, message 7 of partition 1 is not.
    assert lag.since == [START.timestamp(), START.timestamp()]
    assert lag.since_or_before == [True, False]
    assert (lag.behind_since, lag.behind_or_before) == (START.timestamp(), True)
    # If a message's age is unknown, the oldest message may be older.
    alone = [member(0, 2, positions={1: 7})]
    window = [sampled(number, [9, 7 + number], readers=alone) for number in range(4)]
    lag = lag_of(window, *alone)
    assert (lag.lag_messages, lag.behind_since) == (None, START.timestamp())
    assert (lag.since_or_before, lag.behind_or_before) == ([False, False], True)


def test_rates_follow_a_reader_that_stops_or_starts_within_seconds() -> None:
    window: list[Sample] = []
    rates = []
    for number in range(20):
        # Reads 50 messages between two samples, up to the tenth and again from the fifteenth on.
        position = 50 * (min(number, 9) + max(0, number - 14))
        reader = [member(positions={0: position, 1: 0})]
        window.append(sampled(number, [2000 + 25 * number, 0], readers=reader))
        lag = lag_of(window, *reader)
        rates.append((lag.read_rate, lag.trend, lag.drain_s is not None))
        assert number == 0 or write_rate(window[-WINDOW:]) == 5.0
    assert rates[9] == (10.0, -5.0, True)
    # Three intervals later.
    assert rates[12] == (0.0, 5.0, False)
    assert rates[17] == (10.0, -5.0, True)


def test_after_an_idle_time_rates_are_those_since_the_last_sample() -> None:
    reader = [member(positions={0: 0, 1: 0})]
    idle = [sampled(number, [0, 0], readers=reader) for number in (0, 1, 600)]
    window = [*idle, sampled(601, [50, 0], readers=reader)]
    assert write_rate(window) == 10.0
    assert write_rate([idle[0], idle[2]]) == 0.0


def test_without_a_reader_there_is_no_time_to_drain() -> None:
    # Retention removes messages that no reader has read.
    for reader in (member(positions={0: 0, 1: 0}), member(positions={0: 0, 1: 0}, alive=False)):
        window = [sampled(n, [90, 0], starts=[10 * n, 0], readers=[reader]) for n in range(4)]
        lag = lag_of(window, reader)
        assert (lag.lag_messages, lag.trend, lag.drain_s) == (60, -2.0, None)


def test_a_group_that_lost_its_reader_has_no_time_to_drain() -> None:
    window, reader = [], member()
    for number in range(4):
        reader = member(positions={0: 20 * number, 1: 0}, alive=number < 3)
        window.append(sampled(number, [100, 0], readers=[reader]))
    assert lag_of(window[:3], member()).drain_s == 15.0
    window.append(sampled(4, [100, 0], readers=[reader]))
    assert lag_of(window, reader).drain_s is None


def test_commits_without_a_member_give_a_time_to_drain() -> None:
    window = []
    for number in range(3):
        commits = [
            CommittedOffset(group="g", member=None, partition=0, offset=20 * number),
            CommittedOffset(group="g", member=None, partition=1, offset=0),
        ]
        window.append(sampled(number, [100, 0], committed=commits))
    assert lag_of(window).drain_s == 15.0


def test_a_position_is_never_before_the_commit() -> None:
    committed = [CommittedOffset(group="g", member=None, partition=0, offset=7)]
    track = offset_tracks([member(positions={0: 3}, epoch=4)], committed, partitions=1)["/g"]
    # The holder is still the reader, and its progress continues.
    assert (track.position, track.holder) == ([7], [4])


def test_a_live_readers_report_precedes_the_commit_and_a_departed_readers_report() -> None:
    committed = [
        CommittedOffset(group="g", member=None, partition=partition, offset=7)
        for partition in (0, 1)
    ]
    track = offset_tracks(
        [
            member(0, 2, positions={0: 9}, epoch=4),
            member(1, 2, positions={0: 3, 1: 9, 2: 9}, epoch=5, alive=False),
        ],
        committed[1:],
        partitions=4,
    )["/g"]
    assert track.position == [9, 7, 9, None]
    assert track.committed == [None, 7, None, None]
    assert track.holder == [4, 0, -1, None]


def test_broadcast_members_and_ungrouped_readers_have_their_own_tracks() -> None:
    readers = [
        member(0, 2, mode=Mode.BROADCAST, positions={0: 1}),
        member(1, 2, mode=Mode.BROADCAST, positions={0: 2}),
        member(3, None, group="", positions={1: 5}),
        member(4, None, group="", positions={1: 6}, alive=False),
        member(7, None, group="d", share=Share(index=1, size=2), positions={}),
    ]
    tracks = offset_tracks(readers, [], partitions=3)
    assert list(tracks) == ["/d", "3/", "0/g", "1/g"]
    assert tracks["1/g"].position[0] == 2
    read = partitions_read(readers, partitions=3)
    assert read["0/g"] == [True] * 3
    assert (read["3/"], read["/d"]) == ([False, True, False], [False, True, False])
    assert list(member(1, 2).assignment(5)) == [1, 3]


def test_the_positions_of_a_sample_are_limited() -> None:
    readers = [member(index, 1000, mode=Mode.BROADCAST) for index in range(1000)]
    readers.append(member(group="shared"))
    tracks = offset_tracks(readers, [], partitions=1000)
    assert len(tracks) == 50
    assert next(iter(tracks)) == "/shared"


def test_the_summary_of_a_channel_is_that_of_its_slowest_readers() -> None:
    slow = [member(positions={0: 1, 1: 0})]
    window = [
        sampled(number, [0 if number == 0 else 9, 0], readers=slow) for number in range(WINDOW)
    ]
    behind = lag_of(window, *slow)
    quick = [member(positions={0: 9, 1: 0})]
    ahead = lag_of([sampled(0, [9, 0], readers=quick)], *quick)
    summary = summarize([ahead, behind], 1.5)
    assert (summary.lag_messages, summary.progress, summary.write_rate) == (
        8,
        ProgressState.OK,
        1.5,
    )
    assert summary.trend == behind.trend is not None
    assert summary.behind_since == behind.behind_since is not None
    assert not summary.behind_or_before
    # A partition with unknown lag may be further behind.
    unknown = lag_of([sampled(0, [], readers=quick)], *quick)
    summary = summarize([behind, unknown], None)
    assert summary.lag_messages is None
    assert (summary.behind_since, summary.behind_or_before) == (behind.behind_since, True)
    assert summary.trend is None
    summary = summarize([unknown], None)
    assert (summary.behind_since, summary.behind_or_before) == (None, False)
    assert summarize([], None).lag_messages is None


@pytest.mark.sample
@pytest.mark.parametrize("newest", [17, 20, 79, 80, 81, 200, 641, 1_000, 5_121, 40_960])
def test_messages_are_dated_to_a_quarter_of_their_age(newest: int) -> None:
    kept = [number for number in range(1, newest + 1) if is_kept(number, newest)]
    assert len(kept) <= 80
    for written in range(2, newest, max(1, newest // 500)):
        # All at once, after the sample before.
        history = [(float(number), [1_000 if number >= written else 0]) for number in kept]
        age = newest - written
        for offset in (0, 999):
            at_s, is_bound = written_at(history, 0, offset)
            assert at_s is not None
            assert not is_bound
            assert abs(newest - at_s - age) <= 1 + age / 4, (written, offset, at_s)
