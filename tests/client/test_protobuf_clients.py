"""Registry clients and channels of the format `protobuf`: each reads what the other writes."""

import base64
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.confluent.type import decimal_pb2
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.protobuf import (
    ProtobufDeserializer,
    ProtobufSerializer,
    protobuf_to_decimal,
)
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.type import date_pb2, timeofday_pb2

from sluiceway import Channel, Gateway
from topics import messages_of

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
IMPORTED = (timestamp_pb2, date_pb2, timeofday_pb2, decimal_pb2)


def class_of(file: FileDescriptorProto, name: str) -> Any:
    """Return the class that protoc generates for a message of a file."""
    pool = DescriptorPool()
    for module in IMPORTED:
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(name))


def order_class(**more: int) -> Any:
    """Return the class of `shop.Order`, with `more` optional integers by their numbers."""
    file = FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    order = file.message_type.add(name="Order")
    order.nested_type.add(name="Line").field.add(name="product", number=1, label=1, type=9)
    order.field.add(name="id", number=3, label=1, type=18)
    order.field.add(name="lines", number=5, label=3, type=11, type_name=".shop.Order.Line")
    order.field.add(name="at", number=9, label=1, type=11, type_name=".google.protobuf.Timestamp")
    for index, (name, number) in enumerate(more.items()):
        order.oneof_decl.add(name=f"_{name}")
        order.field.add(
            name=name, number=number, label=1, type=3, proto3_optional=True, oneof_index=index
        )
    return class_of(file, "shop.Order")


@pytest.fixture
def name() -> str:
    return f"orders-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def registry(gateway_url: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": f"{gateway_url}/registry"}) as client:
        yield client


def values_of(channel: Channel) -> list[bytes]:
    return [message.value() for message in messages_of(channel.connection("read"))]


def context_of(channel: Channel) -> SerializationContext:
    return SerializationContext(channel.connection("read").topic_name, MessageField.VALUE)


def test_generated_classes_write_and_read(
    gateway: Gateway, registry: SchemaRegistryClient, name: str
) -> None:
    cls = order_class()
    channel = gateway.channel(name, cls, format="protobuf")
    order = cls(id=-7, lines=[{"product": "pen"}])
    order.at.seconds = 60
    record = {"id": -7, "lines": [{"product": "pen"}], "at": datetime(1970, 1, 1, 0, 1, tzinfo=UTC)}
    connection, context = channel.connection("write"), context_of(channel)
    producer = Producer(connection.kafka)
    for options in (
        {},
        {"auto.register.schemas": False},
        {"auto.register.schemas": False, "use.latest.version": True},
    ):
        value = ProtobufSerializer(cls, registry, options)(order, context)
        producer.produce(connection.topic_name, value, partition=0)
    assert producer.flush(60) == 0
    with channel.writer() as writer:
        writer.write(record)
    with channel.reader(until="now") as reader:
        assert list(reader) == [record] * 4
    values = values_of(channel)
    assert len(set(values)) == 1
    for options in ({}, {"use.latest.version": True}):
        deserialize = ProtobufDeserializer(cls, options, registry)
        assert [deserialize(value, context) for value in values] == [order] * 4


def test_another_version_of_a_class_is_refused_until_the_channel_has_it(
    gateway: Gateway, registry: SchemaRegistryClient, name: str
) -> None:
    channel = gateway.channel(name, order_class(), format="protobuf")
    later = order_class(customer=4)
    serialize = ProtobufSerializer(later, registry)
    with pytest.raises(SchemaRegistryError, match="Give the schema to the channel first"):
        serialize(later(id=1), context_of(channel))
    channel.update(schema=later)
    value = serialize(later(id=1, customer=2), context_of(channel))
    producer = Producer(channel.connection("write").kafka)
    producer.produce(channel.connection("write").topic_name, value)
    assert producer.flush(60) == 0
    with gateway.channel(name).reader(until="now") as reader:
        assert list(reader) == [{"id": 1, "lines": [], "at": None, "customer": 2}]
    # The older class ignores the new field.
    read = ProtobufDeserializer(order_class(), {}, registry)(value, context_of(channel))
    assert read.id == 1


def test_the_file_of_a_channel_reads_its_records(
    gateway: Gateway, registry: SchemaRegistryClient, name: str
) -> None:
    types = {
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2},
        "day": {"type": "int", "logicalType": "date"},
        "clock": {"type": "long", "logicalType": "time-micros"},
        "at": {"type": "long", "logicalType": "timestamp-micros"},
        "state": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]},
        "stock": {"type": "map", "values": "int"},
        "note": ["null", "string"],
    }
    fields = [{"name": field, "type": type_} for field, type_ in types.items()]
    schema = {"type": "record", "name": "shop.Order", "fields": fields}
    channel = gateway.channel(name, schema, format="protobuf")
    record = {
        "price": Decimal("-123456789012345678901234567.89"),
        "day": date(2026, 1, 31),
        "clock": time(23, 59, 58, 1),
        "at": NOON,
        "state": "PAID",
        "stock": {"pen": 3},
        "note": None,
    }
    with channel.writer() as writer:
        writer.write(record)
    latest = registry.get_latest_version(f"{name}-value", "serialized").schema.schema_str
    file = FileDescriptorProto.FromString(base64.b64decode(latest))
    cls = class_of(file, "shop.Order")
    (value,) = values_of(channel)
    read = ProtobufDeserializer(cls, {}, registry)(value, context_of(channel))
    assert protobuf_to_decimal(read.price) == record["price"]
    assert (read.day.year, read.day.month, read.day.day) == (2026, 1, 31)
    assert (read.clock.hours, read.clock.seconds, read.clock.nanos) == (23, 58, 1000)
    assert (read.at.ToDatetime(UTC), read.state, dict(read.stock)) == (NOON, 1, {"pen": 3})
    assert not read.HasField("note")
    assert ProtobufSerializer(cls, registry)(read, context_of(channel)) == value
