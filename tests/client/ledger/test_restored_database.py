"""Readers and writers during a restore of the gateway's database to an earlier state."""

import shutil
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import pytest
from confluent_kafka import KafkaException

from gateways import RestartableGateway
from shared_kafka import SharedKafka
from sluiceway import Channel, ChannelWriter, Gateway, Heartbeat, Position
from sluiceway.confluent import Producer
from sluiceway.errors import CheckpointMismatch, Conflict, EndpointClosed, GatewayError
from sluiceway.spark.datasource import ChannelDataSource
from sluiceway.spark.microbatch import ChannelStreamReader
from sluiceway_gateway.settings import Settings
from topics import DEFINITION, readings


class RestorableGateway:
    """A gateway on one address, whose database can be replaced by its backup."""

    def __init__(self, kafka: SharedKafka, directory: Path) -> None:
        self._live, self._backup = directory / "gateway.db", directory / "backup.db"
        settings = Settings(
            database_url=f"sqlite:///{self._live}",
            kafka_bootstrap_servers=kafka.bootstrap_servers,
            topic_prefix=f"restored-{uuid.uuid4().hex[:8]}.",
            # A backup has the lease of the gateway that ran at that time.
            lease_ms=1000,
        )
        self._gateway = RestartableGateway(settings)
        self.url = self._gateway.url

    def back_up(self) -> None:
        with (
            closing(sqlite3.connect(self._live)) as live,
            closing(sqlite3.connect(self._backup)) as backup,
        ):
            live.backup(backup)

    def restore(self) -> None:
        """Stop, replace the database by its backup, and start again."""
        self._gateway.stop()
        for each in self._live.parent.glob("gateway.db*"):
            each.unlink()
        shutil.copy(self._backup, self._live)
        self._gateway.start()

    def close(self) -> None:
        self._gateway.close()


@pytest.fixture
def restorable(kafka: SharedKafka, tmp_path: Path) -> Iterator[RestorableGateway]:
    with closing(RestorableGateway(kafka, tmp_path)) as found:
        yield found


@pytest.fixture
def gateway(restorable: RestorableGateway) -> Iterator[Gateway]:
    with Gateway(restorable.url) as gateway:
        yield gateway


def new_channel(gateway: Gateway, name: str, **options: Any) -> Channel:
    heartbeat = Heartbeat(interval_ms=200, timeout_ms=60_000)
    return gateway.channel(name, DEFINITION, heartbeat=heartbeat, **options)


def ids(records: Any) -> list[int]:
    return [each["id"] for each in records]


def keep_writing(writer: ChannelWriter) -> NoReturn:
    while True:
        writer.write(readings(10, 20))
        writer.flush()


def test_readers_and_writers_notice_that_their_commits_are_missing(
    restorable: RestorableGateway, gateway: Gateway
) -> None:
    channel = new_channel(gateway, "ledgered", partitions=1, delivery="exactly_once")
    raw = gateway.channel("raw", format="bytes", partitions=1, delivery="exactly_once")
    producer = Producer({"bootstrap.servers": restorable.url})
    writer = channel.writer()
    reader, idle = channel.reader(until=None), channel.reader(group="g", until=None)
    writer.write(readings(10))
    writer.flush()
    assert ids(idle.read(10, timeout=None)) == [*range(10)]
    idle.commit()
    restorable.back_up()
    writer.write(readings(10, 10))
    writer.flush()
    producer.produce(raw.name, b"lost")
    assert producer.flush(30) == 0
    assert ids(reader.read(20, timeout=None)) == [*range(20)]
    assert ids(idle.read(10, timeout=None)) == [*range(10, 20)]
    idle.commit()
    restorable.restore()
    # The number of commits is as high as before.
    with channel.writer() as other:
        for first in (100, 110):
            other.write(readings(10, first))
            other.flush()

    for each in (reader, idle):
        with pytest.raises(Conflict, match="does not know the commit 2") as caught:
            each.read(1, timeout=None)
        assert (caught.value.code, caught.value.retriable) == ("ledger_restored", False)
    with pytest.raises(Conflict, match="does not have the commit 2") as caught:
        keep_writing(writer)
    assert caught.value.code == "ledger_restored"
    with pytest.raises(EndpointClosed):
        writer.write(readings(10, 20))
    producer.produce(raw.name, b"next")
    with pytest.raises(KafkaException, match="does not have the commit 1"):
        producer.flush(30)
    with pytest.raises(KafkaException, match="does not have the commit 1"):
        producer.close()
    for each in (reader, idle, writer):
        each.close()
    with channel.reader(group="g", until="now") as again:
        assert ids(again) == [*range(100, 120)]
    with channel.writer() as again:
        again.write(readings(10, 10))
    with channel.reader(until="now") as whole:
        assert ids(whole) == [*range(10), *range(100, 120), *range(10, 20)]


def test_no_reader_of_the_process_returns_lost_commits_once_one_has_noticed(
    restorable: RestorableGateway, gateway: Gateway
) -> None:
    channel = new_channel(gateway, "shared", partitions=1, delivery="exactly_once")
    with channel.writer() as writer:
        writer.write(readings(10))
    restorable.back_up()
    with channel.writer() as writer:
        writer.write(readings(10, 10))
    ahead, begun, opened = (channel.reader(until=None) for _ in range(3))
    assert ids(ahead.read(20, timeout=None)) == [*range(20)]
    assert ids(begun.read(5, timeout=None)) == [*range(5)]
    restorable.restore()
    with pytest.raises(Conflict, match="does not know the commit 2"):
        ahead.read(1, timeout=None)
    for reader in (opened, begun):
        with pytest.raises(Conflict) as caught:
            reader.read(20, timeout=None)
        assert caught.value.code == "ledger_restored"
    for reader in (ahead, begun, opened):
        reader.close()
    with channel.reader(until="now") as again:
        assert ids(again) == [*range(10)]


def test_readers_and_writers_of_the_backup_continue_and_later_ones_are_closed(
    restorable: RestorableGateway, gateway: Gateway
) -> None:
    channel = new_channel(gateway, "plain", partitions=1)
    writer, reader = channel.writer(), channel.reader(group="g", until=None)
    writer.write(readings(10))
    writer.flush()
    assert ids(reader.read(10, timeout=None)) == [*range(10)]
    reader.commit()
    restorable.back_up()
    later = [channel.writer(), channel.reader(group="h", until=None)]
    writer.write(readings(10, 10))
    writer.flush()
    assert ids(reader.read(10, timeout=None)) == [*range(10, 20)]
    reader.commit()
    restorable.restore()

    assert channel.committed("g") == {0: Position(offset=10)}
    writer.write(readings(10, 20))
    writer.flush()
    assert ids(reader.read(10, timeout=None)) == [*range(20, 30)]
    reader.commit()
    assert channel.committed("g") == {0: Position(offset=30)}
    with pytest.raises((EndpointClosed, GatewayError), match="was restored to an earlier state"):
        keep_writing(later[0])
    with pytest.raises((EndpointClosed, GatewayError), match="was restored to an earlier state"):
        later[1].read(100, timeout=None)
    for each in (writer, reader, later[1]):
        each.close()


def test_a_running_query_of_spark_is_refused_with_its_checkpoint(
    restorable: RestorableGateway, gateway: Gateway
) -> None:
    channel = new_channel(gateway, "queried", delivery="exactly_once")
    with channel.writer() as writer:
        writer.write(readings(3))
    restorable.back_up()
    with channel.writer() as writer:
        writer.write(readings(3, 3))
    source = ChannelDataSource({"path": channel.name}, gateway_url=restorable.url)
    reader = source.streamReader(source.schema())
    assert isinstance(reader, ChannelStreamReader)
    reader.planner.end()
    restorable.restore()

    with pytest.raises(CheckpointMismatch, match="Also restore the checkpoint of that time"):
        reader.planner.final_end(pytest.fail)
    reader.stop()
