"""Spark jobs and queries that read exactly-once channels."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluiceway import Gateway
from sluiceway.channel import Channel
from spark_tasks import SCHEMA, fill


@pytest.fixture
def channel(gateway: Gateway, name: str) -> Channel:
    return gateway.channel(name, SCHEMA, partitions=2, delivery="exactly_once")


@contextmanager
def open_batch(channel: Channel) -> Iterator[None]:
    """Keep a batch with records open."""
    with channel.writer() as writer, writer.batch("slow", owner="nightly"):
        writer.write([{"id": 90, "s": None}, {"id": 91, "s": None}])
        writer.flush()
        yield


@pytest.mark.long
def test_jobs_read_what_is_committed(spark: SparkSession, channel: Channel) -> None:
    fill(channel, range(3))
    fill(channel, range(3, 5), partition=1)
    number = channel.commits().events[0].number
    fill(channel, range(5, 8))
    reads = spark.read.format("channel")

    with open_batch(channel):
        ids = {row.id for row in reads.load(channel.name).collect()}
        then = reads.option("snapshot", str(number)).load(channel.name).count()

    assert ids == set(range(8))
    assert then == 5


@pytest.mark.long
def test_a_job_waits_for_no_open_batch(spark: SparkSession, channel: Channel) -> None:
    with open_batch(channel):
        fill(channel, range(3))
        rows = spark.read.format("channel").load(channel.name).collect()

    assert sorted(row.id for row in rows) == [0, 1, 2]


@pytest.mark.long
def test_runs_of_a_query_read_each_committed_record_once(
    spark: SparkSession, channel: Channel, tmp_path: Path
) -> None:
    def run() -> list[int]:
        stream = spark.readStream.format("channel").load(channel.name)
        query = (
            stream.writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        out = spark.read.schema("id bigint, s string").parquet(str(tmp_path / "out"))
        return sorted(row.id for row in out.collect())

    fill(channel, range(3))
    with open_batch(channel):
        first = run()
    fill(channel, range(3, 6), partition=1)
    second = run()

    assert first == [0, 1, 2]
    assert second == [*range(6), 90, 91]
