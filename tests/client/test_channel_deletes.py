"""Deletes by key on compacted channels: written in every format, skipped or returned by readers."""

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from sluiceway import Channel, Connection, Deleted, Gateway, Position, aio
from sluiceway.errors import CorruptMessage, OptionError
from topics import messages_of

COMPACTED = {"cleanup.policy": "compact"}
STATION = {
    "type": "record",
    "name": "Station",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
}

NewChannel = Callable[..., Channel]


@pytest.fixture
def new(gateway: Gateway) -> NewChannel:
    def make(schema: object = STATION, **options: Any) -> Channel:
        options = {"partitions": 2, "config": COMPACTED, **options}
        return gateway.channel(f"stations-{uuid.uuid4().hex[:8]}", schema, **options)

    return make


def station(number: int, name: str = "a") -> dict[str, object]:
    return {"id": number, "name": name}


def of_key(items: list[Any], number: int) -> list[Any]:
    """Return the records and deletes of a key, in their order."""
    return [
        item for item in items if (item.key if isinstance(item, Deleted) else item["id"]) == number
    ]


@pytest.mark.parametrize("format_", ["avro", "arrow", "json", "protobuf"])
def test_deletes_keep_their_place_among_the_records_of_a_key(new: NewChannel, format_: str) -> None:
    channel = new(format=format_)
    expected = [station(1), Deleted(key=1), station(1, "b"), station(1, "c"), Deleted(key=1)]
    with channel.writer(key="id") as writer:
        for number in range(20):
            writer.write(station(number))
            writer.delete(number)
        # Many records are encoded at once, and not by the buffer of single ones.
        writer.write([station(number, "b") for number in range(20)] * 2)
        writer.write(station(number, "c") for number in range(20))
        for number in range(20):
            writer.delete(number)
        assert writer.accepted_records == 20 * 6
    with channel.reader(until="now", deletes=True, key="id") as reader:
        items: list[Any] = list(reader)
    expected.insert(2, station(1, "b"))
    assert of_key(items, 1) == expected
    assert sum(map(len, (of_key(items, number) for number in range(20)))) == 120

    tombstones = [message for message in messages_of(channel.connection("read")) if not message]
    assert {message.key() for message in tombstones} == {n.to_bytes(8, "big") for n in range(20)}
    with channel.reader(until="now") as reader:
        assert reader.read(1000, timeout=None) == [
            item for item in items if not isinstance(item, Deleted)
        ]
        assert reader.finished
        assert reader.corrupt_messages == 0
        assert reader.position() == {
            p: Position(offset=end) for p, end in reader.end_offsets().items()
        }


@pytest.mark.parametrize("nullable", [False, True])
def test_deletes_of_bytes(gateway: Gateway, new: NewChannel, nullable: bool) -> None:
    """A null value is a record where the schema allows it, and a delete for who asks for it."""
    type_ = ["null", "bytes"] if nullable else "bytes"
    schema = {"type": "record", "name": "Message", "fields": [{"name": "value", "type": type_}]}
    channel = new(schema, format="bytes", partitions=1)
    with channel.writer(key=lambda record: record["value"][:2]) as writer:
        writer.write({"value": b"k1 a"})
        writer.delete(b"k1")
        writer.delete("k2")
    with channel.reader(until="now", deletes=True) as reader:
        assert list(reader) == [{"value": b"k1 a"}, Deleted(key=b"k1"), Deleted(key=b"k2")]
    with channel.reader(until="now") as reader:
        assert list(reader) == [{"value": b"k1 a"}, *[{"value": None}] * (2 if nullable else 0)]


@dataclass
class Station:
    id: int
    name: str


def test_positions_count_deletes_like_records(new: NewChannel, gateway_url: str) -> None:
    channel = new(partitions=1)
    with channel.writer(key="id") as writer:
        for number in range(6):
            writer.write(station(number))
            writer.delete(number)
    everything = [item for n in range(6) for item in (Station(n, "a"), Deleted(key=n))]
    options: dict[str, Any] = {"until": "now", "deletes": True, "key": "id", "as_": Station}
    for taken in (0, 3, 12):
        group = f"g{taken}"
        with channel.reader(group=group, **options) as reader:
            first = reader.read(taken, timeout=None) if taken else []
            reader.commit()
            assert reader.position() == {0: Position(offset=taken)}
        with channel.reader(group=group, **options) as reader:
            rest = []
            for item in reader:
                rest.append(item)
                assert reader.position() == {0: Position(offset=taken + len(rest))}
            if rest:
                reader.seek({0: 11})
                assert reader.read(1, timeout=None) == [Deleted(key=5)]
        assert first + rest == everything

    with channel.reader(until="now") as reader:
        assert pa.Table.from_batches(reader.batches()).num_rows == 6
    with channel.reader(until="now") as reader:
        assert reader.to_arrow()["id"].to_pylist() == [*range(6)]

    async def read() -> list[Any]:
        async with aio.Gateway(gateway_url) as gateway:
            same = await gateway.channel(channel.name)
            assert same.compacted
            async with same.writer(key="id") as writer:
                await writer.delete(7)
            async with same.reader(until="now", deletes=True, key="id") as reader:
                with pytest.raises(OptionError, match="batches and tables have no deletes"):
                    await reader.to_arrow()
                return [item async for item in reader]

    assert asyncio.run(read())[-3:] == [station(5), Deleted(key=5), Deleted(key=7)]


def test_keys_that_are_no_values_of_the_field_are_corrupt(new: NewChannel) -> None:
    channel = new(partitions=1)
    connection = channel.connection("write")
    producer = Producer({"bootstrap.servers": connection.kafka["bootstrap.servers"]})
    for key in (b"text", (1).to_bytes(8, "big")):
        producer.produce(connection.topic_name, None, key)
    assert producer.flush(30) == 0
    with (
        channel.reader(until="now", deletes=True, key="id") as reader,
        pytest.raises(CorruptMessage, match="a delete whose key is no value of the field 'id'"),
    ):
        reader.read(1, timeout=None)
    with channel.reader(until="now", deletes=True, key="id", on_corrupt="skip") as reader:
        assert list(reader) == [Deleted(key=1)]
        assert reader.corrupt_messages == 1
    with channel.reader(until="now", deletes=True) as reader:
        assert reader.read(1, timeout=None) == [Deleted(key=b"text")]


def test_deletes_that_cannot_be_are_refused(new: NewChannel) -> None:
    channel = new()
    with channel.writer() as writer, pytest.raises(OptionError, match="this writer has no keys"):
        writer.delete(1)
    with channel.writer(key="id") as writer:
        for key in ("1", 2**63, None, 1.0):
            with pytest.raises(OptionError, match="a value of the writer's key, the field 'id'"):
                writer.delete(key)
    with channel.writer(key=lambda record: record["name"]) as writer:
        with pytest.raises(OptionError, match="what the writer's key function returns"):
            writer.delete(None)
        with pytest.raises(OptionError, match="too many for a message of the channel"):
            writer.delete("x" * 2_000_000)
        assert writer.accepted_records == 0
    with pytest.raises(OptionError, match="give deletes=True as well"):
        channel.reader(until="now", key="id")
    with pytest.raises(OptionError, match="the channel has the fields id, name"):
        channel.reader(until="now", deletes=True, key="ident")

    plain = new(config={})
    assert not plain.compacted
    with plain.writer(key="id") as writer, pytest.raises(OptionError, match="is not compacted"):
        writer.delete(1)
    plain.update(config=COMPACTED)
    with plain.writer(key="id") as writer:
        writer.delete(1)

    exact = new(config={}, delivery="exactly_once")
    with exact.writer(key="id") as writer, pytest.raises(OptionError, match="excludes compaction"):
        writer.delete(1)
    with pytest.raises(OptionError, match="exactly_once, which has no deletes"):
        exact.reader(until="now", deletes=True)


def test_readers_of_other_channels_return_deletes_on_wish(
    gateway: Gateway, new: NewChannel
) -> None:
    """Debezium writes tombstones into any topic; without a wish they stay corrupt there."""
    channel = new(config={}, partitions=1)
    connection: Connection = channel.connection("write")
    producer = Producer({"bootstrap.servers": connection.kafka["bootstrap.servers"]})
    producer.produce(connection.topic_name, None, b"k")
    assert producer.flush(30) == 0
    with channel.reader(until="now") as reader, pytest.raises(CorruptMessage, match="a tombstone"):
        list(reader)
    with channel.reader(until="now", deletes=True) as reader:
        assert list(reader) == [Deleted(key=b"k")]
