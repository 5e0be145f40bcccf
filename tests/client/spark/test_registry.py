"""Spark reads adopted topics whose messages have the ids of another registry."""

import struct

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sluiceway import Gateway
from topics import Topics

WRITTEN = {"type": "record", "name": "W", "fields": [{"name": "id", "type": "int"}]}
READ = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}


def test_tasks_resolve_ids_of_another_registry(
    spark: SparkSession, gateway: Gateway, topics: Topics, name: str
) -> None:
    """The registry is the gateway's own interface, where another channel has the schema."""
    gateway.channel(f"{name}-registered", WRITTEN)
    url = f"{gateway.url}/registry"
    with SchemaRegistryClient({"url": url}) as registry:
        schema_id = registry.get_latest_version(f"{name}-registered-value").schema_id
    assert isinstance(schema_id, int)
    topics.create(name)
    # In Avro, the bytes of an int of one digit are twice the int.
    topics.produce(name, 0, [struct.pack(">BIB", 0, schema_id, 2 * number) for number in range(3)])
    gateway.channel(name, READ, topic=name)
    read = spark.read.format("channel").option("schemaRegistry", url)
    assert sorted(row.id for row in read.load(name).collect()) == [0, 1, 2]
    with pytest.raises(PySparkException, match="without a user, which SLUICEWAY_REGISTRY_AUTH has"):
        read.option("schemaRegistry", "http://user:pw@registry").load(name)
