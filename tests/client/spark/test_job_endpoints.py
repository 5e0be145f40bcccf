"""Endpoints of Spark jobs and queries, while they run and after they end."""

import gc
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from gateways import all_responses
from sluiceway import Gateway, Heartbeat
from sluiceway.api.endpoints import Endpoint, SparkJob
from sluiceway.channel import Channel
from sluiceway.errors import GatewayError
from sluiceway.spark.driver import Application
from sluiceway.spark.endpoints import EndpointSpec, Job, QueryEndpoint, control
from sluiceway.spark.queries import public_cause
from spark_tasks import SCHEMA, SparkParts, fill, ids_in, progressed, started
from waiting import until

SHORT = Heartbeat(interval_ms=100, timeout_ms=30_000)
TIMEOUT_S = 300
SECRET = "SENTINEL-4711"
"""A value of a record."""


@pytest.fixture
def channel(gateway: Gateway, name: str) -> Channel:
    return gateway.channel(name, SCHEMA, partitions=2, heartbeat=SHORT)


@pytest.fixture
def sink(gateway: Gateway, name: str) -> Channel:
    return gateway.channel(f"{name}-out", SCHEMA, partitions=2, heartbeat=SHORT)


def seen(channel: Channel, role: str, holds: Callable[[Endpoint], bool]) -> Endpoint:
    """Wait until the newest endpoint of this role satisfies `holds`, and return it."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        endpoints = [endpoint for endpoint in channel.endpoints() if endpoint.role == role]
        if endpoints and holds(endpoints[-1]):
            return endpoints[-1]
        assert time.monotonic() < deadline_s, endpoints
        time.sleep(0.02)


def lag_of(channel: Channel, group: str, wanted: int) -> int | None:
    """Wait for a group's lag in messages, and return it."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        group_report = channel.report().group(group)
        if group_report is not None and group_report.lag_messages == wanted:
            return group_report.lag_messages
        assert time.monotonic() < deadline_s, group_report
        time.sleep(0.1)


def is_closed(endpoint: Endpoint) -> bool:
    return endpoint.state == "closed"


def is_healthy(endpoint: Endpoint, *, records: int) -> bool:
    # On a busy machine a heartbeat may be late.
    return endpoint.counters.get("records") == records and endpoint.health == "healthy"


def save(frame: DataFrame, channel: Channel, **options: object) -> None:
    frame.write.format("channel").options(**options).mode("append").save(channel.name)


def rows(spark: SparkSession, count: int, tasks: int = 2) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("id", "cast(id as string) s")


def delayed(frame: DataFrame, gate: Path) -> DataFrame:
    """Delay the rows until the file `gate` exists."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            while not gate.exists():
                time.sleep(0.02)
            yield batch

    return frame.mapInArrow(wait, frame.schema)


def test_a_running_write_is_listed_and_its_end_ends_readers(
    spark: SparkSession, channel: Channel, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"

    def at_work(endpoint: Endpoint) -> bool:
        # On a busy machine a heartbeat may be late.
        return endpoint.counters.get("tasks_running") == 2 and endpoint.health == "healthy"

    def watch() -> Endpoint:
        try:
            return seen(channel, "writer", at_work)
        finally:
            gate.touch()

    # Spark knows the data source in the thread that registered it.
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        save(delayed(rows(spark, 100), gate), channel)
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


def spark_facts(gateway_url: str, channel: Channel, role: str) -> object:
    """Return the Spark jobs of a channel's endpoints in a role, as the gateway has them."""
    path = f"{gateway_url}/v1/channels/{channel.name}/endpoints"
    items = httpx.get(path, timeout=60).raise_for_status().json()["items"]
    return [endpoint["spark"] for endpoint in items if endpoint["role"] == role]


@pytest.mark.long
def test_the_gateway_knows_applications_and_queries(
    spark: SparkSession,
    gateway_url: str,
    channel: Channel,
    sink: Channel,
    start: Callable[..., StreamingQuery],
) -> None:
    save(rows(spark, 10), channel, group="load")
    application = {"application": "sluiceway tests", "query": None, "ui": None}
    assert spark_facts(gateway_url, channel, "writer") == [application]
    query = start(spark.readStream.format("channel").load(channel.name), sink)
    query.processAllAvailable()
    for place, role in ((channel, "reader"), (sink, "writer")):
        seen(place, role, lambda endpoint: endpoint.counters.get("records") == 10)
    expected = application | {"query": str(query.id)}
    assert spark_facts(gateway_url, channel, "reader") == [expected]
    assert spark_facts(gateway_url, sink, "writer") == [expected]
    path = f"{gateway_url}/v1/channels/{channel.name}/graph"
    graph = httpx.get(path, timeout=60).raise_for_status().json()
    (job,) = [entry for entry in graph["jobs"] if entry["name"] == str(query.id)]
    assert [(edge["channel"], edge["role"]) for edge in job["edges"]] == [
        (channel.name, "reader"),
        (sink.name, "writer"),
    ]


@pytest.mark.long
def test_the_address_of_the_ui_is_that_of_the_driver() -> None:
    program = """
        from pyspark.sql import SparkSession
        from sluiceway.spark.queries import ui_address

        builder = SparkSession.builder.master("local[1]").config("spark.ui.port", "0")
        spark = builder.getOrCreate()
        print(ui_address(spark) == spark.sparkContext.uiWebUrl)
        print((ui_address(spark) or "").startswith("http://"))
        spark.stop()
        print(ui_address(spark))
    """
    arguments = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    assert done.stdout.split() == ["True", "True", "None"]


def test_facts_of_jobs_are_as_long_as_the_gateway_takes() -> None:
    job = Job(session="s", title="t", application="a" * 300, ui="http://h")
    assert job.facts == SparkJob(application="a" * 200, ui="http://h")
    job = Job(session="s", title="t", query="q", ui="http://" + "h" * 600)
    assert job.facts == SparkJob(query="q")


@pytest.mark.long
def test_a_failed_write_is_in_error_until_its_group_writes_again(
    spark: SparkSession, gateway_url: str, channel: Channel
) -> None:
    broken = rows(spark, 4).selectExpr("id", f"if(id < 3, '', raise_error('{SECRET}')) s")
    with pytest.raises(PySparkException, match=SECRET):
        save(broken, channel, group="nightly")
    failed = seen(channel, "writer", lambda endpoint: endpoint.state == "error")
    assert (failed.group, failed.index, failed.size) == ("nightly", 0, 1)
    assert "the driver's log has the cause" in (failed.cause or "")
    assert SECRET not in all_responses(gateway_url, channel.name)

    save(rows(spark, 4), channel, group="nightly")

    (done,) = channel.endpoints()
    assert (done.state, done.cause) == ("closed", None)
    with channel.reader(timeout_s=TIMEOUT_S) as reader:
        assert len(list(reader)) >= 4


@pytest.mark.long
def test_the_cause_of_a_failed_write_has_the_error_of_its_task(
    spark: SparkSession, gateway: Gateway, gateway_url: str, name: str
) -> None:
    cabin = {"type": "enum", "name": "Cabin", "symbols": ["Y"]}
    seat = {"type": "record", "name": "Seat", "fields": [{"name": "cabin", "type": cabin}]}
    channel = gateway.channel(name, seat, heartbeat=SHORT)
    with pytest.raises(PySparkException, match=SECRET):
        save(spark.range(0, 1, 1, 1).selectExpr(f"'{SECRET}' cabin"), channel)
    failed = seen(channel, "writer", lambda endpoint: endpoint.state == "error")
    assert (failed.cause or "").endswith(
        "task 0: InvalidRecord: record 0, field 'cabin': it must be one of the symbols Y; it is str"
    )
    assert SECRET not in all_responses(gateway_url, channel.name)


@pytest.mark.long
@pytest.mark.parametrize("key", [{"batchKey": "2013-01-01"}, {}])
def test_a_failed_exactly_once_write_does_not_spoil_its_channel(
    spark: SparkSession, gateway: Gateway, name: str, key: dict[str, str]
) -> None:
    channel = gateway.channel(name, SCHEMA, delivery="exactly_once", heartbeat=SHORT)
    broken = rows(spark, 4).selectExpr("id", f"if(id < 3, '', raise_error('{SECRET}')) s")
    with pytest.raises(PySparkException, match=SECRET):
        save(broken, channel, **key)
    seen(channel, "writer", lambda endpoint: endpoint.state == "error")

    def repeated() -> bool:
        try:
            save(rows(spark, 4), channel, **key)
        except PySparkException as error:
            # A task opened the batch after the job had failed, and holds it for its lease.
            if "is open in another instance" not in str(error):
                raise
            return False
        return True

    until(repeated)
    # It ends, although the failed write has no group, and thus no successor.
    with channel.reader(timeout_s=TIMEOUT_S) as reader:
        assert sorted(record["id"] for record in reader) == [*range(4)]


@pytest.mark.long
def test_a_read_is_listed_and_closed_when_its_tasks_are_done(
    spark: SparkSession, channel: Channel
) -> None:
    fill(channel, range(20))
    fill(channel, range(20, 30), partition=1)

    assert spark.read.format("channel").load(channel.name).count() == 30

    done = seen(channel, "reader", is_closed)
    assert (done.group, done.cause) == (None, None)
    assert (done.counters["records"], done.counters["tasks_done"]) == (30, 2)


@pytest.mark.long
def test_an_abandoned_read_is_closed_after_the_heartbeat_timeout(
    spark: SparkSession, gateway: Gateway, name: str
) -> None:
    brief = Heartbeat(interval_ms=100, timeout_ms=500)
    channel = gateway.channel(name, SCHEMA, partitions=2, heartbeat=brief)
    fill(channel, range(5))
    fill(channel, range(5, 10), partition=1)

    # The first of two tasks returns enough rows.
    assert len(spark.read.format("channel").load(name).take(1)) == 1

    assert seen(channel, "reader", is_closed).cause == "no task reports any more"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., StreamingQuery]]:
    """Start a query with the test's checkpoint."""
    queries: list[StreamingQuery] = []

    def start(frame: DataFrame, sink: Channel, **options: object) -> StreamingQuery:
        writer = frame.writeStream.format("channel").options(**options)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        queries.append(writer.start(sink.name))
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


@pytest.mark.long
def test_a_restarted_query_takes_its_place_as_reader_and_writer(
    spark: SparkSession,
    channel: Channel,
    sink: Channel,
    start: Callable[..., StreamingQuery],
) -> None:
    fill(channel, range(10))
    frame = spark.readStream.format("channel").option("group", "delays").load(channel.name)
    query = start(frame, sink)
    query.processAllAvailable()
    reader_endpoint = seen(channel, "reader", lambda endpoint: is_healthy(endpoint, records=10))
    assert (reader_endpoint.group, reader_endpoint.index, reader_endpoint.size) == ("delays", 0, 1)
    assert reader_endpoint.state == "started"
    assert str(query.id) in (reader_endpoint.title or "")
    writer_endpoint = seen(sink, "writer", lambda endpoint: endpoint.counters.get("records") == 10)
    assert writer_endpoint.group == str(query.id)
    assert lag_of(channel, "delays", 0) == 0

    query.stop()
    with sink.reader(timeout_s=TIMEOUT_S) as reader:
        assert sorted(record["id"] for record in reader) == [*range(10)]
    assert seen(channel, "reader", is_closed).id == reader_endpoint.id
    assert seen(sink, "writer", is_closed).id == writer_endpoint.id

    # It is idle from its start, so there is no progress event.
    again = start(frame, sink)
    later = seen(channel, "reader", lambda endpoint: endpoint.state == "started")
    assert later.id != reader_endpoint.id
    assert len([endpoint for endpoint in channel.endpoints() if endpoint.role == "reader"]) == 1
    again.stop()
    # Ends of a place only grow: the previous run's records are still covered.
    assert sum((seen(sink, "writer", is_closed).ends or {}).values()) == 10


@pytest.mark.long
def test_readers_get_the_records_of_a_query_in_partitions_that_were_added_while_it_ran(
    spark: SparkSession,
    channel: Channel,
    sink: Channel,
    start: Callable[..., StreamingQuery],
) -> None:
    frame = spark.readStream.format("channel").load(channel.name)
    query = start(frame.repartition(4), sink)
    written = 0

    def write() -> None:
        nonlocal written
        fill(channel, range(written, written + 40))
        written += 40
        query.processAllAvailable()

    write()
    seen(sink, "writer", lambda endpoint: endpoint.state == "started")
    sink.update(partitions=4)

    def uses_added_partitions() -> bool:
        write()
        return set(ids_in(sink)) == {0, 1, 2, 3}

    until(uses_added_partitions, TIMEOUT_S)
    query.stop()
    # Before its first heartbeat, a reader knows no end, and reads all partitions.
    ends = seen(sink, "writer", is_closed).ends
    assert ends is not None
    assert sum(ends.values()) == written
    with sink.reader(timeout_s=TIMEOUT_S) as reader:
        assert sorted(record["id"] for record in reader) == [*range(written)]


def test_the_cause_of_a_failed_query_contains_no_record(
    spark: SparkSession,
    gateway_url: str,
    channel: Channel,
    sink: Channel,
    start: Callable[..., StreamingQuery],
) -> None:
    fill(channel, range(3))
    frame = spark.readStream.format("channel").load(channel.name)
    broken = f"if(id < 3, s, raise_error('no more {SECRET}')) s"
    query = start(frame.selectExpr("id", broken), sink)
    query.processAllAvailable()
    seen(channel, "reader", lambda endpoint: endpoint.state == "started")
    fill(channel, range(3, 4))

    reader_endpoint = seen(channel, "reader", lambda endpoint: endpoint.state == "error")
    assert reader_endpoint.cause == "org.apache.spark.SparkRuntimeException: USER_RAISED_EXCEPTION"
    assert (
        seen(sink, "writer", lambda endpoint: endpoint.state == "error").cause
        == reader_endpoint.cause
    )
    assert SECRET in str(query.exception()), "the job itself sees the value"
    assert SECRET not in all_responses(gateway_url, channel.name) + all_responses(
        gateway_url, sink.name
    )
    assert reader_endpoint.group == str(query.id)


@pytest.mark.long
def test_a_query_without_its_channel_does_not_block_other_queries(
    spark: SparkSession,
    channel: Channel,
    sink: Channel,
    start: Callable[..., StreamingQuery],
    tmp_path: Path,
) -> None:
    fill(channel, range(3))
    frame = spark.readStream.format("channel").load(channel.name)
    failing = frame.writeStream.format("channel")
    failing = failing.option("checkpointLocation", str(tmp_path / "failing"))
    with pytest.raises(PySparkException, match="there is no channel"):
        failing.start(f"{sink.name}-missing").processAllAvailable()

    start(frame, sink)

    seen(sink, "writer", lambda endpoint: is_healthy(endpoint, records=3))


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
def test_a_public_cause_is_the_exceptions_type_and_error_class(
    exception: str, error_class: str | None, cause: str
) -> None:
    assert public_cause(exception, error_class) == cause.replace("…", "org.apache.spark.")


def test_the_end_of_a_query_covers_partitions_that_were_added_while_it_ran(
    spark_session: SparkSession, gateway_url: str, channel: Channel
) -> None:
    application = Application(spark_session, gateway_url)
    spec = EndpointSpec(
        channel=channel.name, uid=channel.uid, role="writer", group="g", job=application.job
    )
    with closing(control(gateway_url)) as calls:
        query = QueryEndpoint(spec, calls)
        query.report(0, {})
        channel.update(partitions=4)
        fill(channel, range(5), partition=3)

        query.close(cause=None, kafka={})
    ends = [endpoint.ends for endpoint in channel.endpoints() if endpoint.id == query.endpoint.id]
    assert ends == [{3: 5}]


def test_an_application_rejected_by_the_gateway_keeps_no_query_alive(
    gateway_url: str, channel: Channel
) -> None:
    application = Application(SparkParts([]), gateway_url)  # type: ignore[arg-type]
    application.queries.onQueryStarted(started("run"))
    application.queries.onQueryProgress(progressed("run", channel))
    application.report()
    (endpoint,) = until(channel.endpoints)
    assert endpoint.id in application.session.ids

    application.on_rejected(GatewayError("it is refused", status=403))

    assert endpoint.id not in application.session.ids
    assert application.queries.all_ended


def test_a_stopped_application_has_no_connection(
    spark_session: SparkSession, gateway_url: str
) -> None:
    application = Application(spark_session, gateway_url)
    application.session.add_extension(application)
    application.end()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del application
        gc.collect()
    port = f"raddr=('127.0.0.1', {httpx.URL(gateway_url).port})"
    assert [warning for warning in caught if port in str(warning.message)] == []
