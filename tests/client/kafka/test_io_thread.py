"""The I/O thread of a consumer, and the readers of one process that share it."""

import signal
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from faults import at_call
from shared_kafka import SharedKafka
from sluiceway.api.endpoints import Position
from sluiceway.api.models import Connection
from sluiceway.errors import EndpointClosed, KafkaFailure, OptionError
from sluiceway.kafka import io_thread
from sluiceway.kafka.consumer import MessageStream
from sluiceway.kafka.io_thread import SHARED_CONSUMERS, ConsumerThread
from sluiceway.reader import ChannelReader
from sluiceway.runtime import threads
from sluiceway.writer import ChannelWriter
from topics import Topics, readings
from waiting import until

Shared = Callable[..., ChannelReader]


def written(topics: Topics, count: int, partitions: int = 1, first: int = 0) -> Connection:
    connection = topics.connect("avro", partitions=partitions)
    write(connection, count, first)
    return connection


def write(connection: Connection, count: int, first: int = 0, **wishes: Any) -> None:
    with ChannelWriter(connection, **wishes) as writer:
        writer.write(readings(count, first))


class Client:
    """A Kafka consumer; `then` is called with the messages of the next poll that has some.

    `fetched_bytes` is the memory of all messages by partition. `earlier_offset` is the one that
    Kafka gets in the next assignment, as from a fetch that a seek has overtaken.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._consumer = Consumer(*arguments, **options)
        self.is_closed = False
        self.fetched_bytes: Counter[int | None] = Counter()
        self.then: Callable[[list[Message]], object] | None = None
        self.earlier_offset: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def consume(self, limit: int, wait_s: float) -> list[Message]:
        messages: list[Message] = self._consumer.consume(limit, wait_s)
        for message in messages:
            self.fetched_bytes[message.partition()] += len(message) + 300
        if self.then is not None and any(message.error() is None for message in messages):
            then, self.then = self.then, None
            then(messages)
        return messages

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        offset, self.earlier_offset = self.earlier_offset, None
        if offset is not None:
            places = [TopicPartition(place.topic, place.partition, offset) for place in places]
        self._consumer.incremental_assign(places)

    def close(self) -> None:
        self._consumer.close()
        self.is_closed = True


@pytest.fixture(autouse=True)
def clients(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    """The Kafka consumers of shared connections, in the order of their creation."""
    created: list[Client] = []

    def create(*arguments: Any, **options: Any) -> Client:
        created.append(Client(*arguments, **options))
        return created[-1]

    # Seeks and errors come at a certain point of a poll, which no broker can arrange.
    monkeypatch.setattr(io_thread, "Consumer", create)
    return created


@pytest.fixture
def own_properties() -> Mapping[str, str]:
    """Kafka properties of this test's readers, so that they share connections with no others."""
    return {"client.id": uuid.uuid4().hex}


@pytest.fixture
def shared(own_properties: Mapping[str, str]) -> Shared:
    """Open a reader with a shared connection."""

    def shared(
        connection: Connection, config: Mapping[str, object] | None = None, **wishes: Any
    ) -> ChannelReader:
        config = {**own_properties, **(config or {})}
        return ChannelReader(connection, share_connection=True, config=config, **wishes)

    return shared


def test_readers_of_several_topics_share_one_consumer_until_the_last_closes(
    topics: Topics, shared: Shared, clients: list[Client]
) -> None:
    several = [written(topics, count, partitions=2) for count in (30, 32, 34)]
    readers = [shared(topic, until="now", partitions=[p]) for topic in several for p in (0, 1)]
    assert [len(list(reader)) for reader in readers] == [15, 15, 16, 16, 17, 17]
    assert all(reader.finished for reader in readers)
    for reader in readers[1:]:
        reader.close()
        reader.close()
    readers[0].seek({0: 10})
    assert len(list(readers[0])) == 5
    (client,) = clients
    assert not client.is_closed
    readers[0].close()
    until(lambda: client.is_closed)
    with pytest.raises(EndpointClosed):
        readers[0].read(1)


def test_a_second_reader_of_a_partition_has_another_consumer(
    topics: Topics, shared: Shared, clients: list[Client]
) -> None:
    connection = written(topics, 50)
    with (
        shared(connection, until="now") as one,
        shared(connection, until="now") as two,
        shared(written(topics, 5), until="now") as three,
    ):
        assert len(clients) == 2
        assert list(two) == list(one) == readings(50)
        assert list(three) == readings(5)
        # Its partition is read to the end, and no longer assigned.
        two.seek({0: 40})
        one.seek({0: 45})
        assert (list(one), list(two)) == (readings(5, 45), readings(10, 40))


def test_different_properties_need_another_consumer(
    topics: Topics, shared: Shared, clients: list[Client]
) -> None:
    connection = written(topics, 5, partitions=2)
    with (
        shared(connection, until="now", partitions=[0]) as one,
        shared(connection, until="now", partitions=[1], config={"fetch.min.bytes": 1}) as two,
    ):
        assert len(clients) == 2
        assert len(list(one)) + len(list(two)) == 5
    with pytest.raises(OptionError, match="bites"):
        shared(connection, until="now", config={"fetch.min.bites": 1})


def test_an_idle_readers_partitions_are_paused_and_read_completely_later(
    topics: Topics, shared: Shared, clients: list[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, size in (("_QUEUE_BYTES", 1_000_000), ("_TOTAL_BYTES", 2_000_000)):
        # The limits are no options, and 64 MB take long.
        monkeypatch.setattr(io_thread, limit, size)
    connection = topics.connect("avro", partitions=2)
    write(connection, 200_000, partitioner=lambda record, _: record["id"] % 2)
    with (
        shared(connection, until="now", partitions=[0]) as still,
        shared(connection, until="now", partitions=[1]) as busy,
    ):
        (client,) = clients
        assert [still.read(1, timeout=None)[0]["id"] for _ in range(3)] == [0, 2, 4]
        ids = [id_ for batch in busy.batches() for id_ in batch["id"].to_pylist()]
        assert ids == list(range(1, 200_000, 2))
        # And the messages that the reader has taken, and of the poll that exceeded the limit.
        assert client.fetched_bytes[0] < 2_000_000 + 2 * 8192 * 400
        rest = [id_ for batch in still.batches() for id_ in batch["id"].to_pylist()]
        assert rest == list(range(6, 200_000, 2))


@pytest.mark.long
def test_many_waiting_readers_are_served_by_one_consumer(
    topics: Topics, shared: Shared, clients: list[Client]
) -> None:
    connection = topics.connect("avro", partitions=8)
    readers = [shared(connection, until=None, partitions=[p]) for p in range(8)]
    assert len(clients) == 1
    with ThreadPoolExecutor(8) as threads, ChannelWriter(connection) as writer:
        waiting = [threads.submit(reader.read, 3, None) for reader in readers]
        for round_ in range(3):
            writer.write(readings(8, 8 * round_))
            writer.flush()
        records = [record for result in waiting for record in result.result(30)]
    assert sorted(record["id"] for record in records) == list(range(24))
    for reader in readers:
        reader.close()


def test_a_reader_moves_between_threads_while_others_close(topics: Topics, shared: Shared) -> None:
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


def test_messages_polled_during_a_seek_are_dropped(
    topics: Topics, shared: Shared, clients: list[Client]
) -> None:
    connection = written(topics, 100)
    with shared(connection, until="now") as reader:
        reader.seek({0: 5})
        clients[0].then = lambda _: reader.seek({0: 60})
        until(lambda: clients[0].then is None)
        assert reader.read(100, timeout=None) == readings(40, 60)


def test_a_late_refusal_of_an_earlier_offset_is_assigned_again(
    topics: Topics, shared: Shared, clients: list[Client]
) -> None:
    connection = written(topics, 20)
    with shared(connection, until=None) as reader:
        assert reader.read(1, timeout=None) == readings(1)
        clients[0].earlier_offset = 999
        reader.seek({0: 5})
        assert reader.read(15, timeout=None) == readings(15, 5)
        assert not clients[0].earlier_offset
        assert reader.position() == {0: Position(offset=20)}


def test_refused_partitions_are_assigned_again_unless_they_do_not_have_the_offset(
    topics: Topics,
) -> None:
    connection = topics.connect("avro", partitions=3)
    for partition in range(3):
        write(connection, 20, partition=partition)
    topics.truncate(connection.topic_name, 1, 10)
    with closing(MessageStream(connection, timeout_s=30)) as stream:
        stream.assign({0: 0, 1: 9, 2: 21})
        refused: set[int] = set()

        def are_refused() -> bool:
            refused.update(stream.poll(100, 1).refused)
            return refused == {1, 2}

        until(are_refused)
        errors = stream.reassign_refused({0: 15, 1: 9, 2: 21})
        ranges = {p: (error.offset, error.begin, error.end) for p, error in errors.items()}
        assert ranges == {1: (9, 10, 20), 2: (21, 0, 20)}
        assert stream.reassign_refused({1: 10, 2: 20}) == {}
        fetched: dict[int, list[int]] = {0: [], 1: []}

        def are_fetched() -> bool:
            for chunk in stream.poll(100, 1).chunks:
                fetched[chunk.partition].extend(chunk.offsets)
            return sum(map(len, fetched.values())) >= 15

        until(are_fetched)
        assert fetched == {0: [*range(15, 20)], 1: [*range(10, 20)]}


def test_a_stream_keeps_its_messages_when_it_moves_to_another_consumer(
    topics: Topics, own_properties: Mapping[str, str], clients: list[Client]
) -> None:
    connection = topics.connect("avro", partitions=2)
    for partition in (0, 1):
        write(connection, 10, partition=partition)
    streams = [
        MessageStream(connection, own_properties, timeout_s=30, consumers=SHARED_CONSUMERS)
        for _ in "12"
    ]
    with closing(streams[0]) as one, closing(streams[1]) as two:
        one.assign({0: 0})
        until(lambda: clients[0].fetched_bytes[0])
        two.assign({1: 5})
        # The first consumer reads the partition for the second stream.
        one.add({1: 0})
        offsets: dict[int, list[int]] = {0: [], 1: []}

        def are_read() -> bool:
            for chunk in one.poll(100, 1).chunks:
                offsets[chunk.partition].extend(chunk.offsets)
            return all(map(len, offsets.values()))

        until(are_read)
        assert offsets == {0: [*range(10)], 1: [*range(10)]}
        assert len(clients) == 2
        until(lambda: [[*chunk.offsets] for chunk in two.poll(100, 1).chunks] == [[*range(5, 10)]])


def test_an_interrupted_change_is_not_made_after_a_later_one(
    topics: Topics, clients: list[Client]
) -> None:
    connection = written(topics, 100)
    begun, proceed = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        begun.set()
        assert proceed.wait(60)

    def interrupt(*_: object) -> None:
        main = threading.main_thread().ident
        until(lambda: sys._current_frames()[main].f_code.co_filename == threads.__file__)
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    with closing(MessageStream(connection, timeout_s=30)) as stream, ThreadPoolExecutor(2) as pool:
        stream.assign({})
        with at_call(ConsumerThread, "drop", wait):
            dropping = pool.submit(stream.drop, [0])
            assert begun.wait(60)
            pool.submit(interrupt)
            try:
                with pytest.raises(KeyboardInterrupt):
                    stream.assign({0: 5})
            finally:
                signal.signal(signal.SIGUSR1, before)
            pool.submit(proceed.set)
            stream.assign({0: 60})
            dropping.result(60)
        assert until(lambda: stream.poll(100, 1).chunks)[0].offsets[0] == 60
        assert len(clients) == 1


@pytest.mark.parametrize(
    "error", [KafkaException(KafkaError(KafkaError._FATAL)), RuntimeError("_FATAL")]
)
def test_a_failed_poll_is_raised_and_loses_no_messages(
    topics: Topics, shared: Shared, clients: list[Client], error: Exception
) -> None:
    def fail(_: list[Message]) -> None:
        raise error

    connection = written(topics, 20)
    with shared(connection, until=None) as reader:
        assert reader.read(20, timeout=None) == readings(20)
        clients[0].then = fail
        write(connection, 5, 20)
        until(lambda: clients[0].then is None)
        # The reader sees the failure only after the next poll.
        fetched_bytes = clients[0].fetched_bytes[0]
        until(lambda: clients[0].fetched_bytes[0] > fetched_bytes)
        failures: list[KafkaFailure] = []
        records: list[dict[str, Any]] = []

        def are_read() -> bool:
            try:
                records.extend(reader.read(5 - len(records) or 1, timeout=0.1))
            except KafkaFailure as failure:
                failures.append(failure)
            return len(records) == 5 and len(failures) == 1

        until(are_read)
        assert records == readings(5, 20)
        assert "_FATAL" in str(failures[0])


@pytest.mark.parametrize("name", ["incremental_assign", "incremental_unassign"])
def test_a_failed_change_is_raised_and_made_again(
    topics: Topics, clients: list[Client], name: str
) -> None:
    connection = topics.connect("avro", partitions=2)
    for partition in (0, 1):
        write(connection, 10, partition=partition)
    with closing(MessageStream(connection, timeout_s=30)) as stream:
        stream.assign({0: 0, 1: 0})
        until(lambda: stream.poll(100, 1).chunks)
        (client,) = clients
        change = getattr(client, name)

        def fail(_: list[TopicPartition]) -> None:
            setattr(client, name, change)
            raise KafkaException(KafkaError(KafkaError._STATE))

        setattr(client, name, fail)
        stream.assign({1: 5})
        with pytest.raises(KafkaFailure, match="_STATE"):
            until(lambda: stream.poll(100, 1).chunks)
        places: list[tuple[int, int]] = []

        def are_read() -> bool:
            for chunk in stream.poll(100, 1).chunks:
                places.extend((chunk.partition, offset) for offset in chunk.offsets)
            return len(places) >= 5

        until(are_read)
        assert places == [(1, offset) for offset in range(5, 10)]


def test_a_stream_that_stands_still_holds_few_messages(
    topics: Topics, clients: list[Client]
) -> None:
    connection = topics.connect(partitions=1)
    topics.produce(connection.topic_name, 0, [bytes(900_000)] * 60)
    with (
        closing(MessageStream(connection, timeout_s=30)) as still,
        closing(MessageStream(connection, timeout_s=30)) as other,
    ):

        def all_of(stream: MessageStream) -> int:
            return sum(1 for _ in iter(lambda: stream.poll(100, 1).at_end, {0}))

        still.assign({0: 0})
        until(lambda: clients[0].fetched_bytes[0] > 4_000_000)
        other.assign({0: 0})
        assert all_of(other)
        assert clients[0].fetched_bytes[0] < 8_000_000
        assert all_of(still)
        assert clients[0].fetched_bytes[0] > 50_000_000


def test_an_error_without_a_partition_reaches_every_reader_once(
    topics: Topics, shared: Shared, clients: list[Client]
) -> None:
    one, two = written(topics, 20), written(topics, 20)

    def fail(got: list[Message]) -> None:
        got.append(Message(error=KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED)))

    with shared(one, until=None) as first, shared(two, until=None) as second:
        clients[0].then = fail
        for reader in (first, second):
            records, reported = [], []
            deadline_s = time.monotonic() + 60
            while len(records) < 20 or not reported:
                assert time.monotonic() < deadline_s
                try:
                    records += reader.read(20 - len(records) or 1, timeout=0.2)
                except KafkaFailure as error:
                    reported.append(error)
            assert records == readings(20)
            assert len(reported) == 1
            assert "CLUSTER_AUTHORIZATION_FAILED" in str(reported[0])


def test_an_existing_consumer_knows_new_partitions(
    topics: Topics, shared: Shared, clients: list[Client]
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
            assert len(new.read(10, timeout=None)) == 10
            assert len(clients) == 1


def test_the_buffer_of_an_abandoned_reader_is_freed(
    topics: Topics, shared: Shared, clients: list[Client]
) -> None:
    connection = written(topics, 10, partitions=2)
    keeper = shared(connection, until=None, partitions=[1])
    forgotten = shared(connection, until=None, partitions=[0])
    del forgotten
    with shared(connection, until=None, partitions=[0]) as reader, keeper:
        assert len(reader.read(5, timeout=None)) == 5
        assert len(clients) == 1


def test_a_recreated_topic_has_another_consumer(
    topics: Topics,
    kafka: SharedKafka,
    shared: Shared,
    own_properties: Mapping[str, str],
    clients: list[Client],
) -> None:
    connection = written(topics, 10)
    with shared(connection, until=None) as old:
        assert len(old.read(10, timeout=None)) == 10
        topics.delete(connection.topic_name)
        # Until then the broker may append to the old log.
        until(lambda: not [*Path(kafka.log_dir).glob(f"{connection.topic_name}-?")])
        anew = replace(connection, topic_id=topics.create(connection.topic_name, 1))
        # The writer renews the shared description of the topic.
        write(anew, 7, config=own_properties)
        with shared(anew, until="now") as new:
            assert list(new) == readings(7)
            assert len(clients) == 2
