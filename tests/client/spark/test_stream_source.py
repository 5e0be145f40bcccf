"""Streaming reads without a Spark session."""

import json
import logging
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType

from relay import Relay
from shared_kafka import SharedKafka
from sluiceway import Gateway
from sluiceway.api.models import Connection
from sluiceway.channel import Channel
from sluiceway.errors import (
    CheckpointMismatch,
    Conflict,
    KafkaUnavailable,
    OffsetOutOfRange,
    OptionError,
    SchemaMismatch,
    TopicGone,
)
from sluiceway.spark.datasource import ChannelDataSource
from sluiceway.spark.microbatch import (
    ChannelStreamReader,
    MicroBatchPlanner,
    UnlimitedStreamReader,
)
from sluiceway.spark.offsets import OffsetRange, StreamOffset
from sluiceway.spark.options import ReadOptions
from sluiceway.spark.types import struct_of
from sluiceway.spark.worker import RefreshableConnection
from spark_tasks import SCHEMA, fill, produce
from topics import Topics, messages_of
from waiting import until

Json = Mapping[str, Any]


@pytest.fixture
def channel(gateway: Gateway, name: str) -> Channel:
    return gateway.channel(name, SCHEMA, partitions=2)


class Query:
    """A streaming query's driver, which calls the reader in the same order as Spark."""

    def __init__(self, url: str, channel: str, schema: pa.Schema, **options: str) -> None:
        source = ChannelDataSource({"path": channel} | options, gateway_url=url)
        reader = source.streamReader(struct_of(schema))
        assert isinstance(reader, ChannelStreamReader)
        self.reader = reader
        self.task: ChannelStreamReader = pickle.loads(pickle.dumps(reader))  # noqa: S301

    def start(self) -> Json:
        return stored(self.reader.initialOffset())

    def end(self, start: Json | None = None) -> Json:
        """Return the available end; with a `start`, as Spark 4.2 and later get it."""
        end = self.reader.planner.end()
        return stored((end.as_end_after(StreamOffset.parse(start)) if start else end).to_json())

    def batch(self, start: Json, end: Json) -> dict[int, list[int]]:
        """Plan and read a micro-batch, and return its ids by partition."""
        splits = self.reader.partitions(start, end)
        ids_by_partition: dict[int, list[int]] = {}
        for split in splits:
            shipped: InputPartition = pickle.loads(pickle.dumps(split))  # noqa: S301
            ids = [
                row_id
                for batch in self.task.read(shipped)
                for row_id in batch.column("id").to_pylist()
            ]
            ids_by_partition.setdefault(shipped.value.offsets.partition, []).extend(ids)
        return ids_by_partition


def stored(offset: Json) -> Json:
    """Return an offset after a round trip through a checkpoint."""
    parsed: Json = json.loads(json.dumps(offset))
    return parsed


def offsets(offset: Json) -> dict[int, int]:
    return dict(StreamOffset.parse(offset).next_offsets)


@pytest.fixture
def queries(gateway_url: str, channel: Channel) -> Iterator[Any]:
    with ExitStack() as stack:

        def query(name: str = channel.name, schema: pa.Schema = SCHEMA, **options: str) -> Query:
            made = Query(gateway_url, name, schema, **options)
            stack.callback(made.reader.stop)
            return made

        yield query


def test_batches_follow_one_another_from_the_earliest_offset(
    channel: Channel, queries: Any
) -> None:
    fill(channel, range(3))
    query = queries()

    start = query.start()
    first = query.end()
    fill(channel, range(3, 5))
    fill(channel, range(5, 6), partition=1)
    second = query.end()

    assert [offsets(offset) for offset in (start, first, second)] == [
        {0: 0, 1: 0},
        {0: 3, 1: 0},
        {0: 5, 1: 1},
    ]
    assert query.batch(start, first) == {0: [0, 1, 2]}
    assert query.batch(first, second) == {0: [3, 4], 1: [5]}
    assert query.batch(first, second) == {0: [3, 4], 1: [5]}
    assert query.batch(second, second) == {}


@pytest.mark.sample
@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"startingOffsets": "latest"}, {0: 3, 1: 0}),
        ({"startingOffsets": '{"0": 2, "1": -2}'}, {0: 2, 1: 0}),
        ({"startingTimestamp": "0"}, {0: 0, 1: 0}),
        ({"startingTimestamp": str(2**42)}, {0: 3, 1: 0}),
    ],
)
def test_starting_options_set_the_start(
    channel: Channel, queries: Any, options: dict[str, str], start: dict[int, int]
) -> None:
    fill(channel, range(3))

    assert offsets(queries(**options).start()) == start


def test_invalid_starting_offsets_fail_before_the_first_batch(
    channel: Channel, queries: Any
) -> None:
    with pytest.raises(OptionError, match="lacks partition 1"):
        queries(startingOffsets='{"0": 0}').start()
    with pytest.raises(OffsetOutOfRange, match="partition 0 has no offset 7"):
        queries(startingOffsets='{"0": 7, "1": 0}').start()


@pytest.fixture
def new_planner(gateway_url: str, channel: Channel) -> Iterator[Callable[..., MicroBatchPlanner]]:
    """Plan a query from the latest offsets, by default always with a new Connection."""
    with ExitStack() as stack:

        def new_planner(**limits: float) -> MicroBatchPlanner:
            options = {
                "path": channel.name,
                "startingOffsets": "latest",
                "kafkaConsumer.pollTimeoutMs": "5000",
            }
            source = RefreshableConnection(
                channel.connection("read"), "read", gateway_url=gateway_url
            )
            planner = MicroBatchPlanner(
                source, ReadOptions.parse(options), **{"refresh_every_s": 0.0, **limits}
            )
            return stack.enter_context(closing(planner))

        yield new_planner


def ranges(planner: MicroBatchPlanner, start: StreamOffset, end: StreamOffset) -> list[OffsetRange]:
    return [split.offsets for split in planner.splits(start, end)]


def test_a_new_partition_is_read_from_its_beginning(
    channel: Channel, new_planner: Callable[..., MicroBatchPlanner]
) -> None:
    planner = new_planner()
    start = planner.start()
    channel.update(partitions=3)
    fill(channel, range(2), partition=2)

    end = planner.end()

    assert end.next_offsets == {0: 0, 1: 0, 2: 2}
    assert ranges(planner, start, end) == [OffsetRange(partition=2, start=0, end=2)]


def test_a_partition_that_was_added_outside_is_read_from_its_beginning(
    channel: Channel, kafka: SharedKafka, new_planner: Callable[..., MicroBatchPlanner]
) -> None:
    # The gateway learns of it too, because the writer's endpoint shows that the channel is in use.
    planner = new_planner(refresh_every_s=3600.0, verify_every_s=0.0)
    start = planner.start()
    topic = channel.status.topic.name
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    fill(channel, range(2))
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for message in messages_of(channel.connection("read")):
        producer.produce(topic, message.value(), partition=2)
    assert producer.flush(30) == 0

    until(lambda: len(planner.end().next_offsets) == 3)
    end = planner.end()

    assert end.next_offsets == {0: 2, 1: 0, 2: 2}
    assert ranges(planner, start, end) == [
        OffsetRange(partition=0, start=0, end=2),
        OffsetRange(partition=2, start=0, end=2),
    ]


def test_the_latest_offset_of_a_partition_that_was_added_outside_is_its_end(
    channel: Channel, topics: Topics, new_planner: Callable[..., MicroBatchPlanner]
) -> None:
    planner = new_planner(refresh_every_s=3600.0)
    topic = channel.status.topic.name
    topics.grow(topic, 3)
    topics.produce(topic, 2, [b"", b""])

    assert planner.start().next_offsets == {0: 0, 1: 0, 2: 2}


def test_a_new_partition_that_appears_while_a_batch_is_planned_is_read(
    channel: Channel, new_planner: Callable[..., MicroBatchPlanner]
) -> None:
    planner = new_planner()
    start = planner.start()
    fill(channel, range(1))
    end = planner.end()
    channel.update(partitions=3)
    # Planning requests the Connection again.
    assert ranges(planner, start, end) == [OffsetRange(partition=0, start=0, end=1)]
    fill(channel, range(2), partition=2)

    later = planner.end()

    assert later.next_offsets == {0: 1, 1: 0, 2: 2}
    assert ranges(planner, end, later) == [OffsetRange(partition=2, start=0, end=2)]


def test_the_replay_of_a_first_batch_begins_where_the_batch_began(
    channel: Channel, queries: Any
) -> None:
    """Spark stores the end of a batch, and requests the start of the first one again."""
    query = queries(startingOffsets="latest")
    start = query.start()
    fill(channel, range(3))
    end = query.end(start)
    fill(channel, range(3, 5))
    restarted = queries(startingOffsets="latest")

    assert restarted.batch(restarted.start(), end) == {0: [0, 1, 2]}
    assert restarted.batch(end, restarted.end(end)) == {0: [3, 4]}


def test_the_replay_of_a_first_batch_without_its_records_fails(
    channel: Channel, queries: Any
) -> None:
    fill(channel, range(5))
    query = queries()
    end = query.end(query.start())
    delete_before(channel, 3)
    restarted = queries()

    with pytest.raises(OffsetOutOfRange, match="partition 0 has no offset 0: its range is 3 to 5"):
        restarted.batch(restarted.start(), end)


def test_before_spark_4_2_the_end_of_the_first_batch_contains_its_start(
    channel: Channel, gateway_url: str
) -> None:
    def run() -> UnlimitedStreamReader:
        return unlimited(channel, gateway_url, startingOffsets="latest")

    fill(channel, range(3))
    first = run()
    empty = first.latestOffset()
    # Otherwise Spark would run an empty batch.
    assert first.initialOffset() == empty
    fill(channel, range(3, 5))
    assert first.partitions(first.initialOffset(), empty) == []
    end = first.latestOffset()
    first.stop()

    # The second batch was not planned. Spark plans the checkpoint's end, then the batch.
    second = run()
    assert second.partitions(end, end) == []
    (split,) = second.partitions(empty, end)
    assert (split.value.offsets.start, split.value.offsets.end) == (3, 5)
    assert second.latestOffset() == end
    second.stop()

    # Spark's wrapper for availableNow requests the end before it plans the checkpoint's.
    third = run()
    fill(channel, range(5, 6))
    (split,) = third.partitions(empty, third.latestOffset())
    assert (split.value.offsets.start, split.value.offsets.end) == (3, 6)
    third.stop()


def test_before_spark_4_2_the_replay_of_a_first_batch_without_its_records_fails(
    channel: Channel, gateway_url: str
) -> None:
    fill(channel, range(5))
    first = unlimited(channel, gateway_url)
    end = first.latestOffset()
    first.stop()
    delete_before(channel, 3)
    second = unlimited(channel, gateway_url)

    assert second.partitions(end, end) == []
    with pytest.raises(OffsetOutOfRange, match="partition 0 has no offset 0: its range is 3 to 5"):
        second.partitions(second.initialOffset(), end)
    second.stop()


def unlimited(channel: Channel, url: str, **options: str) -> UnlimitedStreamReader:
    """Return the reader of a query as before Spark 4.2."""
    source = RefreshableConnection(channel.connection("read"), "read", gateway_url=url)
    parsed = ReadOptions.parse({"path": channel.name, **options})
    return UnlimitedStreamReader(source, parsed, struct_of(SCHEMA))


def test_an_idle_query_has_no_new_end(channel: Channel, queries: Any) -> None:
    """Spark compares the texts of offsets, and runs a batch if they differ."""
    query = queries()
    start = query.start()
    empty = query.end(start)
    assert query.end(empty) == empty

    fill(channel, range(3))
    first = query.end(empty)
    assert query.end(first) == first

    fill(channel, range(3, 5))
    second = query.end(first)
    assert query.end(second) == second
    assert "start" not in second


def test_a_batch_is_split_on_request(channel: Channel, queries: Any) -> None:
    fill(channel, range(6))
    query = queries(minPartitions="3")

    assert len(query.reader.partitions(query.start(), query.end())) == 3
    assert query.batch(query.start(), query.end()) == {0: [*range(6)]}


def delete_before(channel: Channel, offset: int, partition: int = 0) -> None:
    """Delete a partition's first messages, like retention."""
    connection = channel.connection("read")
    admin = AdminClient(connection.kafka)
    at = TopicPartition(connection.topic_name, partition, offset)
    admin.delete_records([at])[at].result(30)


def test_lost_offsets_fail_planning(channel: Channel, queries: Any) -> None:
    fill(channel, range(5))
    query = queries()
    start, end = query.start(), query.end()
    delete_before(channel, 3)

    with pytest.raises(OffsetOutOfRange, match="partition 0 has no offset 0: its range is 3 to 5"):
        query.batch(start, end)


def test_lost_offsets_are_skipped_and_logged_without_fail_on_data_loss(
    channel: Channel, queries: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fill(channel, range(5))
    query = queries(failOnDataLoss="false")
    start, end = query.start(), query.end()
    delete_before(channel, 3)

    assert query.batch(start, end) == {0: [3, 4]}
    messages = [
        record.getMessage() for record in caplog.records if "failOnDataLoss" in record.getMessage()
    ]
    assert len(messages) == 1
    assert "partition 0 has no offset 0: its range is 3 to 5" in messages[0]


@pytest.mark.parametrize("fail", [True, False])
def test_offsets_lost_after_planning_are_handled_in_the_task(
    channel: Channel, queries: Any, caplog: pytest.LogCaptureFixture, fail: bool
) -> None:
    fill(channel, range(5))
    query = queries(failOnDataLoss=str(fail))
    (split,) = query.reader.partitions(query.start(), query.end())
    delete_before(channel, 3)

    if fail:
        with pytest.raises(OffsetOutOfRange, match="partition 0 has no offset 0"):
            list(query.reader.read(split))
        return
    (batch,) = query.reader.read(split)
    assert batch.column("id").to_pylist() == [3, 4]
    assert "no longer holds the messages from offset 0 to 3" in caplog.text


def test_a_checkpoint_of_another_channel_is_an_error(
    gateway: Gateway, channel: Channel, queries: Any
) -> None:
    other = gateway.channel(f"{channel.name}-other", SCHEMA)
    start = queries(other.name).start()

    with pytest.raises(CheckpointMismatch, match=f"belongs to the channel '{other.name}'"):
        queries().batch(start, start)


def test_a_checkpoint_of_a_deleted_channel_is_an_error(
    gateway: Gateway, channel: Channel, queries: Any
) -> None:
    start = queries().start()
    channel.delete()
    gateway.channel(channel.name, SCHEMA, partitions=2)

    with pytest.raises(CheckpointMismatch, match="was deleted and recreated since the checkpoint"):
        queries().batch(start, start)


def test_recreating_a_channel_ends_its_query(
    gateway: Gateway, channel: Channel, new_planner: Callable[..., MicroBatchPlanner]
) -> None:
    planner = new_planner()
    planner.end()
    channel.delete()
    gateway.channel(channel.name, SCHEMA, partitions=2)

    with pytest.raises(Conflict, match="deleted and recreated"):
        planner.end()


def test_deleting_the_topic_ends_a_query(
    channel: Channel, new_planner: Callable[..., MicroBatchPlanner]
) -> None:
    planner = new_planner(refresh_every_s=3600.0, verify_every_s=0.0)
    planner.end()
    connection = channel.connection("read")
    admin = AdminClient(connection.kafka)
    admin.delete_topics([connection.topic_name])[connection.topic_name].result(30)
    # The controller answers before the brokers have deleted the topic.
    until(lambda: connection.topic_name not in admin.list_topics(timeout=30).topics)

    with pytest.raises(TopicGone):
        planner.end()


def test_columns_missing_in_the_channel_are_an_error(gateway_url: str, channel: Channel) -> None:
    source = ChannelDataSource({"path": channel.name}, gateway_url=gateway_url)

    with pytest.raises(SchemaMismatch, match="no column 'x'"):
        source.streamReader(struct_of(SCHEMA).add("x", LongType()))


def test_new_messages_are_read_with_the_querys_first_schema(
    gateway: Gateway, channel: Channel, queries: Any
) -> None:
    fill(channel, range(1))
    query = queries()
    start = query.start()
    channel.update(schema=SCHEMA.append(pa.field("t", pa.string())))
    with gateway.channel(channel.name).writer(partition=0) as writer:
        writer.write([{"id": 1, "s": "x", "t": "y"}])

    assert query.batch(start, query.end()) == {0: [0, 1]}


def test_a_message_that_the_querys_first_schema_cannot_read_is_an_error_with_advice(
    gateway: Gateway, name: str, queries: Any
) -> None:
    ids = pa.schema([pa.field("id", pa.int32())])
    channel = gateway.channel(f"{name}-ids", ids)
    reader = queries(channel.name, ids).reader
    start = reader.initialOffset()
    channel.update(schema=pa.schema([pa.field("id", pa.int64())]))
    with channel.writer() as writer:
        writer.write([{"id": 2**40}])
    (split,) = reader.partitions(start, reader.planner.end().to_json())

    with pytest.raises(SchemaMismatch, match="written as long and cannot be read as int") as caught:
        list(reader.read(split))
    assert "Load the channel again and restart the query" in caught.value.__notes__[0]


def test_a_query_continues_without_the_gateway(
    channel: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    fill(channel, range(3))
    source = RefreshableConnection(
        channel.connection("read"), "read", gateway_url="http://127.0.0.1:9", timeout_s=0.3
    )
    reader = ChannelStreamReader(
        source, ReadOptions.parse({"path": channel.name}), struct_of(SCHEMA)
    )
    caplog.set_level(logging.WARNING)

    planner = reader.planner
    splits = planner.splits(planner.start(), planner.end())

    assert [split.offsets.messages for split in splits] == [3]
    messages = [
        record
        for record in caplog.records
        if "continues with the last known connection" in record.getMessage()
    ]
    assert len(messages) == 1
    reader.stop()


def test_a_query_survives_a_broker_restart(fragile_kafka: Relay, fragile: Connection) -> None:
    planner = MicroBatchPlanner(
        RefreshableConnection(fragile, "read"), ReadOptions.parse({"path": "t"})
    )
    produce(fragile, b"1", b"2")
    start = planner.start()
    before = planner.end()

    fragile_kafka.cut()
    fragile_kafka.restore()
    produce(fragile, b"3")
    after = planner.end()
    assert [dict(offset.next_offsets) for offset in (start, before, after)] == [
        {0: 0},
        {0: 2},
        {0: 3},
    ]
    planner.close()


def test_an_unavailable_broker_fails_a_query_within_the_timeout(
    fragile_kafka: Relay, fragile: Connection
) -> None:
    def planner(**options: str) -> MicroBatchPlanner:
        parsed = ReadOptions.parse({"path": "t", **options})
        return MicroBatchPlanner(RefreshableConnection(fragile, "read"), parsed)

    # The first connection may take longer. Planners of a process share it.
    with closing(planner()) as connected:
        connected.end()
        fragile_kafka.cut()

        with (
            closing(planner(**{"kafkaConsumer.pollTimeoutMs": "1000"})) as hasty,
            pytest.raises(KafkaUnavailable),
        ):
            hasty.end()
