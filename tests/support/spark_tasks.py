"""Helpers for tests of Spark: connections, and records of channels."""

from collections.abc import Callable

import pyarrow as pa
from confluent_kafka import Message

from sluiceway.channel import Channel
from sluiceway.rest.models import Connection, SchemaVersion
from sluiceway.schema import Schema
from topics import Topics

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("s", pa.string())])

Produce = Callable[..., None]
"""A function that produces raw messages to a connection's topic, in order."""

Measure = Callable[..., tuple[int, int]]
"""Evaluates an expression on a pickled task in a new process: returns records, growth in MB."""


def connection_at(bootstrap_servers: str, topic: str) -> Connection:
    """Return the Connection of a channel with one partition, for a topic of these brokers."""
    definition = Schema.of(SCHEMA).definition
    return Connection(
        channel_name="t",
        channel_uid="0" * 32,
        generation=1,
        format="avro",
        schema_id=1,
        schema_definition=definition,
        schemas=(SchemaVersion(id=1, version=1, definition=definition),),
        topic_name=topic,
        topic_id=None,
        partitions=1,
        max_message_bytes=1_048_588,
        kafka={"bootstrap.servers": bootstrap_servers},
    )


def fill(channel: Channel, ids: range, partition: int = 0) -> None:
    """Write records with these ids into a partition, in order."""
    with channel.writer(partition=partition) as writer:
        writer.write([{"id": each, "s": str(each)} for each in ids])


def ids_in(channel: Channel) -> dict[int, list[int]]:
    """Return the ids in each partition that is not empty, in order."""
    ids_by_partition = {}
    for partition in range(channel.connection("read").partitions):
        with channel.reader(until="now", partitions=[partition]) as reader:
            ids = [record["id"] for record in reader]
        if ids:
            ids_by_partition[partition] = ids
    return ids_by_partition


def all_ids(channel: Channel) -> list[int]:
    """Return the ids in all partitions, in ascending order."""
    return sorted(each for ids in ids_in(channel).values() for each in ids)


def messages_of(connection: Connection) -> list[Message]:
    """Return a topic's raw messages, ordered by partition and offset."""
    messages_by_partition = Topics(connection.kafka["bootstrap.servers"]).messages(connection)
    return [message for messages in messages_by_partition.values() for message in messages]
