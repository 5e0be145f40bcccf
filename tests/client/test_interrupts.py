"""Interrupts, as by Ctrl-C in a notebook: no record is lost without an error."""

import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Message

from sluiceway.errors import DeliveryFailed, EndpointClosed, OptionError
from sluiceway.kafka.accumulator import Messages
from sluiceway.kafka.consumer import OwnStream
from sluiceway.kafka.producer import IdempotentProducer
from sluiceway.reader import ChannelReader
from sluiceway.records.row_buffer import RowBuffer
from sluiceway.rest.models import Connection
from sluiceway.writer import ChannelWriter
from topics import Topics, readings
from waiting import until


def written(topics: Topics, format_: str, count: int) -> Connection:
    connection = topics.connect(format_, partitions=1)
    with ChannelWriter(connection, batch_records=10) as writer:
        writer.write(readings(count))
    return connection


def interrupt_polls(monkeypatch: pytest.MonkeyPatch, when: Callable[[list[Message]], bool]) -> None:
    """Interrupt the first poll with a result for which `when` is true."""
    poll, interrupted = OwnStream._poll, itertools.count()

    def poll_then(stream: OwnStream, limit: int, wait_s: float) -> Any:
        polled = poll(stream, limit, wait_s)
        if when([each for each in polled if each.error() is None]) and not next(interrupted):
            raise KeyboardInterrupt
        return polled

    monkeypatch.setattr(OwnStream, "_poll", poll_then)


def test_messages_that_an_interrupted_poll_has_taken_are_read_again(
    topics: Topics, each_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = written(topics, each_format, 50)
    with ChannelReader(connection, until="now") as reader:
        assert reader.read(10, timeout=None) == readings(10)
        reader.seek({0: reader.position()[0]})
        interrupt_polls(monkeypatch, bool)
        with pytest.raises(KeyboardInterrupt):
            next(iter(reader))
        assert list(reader) == readings(40, 10)


def test_records_of_an_interrupted_read_are_read_again(
    topics: Topics, each_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = written(topics, each_format, 25)
    with ChannelReader(connection, until=None) as reader:
        assert reader.read(5, timeout=None) == readings(5)
        position = reader.position()
        interrupt_polls(monkeypatch, lambda messages: not messages)
        with pytest.raises(KeyboardInterrupt):
            reader.read(100, timeout=None)
        assert reader.position() == position
        assert reader.read(20, timeout=None) == readings(20, 5)


def interrupting(error: BaseException) -> Callable[..., Any]:
    def interrupted(*_: object) -> Any:
        raise error

    return interrupted


def write_singly(writer: ChannelWriter, count: int) -> None:
    for record in readings(count):
        writer.write(record)


def test_a_writer_interrupted_while_it_sends_earlier_records_fails(
    topics: Topics, each_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = topics.connect(each_format, partitions=1)
    writer = ChannelWriter(connection)
    # The thread that sends single records waits for the turn.
    with writer.sender.turn:
        write_singly(writer, 3)
        with monkeypatch.context() as patched:
            patched.setattr(writer.sender._accumulator, "add", interrupting(KeyboardInterrupt()))
            with pytest.raises(KeyboardInterrupt):
                writer.flush()
    with pytest.raises(EndpointClosed, match="KeyboardInterrupt interrupted a writer"):
        writer.close()


def test_single_records_are_sent_after_an_interrupt_that_kept_their_thread_from_starting(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = topics.connect("avro", partitions=1)
    with ChannelWriter(connection) as writer:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", interrupting(KeyboardInterrupt()))
            with pytest.raises(KeyboardInterrupt):
                writer.write(readings(1)[0])
        writer.write(readings(1, 1)[0])
        until(lambda: writer.end_offsets() == {0: 2})


def test_a_writer_interrupted_between_encoding_and_sending_fails(
    topics: Topics, each_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = topics.connect(each_format, partitions=1)
    writer = ChannelWriter(connection, batch_records=10)
    table = pa.Table.from_pylist(readings(15), schema=writer.schema.arrow)
    with monkeypatch.context() as patched:
        patched.setattr(writer.sender.producer, "send", interrupting(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            writer.write(table)
    with pytest.raises(EndpointClosed, match="KeyboardInterrupt interrupted a writer"):
        writer.flush()
    with pytest.raises(EndpointClosed, match="this writer failed"):
        writer.write(table)
    writer.close()


def test_a_writer_interrupted_when_it_begins_to_close_takes_no_more_records(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ChannelWriter(topics.connect("avro", partitions=1))
    close_rows = writer.sender.close_rows

    def close_then() -> None:
        close_rows()
        raise KeyboardInterrupt

    monkeypatch.setattr(writer.sender, "close_rows", close_then)
    with pytest.raises(KeyboardInterrupt):
        writer.close()
    with pytest.raises(EndpointClosed):
        writer.write(readings(1)[0])


def test_a_repeated_flush_raises_the_failure_whose_report_an_interrupt_lost(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The gateway had a larger message limit than the topic.
    connection = topics.connect("avro", partitions=1, config={"max.message.bytes": "2000"})
    monkeypatch.setattr(IdempotentProducer, "_on_failure", interrupting(KeyboardInterrupt()))
    writer = ChannelWriter(connection)
    noise = random.Random(1).randbytes(4000).hex()  # noqa: S311
    writer.write({"id": 1, "station": noise, "celsius": 0.0})
    with pytest.raises(KeyboardInterrupt):
        writer.flush()
    with pytest.raises(DeliveryFailed, match="an interrupt lost the delivery report") as raised:
        writer.flush()
    assert (raised.value.written_records, raised.value.failed_records) == (0, 1)
    writer.close()


def test_an_unexpected_error_in_the_background_is_raised_by_the_next_call(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ChannelWriter(topics.connect("avro", partitions=1))
    with monkeypatch.context() as patched:
        patched.setattr(RowBuffer, "drain", interrupting(MemoryError()))
        with writer.sender.turn:
            write_singly(writer, 3)
            with pytest.raises(MemoryError):
                writer.sender._send_waiting()
    with pytest.raises(EndpointClosed, match="MemoryError interrupted a writer"):
        writer.close()


def test_rows_prepared_by_another_writer_are_refused_by_their_own_call(topics: Topics) -> None:
    connection = topics.connect("avro", partitions=2)
    with (
        ChannelWriter(connection) as one,
        ChannelWriter(connection, partitioner=lambda record, _: int(record["id"])) as other,
    ):
        with pytest.raises(OptionError, match="the partitioner returned 5 for record 1"):
            other.sender.write_prepared(one.sender.prepare([*readings(1), *readings(1, 5)]))
        assert other.sender.write_prepared(one.sender.prepare(readings(2))) == 2
    with ChannelReader(connection, until="now") as reader:
        assert sorted(record["id"] for record in reader) == [0, 1]


def test_without_a_new_thread_single_records_are_sent_in_turn(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = topics.connect("avro", partitions=1)
    with ChannelWriter(connection) as writer:
        sender, depths = writer.sender, []
        add = sender._accumulator.add

        def add_in_turn(batches: Any) -> Messages:
            depths.append(sender.turn._depth)
            return add(batches)

        monkeypatch.setattr(threading.Thread, "start", interrupting(RuntimeError("no threads")))
        monkeypatch.setattr(sender._accumulator, "add", add_in_turn)
        writer.write(readings(1)[0])
        assert depths == [1]
