"""Batch writes that end while the gateway is silent: the driver reports their end later."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from relay import Relay
from sluiceway import Gateway, Heartbeat
from sluiceway.api.endpoints import HeartbeatReply, SessionReport
from sluiceway.channel import Channel
from sluiceway.errors import GatewayError
from sluiceway.spark.driver import Application
from spark_tasks import SCHEMA, BatchJob, SparkParts, Tasks, pickled_copy
from waiting import until

OFTEN = Heartbeat(interval_ms=200, timeout_ms=60_000)
SELDOM = Heartbeat(interval_ms=60_000, timeout_ms=180_000)
COMMITTED = ("closed", None)
ABORTED = (
    "error",
    "the Spark job failed or was cancelled after 1 of its 1 tasks had written; the driver's log "
    "has the cause",
)


@pytest.fixture
def spark() -> SparkParts:
    return SparkParts([7])


@pytest.fixture
def application(spark: SparkParts, relay: Relay) -> Iterator[Application]:
    application = Application(spark, relay.url)  # type: ignore[arg-type]
    application.start()
    yield application
    relay.restore()
    application.end()
    until(lambda: not left_ends(application).exists())


def left_ends(application: Application) -> Path:
    """Return the directory of ends to report, which is there until the application has ended."""
    unreported = application.job.unreported
    assert unreported is not None
    return unreported.directory


class Heartbeats:
    """A part of each heartbeat that counts them."""

    def __init__(self) -> None:
        self.number = 0

    def report(self) -> SessionReport | None:
        self.number += 1
        return None

    def on_response(self, response: HeartbeatReply) -> None:
        """Do nothing."""

    def on_rejected(self, error: GatewayError) -> None:
        """Do nothing."""


@pytest.fixture
def make(gateway: Gateway, name: str) -> Callable[..., Channel]:
    def make(**options: Any) -> Channel:
        return gateway.channel(name, SCHEMA, partitions=2, **options)

    return make


def end_in_an_outage(
    application: Application,
    relay: Relay,
    channel: Channel,
    monkeypatch: pytest.MonkeyPatch,
    end: str = "commit",
) -> None:
    """Write five records by a job that ends while the gateway is silent."""
    job = BatchJob(channel, relay.url, Tasks(monkeypatch), application.job)
    results = [job.attempt(0, range(5))]
    relay.cut()
    getattr(pickled_copy(job.writer), end)(results)


def writers(channel: Channel) -> list[tuple[str, str | None]]:
    return [
        (endpoint.state, endpoint.cause)
        for endpoint in channel.endpoints()
        if endpoint.role == "writer"
    ]


def test_the_end_of_a_write_that_met_an_outage_is_reported_after_it(
    application: Application,
    relay: Relay,
    make: Callable[..., Channel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channel = make(heartbeat=OFTEN)
    end_in_an_outage(application, relay, channel, monkeypatch)
    relay.restore()
    with channel.reader(timeout_s=300) as reader:
        assert sorted(record["id"] for record in reader) == [*range(5)]
    assert writers(channel) == [COMMITTED]


def test_the_end_of_a_write_that_is_refused_for_a_time_is_reported_after_it(
    application: Application,
    relay: Relay,
    refusing: Any,
    make: Callable[..., Channel],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    channel = make(heartbeat=OFTEN)
    job = BatchJob(channel, relay.url, Tasks(monkeypatch), application.job)
    results = [job.attempt(0, range(5))]
    with refusing(401, "unauthenticated"):
        pickled_copy(job.writer).commit(results)
    assert "reports the end of" in caplog.text
    with channel.reader(timeout_s=300) as reader:
        assert sorted(record["id"] for record in reader) == [*range(5)]
    assert writers(channel) == [COMMITTED]


@pytest.mark.long
def test_the_failure_of_a_write_that_met_an_outage_is_reported_after_it(
    application: Application,
    relay: Relay,
    make: Callable[..., Channel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channel = make(heartbeat=OFTEN)
    end_in_an_outage(application, relay, channel, monkeypatch, end="abort")
    relay.restore()
    until(lambda: writers(channel) == [ABORTED])


@pytest.mark.long
def test_a_program_that_ends_reports_the_ends_of_its_writes_as_they_were(
    application: Application,
    relay: Relay,
    make: Callable[..., Channel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # No heartbeat reports it before.
    channel = make(heartbeat=SELDOM)
    end_in_an_outage(application, relay, channel, monkeypatch)
    relay.restore()
    application.end()
    assert writers(channel) == [COMMITTED]


@pytest.mark.long
def test_ends_wait_for_the_gateway_also_after_spark_was_stopped(
    application: Application,
    spark: SparkParts,
    relay: Relay,
    make: Callable[..., Channel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channel = make(heartbeat=OFTEN)
    end_in_an_outage(application, relay, channel, monkeypatch)
    spark.stop()
    heartbeats = Heartbeats()
    application.session.add_extension(heartbeats)
    until(lambda: heartbeats.number > 5)
    application.session.remove_extension(heartbeats)
    assert left_ends(application).exists()
    relay.restore()
    until(lambda: writers(channel) == [COMMITTED])
    until(lambda: not left_ends(application).exists())
