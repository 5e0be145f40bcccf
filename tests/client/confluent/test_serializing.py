"""Producers and consumers with serializers."""

import asyncio
from typing import Any

import pytest

from confluent_facade import Facade
from sluiceway.confluent import DeserializingConsumer, SerializingProducer
from sluiceway.confluent.aio import AsyncDeserializingConsumer, AsyncSerializingProducer
from sluiceway.confluent.error import (
    ConsumeError,
    KeySerializationError,
    ValueDeserializationError,
    ValueSerializationError,
)
from sluiceway.confluent.serialization import (
    IntegerDeserializer,
    IntegerSerializer,
    StringDeserializer,
    StringSerializer,
)

NOBODY = {"bootstrap.servers": "http://127.0.0.1:1"}


class Builder:
    """A builder of serializers that takes one property of the configuration."""

    def __init__(self) -> None:
        self.built: list[tuple[dict[str, Any], bool]] = []
        self.closed = 0

    def build(self, conf: dict[str, Any], is_key: bool) -> tuple[Any, dict[str, Any]]:
        self.built.append((dict(conf), is_key))
        conf.pop("schema.registry.url", None)
        return self, conf

    def __call__(self, value: Any, context: Any) -> bytes:
        return f"{context.topic} {context.field} {value}".encode()

    def close(self) -> None:
        self.closed += 1


def test_keys_and_values_are_serialized_and_deserialized(site: Facade) -> None:
    name = site.channel()
    config = {
        "key.serializer": StringSerializer(),
        "value.serializer": IntegerSerializer(),
        "bootstrap.servers": site.url,
    }
    with SerializingProducer(config) as producer:
        producer.produce(topic=name, key="a", value=7, headers={"h": b"1"})
        with pytest.raises(ValueSerializationError):
            producer.produce(name, "a", "seven")
        with pytest.raises(KeySerializationError):
            producer.produce(name, b"a", 7)
    config = {
        "key.deserializer": StringDeserializer(),
        "value.deserializer": IntegerDeserializer(),
        "bootstrap.servers": site.url,
        "group.id": "g",
        "auto.offset.reset": "earliest",
    }
    consumer = DeserializingConsumer(config)
    consumer.subscribe(["nowhere"])
    with pytest.raises(ConsumeError, match="nowhere"):
        consumer.poll(30)
    consumer.subscribe([name])
    message = consumer.poll(30)
    assert message is not None
    assert (message.key(), message.value()) == ("a", 7)
    with site.producer() as plain:
        plain.produce(name, b"many bytes")
    with pytest.raises(ValueDeserializationError) as caught:
        consumer.poll(30)
    assert caught.value.kafka_message.value() == b"many bytes"
    with pytest.raises(NotImplementedError):
        consumer.consume()
    consumer.close()


def test_builders_get_the_configuration_and_are_closed_with_the_client() -> None:
    key, value = Builder(), Builder()
    config = {**NOBODY, "schema.registry.url": "http://registry", "linger.ms": 7}
    producer = SerializingProducer(
        {**config, "key.serializer.builder": key, "value.serializer.builder": value}
    )
    assert (key.built, value.built) == ([(config, True)], [(config, False)])
    producer.close()
    producer.close()
    assert (key.closed, value.closed) == (1, 1)
    with pytest.raises(RuntimeError, match="closed"):
        producer.produce("flights", "k", "v")
    with pytest.raises(ValueError, match=r"both key\.serializer and key\.serializer\.builder"):
        SerializingProducer({**NOBODY, "key.serializer": key, "key.serializer.builder": key})
    # An invalid configuration closes what was built.
    with pytest.raises(ValueError, match=r"group\.id"):
        DeserializingConsumer({**NOBODY, "value.deserializer.builder": value})
    assert value.closed == 2


def test_asynchronous_clients_serialize_and_deserialize(site: Facade) -> None:
    name = site.channel(partitions=1)

    async def run() -> list[tuple[Any, Any]]:
        producer = await AsyncSerializingProducer(
            {"bootstrap.servers": site.url, "value.serializer": IntegerSerializer()}
        )
        delivered = [await producer.produce(name, value=number) for number in range(3)]
        await producer.flush()
        assert [(await report).offset() for report in delivered] == [0, 1, 2]
        await producer.close()
        consumer = await AsyncDeserializingConsumer(
            {
                "bootstrap.servers": site.url,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "value.deserializer": IntegerDeserializer(),
            }
        )
        await consumer.subscribe([name])
        messages: list[Any] = []
        while len(messages) < 3:
            message = await consumer.poll(1)
            messages += [message] if message is not None else []
        await consumer.close()
        return [(message.topic(), message.value()) for message in messages]

    assert asyncio.run(asyncio.wait_for(run(), 60)) == [(name, number) for number in range(3)]
