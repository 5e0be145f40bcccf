"""Channels of the format `bytes`: messages encoded by their writers."""

import uuid

import pyarrow as pa
import pytest

from sluiceway import Channel, Gateway
from sluiceway.errors import InvalidRequest, RecordError, SchemaMismatch
from sluiceway.kafka.partitioner import partition_of
from topics import DEFINITION, Topics, messages_of

VALUES = [b"", None, b"\0\0\0\0\x07not Avro", "Zürich".encode(), b"x" * 100_000]


@pytest.fixture
def name() -> str:
    return f"raw-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def channel(gateway: Gateway, name: str) -> Channel:
    return gateway.channel(name, format="bytes", partitions=2)


def test_bytes_are_written_unchanged_and_foreign_messages_are_read(
    gateway: Gateway, channel: Channel, topics: Topics
) -> None:
    with channel.writer(partition=0) as writer:
        assert writer.write({"value": value} for value in VALUES) == len(VALUES)
        assert writer.write(pa.table({"value": pa.array([b"a column"])})) == 1
    sent = messages_of(channel.connection("read"))
    assert [message.value() for message in sent] == [*VALUES, b"a column"]
    assert {(message.key(), message.headers()) for message in sent} == {(None, None)}
    topics.produce(channel.status.topic.name, 1, [b"by another", None])
    with gateway.channel(channel.name).reader(until="now", partitions=[1]) as reader:
        assert list(reader) == [{"value": b"by another"}, {"value": None}]
    with channel.reader(until="now", partitions=[0]) as reader:
        assert [value for batch in reader.batches() for value in batch["value"].to_pylist()] == [
            *VALUES,
            b"a column",
        ]


def test_keys_place_messages_as_in_other_formats(channel: Channel) -> None:
    with channel.writer(key=lambda record: record["value"][:2]) as writer:
        writer.write({"value": b"%02d of many" % number} for number in range(20))
    messages = messages_of(channel.connection("read"))
    assert {message.partition() for message in messages} == {0, 1}
    for message in messages:
        assert message.key() == message.value()[:2]
        assert partition_of(message.key(), 2) == message.partition()


def test_a_foreign_topic_is_adopted_without_a_schema(
    gateway: Gateway, name: str, topics: Topics
) -> None:
    topic = f"theirs-{name}"
    topics.create(topic, 1)
    topics.produce(topic, 0, [b"theirs"])
    channel = gateway.channel(name, format="bytes", topic=topic)
    with channel.reader(until="now") as reader:
        assert list(reader) == [{"value": b"theirs"}]


def test_invalid_values_are_refused_and_nothing_is_written(
    gateway: Gateway, name: str, channel: Channel
) -> None:
    with pytest.raises(InvalidRequest, match=r"leave spec\.schema out"):
        gateway.channel(f"{name}-typed", schema=DEFINITION, format="bytes")
    with pytest.raises(SchemaMismatch):
        gateway.channel(channel.name, schema=DEFINITION)
    with channel.writer() as writer:
        for wrong in ({"value": "text"}, {"payload": b""}):
            with pytest.raises(RecordError):
                writer.write([{"value": b"right"}, wrong])
    with channel.reader(until="now") as reader:
        assert list(reader) == []
