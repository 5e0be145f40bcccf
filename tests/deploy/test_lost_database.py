"""A database that was lost, or restored from a backup, while topics have records."""

import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from gateways import serving
from shared_kafka import SharedKafka
from sluiceway import Gateway
from sluiceway.api.models import Retention
from sluiceway_gateway.app import create_app
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.settings import Settings
from sluiceway_gateway.migration import migrate

pytestmark = pytest.mark.long

SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}
RECORDS = [{"n": n} for n in range(50)]
Start = Callable[[Path], Any]


@pytest.fixture
def prefix() -> str:
    """A topic prefix that no other gateway uses."""
    return f"lost-{uuid.uuid4().hex[:8]}."


@pytest.fixture
def start(kafka: SharedKafka, prefix: str) -> Start:
    """A function that migrates a SQLite file, and runs a gateway on it."""

    @contextmanager
    def run(path: Path) -> Iterator[Gateway]:
        settings = Settings(
            database_url=f"sqlite:///{path}",
            kafka_bootstrap_servers=kafka.bootstrap_servers,
            topic_prefix=prefix,
            resync_s=1,
            # A backup has the lease of the gateway that ran at that time.
            lease_ms=1000,
        )
        migrate(settings.database_url.get_secret_value())
        with serving(create_app(settings)) as url, Gateway(url) as gateway:
            yield gateway

    return run


def write_channel(gateway: Gateway, name: str, **options: Any) -> str:
    """Create a channel with records, and return its topic."""
    channel = gateway.channel(name, SCHEMA, **options)
    with channel.writer() as writer:
        writer.write(RECORDS)
    return channel.status.topic.name


def message_count(kafka: SharedKafka, topic: str) -> int:
    """Return the number of messages in a topic with one partition."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "looks"})
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    consumer.close()
    return int(high - low)


def wait_for_reconciler(gateway: Gateway) -> None:
    """Create a channel, and wait until the loops have processed it and all earlier changes."""
    gateway.channel(f"after-{uuid.uuid4().hex[:8]}", SCHEMA)


def test_a_lost_database_loses_no_record(kafka: SharedKafka, start: Start, tmp_path: Path) -> None:
    with start(tmp_path / "lost.db") as gateway:
        old = write_channel(gateway, "orders")
    with start(tmp_path / "new.db") as gateway:
        assert list(gateway.channels()) == []
        new = write_channel(gateway, "orders")
        assert new != old
        assert message_count(kafka, old) == message_count(kafka, new) == len(RECORDS)
        gateway.channel("orders").delete()
        wait_for_reconciler(gateway)
        # The first schema ids of the old and the new database are equal.
        adopted = gateway.channel("orders-before", SCHEMA, topic=old)
        with adopted.reader(until="now") as reader:
            assert list(reader) == RECORDS
        adopted.delete()
    assert message_count(kafka, old) == len(RECORDS), "the old topic must be unchanged"


def test_a_restored_backup_changes_no_unknown_topic(
    kafka: SharedKafka, start: Start, tmp_path: Path
) -> None:
    backup = tmp_path / "backup.db"
    with start(tmp_path / "gateway.db") as gateway:
        kept_topic = write_channel(gateway, "kept", retention=Retention(ms=86_400_000))
        write_channel(gateway, "deleted-since")
        grown = gateway.channel("grown-since", SCHEMA)
        # The command of docs/operating.md, while the gateway runs.
        with sqlite3.connect(tmp_path / "gateway.db") as connection:
            connection.execute("VACUUM INTO ?", (str(backup),))
        connection.close()
        newer_topic = write_channel(gateway, "made-since")
        gateway.channel("deleted-since").delete()
        grown.update(partitions=3)
    with start(backup) as gateway:
        assert [channel.name for channel in gateway.channels()] == [
            "deleted-since",
            "grown-since",
            "kept",
        ]

        def reason(name: str, kind: str) -> str | None:
            channel = next(channel for channel in gateway.channels() if channel.name == name)
            condition = channel.status.condition(kind)
            return None if condition is None else condition.reason

        deadline = time.monotonic() + 180
        while reason("deleted-since", "Ready") != "TopicMissing":
            assert time.monotonic() < deadline
        while reason("grown-since", "Synced") != "PartitionsExceedSpec":
            assert time.monotonic() < deadline
        assert message_count(kafka, newer_topic) == len(RECORDS)
        assert message_count(kafka, kept_topic) == len(RECORDS)
        with gateway.channel("kept").reader(until="now") as reader:
            assert list(reader) == RECORDS
    client = KafkaAdmin(kafka.bootstrap_servers)
    assert newer_topic in client.observe([newer_topic]).topics
    client.close()
