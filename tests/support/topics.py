"""Kafka topics for tests, and connections to them as the gateway describes them."""

import itertools
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from sluiceway.rest.models import Connection
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


class Topics:
    """Real topics on one broker, and their raw messages."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})

    def connect(
        self,
        format: str = "avro",
        *,
        partitions: int = 3,
        config: Mapping[str, str] | None = None,
        max_message_bytes: int = 1_048_588,
        definition: Mapping[str, object] = DEFINITION,
    ) -> Connection:
        """Create a topic, and return the connection to it."""
        name = f"t-{uuid.uuid4().hex[:12]}"
        return connection_to(
            {"bootstrap.servers": self.bootstrap_servers},
            name,
            topic_id=self.create(name, partitions, config),
            channel_uid=uuid.uuid4().hex,
            format=format,
            schema_definition=definition,
            partitions=partitions,
            max_message_bytes=max_message_bytes,
        )

    def create(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        """Create a topic, wait until the broker's metadata has it, and return its id."""
        topic = NewTopic(name, partitions, 1, config=dict(config or {}))
        self._admin.create_topics([topic])[name].result(30)

        def topic_id() -> str:
            # The controller creates the topic; the metadata of brokers follows a moment later.
            described = self._admin.describe_topics(TopicCollection([name]))[name].result(30)
            # In Kafka's alphabet.
            return str(described.topic_id).translate(str.maketrans("+/", "-_"))

        return str(until(topic_id, despite=KafkaException))

    def delete(self, name: str) -> None:
        """Delete a topic, and wait until the broker's metadata no longer has it."""
        self._admin.delete_topics([name])[name].result(30)

        def is_unknown() -> bool:
            try:
                self._admin.describe_topics(TopicCollection([name]))[name].result(30)
            except KafkaException as error:
                return bool(error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART)
            return False

        until(is_unknown)

    def create_again(self, name: str, partitions: int) -> None:
        self.delete(name)
        self.create(name, partitions)

    def grow(self, name: str, partitions: int) -> None:
        self._admin.create_partitions([NewPartitions(name, partitions)])[name].result(30)

    def set(self, name: str, **config: str) -> None:
        """Set configuration entries; `_` stands for `.`."""
        entries = [
            ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for key, value in config.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
        self._admin.incremental_alter_configs([resource])[resource].result(30)

    def limit_messages(self, name: str) -> None:
        """Have the broker refuse messages of more than 200 bytes.

        A partition's log has the limit a moment after the request.
        """
        self.set(name, max_message_bytes="200")
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        failures: list[KafkaError | None] = []

        def is_refused() -> bool:
            producer.produce(name, b"x" * 1000, on_delivery=lambda error, _: failures.append(error))
            assert producer.flush(30) == 0
            return failures[-1] is not None

        until(is_refused)

    def truncate(self, name: str, partition: int, before: int) -> None:
        at = TopicPartition(name, partition, before)
        self._admin.delete_records([at])[at].result(30)

    def produce(self, name: str, partition: int, values: Sequence[bytes | None]) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "enable.idempotence": True,
                "log_level": 0,
            }
        )
        for value in values:
            producer.produce(name, value, partition=partition)
        assert producer.flush(30) == 0

    def produce_in_transaction(self, name: str, partition: int, values: Sequence[bytes]) -> None:
        producer = Producer(
            {"bootstrap.servers": self.bootstrap_servers, "transactional.id": uuid.uuid4().hex}
        )
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
        requested = self._admin.list_offsets(
            {at: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED
        )
        return int(requested[at].result(30).offset)

    def messages(self, connection: Connection) -> dict[int, list[Message]]:
        """Return every message of the topic, by partition."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": "look",
                "enable.partition.eof": True,
            }
        )
        partitions = range(connection.partitions)
        consumer.assign([TopicPartition(connection.topic_name, p, 0) for p in partitions])
        messages: dict[int, list[Message]] = {p: [] for p in partitions}
        ended: set[int] = set()
        for _ in itertools.takewhile(lambda _: len(ended) < len(messages), itertools.count()):
            message = consumer.poll(30)
            assert message is not None
            if message.error() is None:
                messages[message.partition()].append(message)
            else:
                ended.add(message.partition())
        consumer.close()
        return messages
