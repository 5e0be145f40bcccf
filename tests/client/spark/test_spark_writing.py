"""Batch writes without a Spark session."""

import pickle
import struct
from collections.abc import Iterator

import pyarrow as pa
import pytest

from relay import Relay
from sluiceway import Gateway
from sluiceway.api.models import Connection
from sluiceway.channel import Channel
from sluiceway.errors import (
    DeliveryFailed,
    InvalidRecord,
    KafkaUnavailable,
    OptionError,
    RecordTooLarge,
    TopicGone,
)
from sluiceway.kafka.partitioner import partition_of
from sluiceway.schema import Schema
from sluiceway.spark.options import WriteOptions
from sluiceway.spark.writer import ChannelDataWriter, TaskWriter
from sluiceway_gateway.dev.embedded import free_ports
from spark_tasks import SCHEMA, Tasks, all_ids, ids_in, measure
from topics import Topics, connection_to, messages_of


@pytest.fixture(params=["avro", "arrow"])
def channel(request: pytest.FixtureRequest, gateway: Gateway, name: str) -> Channel:
    return gateway.channel(name, SCHEMA, partitions=3, format=request.param)


def writer(connection: Connection, **options: str) -> ChannelDataWriter:
    task_writer = TaskWriter(connection, WriteOptions.parse({"path": "c"} | options))
    writer_ = ChannelDataWriter(task_writer)
    copy: ChannelDataWriter = pickle.loads(pickle.dumps(writer_))  # noqa: S301
    return copy


def batch(*ids: int | None, text: str | None = "x") -> pa.RecordBatch:
    columns = [pa.array(ids, pa.int64()), pa.array([text] * len(ids), pa.string())]
    return pa.record_batch(columns, names=["id", "s"])


@pytest.mark.sample
@pytest.mark.parametrize(("task", "partition"), [(0, 0), (1, 1), (5, 2)])
def test_a_task_writes_to_the_partition_with_its_number(
    channel: Channel, monkeypatch: pytest.MonkeyPatch, task: int, partition: int
) -> None:
    Tasks(monkeypatch).run(task)

    wrote = writer(channel.connection("write")).write(iter([batch(1, 2), batch(3)]))

    assert wrote.records == 3
    assert ids_in(channel) == {partition: [1, 2, 3]}


def test_records_with_equal_keys_go_to_one_partition(channel: Channel) -> None:
    rows = [batch(*range(20)), batch(*range(20))]
    writer(channel.connection("write"), key="id").write(iter(rows))

    ids_by_partition = ids_in(channel)

    assert len(ids_by_partition) == 3
    assert sorted(all_ids(channel)) == sorted([*range(20)] * 2)
    assert sum(len(set(ids)) for ids in ids_by_partition.values()) == 20


def test_keys_keep_their_partition_when_the_channel_grows(channel: Channel) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(*range(40))
        channel.update(partitions=9)
        yield batch(*range(40))

    assert writer(channel.connection("write"), key="id").write(batches()).records == 80

    ids_by_partition = ids_in(channel)
    assert ids_by_partition.keys() == {0, 1, 2}
    assert all(ids[: len(ids) // 2] * 2 == ids for ids in ids_by_partition.values())


def test_keys_go_where_the_partitioner_of_the_channel_places_them(
    gateway: Gateway, name: str
) -> None:
    channel = gateway.channel(name, SCHEMA, partitions=3, partitioner="consistent_random")
    writer(channel.connection("write"), key="id").write(iter([batch(*range(20))]))
    for partition, ids in ids_in(channel).items():
        keys = [struct.pack(">q", number) for number in ids]
        assert {partition_of(key, 3, "consistent_random") for key in keys} == {partition}


def test_a_key_that_is_not_a_field_is_an_error(channel: Channel) -> None:
    with pytest.raises(OptionError, match="key is 'x'; the channel has the fields id, s"):
        writer(channel.connection("write"), key="x")


def test_an_empty_task_writes_nothing(channel: Channel) -> None:
    assert writer(channel.connection("write")).write(iter([])).records == 0
    assert ids_in(channel) == {}


def test_a_null_in_a_required_field_fails_its_batch_before_it_is_sent(channel: Channel) -> None:
    with pytest.raises(InvalidRecord, match="record 1, field 'id'") as caught:
        writer(channel.connection("write")).write(iter([batch(1, 2), batch(3, None, 4)]))

    assert "2 earlier records of this task, and" in "".join(caught.value.__notes__)
    assert not {3, 4} & set(all_ids(channel))


def test_messages_stay_below_the_topics_size_limit(gateway: Gateway, name: str) -> None:
    channel = gateway.channel(name, SCHEMA, format="arrow", config={"max.message.bytes": "20000"})
    ids = range(300)

    writer(channel.connection("write")).write(iter([batch(*ids, text="x" * 1000)]))

    assert ids_in(channel) == {0: [*ids]}


def test_a_record_larger_than_a_message_is_an_error(gateway: Gateway, name: str) -> None:
    channel = gateway.channel(name, SCHEMA, config={"max.message.bytes": "20000"})

    with pytest.raises(RecordTooLarge, match="record 0 takes"):
        writer(channel.connection("write")).write(iter([batch(1, text="x" * 30_000)]))
    assert ids_in(channel) == {}


def test_tasks_reuse_a_producer(fragile_kafka: Relay, fragile: Connection) -> None:
    writer_ = writer(fragile)
    writer_.write(iter([batch(1)]))
    accepted = fragile_kafka.accepted
    assert accepted
    writer_.write(iter([batch(2)]))

    assert fragile_kafka.accepted == accepted
    assert len(messages_of(fragile)) == 2


def test_a_task_whose_records_are_in_a_topic_that_was_created_again_fails(channel: Channel) -> None:
    connection = channel.connection("write")
    writer_ = writer(connection)
    writer_.write(iter([batch(1)]))
    topics = Topics(connection.kafka["bootstrap.servers"])
    topics.create_again(connection.topic_name, connection.partitions)

    with pytest.raises(TopicGone, match="is not the one that was opened"):
        writer_.write(iter([batch(2)]))


@pytest.mark.long
def test_a_deleted_topic_fails_a_write(gateway: Gateway, name: str) -> None:
    channel = gateway.channel(name, SCHEMA)
    writer_ = writer(channel.connection("write"))
    channel.delete()

    with pytest.raises(TopicGone):
        writer_.write(iter([batch(1)]))


def test_an_unavailable_broker_fails_a_write_with_the_written_records(
    fragile_kafka: Relay,
    fragile: Connection,
) -> None:
    writer_ = writer(fragile, deliverytimeoutms="1500")

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(1, 2)
        fragile_kafka.cut()
        yield batch(3)

    with pytest.raises(DeliveryFailed, match="partition 0") as caught:
        writer_.write(batches())

    assert caught.value.written_records + caught.value.failed_records == 3
    assert caught.value.failed_records >= 1


def test_a_write_without_a_broker_fails_within_the_timeout() -> None:
    (port,) = free_ports(1)
    definition = Schema.of(SCHEMA).definition
    servers = {"bootstrap.servers": f"127.0.0.1:{port}"}
    connection = connection_to(servers, schema_definition=definition)
    options = WriteOptions.parse({"path": "c"})

    with pytest.raises(KafkaUnavailable):
        TaskWriter(connection, options, verify_timeout_s=0.5).write(iter([batch(1)]))


BATCHES = """
import pyarrow as pa
text = pa.array(["x" * 100_000] * 40)
batches = (pa.record_batch([pa.array(range(40)), text], names=["id", "s"]) for _ in range(100))
"""


@pytest.mark.long
@pytest.mark.parametrize("format_", ["avro", "arrow"])
def test_a_long_write_takes_bounded_memory(gateway: Gateway, name: str, format_: str) -> None:
    """Write 400 MB; a task holds one of Spark's batches and the producer's queue."""
    channel = gateway.channel(name, SCHEMA, format=format_)
    writer_ = writer(channel.connection("write"))

    records, grown_mb = measure(pickle.dumps(writer_), "task.write(batches).records", BATCHES)

    assert records == 4000
    assert grown_mb < 200
