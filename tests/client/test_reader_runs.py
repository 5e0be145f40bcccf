"""Repeated runs of readers until their writers have finished: each gets the records of its run."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from sluiceway import Channel, InputPort
from sluiceway.errors import OptionError, SluicewayTimeout
from topics import readings

NewChannel = Callable[..., Channel]


def by_id(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(records, key=lambda record: record["id"])


def write(channel: Channel, count: int, first: int = 0, **place: Any) -> None:
    with channel.writer(**place) as writer:
        writer.write(readings(count, first))


def read(channel: Channel, **options: Any) -> list[dict[str, Any]]:
    """Run a job that reads to the end, and commits."""
    with channel.reader(**options) as reader:
        records = list(reader)
        reader.commit()
    return by_id(records)


def waits(reader: Any) -> bool:
    """Whether a reader has nothing to read, and has not reached its end."""
    return reader.read(1, timeout=0.3) == [] and not reader.finished


@pytest.mark.long
@pytest.mark.parametrize("place", [{}, {"mode": "broadcast"}, {"dynamic": True}])
@pytest.mark.parametrize("load", [{}, {"group": "load"}])
def test_a_reader_that_starts_before_the_writer_of_the_next_run_waits_for_it(
    channel: Channel, place: dict[str, Any], load: dict[str, Any]
) -> None:
    for run in range(2):
        with channel.reader(group="down", **place) as reader:
            assert waits(reader)
            write(channel, 5, 5 * run, **load)
            assert by_id(list(reader)) == readings(5, 5 * run)
            reader.commit()


@pytest.mark.long
def test_a_run_that_nobody_has_read_ends_the_next_reader(channel: Channel) -> None:
    write(channel, 5, group="load")
    assert read(channel, group="down") == readings(5)
    write(channel, 5, 5, group="load")
    assert read(channel, group="down") == readings(5, 5)
    write(channel, 0, group="load")
    assert read(channel, group="down") == [], "an empty run counts"


def test_all_members_of_a_group_wait_for_the_next_run(new_channel: NewChannel) -> None:
    channel = new_channel(partitions=2)
    for run in range(2):
        with ThreadPoolExecutor() as threads:
            jobs = [threads.submit(read, channel, group="down", dynamic=True) for _ in range(2)]
            channel.wait_for(readers=2, state="opened")
            write(channel, 10, 10 * run)
            records = [record for job in jobs for record in job.result(60)]
        assert by_id(records) == readings(10, 10 * run)


@pytest.mark.long
def test_a_reader_that_fails_or_leaves_early_reads_the_same_run_again(channel: Channel) -> None:
    write(channel, 5)
    with suppress(ZeroDivisionError), channel.reader(group="down") as reader:
        assert len(list(reader)) == 5
        raise ZeroDivisionError
    with channel.reader(group="down") as reader:
        assert len(reader.read(2)) == 2
        reader.commit()
    with channel.reader(group="down") as reader:
        assert len(list(reader)) == 3
        reader.seek({0: 0})
    assert len(read(channel, group="down")) == 3
    with channel.reader(group="down") as reader:
        assert waits(reader)


def test_an_abandoned_reader_that_had_reached_its_end_has_ended_its_run(channel: Channel) -> None:
    write(channel, 5)
    reader = channel.reader(group="down")
    assert len(list(reader)) == 5
    reader.commit()
    del reader
    channel.wait_for(readers=1, state="closed")
    with channel.reader(group="down") as again:
        assert waits(again)


def test_readers_without_a_group_count_all_writers(channel: Channel) -> None:
    write(channel, 5)
    assert [len(list(channel.reader())) for _ in range(2)] == [5, 5]


@pytest.mark.sample
@pytest.mark.parametrize("group", [None, "down"])
@pytest.mark.parametrize("alive", [False, True])
def test_a_reader_from_the_latest_record_counts_writers_that_were_open_then(
    channel: Channel, group: str | None, alive: bool
) -> None:
    write(channel, 5)
    writer = channel.writer() if alive else None
    with channel.reader(group=group, start="latest") as reader:
        if writer is None:
            assert waits(reader)
            writer = channel.writer()
        writer.write(readings(5, 5))
        writer.close()
        assert by_id(list(reader)) == readings(5, 5)


def test_a_group_with_positions_ignores_its_start_also_for_writers(channel: Channel) -> None:
    with channel.reader(group="down", start="latest", until="now") as reader:
        reader.commit()
    write(channel, 5)
    assert read(channel, group="down", start="latest") == readings(5)


@pytest.mark.long
def test_a_job_that_had_closed_at_its_end_is_repeated_after_a_reset_or_without_writers(
    channel: Channel,
) -> None:
    write(channel, 5)
    assert read(channel, group="down") == readings(5)
    assert read(channel, group="down", writers=0) == []
    channel.reset("down", reason="read again")
    assert read(channel, group="down") == readings(5)


@pytest.mark.long
def test_no_expected_writer_means_waiting_for_open_ones_only(channel: Channel) -> None:
    assert list(channel.reader(writers=0)) == []
    with channel.writer() as writer, channel.reader(writers=0) as reader:
        writer.write(readings(5))
        writer.flush()
        assert by_id(reader.read(5, timeout=None)) == readings(5)
        assert waits(reader)
        writer.close()
        assert list(reader) == []
    with InputPort(channel, writers=0) as port:
        assert by_id(list(port)) == readings(5)


def test_a_reader_names_the_missing_writers_and_waits_again(channel: Channel) -> None:
    write(channel, 5, group="load")
    assert read(channel, group="down") == readings(5)
    with channel.reader(group="down", open_timeout_s=0.5) as reader:
        for _ in range(2):
            with pytest.raises(SluicewayTimeout, match=r"0 of 1 writers.*load\[0\].*writers=0"):
                next(iter(reader))
        write(channel, 5, 5, group="load")
        assert by_id(list(reader)) == readings(5, 5)


@pytest.mark.parametrize(
    "options", [{"open_timeout_s": -1}, {"open_timeout_s": 1, "until": "now"}, {"writers": -1}]
)
def test_invalid_options_of_the_wait_are_refused(channel: Channel, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"open_timeout_s|writers"):
        channel.reader(**options)


def test_a_long_wait_is_logged_with_what_is_missing(
    channel: Channel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Users have no option for it.
    monkeypatch.setattr("sluiceway.endpoint.stop_condition.LOG_AFTER_S", 0.1)
    write(channel, 0, group="load")
    with channel.reader(writers=2) as reader, caplog.at_level(logging.WARNING):
        while "1 of 2 writers have attached" not in caplog.text:
            assert waits(reader)


@pytest.mark.long
def test_an_input_port_waits_for_the_writer_of_its_own_run(channel: Channel) -> None:
    for run in range(2):
        with InputPort(channel, group="down", all_open=True) as port:
            with ThreadPoolExecutor() as threads:
                reading = threads.submit(list, port)
                channel.wait_for(readers=1)
                write(channel, 5, 5 * run, group="load")
                assert by_id(reading.result(60)) == readings(5, 5 * run)
            port.commit()
    port = InputPort(channel, group="down", sequential=True, open_timeout_s=0.3)
    with port, pytest.raises(SluicewayTimeout, match=r"0 of 1 opened.*load\[0\].*writers=0"):
        next(iter(port))
