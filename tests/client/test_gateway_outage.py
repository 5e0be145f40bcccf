"""Readers and writers during an outage of the gateway, and a restore of its database."""

import logging
import queue
import shutil
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest
from confluent_kafka import KafkaException

from gateways import serving
from relay import Relay
from shared_kafka import SharedKafka
from sluiceway import Channel, ChannelWriter, Gateway, Heartbeat, Position
from sluiceway.confluent import Producer
from sluiceway.errors import (
    CheckpointMismatch,
    Conflict,
    EndpointClosed,
    GatewayError,
    GatewayUnavailable,
)
from sluiceway.spark.datasource import ChannelDataSource
from sluiceway.spark.microbatch import ChannelStreamReader
from sluiceway_gateway.app import create_app
from sluiceway_gateway.core.settings import Settings
from sluiceway_gateway.migration import migrate
from topics import DEFINITION, readings
from waiting import until


class RestartableGateway:
    """A gateway that can be stopped, and started again with its address and its database.

    A relay keeps the port meanwhile, which another process could take.
    """

    def __init__(self, settings: Settings) -> None:
        """Create the tables, and start the gateway."""
        migrate(settings.database_url.get_secret_value())
        self._settings = settings
        self._running = ExitStack()
        self._relay = Relay(self._serve())
        self.url = self._relay.url

    def stop(self) -> None:
        """Close and refuse connections, and end the gateway."""
        self._relay.cut()
        self._running.close()

    def start(self) -> None:
        self._relay.target = self._serve()
        self._relay.restore()

    def close(self) -> None:
        self.stop()
        self._relay.close()

    def _serve(self) -> int:
        """Start the gateway, and return its own port."""
        url = self._running.enter_context(serving(create_app(self._settings)))
        return httpx.URL(url).port or 0


TIMEOUT_S = 5


BEAT = Heartbeat(interval_ms=200, timeout_ms=60_000)


@pytest.fixture
def fragile(kafka: SharedKafka, tmp_path: Path) -> Iterator[RestartableGateway]:
    settings = Settings(
        database_url=f"sqlite:///{tmp_path / 'gateway.db'}",
        kafka_bootstrap_servers=kafka.bootstrap_servers,
        resync_s=1,
    )
    with closing(RestartableGateway(settings)) as fragile:
        yield fragile


@pytest.mark.long
def test_reading_and_writing_continue_during_an_outage_and_commits_catch_up(
    fragile: RestartableGateway, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, "sluiceway")
    with Gateway(fragile.url) as gateway:
        channel = gateway.channel(
            f"away-{uuid.uuid4().hex[:8]}", schema=DEFINITION, partitions=2, heartbeat=BEAT
        )
        with (
            channel.writer() as writer,
            channel.reader(group="delays") as reader,
            channel.reader(group="maps", until=None) as waiting,
        ):
            writer.write(readings(10))
            writer.flush()
            assert len(reader.read(10, timeout=None)) == 10
            reader.commit()
            before = reader.position()
            # It passes during the outage; a commit waits longer, for TIMEOUT_S.
            channel.update(heartbeat=replace(BEAT, timeout_ms=3_000))
            fragile.stop()
            writer.write(readings(10, 10))
            writer.flush()
            assert len(reader.read(10, timeout=None)) == 10
            with monkeypatch.context() as patched:
                # The grace period is that of the gateway.
                patched.setattr(reader.handle.calls.transport, "_timeout_s", TIMEOUT_S)
                with pytest.raises(GatewayUnavailable):
                    reader.commit()
            writer.write(readings(10, 20))
            writer.flush()
            assert len(reader.read(5, timeout=None)) == 5
            fragile.start()
            channel.update(heartbeat=BEAT)
            assert reader.committed() == before
            reader.commit()
            assert reader.committed() == reader.position()
            assert len(waiting.read(30, timeout=None)) == 30
            beats: queue.Queue[object] = queue.Queue()
            waiting.on_status(beats.put)
            beats.get(timeout=60)
            until(lambda: [endpoint.health for endpoint in channel.endpoints()] == ["healthy"] * 3)
        assert {endpoint.state for endpoint in channel.endpoints()} == {"closed"}
        for endpoint in channel.endpoints():
            path = f"{fragile.url}/v1/channels/{channel.name}/endpoints/{endpoint.id}"
            assert "lost" not in [event["health"] for event in httpx.get(path).json()["events"]]
    reported = [
        record.message for record in caplog.records if record.name == "sluiceway.endpoint.heartbeat"
    ]
    assert any("Reading and writing continue" in message for message in reported)
    assert any("accepts heartbeats again" in message for message in reported)


def test_a_reader_that_needs_the_gateway_to_end_raises_after_the_grace_period(
    fragile: RestartableGateway,
) -> None:
    with Gateway(fragile.url, control_grace_s=TIMEOUT_S) as gateway:
        channel = gateway.channel("graceful", schema=DEFINITION, heartbeat=BEAT)
        with channel.reader() as reader, channel.writer() as writer:
            writer.write(readings(10))
            writer.flush()
            fragile.stop()
            # Existing records can be read.
            assert len(reader.read(10, timeout=None)) == 10
            with pytest.raises(GatewayUnavailable):
                reader.read(1, timeout=60)
            fragile.start()
            writer.close()

            def has_ended() -> bool:
                # Until the next heartbeat, the outage is raised again.
                with suppress(GatewayUnavailable):
                    return list(reader) == []
                return False

            until(has_ended)


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
        for file in self._live.parent.glob("gateway.db*"):
            file.unlink()
        shutil.copy(self._backup, self._live)
        self._gateway.start()

    def close(self) -> None:
        self._gateway.close()


@pytest.fixture
def restorable(kafka: SharedKafka, tmp_path: Path) -> Iterator[RestorableGateway]:
    with closing(RestorableGateway(kafka, tmp_path)) as restorable:
        yield restorable


@pytest.fixture
def gateway(restorable: RestorableGateway) -> Iterator[Gateway]:
    with Gateway(restorable.url) as gateway:
        yield gateway


def new_channel(gateway: Gateway, name: str, **options: Any) -> Channel:
    heartbeat = Heartbeat(interval_ms=200, timeout_ms=60_000)
    return gateway.channel(name, DEFINITION, heartbeat=heartbeat, **options)


def ids(records: Any) -> list[int]:
    return [record["id"] for record in records]


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

    for endpoint in (reader, idle):
        with pytest.raises(Conflict, match="does not know the commit 2") as caught:
            endpoint.read(1, timeout=None)
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
    for endpoint in (reader, idle, writer):
        endpoint.close()
    with channel.reader(group="g", until="now") as again:
        assert ids(again) == [*range(100, 120)]
    with channel.writer() as again:
        again.write(readings(10, 10))
    with channel.reader(until="now") as whole:
        assert ids(whole) == [*range(10), *range(100, 120), *range(10, 20)]


@pytest.mark.long
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


@pytest.mark.long
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
    for endpoint in (writer, reader, later[1]):
        endpoint.close()


@pytest.mark.long
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
