"""Readers with `until="finished"`: they end after all writers, or raise for a failed one."""

import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from faults import lose
from sluiceway import Channel, Gateway, Heartbeat
from sluiceway.errors import InvalidRecord, OptionError, SluicewayTimeout, WriterFailed, WriterLost
from topics import Topics, readings

NewChannel = Callable[..., Channel]


def by_id(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(records, key=lambda record: record["id"])


def write(channel: Channel, count: int, first: int = 0, **place: Any) -> None:
    with channel.writer(**place) as writer:
        writer.write(readings(count, first))


def fail(channel: Channel, count: int, first: int = 0, **place: Any) -> None:
    with suppress(ZeroDivisionError), channel.writer(**place) as writer:
        writer.write(readings(count, first))
        writer.flush()
        raise ZeroDivisionError("no divisor")


@pytest.fixture
def brief(new_channel: NewChannel) -> Channel:
    """A channel whose readers wait briefly for a failed writer."""
    return new_channel(partitions=2, heartbeat=Heartbeat(interval_ms=200, timeout_ms=2_000))


@pytest.mark.sample
@pytest.mark.usefixtures("each_stream")
def test_a_finished_channel_is_read_to_its_end(new_channel: NewChannel, each_format: str) -> None:
    channel = new_channel(partitions=2, format=each_format)
    write(channel, 100)
    with channel.reader() as reader:
        assert by_id(list(reader)) == readings(100)
        assert reader.finished


@pytest.mark.parametrize("place", [{}, {"group": "g", "dynamic": True}], ids=["alone", "member"])
def test_a_reader_has_not_finished_before_it_has_raised_the_failure_of_a_writer(
    brief: Channel, place: dict[str, Any]
) -> None:
    fail(brief, 10)
    with brief.reader(**place) as reader:
        # The call with the last records also notices the failure.
        assert by_id(reader.read(100, timeout=60)) == readings(10)
        assert not reader.finished
        with pytest.raises(WriterFailed):
            reader.read(100, timeout=60)
        assert not reader.finished


def test_a_writer_without_records_finishes(channel: Channel) -> None:
    write(channel, 0)
    assert list(channel.reader()) == []


def test_a_reader_waits_for_a_writer_that_attaches_later(channel: Channel) -> None:
    with channel.reader() as reader, ThreadPoolExecutor() as threads:
        reading = threads.submit(list, reader)
        channel.wait_for(readers=1, state="started")
        write(channel, 100)
        assert by_id(reading.result(60)) == readings(100)


@pytest.mark.long
def test_all_expected_writers_have_to_finish(channel: Channel) -> None:
    with channel.reader(writers=2) as reader:
        write(channel, 50)
        assert by_id(reader.read(50, timeout=None)) == readings(50)
        assert reader.read(1, timeout=0.7) == []
        assert not reader.finished
        write(channel, 50, 50)
        assert by_id(list(reader)) == readings(50, 50)


@pytest.mark.long
@pytest.mark.usefixtures("each_stream")
def test_a_writer_that_attaches_before_the_end_postpones_it(channel: Channel) -> None:
    write(channel, 50)
    with channel.writer() as writer, channel.reader() as reader:
        records = reader.read(50, timeout=None)
        assert reader.read(1, timeout=0.7) == []
        writer.write(readings(50, 50))
        writer.close()
        assert by_id(records + list(reader)) == readings(100)


def test_records_after_the_end_offsets_are_excluded(channel: Channel, topics: Topics) -> None:
    write(channel, 50, partition=0)
    with channel.reader() as reader:
        ends = {0: 50, 1: 0}
        assert len(list(reader)) == 50
        assert {p: place.offset for p, place in reader.position().items()} == ends
        # A producer without an endpoint.
        topics.produce(channel.status.topic.name, 0, [b"not of the channel"])
        assert list(reader) == []


def test_a_failed_writer_is_named_after_its_records_are_read(brief: Channel) -> None:
    fail(brief, 50, group="load", index=0, size=1)
    with brief.reader() as reader:
        records = reader.read(1000, timeout=None)
        assert by_id(records) == readings(50)
        for _ in range(2):
            with pytest.raises(WriterFailed, match=r"load\[0\] \(ZeroDivisionError\)"):
                reader.read(1, timeout=60)
        # Its job is restarted, and succeeds. The next call requests the new writer's state.
        write(brief, 50, 50, group="load", index=0, size=1)
        assert by_id(records + list(reader)) == readings(100)


@pytest.mark.long
@pytest.mark.usefixtures("each_stream")
def test_a_failed_writer_is_awaited_and_its_successor_is_read(channel: Channel) -> None:
    fail(channel, 25, group="load")
    with channel.reader() as reader:
        records = reader.read(25, timeout=None)
        assert reader.read(1, timeout=0.7) == []
        assert not reader.finished
        write(channel, 15, 25, group="load")
        assert by_id(records + list(reader)) == readings(40)
    # Later readers see no failure.
    assert by_id(list(channel.reader())) == readings(40)


@pytest.mark.long
def test_a_writer_that_failed_before_writing_is_ignored(channel: Channel) -> None:
    for place in ({}, {"group": "load"}, {"group": "load"}):
        fail(channel, 0, **place)
    with suppress(InvalidRecord), channel.writer() as writer:
        writer.write({"id": "none", "station": None, "celsius": 0.5})
    assert {endpoint.state for endpoint in channel.endpoints()} == {"error"}
    assert all(endpoint.wrote_nothing for endpoint in channel.endpoints())
    with channel.reader() as reader, ThreadPoolExecutor() as threads:
        reading = threads.submit(list, reader)
        channel.wait_for(readers=1, state="started")
        write(channel, 40)
        assert by_id(reading.result(60)) == readings(40)


def test_a_failed_instance_without_records_keeps_the_end_offsets_of_its_place(
    channel: Channel,
) -> None:
    write(channel, 40, group="load")
    fail(channel, 0, group="load")
    assert by_id(list(channel.reader())) == readings(40)


@pytest.mark.long
def test_a_writer_without_records_does_not_finish_its_failed_predecessor(brief: Channel) -> None:
    fail(brief, 40, group="load")
    fail(brief, 0, group="load")
    with brief.reader() as reader:
        assert by_id(reader.read(40, timeout=None)) == readings(40)
        with pytest.raises(WriterFailed):
            reader.read(1, timeout=60)


def test_a_writer_without_records_that_failed_to_close_is_ignored(
    channel: Channel,
) -> None:
    with channel.writer(group="load", index=1, size=2) as other:
        first = channel.writer(group="load", index=0, size=2, close_timeout_s=0.2)
        with pytest.raises(SluicewayTimeout):
            first.close()
        other.write(readings(10))
    assert len(list(channel.reader())) == 10


@pytest.mark.long
def test_a_writer_abandoned_before_writing_is_ignored(channel: Channel) -> None:
    forgotten = channel.writer()
    del forgotten
    channel.wait_until(
        lambda present: [endpoint.place for endpoint in present if not endpoint.wrote_nothing],
        timeout_s=60,
    )
    write(channel, 10)
    assert len(list(channel.reader())) == 10


@pytest.mark.long
def test_a_failed_writer_can_be_skipped_or_dismissed(brief: Channel) -> None:
    fail(brief, 50)
    assert len(list(brief.reader(on_lost_writer="go_on"))) == 50
    write(brief, 50, 50)
    with brief.reader() as reader:
        assert len(reader.read(200, timeout=None)) == 100
        with pytest.raises(WriterFailed) as raised:
            reader.read(1, timeout=60)
    brief.dismiss(*raised.value.endpoints)
    assert len(list(brief.reader())) == 100


@pytest.mark.long
def test_records_of_a_dismissed_writer_after_all_others_are_read(channel: Channel) -> None:
    write(channel, 50)
    fail(channel, 50, 50, group="load")
    fail(channel, 10, 100)
    failed = [endpoint for endpoint in channel.endpoints() if endpoint.state == "error"]
    with channel.reader() as waiting:
        assert len(waiting.read(110, timeout=None)) == 110
        channel.dismiss(*(endpoint.id for endpoint in failed))
        assert list(waiting) == []
    assert by_id(list(channel.reader())) == readings(110)
    channel.dismiss(*(endpoint.id for endpoint in failed))
    writers = [endpoint for endpoint in channel.endpoints() if endpoint.role == "writer"]
    assert [writer.state for writer in writers] == ["closed"] * 3
    # A late restart takes the place.
    write(channel, 10, 110, group="load")
    assert by_id(list(channel.reader())) == readings(120)


def test_a_reader_that_waits_for_a_failed_writer_raises_when_the_channel_closes(
    channel: Channel,
) -> None:
    fail(channel, 50, group="load")
    with channel.reader(on_lost_writer="wait") as reader:
        assert len(reader.read(50, timeout=None)) == 50
        channel.close()
        with pytest.raises(WriterFailed, match="no successor can attach"):
            reader.read(1, timeout=60)


def test_a_restarted_writer_ends_the_wait_for_a_failed_one(channel: Channel) -> None:
    fail(channel, 50, group="load")
    with channel.reader(on_lost_writer="wait") as reader:
        records = reader.read(50, timeout=None)
        assert reader.read(1, timeout=0.7) == []
        write(channel, 50, 50, group="load")
        assert by_id(records + list(reader)) == readings(100)


DYING = """
    import os, sys
    from sluiceway import Gateway
    with Gateway(sys.argv[1]) as gateway:
        writer = gateway.channel(sys.argv[2]).writer()
        writer.write({"id": n, "station": None, "celsius": 0.5} for n in range(50))
        writer.flush()
        print("written", flush=True)
        sys.stdin.read()
"""


def test_a_dead_writer_is_lost_and_its_records_are_read(
    new_channel: NewChannel, gateway_url: str
) -> None:
    channel = new_channel(partitions=2)
    job = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DYING), gateway_url, channel.name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdin is not None
    assert job.stdout is not None
    with job, channel.reader() as reader:
        assert job.stdout.readline() == "written\n"
        assert len(reader.read(50, timeout=None)) == 50
        assert reader.read(1, timeout=0.5) == []
        (alive,) = (endpoint for endpoint in channel.endpoints() if endpoint.role == "writer")
        job.kill()
        lose(channel, alive.id)
        with pytest.raises(WriterLost, match="heartbeats have stopped"):
            reader.read(1, timeout=60)
    (writer,) = (endpoint for endpoint in channel.endpoints() if endpoint.role == "writer")
    assert (writer.state, writer.health) == ("started", "lost")
    assert len(list(channel.reader(on_lost_writer="go_on"))) == 50


def test_an_adopted_topic_refuses_until_finished(
    gateway_url: str, topics: Topics, new_channel: NewChannel
) -> None:
    owner = new_channel()
    topics.create(f"{owner.name}-adopted", 1)
    with Gateway(gateway_url) as gateway:
        channel = gateway.channel(
            f"{owner.name}-a", schema=owner.schema, topic=f"{owner.name}-adopted"
        )
        with pytest.raises(OptionError, match="until='now'"):
            channel.reader()
        write(channel, 10)
        assert len(list(channel.reader(until="now"))) == 10
