"""Gateway outages: reading and writing continue, commits and reports catch up."""

import logging
import queue
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from gateways import RestartableGateway
from shared_kafka import SharedKafka
from sluiceway import Gateway, Heartbeat
from sluiceway.errors import GatewayUnavailable
from sluiceway_gateway.settings import Settings
from topics import DEFINITION, readings
from waiting import until

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
