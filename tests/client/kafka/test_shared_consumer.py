"""Shared consumer: readers of one process with one Kafka consumer."""

import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka.admin import AdminClient, NewPartitions

from shared_kafka import SharedKafka
from sluiceway.errors import EndpointClosed, KafkaFailure, OptionError
from sluiceway.kafka import shared_consumer
from sluiceway.kafka.shared_consumer import SharedConsumer, SharedPartitionBuffer
from sluiceway.kafka.shared_stream import SharedStream
from sluiceway.reader import ChannelReader
from sluiceway.rest.models import Connection
from sluiceway.writer import ChannelWriter
from topics import Topics, readings
from waiting import until

shared = partial(ChannelReader, share_connection=True)


def written(topics: Topics, count: int, partitions: int = 1, first: int = 0) -> Connection:
    connection = topics.connect("avro", partitions=partitions)
    write(connection, count, first)
    return connection


def write(connection: Connection, count: int, first: int = 0, **wishes: Any) -> None:
    with ChannelWriter(connection, **wishes) as writer:
        writer.write(readings(count, first))


def stream_of(reader: ChannelReader) -> SharedStream:
    stream = reader._stream
    assert isinstance(stream, SharedStream)
    return stream


def consumer_of(reader: ChannelReader) -> SharedConsumer:
    return stream_of(reader)._consumer()


def buffer_of(reader: ChannelReader) -> SharedPartitionBuffer:
    return stream_of(reader)._buffer


class Between:
    """A consumer; `then` is called with the result of the next poll."""

    def __init__(self, consumer: Consumer, then: Callable[[list[Message]], None]) -> None:
        self._consumer = consumer
        self._then: Callable[[list[Message]], None] | None = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def consume(self, limit: int, wait_s: float) -> list[Message]:
        got: list[Message] = self._consumer.consume(limit, wait_s)
        if got and self._then is not None:
            then, self._then = self._then, None
            then(got)
        return got


def test_readers_of_several_topics_share_one_consumer_until_the_last_closes(
    topics: Topics,
) -> None:
    several = [written(topics, count, partitions=2) for count in (30, 32, 34)]
    readers = [shared(each, until="now", partitions=[p]) for each in several for p in (0, 1)]
    consumer = consumer_of(readers[0])
    assert {consumer_of(each) for each in readers} == {consumer}
    found = [len(list(each)) for each in readers]
    assert found == [15, 15, 16, 16, 17, 17]
    assert all(each.finished for each in readers)
    for each in readers[1:]:
        each.close()
        each.close()
    readers[0].seek({0: 10})
    assert len(list(readers[0])) == 5
    consumer = consumer._consumer
    readers[0].close()
    with pytest.raises(RuntimeError, match="closed"):
        consumer.consume(1, 0)
    with pytest.raises(EndpointClosed):
        readers[0].read(1)


def test_a_second_reader_of_a_partition_has_another_consumer(topics: Topics) -> None:
    connection = written(topics, 50)
    with (
        shared(connection, until="now") as one,
        shared(connection, until="now") as two,
        shared(written(topics, 5), until="now") as three,
    ):
        assert consumer_of(three) is consumer_of(one) is not consumer_of(two)
        assert list(two) == list(one) == readings(50)
        assert list(three) == readings(5)
        # Its partition is read to the end, and no longer assigned.
        two.seek({0: 40})
        one.seek({0: 45})
        assert (list(one), list(two)) == (readings(5, 45), readings(10, 40))


def test_different_properties_need_another_consumer(topics: Topics) -> None:
    connection = written(topics, 5, partitions=2)
    with (
        shared(connection, until="now", partitions=[0]) as one,
        shared(connection, until="now", partitions=[1], config={"fetch.min.bytes": 1}) as two,
    ):
        assert consumer_of(one) is not consumer_of(two)
        assert len(list(one)) + len(list(two)) == 5
    with pytest.raises(OptionError, match="bites"):
        shared(connection, until="now", config={"fetch.min.bites": 1})


def test_an_idle_readers_partitions_are_paused_and_read_completely_later(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_consumer, "_TOTAL_BYTES", 2_000_000)
    monkeypatch.setattr(shared_consumer, "_BUFFER_BYTES", 500_000)
    connection = topics.connect("avro", partitions=2)
    write(connection, 200_000, partitioner=lambda record, _: record["id"] % 2)
    with (
        shared(connection, until="now", partitions=[0]) as still,
        shared(connection, until="now", partitions=[1]) as busy,
    ):
        assert consumer_of(still) is consumer_of(busy)
        assert [still.read(1, timeout=None)[0]["id"] for _ in range(3)] == [0, 2, 4]
        most = 0
        ids = []
        for batch in busy.batches():
            ids += batch["id"].to_pylist()
            most = max(most, buffer_of(still).size)
        assert ids == list(range(1, 200_000, 2))
        assert buffer_of(still).paused
        # Messages of the poll that exceeded the limit are kept as well.
        assert most < 2_000_000 + 8192 * 400
        rest = [id_ for batch in still.batches() for id_ in batch["id"].to_pylist()]
        assert rest == list(range(6, 200_000, 2))
        assert not buffer_of(still).paused


def test_a_waiting_reader_polls_for_all_and_passes_polling_on(
    topics: Topics,
) -> None:
    connection = topics.connect("avro", partitions=8)
    readers = [shared(connection, until=None, partitions=[p]) for p in range(8)]
    assert len({consumer_of(each) for each in readers}) == 1
    with ThreadPoolExecutor(8) as threads, ChannelWriter(connection) as writer:
        waiting = [threads.submit(each.read, 3, None) for each in readers]
        for round_ in range(3):
            writer.write(readings(8, 8 * round_))
            writer.flush()
        found = [each.result(30) for each in waiting]
    assert sorted(each["id"] for three in found for each in three) == list(range(24))
    for each in readers:
        each.close()


def test_a_served_reader_passes_polling_on_at_once(topics: Topics) -> None:
    connection = topics.connect("avro", partitions=2)
    streams = [stream_of(shared(connection, until=None, partitions=[p])) for p in (0, 1)]
    for each in streams:
        # The ends of both, which are events.
        until(lambda each=each: each.poll(1, 1).ends)  # type: ignore[misc]
    consumer = streams[0]._consumer()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(streams[0].poll, 1, 60)
        until(lambda: consumer._polling)
        second = threads.submit(streams[1].poll, 1, 60)
        until(lambda: consumer._waiting)
        write(connection, 1, partition=0)
        assert len(first.result(60).messages) == 1
        write(connection, 1, partition=1)
        assert len(second.result(60).messages) == 1
    for each in streams:
        each.close()


def test_a_reader_moves_between_threads_while_others_close(
    topics: Topics,
) -> None:
    connection = topics.connect("avro", partitions=2)
    with shared(connection, until=None, partitions=[0]) as reader, ThreadPoolExecutor(2) as threads:
        for number in range(3):
            other = shared(connection, until=None, partitions=[1], start="latest")
            waiting = threads.submit(reader.read, 1, None)
            assert other.read(1, timeout=0.05) == []
            other.close()
            write(connection, 1, partition=1)
            write(connection, 1, number, partition=0)
            assert waiting.result(30) == readings(1, number)


def test_messages_buffered_before_a_seek_are_dropped(topics: Topics) -> None:
    connection = written(topics, 100)
    idle = topics.connect("avro", partitions=1)
    with shared(idle, until=None) as other, shared(connection, until="now") as reader:
        consumer = consumer_of(reader)
        assert other.read(1, timeout=0.05) == []
        reader.seek({0: 5})
        moves = Between(consumer._consumer, lambda _: reader.seek({0: 60}))
        consumer._consumer = moves  # type: ignore[assignment]
        until(lambda: other.read(1, timeout=0.01) or reader.position()[0].offset == 60)
        assert reader.read(100, timeout=None) == readings(40, 60)


def test_an_interrupt_loses_no_messages_of_any_reader(topics: Topics) -> None:
    one, two = written(topics, 20), written(topics, 20)

    def interrupt(_: list[Message]) -> None:
        raise KeyboardInterrupt

    with shared(one, until="now") as first, shared(two, until="now") as second:
        assert first.read(5, timeout=None) == readings(5)
        consumer = consumer_of(first)
        for reader in (first, second):
            reader.seek({0: 5})
        consumer._consumer = Between(consumer._consumer, interrupt)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            second.read(1, timeout=None)
        assert list(first) == list(second) == readings(15, 5)


def test_an_interrupt_while_a_poll_takes_the_lock_back_stops_no_reader(topics: Topics) -> None:
    one, two = written(topics, 20), written(topics, 20)
    held, main = threading.Event(), threading.get_ident()

    def interrupt(consumer: SharedConsumer) -> None:
        with consumer._lock:
            held.set()
            until(lambda: sys._current_frames()[main].f_code.co_name == "_hold")
            signal.pthread_kill(main, signal.SIGUSR1)

    with (
        ThreadPoolExecutor(1) as pool,
        shared(one, until="now") as first,
        shared(two, until="now") as second,
    ):
        assert first.read(5, timeout=None) == readings(5)
        consumer = consumer_of(first)
        for reader in (first, second):
            reader.seek({0: 5})

        def then(_: list[Message]) -> None:
            pool.submit(interrupt, consumer)
            assert held.wait(60)

        consumer._consumer = Between(consumer._consumer, then)  # type: ignore[assignment]
        before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                second.read(1, timeout=None)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert list(first) == list(second) == readings(15, 5)


@pytest.mark.parametrize("call", ["incremental_assign", "incremental_unassign"])
@pytest.mark.parametrize("done", [True, False])
def test_an_interrupted_seek_may_be_repeated(
    topics: Topics, monkeypatch: pytest.MonkeyPatch, call: str, done: bool
) -> None:
    one, two = written(topics, 20), written(topics, 20)
    with shared(one, until="now") as first, shared(two, until="now") as second:
        assert second.read(5, timeout=None) == readings(5)
        consumer = consumer_of(first)
        original = getattr(consumer._consumer, call)

        def interrupt(places: Any) -> None:
            if done:
                original(places)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            interrupted = Between(consumer._consumer, lambda _: None)
            setattr(interrupted, call, interrupt)
            patched.setattr(consumer, "_consumer", interrupted)
            with pytest.raises(KeyboardInterrupt):
                first.seek({0: 10})
        first.seek({0: 10})
        assert list(first) == readings(10, 10)
        assert list(second) == readings(15, 5)


def test_an_error_without_a_partition_reaches_every_reader_once(
    topics: Topics,
) -> None:
    one, two = written(topics, 20), written(topics, 20)

    def fail(got: list[Message]) -> None:
        got.append(Message(error=KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED)))

    with shared(one, until=None) as first, shared(two, until=None) as second:
        consumer = consumer_of(first)
        consumer._consumer = Between(consumer._consumer, fail)  # type: ignore[assignment]
        for reader in (first, second):
            found, reported = [], []
            deadline_s = time.monotonic() + 60
            while len(found) < 20 or not reported:
                assert time.monotonic() < deadline_s
                try:
                    found += reader.read(20 - len(found) or 1, timeout=0.2)
                except KafkaFailure as error:
                    reported.append(error)
            assert found == readings(20)
            assert len(reported) == 1
            assert "CLUSTER_AUTHORIZATION_FAILED" in str(reported[0])


def test_an_existing_consumer_knows_new_partitions(
    topics: Topics,
) -> None:
    connection = written(topics, 10)
    with shared(connection, until="now") as old:
        assert list(old) == readings(10)
        admin = AdminClient({"bootstrap.servers": topics.bootstrap_servers})
        grown = admin.create_partitions([NewPartitions(connection.topic_name, 3)])
        grown[connection.topic_name].result(30)
        name = connection.topic_name
        until(lambda: len(admin.list_topics(name).topics[name].partitions) == 3)
        write(replace(connection, partitions=3), 30)
        with shared(replace(connection, partitions=3), until="now", partitions=[2]) as new:
            assert consumer_of(new) is consumer_of(old)
            assert len(new.read(10, timeout=None)) == 10


def test_the_buffer_of_an_abandoned_reader_is_freed(topics: Topics) -> None:
    connection = written(topics, 10, partitions=2)
    keeper = shared(connection, until=None, partitions=[1])
    forgotten = shared(connection, until=None, partitions=[0])
    consumer = consumer_of(keeper)
    del forgotten
    with shared(connection, until=None, partitions=[0]) as reader, keeper:
        assert consumer_of(reader) is consumer
        assert len(reader.read(5, timeout=None)) == 5


def test_a_recreated_topic_has_another_consumer(topics: Topics, kafka: SharedKafka) -> None:
    connection = written(topics, 10)
    with shared(connection, until=None) as old:
        assert len(old.read(10, timeout=None)) == 10
        topics.delete(connection.topic_name)
        # Until then the broker may append to the old log.
        until(lambda: not [*Path(kafka.log_dir).glob(f"{connection.topic_name}-?")])
        anew = replace(connection, topic_id=topics.create(connection.topic_name, 1))
        write(anew, 7)
        with shared(anew, until="now") as new:
            assert consumer_of(new) is not consumer_of(old)
            assert list(new) == readings(7)
