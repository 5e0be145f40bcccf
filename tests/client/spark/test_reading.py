"""Batch reads without a Spark session: plan, pickle, read."""

import pickle
from contextlib import closing

import pytest
from confluent_kafka import Producer
from pyspark.sql.datasource import InputPartition

from relay import Relay
from sluiceway import Gateway
from sluiceway.api.models import Connection
from sluiceway.channel import Channel
from sluiceway.errors import (
    CorruptMessage,
    KafkaUnavailable,
    OffsetOutOfRange,
    OptionError,
    TopicGone,
)
from sluiceway.kafka.consumer import FetchedMessages, MessageStream
from sluiceway.schema import Schema
from sluiceway.spark.batch_reader import ChannelDataReader, InputSplit, RangeFetcher
from sluiceway.spark.offsets import OffsetRange
from sluiceway.spark.options import ReadOptions
from sluiceway.spark.types import struct_of
from sluiceway.spark.worker import RefreshableConnection
from spark_tasks import SCHEMA, fill, measure, produce
from topics import Topics, messages_of


@pytest.fixture
def channel(gateway: Gateway, name: str) -> Channel:
    return gateway.channel(name, SCHEMA, partitions=2)


def reader(connection: Connection, **options: str) -> ChannelDataReader:
    parsed = ReadOptions.parse({"path": connection.channel_name} | options)
    columns = struct_of(Schema.parse(connection.schema_definition).arrow)
    made = ChannelDataReader(RefreshableConnection(connection, "read"), parsed, columns)
    copy: ChannelDataReader = pickle.loads(pickle.dumps(made))  # noqa: S301
    return copy


def read(connection: Connection, **options: str) -> list[list[int]]:
    """Return the ids that each task reads."""
    made = reader(connection, **options)
    return [
        [row_id for batch in made.read(split) for row_id in batch.column("id").to_pylist()]
        for split in made.partitions()
    ]


def test_each_partition_is_read_in_order_by_one_task(channel: Channel) -> None:
    fill(channel, range(5))
    fill(channel, range(5, 8), partition=1)

    assert read(channel.connection("read")) == [[0, 1, 2, 3, 4], [5, 6, 7]]


def test_an_empty_channel_has_no_splits(channel: Channel) -> None:
    made = reader(channel.connection("read"))

    assert made.partitions() == []
    for empty in (None, InputPartition(None)):  # before Spark 4.3, and from 4.3 on
        assert list(made.read(empty)) == []


def test_long_partitions_are_split_without_loss_or_duplicates(channel: Channel) -> None:
    fill(channel, range(100))

    assert read(channel.connection("read"), minpartitions="3") == [
        [*range(33)],
        [*range(33, 66)],
        [*range(66, 100)],
    ]
    assert [len(ids) for ids in read(channel.connection("read"), maxrecordsperpartition="40")] == [
        *(33, 33, 34)
    ]


def test_only_the_given_offsets_are_read(channel: Channel) -> None:
    fill(channel, range(10))
    offsets = {"startingoffsets": '{"0": 2, "1": -2}', "endingoffsets": '{"0": 7, "1": -1}'}

    assert read(channel.connection("read"), **offsets) == [[2, 3, 4, 5, 6]]


def test_messages_that_arrive_after_planning_are_not_read(channel: Channel) -> None:
    fill(channel, range(3))
    made = reader(channel.connection("read"))
    (split,) = made.partitions()
    fill(channel, range(3, 6))

    assert [batch.num_rows for batch in made.read(split)] == [3]


def test_offsets_out_of_range_fail_planning(channel: Channel) -> None:
    with pytest.raises(OffsetOutOfRange, match="partition 1 has no offset 4"):
        reader(channel.connection("read"), startingoffsets='{"0": -2, "1": 4}').partitions()
    with pytest.raises(OptionError, match="lacks partition 1"):
        reader(channel.connection("read"), startingoffsets='{"0": 0}').partitions()


def test_timestamps_bound_a_read(channel: Channel) -> None:
    fill(channel, range(3))
    connection = channel.connection("read")

    assert read(connection, startingtimestamp="0") == [[0, 1, 2]]
    assert read(connection, endingtimestamp="0") == []
    assert read(connection, startingtimestamp=str(2**42)) == []


def test_partitions_that_were_added_outside_are_read(channel: Channel, topics: Topics) -> None:
    connection = channel.connection("read")
    fill(channel, range(1))
    (message,) = messages_of(connection)
    topics.grow(connection.topic_name, 3)
    topics.produce(connection.topic_name, 2, [message.value()])

    assert read(connection) == [[0], [0]]


def test_offsets_without_messages_are_skipped(channel: Channel, topics: Topics) -> None:
    """Transaction markers take offsets in the middle and at the end."""
    connection = channel.connection("read")
    fill(channel, range(1))
    (message,) = messages_of(connection)
    for _ in range(2):
        topics.produce_in_transaction(connection.topic_name, 0, [message.value()])

    assert read(connection) == [[0, 0, 0]]
    assert read(connection, maxrecordsperpartition="1") == [[0], [0], [], [0], []]


@pytest.mark.sample
@pytest.mark.parametrize("bad", [b"", b"not of this channel", None])
def test_a_corrupt_message_fails_the_task_with_its_offset(
    channel: Channel, bad: bytes | None
) -> None:
    fill(channel, range(3))
    connection = channel.connection("read")
    produce(connection, bad)

    with pytest.raises(CorruptMessage, match="partition 0, offset 3"):
        read(connection)


def test_corrupt_messages_can_be_skipped_and_are_logged(
    channel: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    fill(channel, range(2))
    connection = channel.connection("read")
    produce(connection, b"bad", b"worse")
    fill(channel, range(2, 4))

    assert read(connection, oncorrupt="skip") == [[0, 1, 2, 3]]
    assert "2 corrupt messages skipped, the first at offset 2" in caplog.text


def test_a_deleted_topic_fails_planning_and_tasks(channel: Channel) -> None:
    fill(channel, range(3))
    made = reader(channel.connection("read"))
    (split,) = made.partitions()
    channel.delete()

    with pytest.raises(TopicGone):
        made.partitions()
    with pytest.raises(TopicGone):
        list(made.read(split))


@pytest.mark.long
def test_without_kafka_a_task_fails_within_the_timeout(
    fragile_kafka: Relay, fragile: Connection
) -> None:
    producer = Producer(fragile.kafka)
    producer.produce(fragile.topic_name, b"x", partition=0)
    assert producer.flush(30) == 0
    (split,) = reader(fragile).partitions()
    hasty = reader(fragile, **{"kafkaconsumer.polltimeoutms": "1000"})
    fragile_kafka.cut()

    with pytest.raises(KafkaUnavailable, match="Kafka"):
        list(hasty.read(split))
    with pytest.raises(KafkaUnavailable, match="Kafka"):
        hasty.partitions()


class Stranded(MessageStream):
    """A stream whose Kafka client does not connect again, until it is replaced."""

    replaced = False

    def request_metadata(self, timeout_s: float, *, max_age_s: float = 0.0) -> None:
        if not self.replaced:
            raise KafkaUnavailable("no brokers")
        super().request_metadata(timeout_s, max_age_s=max_age_s)

    def renew(self, *, timeout_s: float) -> bool:
        self.replaced = super().renew(timeout_s=timeout_s)
        return self.replaced

    def poll(self, limit: int, wait_s: float) -> FetchedMessages:
        polled = super().poll(limit, wait_s)
        return polled if self.replaced else FetchedMessages(chunks=[], next={})


def test_a_task_replaces_a_kafka_client_that_does_not_connect_again(channel: Channel) -> None:
    """As of librdkafka after the response of a broker that shuts down, which cannot be timed."""
    fill(channel, range(3))
    connection = channel.connection("read")
    options = ReadOptions.parse({"path": channel.name, "kafkaConsumer.pollTimeoutMs": "20000"})
    offsets = OffsetRange(partition=0, start=0, end=3)
    split = InputSplit(connection=connection, current=True, offsets=offsets)
    with closing(Stranded(connection, timeout_s=30)) as stream:
        chunks = [chunk for taken in RangeFetcher(stream, split, options) for chunk in taken.chunks]
        assert stream.replaced
    assert [offset for chunk in chunks for offset in chunk.offsets] == [0, 1, 2]


@pytest.mark.long
@pytest.mark.parametrize("format_", ["avro", "arrow"])
def test_a_long_partition_is_read_in_bounded_memory(
    gateway: Gateway, name: str, format_: str
) -> None:
    """Read 400 MB of large messages; a task holds one chunk and the fetch queue."""
    channel = gateway.channel(name, SCHEMA, format=format_)
    text = "x" * 500_000
    with channel.writer() as writer:
        for start in range(0, 800, 80):
            writer.write([{"id": start + i, "s": text} for i in range(80)])
    made = reader(channel.connection("read"))
    (split,) = made.partitions()

    rows, grown_mb = measure(
        pickle.dumps((made, split)), "sum(batch.num_rows for batch in task[0].read(task[1]))"
    )

    assert rows == 800
    assert grown_mb < 200
