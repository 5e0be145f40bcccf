"""Unmodified clients of schema registries on the messages of a channel."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bench.spark_jars import connector_jars
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from processes import run_script, spark_environment
from sluiceway import Channel
from topics import readings

FROM_AVRO = Path(__file__).with_name("from_avro_job.py")


@pytest.fixture
def channel(new_channel: Callable[..., Channel]) -> Channel:
    return new_channel(partitions=1)


@pytest.fixture
def registry(gateway_url: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": f"{gateway_url}/registry"}) as registry:
        yield registry


def messages(channel: Channel, count: int) -> list[bytes]:
    """Return the channel's first messages in Kafka."""
    connection = channel.connection("read")
    consumer = Consumer({**connection.kafka, "group.id": "none"})
    try:
        consumer.assign([TopicPartition(connection.topic_name, 0, 0)])
        consumed = consumer.consume(count, timeout=60)
        return [message.value() for message in consumed]
    finally:
        consumer.close()


@pytest.mark.long
def test_a_deserializer_reads_what_a_writer_wrote(
    channel: Channel, registry: SchemaRegistryClient
) -> None:
    records = readings(3)
    with channel.writer() as writer:
        writer.write(records)
    topic = channel.connection("read").topic_name
    deserialize = AvroDeserializer(registry)
    context = SerializationContext(topic, MessageField.VALUE)
    assert [deserialize(value, context) for value in messages(channel, 3)] == records


def test_a_reader_reads_what_a_serializer_wrote(
    channel: Channel, registry: SchemaRegistryClient
) -> None:
    connection = channel.connection("write")
    latest = registry.get_latest_version(f"{connection.topic_name}-value").schema.schema_str
    producer = Producer(connection.kafka)
    context = SerializationContext(connection.topic_name, MessageField.VALUE)
    records = readings(3)
    for options in ({}, {"auto.register.schemas": False, "use.latest.version": True}):
        serialize = AvroSerializer(registry, latest, conf=options)
        for record in records:
            producer.produce(connection.topic_name, serialize(record, context), partition=0)
    assert producer.flush(60) == 0
    with channel.reader(until="now") as reader:
        assert list(reader) == records * 2


@pytest.mark.long
def test_spark_decodes_messages_with_from_avro(
    channel: Channel, gateway_url: str, tmp_path: Path
) -> None:
    records = readings(5)
    with channel.writer() as writer:
        writer.write(records)
    connection = channel.connection("read")
    job = run_script(
        *(FROM_AVRO, ",".join(map(str, connector_jars()))),
        *(connection.kafka["bootstrap.servers"], connection.topic_name),
        f"{gateway_url}/registry/subjects/{connection.topic_name}-value/versions/latest/schema",
        cwd=tmp_path,
        **spark_environment(tmp_path),
    )
    # Spark leaves null fields out of JSON.
    rows = [{"station": None} | json.loads(line) for line in job.stdout.splitlines()]
    assert rows == records
