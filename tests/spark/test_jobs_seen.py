"""What others see of Spark jobs, while they run and when they are over."""

import gc
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from spark_tasks import SCHEMA, fill

from sluiceway import Gateway, Heartbeat
from sluiceway.channel import Channel
from sluiceway.rest.endpoint_models import Endpoint
from sluiceway.spark.driver import Application
from sluiceway.spark.queries import public_cause
from views import views

SHORT = Heartbeat(interval_ms=100, timeout_ms=30_000)
TIMEOUT_S = 300
SECRET = "SENTINEL-4711"
"""A value of a record."""


@pytest.fixture
def channel(gateway: Gateway, name: str) -> Channel:
    return gateway.channel(name, SCHEMA, partitions=2, heartbeat=SHORT)


@pytest.fixture
def outlet(gateway: Gateway, name: str) -> Channel:
    return gateway.channel(f"{name}-out", SCHEMA, partitions=2, heartbeat=SHORT)


def seen(channel: Channel, role: str, holds: Callable[[Endpoint], bool]) -> Endpoint:
    """Return the newest endpoint of this role, once it `holds`."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        found = [each for each in channel.endpoints() if each.role == role]
        if found and holds(found[-1]):
            return found[-1]
        assert time.monotonic() < deadline_s, found
        time.sleep(0.02)


def lag_of(channel: Channel, group: str, wanted: int) -> int | None:
    """Return a group's lag in messages, once it is the one that is `wanted`."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        found = channel.report().group(group)
        if found is not None and found.lag_messages == wanted:
            return found.lag_messages
        assert time.monotonic() < deadline_s, found
        time.sleep(0.1)


def is_closed(endpoint: Endpoint) -> bool:
    return endpoint.state == "closed"


def save(frame: DataFrame, channel: Channel, **options: object) -> None:
    frame.write.format("channel").options(**options).mode("append").save(channel.name)


def rows(spark: SparkSession, count: int, tasks: int = 2) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("id", "cast(id as string) s")


def held_up(frame: DataFrame, gate: Path) -> DataFrame:
    """Let the rows through once there is a file."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            while not gate.exists():
                time.sleep(0.02)
            yield batch

    return frame.mapInArrow(wait, frame.schema)


def test_a_write_is_seen_while_it_runs_and_its_end_ends_readers(
    spark: SparkSession, channel: Channel, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"

    def at_work(each: Endpoint) -> bool:
        # On a busy machine a beat comes late, and the next one makes up for it.
        return each.counters.get("tasks_running") == 2 and each.health == "healthy"

    def watch() -> Endpoint:
        try:
            return seen(channel, "writer", at_work)
        finally:
            gate.touch()

    # Spark knows the data source in the thread that registered it.
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        save(held_up(rows(spark, 100), gate), channel)
    running = watching.result()
    assert (running.state, running.group) == ("started", None)
    assert running.title is not None
    assert running.title.startswith("sluiceway tests (")

    with channel.reader(timeout_s=TIMEOUT_S) as reader:
        assert sorted(record["id"] for record in reader) == [*range(100)]
    done = seen(channel, "writer", is_closed)
    assert done.id == running.id
    assert done.ends is not None
    assert sum(done.ends.values()) == 100
    assert (done.counters["records"], done.counters["tasks_done"]) == (100, 2)


def test_a_write_that_failed_says_so_until_its_group_writes_anew(
    spark: SparkSession, gateway_url: str, channel: Channel
) -> None:
    broken = rows(spark, 4).selectExpr("id", f"if(id < 3, '', raise_error('{SECRET}')) s")
    with pytest.raises(PySparkException, match=SECRET):
        save(broken, channel, group="nightly")
    failed = seen(channel, "writer", lambda each: each.state == "error")
    assert (failed.group, failed.index, failed.size) == ("nightly", 0, 1)
    assert "of its 2 tasks had written" in (failed.cause or "")
    assert SECRET not in views(gateway_url, channel.name)

    save(rows(spark, 4), channel, group="nightly")

    (done,) = channel.endpoints()
    assert (done.state, done.cause) == ("closed", None)
    with channel.reader(timeout_s=TIMEOUT_S) as reader:
        assert len(list(reader)) >= 4


def test_a_read_is_seen_and_closed_when_its_tasks_are_done(
    spark: SparkSession, channel: Channel
) -> None:
    fill(channel, range(20))
    fill(channel, range(20, 30), partition=1)

    assert spark.read.format("channel").load(channel.name).count() == 30

    done = seen(channel, "reader", is_closed)
    assert (done.group, done.cause) == (None, None)
    assert (done.counters["records"], done.counters["tasks_done"]) == (30, 2)


def test_a_read_that_spark_gave_up_is_closed_when_its_tasks_fall_silent(
    spark: SparkSession, gateway: Gateway, name: str
) -> None:
    brief = Heartbeat(interval_ms=100, timeout_ms=500)
    channel = gateway.channel(name, SCHEMA, partitions=2, heartbeat=brief)
    fill(channel, range(5))
    fill(channel, range(5, 10), partition=1)

    # Of two tasks the first gives all that is asked for.
    assert len(spark.read.format("channel").load(name).take(1)) == 1

    assert seen(channel, "reader", is_closed).cause == "no task reports any more"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., StreamingQuery]]:
    """Start a query, always from the same checkpoint."""
    queries: list[StreamingQuery] = []

    def start(frame: DataFrame, outlet: Channel, **options: object) -> StreamingQuery:
        writer = frame.writeStream.format("channel").options(**options)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        queries.append(writer.start(outlet.name))
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


def test_a_query_is_a_reader_and_a_writer_whose_place_its_restart_takes(
    spark: SparkSession,
    channel: Channel,
    outlet: Channel,
    start: Callable[..., StreamingQuery],
) -> None:
    fill(channel, range(10))
    frame = spark.readStream.format("channel").option("group", "delays").load(channel.name)
    query = start(frame, outlet)
    query.processAllAvailable()
    reading = seen(channel, "reader", lambda each: each.counters.get("records") == 10)
    assert (reading.group, reading.index, reading.size) == ("delays", 0, 1)
    assert (reading.state, reading.health) == ("started", "healthy")
    assert str(query.id) in (reading.title or "")
    writing = seen(outlet, "writer", lambda each: each.counters.get("records") == 10)
    assert writing.group == str(query.id)
    assert lag_of(channel, "delays", 0) == 0

    query.stop()
    with outlet.reader(timeout_s=TIMEOUT_S) as reader:
        assert sorted(record["id"] for record in reader) == [*range(10)]
    assert seen(channel, "reader", is_closed).id == reading.id
    assert seen(outlet, "writer", is_closed).id == writing.id

    # Idle from its start, it has told of no batch.
    again = start(frame, outlet)
    later = seen(channel, "reader", lambda each: each.state == "started")
    assert later.id != reading.id
    assert len([each for each in channel.endpoints() if each.role == "reader"]) == 1
    again.stop()
    # Ends of a place only grow: what the run before wrote is still there to be read.
    assert sum((seen(outlet, "writer", is_closed).ends or {}).values()) == 10


def test_a_query_that_failed_is_in_error_with_a_cause_that_quotes_no_record(
    spark: SparkSession,
    gateway_url: str,
    channel: Channel,
    outlet: Channel,
    start: Callable[..., StreamingQuery],
) -> None:
    fill(channel, range(3))
    frame = spark.readStream.format("channel").load(channel.name)
    broken = f"if(id < 3, s, raise_error('no more {SECRET}')) s"
    query = start(frame.selectExpr("id", broken), outlet)
    query.processAllAvailable()
    seen(channel, "reader", lambda each: each.state == "started")
    fill(channel, range(3, 4))

    reading = seen(channel, "reader", lambda each: each.state == "error")
    assert reading.cause == "org.apache.spark.SparkRuntimeException: USER_RAISED_EXCEPTION"
    assert seen(outlet, "writer", lambda each: each.state == "error").cause == reading.cause
    assert SECRET in str(query.exception()), "the job itself sees the value"
    assert SECRET not in views(gateway_url, channel.name) + views(gateway_url, outlet.name)
    assert reading.group == str(query.id)


@pytest.mark.parametrize(
    ("exception", "error_class", "cause"),
    [
        (f"java.lang.RuntimeException: {SECRET}\n\tat x.Y", None, "java.lang.RuntimeException"),
        ("org.apache.spark.SparkException", "CAST.INVALID", "…SparkException: CAST.INVALID"),
        ("a.B$C\n\tat d.E", SECRET.lower(), "a.B$C"),
        (f"{SECRET}: no class", None, "the query failed"),
        ("", "", "the query failed"),
    ],
)
def test_of_sparks_exceptions_the_type_and_the_error_class_are_public(
    exception: str, error_class: str | None, cause: str
) -> None:
    assert public_cause(exception, error_class) == cause.replace("…", "org.apache.spark.")


def test_an_application_that_ended_has_no_connection(
    spark_session: SparkSession, gateway_url: str
) -> None:
    application = Application(spark_session, gateway_url)
    application.session.add_extension(application)
    application.end()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del application
        gc.collect()
    port = f"raddr=('127.0.0.1', {httpx.URL(gateway_url).port})"
    assert [each for each in told if port in str(each.message)] == []
