"""Kafka topics for tests, and connections to them as the gateway describes them."""

import os
import struct
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, Message, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from sluiceway.api.models import Connection
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.model import (
    AlterConfig,
    CreateTopic,
    GrowPartitions,
    NewMessage,
    Rejection,
)
from waiting import until

DEFINITION = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "station", "type": ["null", "string"]},
        {"name": "celsius", "type": "double"},
    ],
}


def readings(count: int, first: int = 0) -> list[dict[str, object]]:
    return [
        {"id": i, "station": None if i % 5 == 0 else f"s{i % 7}", "celsius": i / 2}
        for i in range(first, first + count)
    ]


def connection_to(kafka: Mapping[str, str], topic: str = "t", **fields: Any) -> Connection:
    """Return a connection to a topic, as the gateway describes it, with other `fields`."""
    described: dict[str, Any] = {
        "channel_name": "readings",
        "channel_uid": "0" * 32,
        "generation": 1,
        "format": "avro",
        "schema_id": 7,
        "schema_definition": DEFINITION,
        "topic_name": topic,
        "topic_id": None,
        "partitions": 1,
        "max_message_bytes": 1_048_588,
        "kafka": kafka,
    }
    return Connection(**(described | fields))


def messages_of(connection: Connection) -> list[Message]:
    """Return every message of the topic, ordered by partition and offset."""
    partitions, ended = range(connection.partitions), set[int]()
    consumer = Consumer({**connection.kafka, "group.id": "look", "enable.partition.eof": True})
    consumer.assign([TopicPartition(connection.topic_name, p, 0) for p in partitions])
    messages: list[Message] = []
    while len(ended) < len(partitions):
        message = consumer.poll(30)
        assert message is not None
        if message.error() is None:
            messages.append(message)
        else:
            ended.add(message.partition())
    consumer.close()
    return sorted(messages, key=lambda message: (message.partition(), message.offset()))


class Topics:
    """Real topics on one broker."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._client = {"bootstrap.servers": bootstrap_servers, "log_level": 0}
        self._admin = KafkaAdmin(bootstrap_servers, timeout_s=30)

    def connect(
        self,
        format: str = "avro",
        *,
        partitions: int = 3,
        config: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Connection:
        """Create a topic, and return the connection to it, with other `fields`."""
        name = f"t-{uuid.uuid4().hex[:12]}"
        identity = {"topic_id": self.create(name, partitions, config), "format": format}
        kafka = {"bootstrap.servers": self.bootstrap_servers}
        return connection_to(
            kafka, name, channel_uid=uuid.uuid4().hex, partitions=partitions, **identity, **fields
        )

    def create(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        """Create a topic, wait until the broker's metadata has it, and return its id."""
        topic = CreateTopic(name=name, partitions=partitions, replication=1, config=config or {})
        _accepted(self._admin.create_topics([topic]))
        # The controller creates the topic; the metadata of brokers follows a moment later.
        return until(lambda: self._admin.describe_topic(name)).id

    def delete(self, name: str) -> None:
        """Delete a topic, and wait until the broker's metadata no longer has it."""
        _accepted(self._admin.delete_topics([name]))
        until(lambda: self._admin.describe_topic(name) is None)

    def create_again(self, name: str, partitions: int) -> None:
        self.delete(name)
        self.create(name, partitions)

    def grow(self, name: str, partitions: int) -> None:
        growth = GrowPartitions(name=name, partitions=partitions)
        _accepted(self._admin.grow_partitions([growth]))

    def set(self, name: str, **config: str) -> None:
        """Set configuration entries; `_` stands for `.`."""
        entries = {key.replace("_", "."): value for key, value in config.items()}
        change = AlterConfig(name=name, set=entries, delete=frozenset())
        _accepted(self._admin.alter_configs([change]))

    def limit_messages(self, name: str) -> None:
        """Have the broker refuse messages of more than 200 bytes."""
        self.set(name, max_message_bytes="200")
        large = NewMessage(partition=0, value=b"x" * 1000)

        def is_refused() -> bool:
            return isinstance(self._admin.produce(name, [large], max_message_bytes=2000), Rejection)

        # A partition's log has the limit a moment after the request.
        until(is_refused)

    def truncate(self, name: str, partition: int, before: int) -> None:
        at = TopicPartition(name, partition, before)
        self._admin.client.admin.delete_records([at])[at].result(30)

    def damage(self, log_dir: str, name: str, offset: int) -> None:
        """Change a byte of the batch of messages at this offset of partition 0, on the disk."""
        with (Path(log_dir) / f"{name}-0" / f"{0:020}.log").open("r+b") as log:
            # Each batch begins with its first offset and the number of the bytes that follow.
            while (header := struct.unpack(">qi", log.read(12)))[0] < offset:
                log.seek(header[1], os.SEEK_CUR)
            assert header[0] == offset
            log.seek(header[1] - 1, os.SEEK_CUR)
            (last,) = log.read(1)
            log.seek(-1, os.SEEK_CUR)
            log.write(bytes([last ^ 1]))

    def produce(self, name: str, partition: int, values: Sequence[bytes | None]) -> None:
        producer = Producer(self._client | {"enable.idempotence": True})
        for value in values:
            producer.produce(name, value, partition=partition)
        assert producer.flush(30) == 0

    def produce_in_transaction(self, name: str, partition: int, values: Sequence[bytes]) -> None:
        producer = Producer(self._client | {"transactional.id": uuid.uuid4().hex})
        end = self._end(name, partition) + len(values) + 1
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce(name, value, partition=partition)
        producer.commit_transaction(30)
        # The commit returns when it is certain; its marker is written a moment later.
        until(lambda: self._end(name, partition) >= end)

    def _end(self, name: str, partition: int) -> int:
        """Return the offset up to which readers of committed messages can read."""
        at = TopicPartition(name, partition)
        requested = self._admin.client.admin.list_offsets(
            {at: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED
        )
        return int(requested[at].result(30).offset)


def _accepted(outcomes: Mapping[str, Rejection | None]) -> None:
    assert not any(outcomes.values()), outcomes
