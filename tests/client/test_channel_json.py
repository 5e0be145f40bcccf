"""Channels of the format `json`: own ones, and adopted topics of other producers."""

import contextlib
import json
import logging
import uuid
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from sluiceway import Channel, Gateway
from sluiceway.errors import CorruptMessage, InvalidRecord, InvalidRequest, SchemaMismatch
from topics import Topics, messages_of

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def order(number: int, **more: object) -> dict[str, object]:
    return {"id": number, "price": Decimal("12.50"), "at": NOON, "note": None, **more}


@pytest.fixture
def name() -> str:
    return f"orders-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def channel(gateway: Gateway, name: str) -> Channel:
    return gateway.channel(name, ORDER, format="json", partitions=2)


def test_records_are_plain_json_objects_in_kafka(channel: Channel) -> None:
    records = [order(2**53 + 1, note='a "note"'), order(2)]
    with channel.writer(key="id") as writer:
        writer.write(records)
        writer.write(order(3))
    messages = messages_of(channel.connection("read"))
    texts = {json.loads(message.value())["id"]: message.value() for message in messages}
    assert texts[2**53 + 1] == (
        b'{"id":9007199254740993,"price":12.50,"at":"2026-01-31T12:00:00.000000Z",'
        b'"note":"a \\"note\\""}'
    )
    with channel.reader(until="now") as reader:
        assert sorted(reader, key=lambda record: record["id"]) == [order(2), order(3), records[0]]
    with channel.reader(until="now") as reader:
        tables = [pa.Table.from_batches([batch]) for batch in reader.batches()]
    assert pa.concat_tables(tables).num_rows == 3


def test_groups_continue_at_their_committed_positions(channel: Channel) -> None:
    with channel.writer() as writer:
        writer.write(order(number) for number in range(10))
    with channel.reader(group="g", until="now") as reader:
        first = reader.read(4, timeout=None)
        reader.commit()
    with channel.reader(group="g", until="now") as reader:
        rest = list(reader)
    assert sorted(record["id"] for record in first + rest) == [*range(10)]


def test_batches_are_visible_together_or_never(gateway: Gateway, name: str) -> None:
    channel = gateway.channel(name, ORDER, format="json", delivery="exactly_once")
    with channel.writer() as writer:
        with writer.batch("1"):
            writer.write([order(1), order(2)])
        with contextlib.suppress(KeyError), writer.batch("2"):
            writer.write(order(3))
            raise KeyError
    with channel.reader(until="now") as reader:
        assert sorted(record["id"] for record in reader) == [1, 2]


def test_an_adopted_topic_of_another_producer_is_typed(
    gateway: Gateway, name: str, topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    topic = f"theirs-{name}"
    topics.create(topic, 1)
    values = [
        b'{"id":1,"price":12.5,"at":"2026-01-31T13:00:00+01:00","unknown":{"a":[NaN]}}',
        b'\0\0\0\0\x63 {"note":"n","price":"12.50","at":"2026-01-31 12:00:00Z","id":2}\n',
        b'{"id":"3"}',
        b"not JSON",
        None,
        b'{"id":6,"price":12.50,"at":"2026-01-31T12:00:00Z","note":null}',
    ]
    topics.produce(topic, 0, values)
    channel = gateway.channel(name, ORDER, format="json", topic=topic)
    records = [order(1), order(2, note="n"), order(6)]
    with channel.reader(until="now") as reader:
        assert reader.read(2) == records[:2]
        for offset, reason in ((2, "field 'id' is a text"), (3, "not JSON"), (4, "a tombstone")):
            with pytest.raises(CorruptMessage, match=f"offset {offset}: .*{reason}"):
                reader.read(1)
            reader.seek({0: offset + 1})
        assert list(reader) == records[2:]
    with (
        caplog.at_level(logging.WARNING, "sluiceway.kafka.fetcher"),
        channel.reader(until="now", on_corrupt="skip") as reader,
    ):
        assert list(reader) == records
        assert reader.corrupt_messages == 3
    logged = [record.getMessage() for record in caplog.records]
    for offset, text in zip((2, 3, 4), logged, strict=True):
        assert f"at offset {offset} is skipped" in text
    with channel.writer() as writer:
        writer.write(order(7))
    assert messages_of(channel.connection("read"))[-1].value().startswith(b'{"id":7,')


def test_a_new_schema_is_read_by_names_and_never_skipped(gateway: Gateway, name: str) -> None:
    channel = gateway.channel(name, ORDER, format="json", compatibility="none")
    renamed = {"name": "comment", "type": ["null", "string"], "aliases": ["note"], "default": None}
    added = {"name": "items", "type": {"type": "array", "items": "int"}, "default": [1]}
    wider = {**ORDER, "fields": [*ORDER["fields"][:3], renamed, added]}  # type: ignore[misc]
    old_reader = gateway.channel(name).reader(until=None, on_corrupt="skip")
    with old_reader:
        with channel.writer() as writer:
            writer.write(order(1, note="n"))
        channel.update(schema=wider)
        with channel.writer() as writer:
            writer.write({"id": 2, "price": 1, "at": NOON, "comment": "c", "items": []})
        with gateway.channel(name).reader(until="now") as reader:
            read = sorted(reader, key=lambda record: record["id"])
        assert [(record["comment"], record["items"]) for record in read] == [("n", [1]), ("c", [])]
        other = {"type": "record", "name": "Order", "fields": [{"name": "no", "type": "long"}]}
        channel.update(schema=other)
        with channel.writer() as writer:
            writer.write({"no": 3})
        # The first reader's schema has no `comment`, and reads the second record without it.
        assert [record["note"] for record in old_reader.read(2, timeout=None)] == ["n", None]
        with pytest.raises(SchemaMismatch, match=r"offset 2: .*'id' is missing"):
            old_reader.read(1, timeout=None)


def test_registry_clients_write_to_the_channel_and_have_its_schema(
    gateway_url: str, channel: Channel
) -> None:
    connection = channel.connection("write")
    context = SerializationContext(connection.topic_name, MessageField.VALUE)
    with SchemaRegistryClient({"url": f"{gateway_url}/registry"}) as registry:
        latest = registry.get_latest_version(f"{connection.topic_name}-value").schema
        producer = Producer(connection.kafka)
        for options in ({}, {"auto.register.schemas": False, "use.latest.version": True}):
            serialize = JSONSerializer(latest.schema_str, registry, conf=options)
            written = {"id": 1, "price": 12.5, "at": "2026-01-31T12:00:00Z"}
            value = serialize(written, context)
            producer.produce(connection.topic_name, value, partition=0)
            deserialize = JSONDeserializer(None, schema_registry_client=registry)
            assert deserialize(value, context) == written
        assert producer.flush(60) == 0
    with channel.reader(until="now") as reader:
        assert list(reader) == [order(1)] * 2


def test_what_json_cannot_represent_is_refused_and_nothing_is_written(
    gateway: Gateway, name: str, channel: Channel
) -> None:
    mixed = {**ORDER, "fields": [{"name": "x", "type": ["int", "string"]}]}
    with pytest.raises(InvalidRequest, match="which only the format avro has"):
        gateway.channel(f"{name}-mixed", mixed, format="json")
    at = pa.array([0, 0, 2**60], pa.timestamp("us", tz="UTC"))
    price = pa.array([Decimal(1)] * 3, pa.decimal128(10, 2))
    table = pa.table({"id": [1, 2, 3], "price": price, "at": at, "note": pa.nulls(3)})
    with channel.writer() as writer:
        with pytest.raises(InvalidRecord, match="years 1 to 9999") as caught:
            writer.write(pa.concat_tables([table.slice(0, 2), table]))
        assert (caught.value.index, caught.value.field) == (4, "at")
    with channel.reader(until="now") as reader:
        assert list(reader) == []
