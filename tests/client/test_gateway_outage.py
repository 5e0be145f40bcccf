"""Gateway outages: reading and writing continue, commits and reports catch up."""

import logging
import queue
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from gateways import serving
from relay import Relay
from shared_kafka import SharedKafka
from sluiceway import Gateway, Heartbeat
from sluiceway.errors import GatewayUnavailable
from sluiceway_gateway.app import create_app
from sluiceway_gateway.db.revision import migrate
from sluiceway_gateway.settings import Settings
from topics import DEFINITION, readings
from waiting import until

TIMEOUT_S = 5
BEAT = Heartbeat(interval_ms=200, timeout_ms=60_000)


class Fragile:
    """A gateway that can be stopped and restarted with its address and its database.

    A relay keeps the port meanwhile, which another process could take.
    """

    def __init__(self, database: Path, kafka: SharedKafka) -> None:
        self._settings = Settings(
            database_url=f"sqlite:///{database}",
            kafka_bootstrap_servers=kafka.bootstrap_servers,
            resync_s=1,
        )
        migrate(self._settings.database_url.get_secret_value())
        self._running = ExitStack()
        self._relay = Relay(self._serve())
        self.url = self._relay.url

    def _serve(self) -> int:
        """Start the gateway, and return its own port."""
        url = self._running.enter_context(serving(create_app(self._settings)))
        return httpx.URL(url).port or 0

    def stop(self) -> None:
        self._relay.cut()
        self._running.close()

    def start(self) -> None:
        before = self._relay
        self._relay = Relay(self._serve(), before.port)
        before.close()

    def close(self) -> None:
        self.stop()
        self._relay.close()


@pytest.fixture
def fragile(kafka: SharedKafka, tmp_path: Path) -> Iterator[Fragile]:
    fragile = Fragile(tmp_path / "gateway.db", kafka)
    yield fragile
    fragile.close()


def test_reading_and_writing_continue_during_an_outage_and_commits_catch_up(
    fragile: Fragile, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
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
            until(lambda: [each.health for each in channel.endpoints()] == ["healthy"] * 3)
        assert {each.state for each in channel.endpoints()} == {"closed"}
        for each in channel.endpoints():
            path = f"{fragile.url}/v1/channels/{channel.name}/endpoints/{each.id}"
            assert "lost" not in [event["health"] for event in httpx.get(path).json()["events"]]
    reported = [
        each.message for each in caplog.records if each.name == "sluiceway.endpoint.heartbeat"
    ]
    assert any("Reading and writing continue" in each for each in reported)
    assert any("accepts heartbeats again" in each for each in reported)


def test_a_reader_that_needs_the_gateway_to_end_raises_after_the_grace_period(
    fragile: Fragile,
) -> None:
    with Gateway(fragile.url, control_grace_s=TIMEOUT_S) as gateway:
        channel = gateway.channel("graceful", schema=DEFINITION, heartbeat=BEAT)
        with channel.reader() as reader:
            with channel.writer() as writer:
                writer.write(readings(10))
                writer.flush()
                fragile.stop()
                # Existing records can be read.
                assert len(reader.read(10, timeout=None)) == 10
                with pytest.raises(GatewayUnavailable):
                    reader.read(1, timeout=60)
                fragile.start()
            assert list(reader) == []
