"""Helpers for the tests of `sluiceway.broker`."""

import io
import struct
from typing import Any

import fastavro
import httpx

from sluiceway import Channel
from sluiceway.broker import (
    Broker,
    Message,
    PartitionFetchRequest,
    PartitionOffsetCommitRequest,
    PartitionOffsetFetchRequest,
    PartitionOffsetRequest,
    ProduceRequest,
)
from topics import DEFINITION, readings

PARSED = fastavro.parse_schema(DEFINITION)


def broker_at(url: str, **options: Any) -> Broker:
    """Return a Broker with the arguments that pykafka passes."""
    address = httpx.URL(url)
    timeouts = {"socket_timeout_ms": 20_000, "offsets_channel_socket_timeout_ms": 20_000}
    return Broker(1, address.host, address.port or 0, None, **(timeouts | options))


def encode(channel: Channel, count: int, first: int = 0) -> list[bytes]:
    """Return readings, encoded in the format avro."""
    messages = []
    for record in readings(count, first):
        body = io.BytesIO()
        fastavro.schemaless_writer(body, PARSED, record)
        messages.append(struct.pack(">BI", 0, channel.schemas()[-1].id) + body.getvalue())
    return messages


def produce_values(
    broker: Broker, channel: Channel, values: list[bytes], partition: int = 0, **options: Any
) -> Any:
    """Produce values, and return the partition's response."""
    request = ProduceRequest(**options)
    for value in values:
        request.add_message(Message(value), channel.name.encode(), partition)
    response = broker.produce_messages(request)
    return None if response is None else response.topics[channel.name][partition]


def fetch(
    broker: Broker, channel: Channel, offset: int = 0, partition: int = 0, **options: Any
) -> Any:
    """Fetch from one partition, and return its response."""
    wait = {key: options.pop(key) for key in ("timeout", "min_bytes") if key in options}
    request = PartitionFetchRequest(channel.name.encode(), partition, offset, **options)
    return broker.fetch_messages([request], **wait).topics[channel.name][partition]


def fetch_committed(broker: Broker, channel: Channel, group: bytes, partition: int = 0) -> Any:
    """Fetch a group's committed offset of one partition, and return the response."""
    request = PartitionOffsetFetchRequest(channel.name.encode(), partition)
    response = broker.fetch_consumer_group_offsets(group, [request])
    return response.topics[channel.name][partition]


def commit(
    broker: Broker,
    channel: Channel,
    group: bytes,
    offset: int,
    *,
    partition: int = 0,
    generation: int = -1,
    member: bytes = b"",
) -> Any:
    """Commit the offset of one partition, and return its response."""
    request = PartitionOffsetCommitRequest(channel.name.encode(), partition, offset, 0, b"")
    response = broker.commit_consumer_group_offsets(group, generation, member, [request])
    return response.topics[channel.name][partition]


def fetch_offset(broker: Broker, channel: Channel, when: int, partition: int = 0) -> Any:
    """Fetch one offset of one partition by `when`, and return the response."""
    request = PartitionOffsetRequest(channel.name.encode(), partition, when, 1)
    return broker.request_offset_limits([request]).topics[channel.name][partition]
