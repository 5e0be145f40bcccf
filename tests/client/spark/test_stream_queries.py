"""Streaming queries from channel to channel."""

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import Row

import sluiceway.spark
from databases import SQLite
from gateways import serving
from relay import Relay
from sluiceway import Gateway
from sluiceway.channel import Channel
from sluiceway.spark import microbatch
from sluiceway_gateway.app import create_app
from sluiceway_gateway.core.settings import Settings
from spark_tasks import SCHEMA, all_ids, fill, ids_in
from topics import Topics

TIMEOUT_S = 300

Run = Callable[..., StreamingQuery]


@pytest.fixture
def source(gateway: Gateway, name: str) -> Channel:
    return gateway.channel(f"{name}-in", SCHEMA, partitions=2)


@pytest.fixture
def sink(gateway: Gateway, name: str) -> Channel:
    return gateway.channel(f"{name}-out", SCHEMA, partitions=2)


def stream(spark: SparkSession, channel: Channel, **options: object) -> DataFrame:
    return spark.readStream.format("channel").options(**options).load(channel.name)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Run]:
    """Start a query from a dataframe to a channel, with the test's checkpoint."""
    queries: list[StreamingQuery] = []

    def start(frame: DataFrame, channel: Channel, mode: str = "append") -> StreamingQuery:
        writer = frame.writeStream.format("channel").outputMode(mode)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        queries.append(writer.start(channel.name))
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


@pytest.fixture
def drain(tmp_path: Path) -> Run:
    """Run a query over the available records, with the test's checkpoint."""

    def drain(frame: DataFrame, channel: Channel, **options: object) -> StreamingQuery:
        writer = frame.writeStream.format("channel").options(**options)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start(channel.name)
        assert query.awaitTermination(TIMEOUT_S)
        return query

    return drain


def until(query: StreamingQuery, done: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not done():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_a_restarted_query_resumes_and_reads_new_partitions(
    spark: SparkSession, source: Channel, sink: Channel, drain: Run
) -> None:
    frame = stream(spark, source)
    fill(source, range(10))
    drain(frame, sink)
    assert all_ids(sink) == [*range(10)]

    source.update(partitions=3)
    fill(source, range(10, 15), partition=1)
    fill(source, range(15, 20), partition=2)
    drain(frame, sink)

    assert all_ids(sink) == [*range(20)]


@pytest.mark.long
def test_windows_are_written_by_the_run_that_completes_them_with_sparks_wrapper(
    spark: SparkSession, source: Channel, sink: Channel, drain: Run
) -> None:
    """Without the setting, Spark 4.1 ends with the first micro-batch, before any window."""
    fill(source, range(120))
    minutes = stream(spark, source).selectExpr("timestamp_seconds(id * 60) at")
    windows = minutes.withWatermark("at", "10 minutes").groupBy(sql.window("at", "15 minutes"))
    start_s = sql.unix_seconds("window.start")
    frame = windows.count().select(
        (start_s / 900).cast("bigint").alias("id"), sql.col("count").cast("string").alias("s")
    )

    setting = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
    spark.conf.set(setting, "true")
    try:
        drain(frame, sink)
    finally:
        spark.conf.unset(setting)

    assert all_ids(sink) == [*range(7)]


@pytest.mark.long
def test_a_running_query_survives_a_stalled_broker(
    spark: SparkSession, fragile_kafka: Relay, sqlite: SQLite, start: Run
) -> None:
    servers, name = fragile_kafka.address, uuid.uuid4().hex
    app = create_app(Settings(database_url=sqlite.migrated(), kafka_bootstrap_servers=servers))
    with serving(app) as url, Gateway(url) as gateway:
        sluiceway.spark.register(spark, gateway=url)
        source, sink = (
            gateway.channel(f"{name}-{suffix}", SCHEMA, partitions=2) for suffix in ("in", "out")
        )
        fill(source, range(5))
        query = start(stream(spark, source), sink)
        until(query, lambda: all_ids(sink) == [*range(5)])
        with fragile_kafka.stalled():
            # An idle query polls for the end every few milliseconds; now a poll blocks.
            until(
                query, lambda: all("Getting offsets" in query.status["message"] for _ in range(50))
            )
        fill(source, range(5, 10))

        until(query, lambda: all_ids(sink) == [*range(10)])
        query.stop()


@pytest.mark.long
def test_the_replay_of_a_first_batch_fails_without_its_records(
    spark: SparkSession, source: Channel, sink: Channel, drain: Run
) -> None:
    fill(source, range(10))
    with pytest.raises(StreamingQueryException, match="is not true"):
        drain(stream(spark, source).where("assert_true(id < 5) is null"), sink)
    topic = source.connection("read")
    Topics(topic.kafka["bootstrap.servers"]).truncate(topic.topic_name, 0, before=3)

    with pytest.raises(StreamingQueryException, match="has no offset 0: its range is 3 to 10"):
        drain(stream(spark, source), sink)


@pytest.mark.long
def test_an_old_checkpoint_does_not_read_a_recreated_channel(
    spark: SparkSession, gateway: Gateway, source: Channel, sink: Channel, drain: Run
) -> None:
    fill(source, range(5))
    drain(stream(spark, source), sink)
    source.delete(force=True)
    fill(gateway.channel(source.name, SCHEMA, partitions=2), range(5))

    with pytest.raises(StreamingQueryException, match="deleted and recreated since the checkpoint"):
        drain(stream(spark, source), sink)
    assert all_ids(sink) == [*range(5)]


@pytest.mark.long
def test_foreach_batch_writes_channels_in_batches(
    spark: SparkSession, source: Channel, sink: Channel, tmp_path: Path
) -> None:
    fill(source, range(10))
    counts = stream(spark, source).groupBy(SCHEMA.names[0]).count()

    def write(batch: DataFrame, number: int) -> None:
        del number
        frame = batch.selectExpr("id", "cast(count as string) s")
        frame.write.format("channel").mode("append").save(sink.name)

    query = (
        counts.writeStream.outputMode("update")
        .foreachBatch(write)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )

    assert query.awaitTermination(TIMEOUT_S)
    assert all_ids(sink) == [*range(10)]


@pytest.mark.long
def test_complete_mode_appends_each_result_and_update_mode_is_an_error(
    spark: SparkSession, source: Channel, sink: Channel, start: Run
) -> None:
    fill(source, range(3))
    counts = stream(spark, source).groupBy("id").agg({"s": "max"}).toDF("id", "s")
    query = start(counts, sink, mode="complete")
    until(query, lambda: all_ids(sink) == [0, 1, 2])
    fill(source, range(3, 4))
    until(query, lambda: all_ids(sink) == [0, 0, 1, 1, 2, 2, 3])
    query.stop()

    # Spark checks the mode when there are rows to write.
    fill(source, range(4, 5))
    refused = start(counts, sink, mode="update")
    with pytest.raises(StreamingQueryException, match="does not support Update mode"):
        refused.awaitTermination(TIMEOUT_S)


def test_a_batch_limit_is_applied_or_an_error_of_load_before_spark_4_2(
    spark: SparkSession, source: Channel, sink: Channel, drain: Run
) -> None:
    fill(source, range(10))
    if microbatch.limits is None:
        with pytest.raises(PySparkException, match=r"maxOffsetsPerTrigger, .* needs Spark 4\.2"):
            stream(spark, source, maxOffsetsPerTrigger=4)
        return
    query = drain(stream(spark, source, maxOffsetsPerTrigger=4), sink)

    assert [progress["numInputRows"] for progress in query.recentProgress][:3] == [4, 4, 2]
    assert ids_in(sink) == {0: [*range(10)]}


@pytest.mark.long
def test_metadata_columns_have_headers_and_offsets(
    spark: SparkSession, source: Channel, sink: Channel, drain: Run
) -> None:
    fill(source, range(3))
    drain(stream(spark, source), sink)
    options = {"includeHeaders": "true", "includeMetadata": "true"}

    frame = spark.read.format("channel").options(**options).load(sink.name)
    rows = frame.orderBy("_metadata.offset").collect()

    assert frame.columns == ["id", "s", "headers", "_metadata"]
    assert [row.id for row in rows] == [0, 1, 2]
    assert [row.headers for row in rows] == [None] * 3
    assert [(row["_metadata"].partition, row["_metadata"].offset) for row in rows] == [
        (0, 0),
        (0, 1),
        (0, 2),
    ]
    assert rows[0]["_metadata"].timestamp.year > 2000
    plain = spark.read.format("channel").options(**options).load(source.name)
    assert plain.select("headers").distinct().collect() == [Row(headers=None)]
    assert plain.select("_metadata.key").distinct().collect() == [Row(key=None)]
