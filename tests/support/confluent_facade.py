"""Channels and helpers for the tests of sluiceway.confluent."""

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, Message, TopicPartition

from sluiceway import Gateway, Heartbeat
from sluiceway.confluent import Consumer, Producer
from waiting import collect, until

BEAT = Heartbeat(interval_ms=200, timeout_ms=60_000)
NUMBER = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "long"}]}


@dataclass(frozen=True)
class Facade:
    """A gateway, with channels, consumers and producers on it."""

    url: str
    gateway: Gateway

    def channel(self, *, partitions: int = 2, filled: int = 0, **options: Any) -> str:
        """Create a channel, with `filled` messages of another producer in each partition."""
        name = f"confluent-{uuid.uuid4().hex[:8]}"
        channel = self.gateway.channel(
            name, **{"format": "bytes", "partitions": partitions, "heartbeat": BEAT} | options
        )
        if filled:
            connection = channel.connection("write")
            producer = confluent_kafka.Producer(dict(connection.kafka))
            topic, headers = connection.topic_name, [("h", b"1")]
            for partition, number in product(range(partitions), range(filled)):
                value = f"{partition}-{number}".encode()
                producer.produce(topic, value, b"k", partition, headers=headers)
            assert producer.flush(30) == 0
        return name

    def typed(self, format_: str = "avro") -> str:
        """Create a channel of records, with one record."""
        name = self.channel(partitions=1, format=format_, schema=NUMBER)
        with self.gateway.channel(name).writer() as writer:
            writer.write({"n": 5})
        return name

    def consumer(self, **config: Any) -> Consumer:
        """Create a consumer without automatic commits."""
        defaults = {"bootstrap.servers": self.url, "group.id": "g", "enable.auto.commit": False}
        return Consumer({**defaults, **config})

    def producer(self, **config: Any) -> Producer:
        return Producer({"bootstrap.servers": self.url, **config})


def at(name: str, partition: int = 0, offset: int = OFFSET_INVALID) -> TopicPartition:
    return TopicPartition(name, partition, offset)


def poll_until(condition: Callable[[], object], *consumers: Consumer) -> None:
    """Poll the consumers in turn until the condition is true, and discard the messages."""

    def poll() -> object:
        result = condition()
        for client in () if result else consumers:
            client.poll(0.05)
        return result

    until(poll)


def poll_messages(consumer: Consumer, count: int) -> list[Message]:
    """Poll a number of messages and events."""

    def arrived(missing: int) -> Iterator[Message]:
        # Until a poll finds nothing: without pauses, because a poll gives one of many messages.
        return islice(iter(lambda: consumer.poll(1), None), missing)

    return collect(arrived, count)


def offsets(messages: Sequence[Message]) -> dict[int, list[int]]:
    """Return the offsets by partition; assert that no message is an event."""
    offsets_by_partition: defaultdict[int, list[int]] = defaultdict(list)
    for message in messages:
        assert message.error() is None, message.error()
        offsets_by_partition[message.partition()].append(message.offset())
    return dict(offsets_by_partition)


def codes(messages: Sequence[Message]) -> list[int]:
    return [message.error().code() for message in messages]


def error_code_of(call: Callable[..., Any], *arguments: Any, **named: Any) -> int:
    """Return the code of the KafkaException that a call raises."""
    with pytest.raises(KafkaException) as caught:
        call(*arguments, **named)
    error: KafkaError = caught.value.args[0]
    assert len(error.str()) > 10
    return error.code()
