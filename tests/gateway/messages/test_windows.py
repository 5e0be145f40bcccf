"""Windows of messages: consecutive pages have each message once, in all conditions."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway_gateway.core.kafka.model import Interval, ReadMessage
from sluiceway_gateway.messages.model import PartitionView, ReadProgress, StartPoint, shortened
from sluiceway_gateway.messages.wire import cursor_of, start_of_cursor


def message(partition: int, offset: int, timestamp_ms: int | None = 0) -> ReadMessage:
    return ReadMessage(
        partition=partition,
        offset=offset,
        timestamp_ms=timestamp_ms,
        timestamp_type="create",
        key=None,
        value=b"",
        headers=(),
    )


@st.composite
def logs(draw: st.DrawFn) -> dict[int, tuple[list[ReadMessage], tuple[Interval, ...]]]:
    """By partition, messages with gaps, and runs that each contain some of them."""
    log = {}
    for partition in range(draw(st.integers(1, 4))):
        offsets = sorted(draw(st.sets(st.integers(0, 5_000), max_size=40)))
        times = draw(st.lists(st.integers(0, 50), min_size=len(offsets), max_size=len(offsets)))
        if draw(st.booleans()):
            times.sort()
        cuts = sorted(draw(st.sets(st.integers(0, 5_001), min_size=2, max_size=12)))
        runs = tuple(Interval(*pair) for pair in zip(cuts[::2], cuts[1::2], strict=False))
        messages = [message(partition, *pair) for pair in zip(offsets, times, strict=True)]
        log[partition] = (messages, runs)
    return log


def views_of(log: dict[int, Any]) -> dict[int, PartitionView]:
    return {
        partition: PartitionView(partition=partition, begin_offset=0, end_offset=5_001, runs=runs)
        for partition, (_, runs) in log.items()
    }


def run(progress: ReadProgress, log: dict[int, Any], stops: Sequence[int | None]) -> None:
    """Read like Kafka; `stops` has the number of messages that each round reads in time."""
    left = list(stops)
    while windows := progress.windows():
        selected = progress.selection()
        stop = left.pop() if left else None
        read = {partition: interval.end for partition, interval in windows.items()}
        returned = 0
        for partition, (first, end) in windows.items():
            for read_message in log[partition][0]:
                if first <= read_message.offset < end:
                    if returned == stop:
                        read[partition] = min(read[partition], read_message.offset)
                        break
                    returned += 1
                    selected.add(read_message)
        progress.record(windows, selected, read)


@given(
    log=logs(),
    newest=st.booleans(),
    limit=st.integers(1, 30),
    stops=st.lists(st.none() | st.integers(1, 20), max_size=3),
)
def test_pages_show_each_visible_message_once_and_in_order(
    log: dict[int, Any], newest: bool, limit: int, stops: list[int | None]
) -> None:
    start: StartPoint | None = StartPoint(
        newest_first=newest, bounds=dict.fromkeys(log, 5_001 if newest else 0)
    )
    shown: list[ReadMessage] = []
    while start is not None:
        assert start.bounds is not None
        progress = ReadProgress(
            views=views_of(log), at=dict(start.bounds), newest=newest, limit=limit
        )
        run(progress, log, stops)
        page = progress.messages()
        assert len(page) <= limit
        if progress.ended is None and progress.following() is not None:
            assert len(page) == limit
        shown += page
        start = progress.following()
        stops = stops[:-1]
    for partition, (messages, runs) in log.items():
        visible = [
            read_message
            for read_message in messages
            if any(first <= read_message.offset < end for first, end in runs)
        ]
        mine = [read_message for read_message in shown if read_message.partition == partition]
        assert (list(reversed(mine)) if newest else mine) == visible


@given(log=logs(), limit=st.integers(1, 30))
def test_a_page_has_the_newest_messages_of_all_partitions(log: dict[int, Any], limit: int) -> None:
    """Windows by time, for increasing timestamps and offsets without gaps."""
    for messages, _ in log.values():
        times = sorted(read_message.timestamp_ms or 0 for read_message in messages)
        messages[:] = [
            message(read_message.partition, 5_001 - number, at)
            for number, read_message, at in zip(
                range(len(messages), 0, -1), messages, times, strict=True
            )
        ]
    whole = {
        partition: (messages, (Interval(0, 5_001),)) for partition, (messages, _) in log.items()
    }
    progress = ReadProgress(
        views=views_of(whole), at=dict.fromkeys(whole, 5_001), newest=True, limit=limit
    )
    run(progress, whole, ())
    times = [read_message.timestamp_ms or 0 for read_message in progress.messages()]
    everything = [
        read_message.timestamp_ms for messages, _ in whole.values() for read_message in messages
    ]
    assert times == sorted(everything, reverse=True)[:limit]


@pytest.mark.parametrize("newest", [False, True])
def test_messages_of_one_time_have_the_same_order_on_pages_of_any_size(newest: bool) -> None:
    log = {
        partition: ([message(partition, 0), message(partition, 1)], (Interval(0, 2),))
        for partition in range(3)
    }

    def shown(limit: int) -> list[tuple[int, int]]:
        messages: list[ReadMessage] = []
        start: StartPoint | None = StartPoint(bounds=dict.fromkeys(log, 2 if newest else 0))
        while start is not None:
            at = dict(start.bounds or {})
            progress = ReadProgress(views=views_of(log), at=at, newest=newest, limit=limit)
            run(progress, log, ())
            messages += progress.messages()
            start = progress.following()
        return [(read_message.partition, read_message.offset) for read_message in messages]

    assert shown(1) == shown(10)


def test_a_truncated_round_is_reported_and_the_next_page_continues() -> None:
    log = {0: ([message(0, offset) for offset in range(10)], (Interval(0, 10),))}
    progress = ReadProgress(views=views_of(log), at={0: 0}, newest=False, limit=10)
    run(progress, log, [4])
    assert [read_message.offset for read_message in progress.messages()] == [0, 1, 2, 3]
    assert progress.ended == "time"
    assert progress.following() == StartPoint(newest_first=False, bounds={0: 4})


@given(
    st.booleans(),
    st.dictionaries(st.integers(0, 9_999), st.integers(0, 2**63 - 1), min_size=1, max_size=200),
)
def test_a_cursor_is_read_as_it_was_written(newest: bool, bounds: dict[int, int]) -> None:
    start = StartPoint(newest_first=newest, bounds=bounds)
    assert start_of_cursor(cursor_of(start)) == start
    assert len(cursor_of(start)) <= 8_000


@pytest.mark.parametrize("text", ["", "n", "é", "bg", "bm9wZQ", "biwwOjE=", "biwwOjEx\n", "=" * 99])
def test_an_invalid_cursor_is_refused(text: str) -> None:
    assert start_of_cursor(text) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=2_000),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=9), inner),
)


@given(JSON, st.integers(100, 2_000))
def test_large_values_are_cut_to_about_the_limit_and_marked(value: Any, characters: int) -> None:
    short, cut = shortened(value, characters)
    size = len(json.dumps(short, ensure_ascii=False))
    # Escapes and separators are not counted, and short texts are never cut.
    assert size <= 8 * (characters + 400) + 8_000
    assert (short == value) == (not cut)
    for pointer in cut:
        at: Any = short
        for part in pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            at = at[int(name)] if isinstance(at, list) else at[name]
        assert isinstance(at, list | dict) or at.endswith("…")
