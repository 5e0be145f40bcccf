"""Reading exactly-once channels through a gateway: groups, ports, ends, snapshots."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from ledger_view import LedgerView
from sluiceway import Channel
from sluiceway.api.endpoints import Position
from sluiceway.errors import Conflict, OffsetOutOfRange, OptionError, WriterFailed
from sluiceway.ports import InputPort, OutputPort
from topics import Topics, readings
from waiting import until

NewChannel = Callable[..., Channel]
BOTH = pytest.mark.usefixtures("each_stream")


def ids(records: Any) -> list[int]:
    return [record["id"] for record in records]


def fail_after(channel: Channel, count: int, first: int) -> None:
    """Write records and fail, so that they stay in the topic without a commit."""
    writer = channel.writer(group="failing")
    with suppress(ZeroDivisionError), writer, writer.batch("failing"):
        writer.write(readings(count, first))
        writer.flush()
        _fail()


def _fail() -> None:
    raise ZeroDivisionError


@pytest.mark.sample
@BOTH
def test_each_format_and_kind_of_reading_gives_committed_records_once(
    new_ledgered: NewChannel, each_format: str
) -> None:
    channel = new_ledgered(partitions=3, format=each_format)
    with channel.writer() as writer:
        writer.write(readings(100))
        writer.flush()
    fail_after(channel, 50, 1000)
    with channel.writer() as writer:
        writer.write(readings(100, 100))
    with channel.reader(until="now") as reader:
        assert sorted(ids(reader)) == [*range(200)]
    with channel.reader(until="now") as reader:
        rows = [row for batch in reader.batches() for row in batch.to_pylist()]
        assert sorted(ids(rows)) == [*range(200)]
    with channel.reader(until="now") as reader:
        assert sorted(ids(reader.read(1000, timeout=None))) == [*range(200)]
        assert reader.lag() == dict.fromkeys(range(3), 0)
        assert reader.finished


@pytest.mark.long
@BOTH
def test_reading_until_finished_ends_although_failed_records_are_last(
    new_ledgered: NewChannel,
) -> None:
    channel = new_ledgered(partitions=1)
    with channel.reader() as reader:
        with channel.writer() as writer:
            writer.write(readings(100))
        fail_after(channel, 50, 1000)
        channel.dismiss(
            *[endpoint.id for endpoint in channel.endpoints() if endpoint.state == "error"]
        )
        assert ids(reader) == [*range(100)]
        assert reader.finished


@pytest.mark.long
@pytest.mark.usefixtures("brief_replacement")
def test_a_failed_writer_is_raised_after_committed_records(new_ledgered: NewChannel) -> None:
    channel = new_ledgered(partitions=1)
    with channel.reader() as reader:
        with suppress(ZeroDivisionError), channel.writer(group="failing") as writer:
            writer.write(readings(100))
            writer.flush()
            writer.write(readings(50, 1000))
            _fail()
        assert ids(reader.read(100, timeout=None)) == [*range(100)]
        with pytest.raises(WriterFailed):
            reader.read(1, timeout=None)


@pytest.mark.long
@BOTH
def test_members_of_a_group_divide_committed_records_and_resume(new_ledgered: NewChannel) -> None:
    channel = new_ledgered(partitions=2)
    writer = channel.writer()
    writer.write(readings(100))
    writer.flush()
    writer.write(readings(100, 100))
    seen: list[int] = []
    for index in (1, 0):
        with channel.reader(group="g", index=index, size=2, until="now", writers=1) as reader:
            seen += ids(reader.read(30, timeout=None))
            reader.commit()
    writer.close()
    for index in (1, 0):
        with channel.reader(group="g", index=index, size=2, until="now") as reader:
            seen += ids(reader)
            reader.commit()
    assert sorted(seen) == [*range(200)]


@pytest.mark.long
def test_members_of_a_dynamic_group_read_committed_records_once(new_ledgered: NewChannel) -> None:
    channel = new_ledgered(partitions=4)
    seen: list[int] = []
    with channel.reader(group="g", dynamic=True) as first:
        with channel.writer() as writer:
            for start in range(0, 400, 100):
                writer.write(readings(100, start))
                writer.flush()
                seen += ids(first.read(50, timeout=None))
            fail_after(channel, 50, 1000)
            channel.dismiss(
                *[endpoint.id for endpoint in channel.endpoints() if endpoint.state == "error"]
            )
        first.commit()
        with channel.reader(group="g", dynamic=True) as second:
            finished: list[int] = []
            thread = threading.Thread(target=lambda: finished.extend(ids(second)))
            thread.start()
            seen += ids(first)
            first.close()
            thread.join(60)
            seen += finished
    assert sorted(set(seen)) == [*range(400)]


@pytest.mark.long
def test_members_of_a_broadcast_group_read_all_committed_records(new_ledgered: NewChannel) -> None:
    channel = new_ledgered(partitions=2)
    with channel.writer() as writer:
        writer.write(readings(100))
    fail_after(channel, 10, 1000)
    for index in (1, 0):
        with channel.reader(
            group="all", index=index, size=2, mode="broadcast", until="now"
        ) as reader:
            assert sorted(ids(reader)) == [*range(100)]


@pytest.mark.long
def test_ports_read_what_is_committed(new_ledgered: NewChannel) -> None:
    channel = new_ledgered(partitions=2)
    with InputPort(channel, group="in", writers=1) as inputs:
        with OutputPort([channel]) as outputs:
            outputs.write(readings(100))
            outputs.flush()
            assert sorted(ids(inputs.read(100, timeout=60))) == [*range(100)]
            outputs.write(readings(100, 100))
        assert sorted(ids(inputs)) == [*range(100, 200)]


def test_waiting_readers_see_a_commit_soon(new_ledgered: NewChannel) -> None:
    channel = new_ledgered(partitions=2)
    with channel.writer() as writer, channel.reader(until=None) as reader:
        delays_s = []
        for first in range(0, 300, 10):
            writer.write(readings(10, first))
            began_s = time.monotonic()
            writer.flush()
            assert sorted(ids(reader.read(10, timeout=None))) == [*range(first, first + 10)]
            delays_s.append(time.monotonic() - began_s)
    assert min(delays_s) < 1.0


def test_an_open_batch_hides_later_commits_until_it_ends(
    new_ledgered: NewChannel,
) -> None:
    channel = new_ledgered(partitions=1)
    with channel.writer() as early, channel.writer() as late:
        with early.batch("early"):
            early.write(readings(10))
            late.write(readings(10, 10))
            late.flush()
            with channel.reader(until=None) as reader:
                assert reader.end_offsets() == {0: 0}
                assert reader.read(1, timeout=0.3) == []
                assert not reader.finished
        with channel.reader(until="now") as reader:
            assert sorted(ids(reader)) == [*range(20)]


@pytest.mark.long
@BOTH
def test_reading_until_now_returns_whole_batches_and_waits_for_none(
    new_ledgered: NewChannel,
) -> None:
    channel = new_ledgered(partitions=2)
    start = {0: Position(offset=0), 1: Position(offset=0)}
    with channel.writer() as first, channel.writer() as second:
        with first.batch("first"):
            first.write(readings(10))
            first.flush()
            with second.batch("second"):
                second.write(readings(10, 10))
            reader = channel.reader(until="now")
            some = ids(reader.read(3, timeout=None))
            first.write(readings(10, 20))
        # The end of the other batch while it reads changes nothing.
        assert sorted(some + ids(reader)) == [*range(10, 20)]
        assert (reader.finished, reader.lag()) == (True, {0: 0, 1: 0})
        # Another reader gets the rest only from the beginning of the batch that was open.
        assert reader.position() == start
        reader.close()
    with channel.reader(until="now", start=start) as reader:
        assert sorted(ids(reader)) == [*range(30)]
        assert reader.position() != start


@pytest.mark.long
def test_a_snapshot_has_whole_batches_of_interleaved_writers(new_ledgered: NewChannel) -> None:
    channel = new_ledgered(partitions=2)
    with channel.writer() as c, channel.writer(partition=0) as b, channel.writer() as d:
        with d.batch("d"):
            with c.batch("c"):
                c.write(readings(10))
                c.flush()
                with b.batch("b"):
                    b.write(readings(10, 10))
                c.write(readings(10, 20))
            number = {event.key: event.number for event in channel.commits().events}
            with channel.reader(snapshot=number["b"]) as reader:
                assert sorted(ids(reader)) == [*range(10, 20)]
            with channel.reader(snapshot=number["c"]) as reader:
                assert sorted(ids(reader)) == [*range(30)]
            d.write(readings(10, 30))
        # Runs have merged since.
        with channel.reader(snapshot=number["b"]) as reader:
            assert sorted(ids(reader)) == [*range(10, 20)]


@pytest.mark.long
def test_latest_and_times_are_those_of_committed_records(new_ledgered: NewChannel) -> None:
    channel = new_ledgered(partitions=1)
    with channel.writer() as writer:
        writer.write(readings(10))
    fail_after(channel, 10, 1000)
    with channel.reader(until=None, start="latest") as reader:
        assert reader.position() == {0: Position(offset=10)}
        reader.seek_to_time(datetime(2000, 1, 1, tzinfo=UTC))
        assert reader.position() == {0: Position(offset=0)}
        reader.seek_to_time(datetime(2999, 1, 1, tzinfo=UTC))
        assert reader.position() == {0: Position(offset=10)}
        with pytest.raises(OffsetOutOfRange):
            reader.seek({0: 11})


def test_a_snapshot_reads_the_channel_as_of_a_commit(new_ledgered: NewChannel) -> None:
    channel = new_ledgered(partitions=2)
    moments = []
    with channel.writer() as writer:
        for first in (0, 10, 20):
            writer.write(readings(10, first))
            writer.flush()
            until(lambda: datetime.now(UTC) > channel.commits().events[0].at)
            moments.append(datetime.now(UTC))
    numbers = [event.number for event in reversed(channel.commits().events)]
    assert len(numbers) == 3
    for count, (number, moment) in enumerate(zip(numbers, moments, strict=True), 1):
        for snapshot in (number, moment):
            with channel.reader(snapshot=snapshot) as reader:
                assert sorted(ids(reader)) == [*range(10 * count)]
                assert reader.finished
    with channel.reader(snapshot=datetime(2000, 1, 1, tzinfo=UTC)) as reader:
        assert ids(reader) == []
    with pytest.raises(Conflict, match="no commit 99"):
        channel.reader(snapshot=99)
    with pytest.raises(OptionError, match="snapshot and group exclude"):
        channel.reader(snapshot=1, group="g")
    with pytest.raises(OptionError, match="its own end"):
        channel.reader(snapshot=1, until=None)


@BOTH
def test_a_snapshot_of_which_retention_has_removed_records_is_refused(
    new_ledgered: NewChannel, topics: Topics
) -> None:
    channel = new_ledgered(partitions=2)
    moments = []
    with channel.writer(partition=0) as writer:
        for first in (0, 10, 20):
            writer.write(readings(10, first))
            writer.flush()
            until(lambda: datetime.now(UTC) > channel.commits().events[0].at)
            moments.append(datetime.now(UTC))
    first, second, third = [event.number for event in reversed(channel.commits().events)]
    with channel.reader(snapshot=first) as reader:
        end = reader.end_offsets()[0]
    topics.truncate(channel.connection("read").topic_name, 0, end)
    for snapshot in (first, second, third):
        for start in ("earliest", {1: 0}, moments[0]):
            with pytest.raises(OffsetOutOfRange, match="no longer has all records of this snap"):
                channel.reader(snapshot=snapshot, start=start)
    with channel.reader(snapshot=second, start={0: end}) as reader:
        assert ids(reader) == [*range(10, 20)]
    with channel.reader(snapshot=third, start=moments[1]) as reader:
        assert ids(reader) == [*range(20, 30)]
        with pytest.raises(OffsetOutOfRange, match="no longer has all records of this snapshot"):
            reader.seek_to_time(moments[0])
    with channel.reader(snapshot=third, start="latest") as reader:
        assert ids(reader) == []
    with channel.reader(snapshot=third, partitions=[1]) as reader:
        assert ids(reader) == []


def test_a_channel_without_commits_has_no_snapshots(new_channel: NewChannel) -> None:
    with pytest.raises(OptionError, match="at_least_once"):
        new_channel().reader(snapshot=1)


def test_committed_positions_are_acknowledged(new_ledgered: NewChannel) -> None:
    channel = new_ledgered(partitions=1)
    fail_after(channel, 10, 1000)
    with channel.writer() as writer:
        writer.write(readings(10))
        writer.flush()
        with channel.reader(group="g", until=None) as reader:
            assert ids(reader.read(10, timeout=None)) == [*range(10)]
            reader.commit()
            writer.wait_acknowledged(["g"], timeout_s=60)


@pytest.mark.long
def test_partitions_that_are_added_are_read(new_ledgered: NewChannel) -> None:
    channel = new_ledgered(partitions=1)
    with channel.reader(until=None) as reader:
        with channel.writer() as writer:
            writer.write(readings(10))
        assert len(reader.read(10, timeout=None)) == 10
        channel.update(partitions=2)
        with channel.writer(partition=1) as writer:
            writer.write(readings(10, 10))
        # The reader learns of the partition by itself soon; here at once.
        reader.discover_partitions()
        assert ids(reader.read(10, timeout=None)) == [*range(10, 20)]


def test_foreign_records_stay_invisible(
    new_ledgered: NewChannel, topics: Topics, ledger: LedgerView
) -> None:
    channel = new_ledgered(partitions=1)
    topics.produce(channel.status.topic.name, 0, [b"foreign"])
    with channel.writer() as writer:
        writer.write(readings(10))
        writer.flush()
        topics.produce(channel.status.topic.name, 0, [b"foreign"] * 3)
        writer.write(readings(10, 10))
    with channel.reader(until="now") as reader:
        assert ids(reader) == [*range(20)]
        assert reader.corrupt_messages == 0
    assert ledger.ids(channel) == [*range(20)]


@pytest.mark.long
def test_a_batch_that_is_open_when_a_bounded_read_of_a_group_begins_may_be_divided(
    new_ledgered: NewChannel,
) -> None:
    channel = new_ledgered(partitions=1)
    with channel.writer() as slow, channel.writer() as quick, slow.batch("b"):
        slow.write(readings(5))
        slow.flush()
        quick.write(readings(5, 5))
        quick.flush()
        first = channel.reader(group="g", until="now")
        assert first.read(1, timeout=0.2) == [], "it waits for the batch"
        slow.write(readings(5, 10))
        slow.flush()
    with first:
        assert ids(first) == [*range(10)]
        first.commit()
    with channel.reader(group="g", until="now") as following:
        assert ids(following) == [*range(10, 15)]


@pytest.mark.long
@pytest.mark.parametrize(
    "options", [{}, {"group": "g"}, {"until": "now"}, {"group": "g", "until": "now"}]
)
def test_a_new_reader_gets_the_rest_of_a_batch_whose_front_retention_has_removed(
    new_ledgered: NewChannel, topics: Topics, options: dict[str, Any]
) -> None:
    channel = new_ledgered(partitions=1)
    with channel.writer() as writer, writer.batch("b"):
        writer.write(readings(10))
    topics.truncate(channel.status.topic.name, 0, 4)
    with channel.reader(**options) as reader:
        assert ids(reader) == [*range(4, 10)]
