"""Spark jobs and queries into exactly-once channels, with an executor process."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import inheritable_thread_target
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import sluiceway.spark
from ledger_view import LedgerView
from sluiceway import Gateway
from sluiceway.channel import Channel
from spark_tasks import SCHEMA, fill
from waiting import until

TIMEOUT_S = 300
AGE = timedelta(seconds=38)


@pytest.fixture
def source(gateway: Gateway, name: str) -> Channel:
    return gateway.channel(f"{name}-in", SCHEMA, partitions=2)


@pytest.fixture
def sink(gateway: Gateway, name: str) -> Channel:
    return gateway.channel(f"{name}-out", SCHEMA, partitions=2, delivery="exactly_once")


@pytest.fixture
def drain(
    spark: SparkSession, source: Channel, sink: Channel, tmp_path: Path
) -> Callable[[], None]:
    """Run a query from the source to the sink over the available records, on one checkpoint."""

    def drain() -> None:
        frame = spark.readStream.format("channel").load(source.name)
        writer = frame.writeStream.format("channel")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query: StreamingQuery = writer.trigger(availableNow=True).start(sink.name)
        assert query.awaitTermination(TIMEOUT_S)

    return drain


def save(frame: DataFrame, channel: Channel, **options: str) -> None:
    frame.write.format("channel").mode("append").options(**options).save(channel.name)


def numbers(spark: SparkSession, count: int, tasks: int = 3) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("id", "cast(id as string) s")


@pytest.mark.long
def test_a_job_that_runs_again_with_its_batch_key_writes_once(
    spark: SparkSession, sink: Channel, ledger: LedgerView
) -> None:
    for _ in range(2):
        save(numbers(spark, 100), sink, batchKey="monday")
    save(numbers(spark, 10), sink)

    assert ledger.ids(sink) == sorted([*range(100), *range(10)])
    assert ledger.kinds(sink) == ["commit", "commit"]
    with pytest.raises(PySparkException, match="committed with 100 records, and now has 99"):
        save(numbers(spark, 99), sink, batchKey="monday")


@pytest.mark.long
def test_a_job_without_rows_commits_an_empty_batch(
    spark: SparkSession, sink: Channel, ledger: LedgerView
) -> None:
    save(numbers(spark, 0), sink)
    save(spark.createDataFrame([], "id bigint not null, s string"), sink)

    assert ledger.kinds(sink) == ["commit", "commit"]


def test_a_failed_job_leaves_nothing_visible_and_no_batch_open(
    spark: SparkSession, sink: Channel, ledger: LedgerView
) -> None:
    broken = numbers(spark, 100).selectExpr("if(id = 99, raise_error('broken'), id) id", "s")
    with pytest.raises(PySparkException, match="broken"):
        save(broken, sink, batchKey="monday")

    assert ledger.open_keys(sink) == []
    assert ledger.ids(sink) == []
    save(numbers(spark, 100), sink, batchKey="monday")
    assert ledger.ids(sink) == [*range(100)]


def test_each_micro_batch_is_a_batch_and_a_replayed_one_writes_nothing(
    source: Channel, sink: Channel, ledger: LedgerView, drain: Callable[[], None], tmp_path: Path
) -> None:
    fill(source, range(10))
    drain()
    assert ledger.ids(sink) == [*range(10)]
    for note in (tmp_path / "checkpoint" / "commits").glob("*0*"):
        note.unlink()
    fill(source, range(10, 12))
    drain()  # before Spark 4.2 only the replay
    drain()

    assert ledger.ids(sink) == [*range(12)]
    assert ledger.kinds(sink) == ["commit", "commit"]


@pytest.mark.long
def test_foreach_batch_writes_each_batch_once_by_its_key(
    spark: SparkSession, source: Channel, sink: Channel, ledger: LedgerView, tmp_path: Path
) -> None:
    fill(source, range(10))
    frame = spark.readStream.format("channel").load(source.name)

    def write(batch: DataFrame, number: int) -> None:
        save(batch, sink, batchKey=f"copy-{number}")
        save(batch, sink, batchKey=f"copy-{number}")

    def forgetful(batch: DataFrame, number: int) -> None:
        del number
        save(batch, sink)

    def run(function: Callable[[DataFrame, int], None], checkpoint: str) -> None:
        writer = frame.writeStream.foreachBatch(function)
        writer = writer.option("checkpointLocation", str(tmp_path / checkpoint))
        assert writer.trigger(availableNow=True).start().awaitTermination(TIMEOUT_S)

    run(write, "first")
    with pytest.raises(StreamingQueryException, match="it needs a batch key"):
        run(forgetful, "second")
    with pytest.raises(StreamingQueryException, match="'copy-0' belongs to 'Spark query"):
        run(write, "third")

    assert ledger.ids(sink) == [*range(10)]
    assert ledger.open_keys(sink) == []


@pytest.mark.long
def test_a_thread_of_foreach_batch_writes_with_the_keys_of_its_query(
    spark: SparkSession,
    source: Channel,
    sink: Channel,
    ledger: LedgerView,
    gateway_url: str,
    tmp_path: Path,
) -> None:
    fill(source, range(10))
    frame = spark.readStream.format("channel").load(source.name)

    def write(batch: DataFrame, number: int) -> None:
        def in_thread() -> None:
            sluiceway.spark.register(spark, gateway=gateway_url)
            save(batch, sink, batchKey=f"copy-{number}")

        with ThreadPoolExecutor(1) as pool:
            pool.submit(inheritable_thread_target(spark)(in_thread)).result()

    def run(checkpoint: str) -> None:
        writer = frame.writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(tmp_path / checkpoint))
        assert writer.trigger(availableNow=True).start().awaitTermination(TIMEOUT_S)

    run("first")
    with pytest.raises(StreamingQueryException, match="'copy-0' belongs to 'Spark query"):
        run("second")

    assert ledger.ids(sink) == [*range(10)]


@pytest.mark.long
def test_micro_batches_whose_rows_are_all_dropped_commit_no_batch(
    spark: SparkSession, source: Channel, sink: Channel, ledger: LedgerView, tmp_path: Path
) -> None:
    fill(source, range(10))
    frame = spark.readStream.format("channel").load(source.name).where("id > 100")
    writer = frame.writeStream.format("channel")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start(sink.name).awaitTermination(TIMEOUT_S)

    # On a busy machine a task may wait so long for its first row that it opens a batch.
    assert "commit" not in ledger.kinds(sink)
    assert ledger.open_keys(sink) == []


@pytest.mark.long
@pytest.mark.parametrize("ending", ["failed", pytest.param("stopped", marks=pytest.mark.long)])
def test_the_batch_of_a_failed_query_ends_with_it(
    spark: SparkSession,
    source: Channel,
    sink: Channel,
    ledger: LedgerView,
    tmp_path: Path,
    ending: str,
) -> None:
    gate = tmp_path / "gate"

    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        while not gate.exists():
            time.sleep(0.05)
        raise ValueError("broken")

    fill(source, range(10))
    frame = spark.readStream.format("channel").load(source.name)
    writer = frame.mapInArrow(fail, frame.schema).writeStream.format("channel")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(sink.name)
    until(lambda: ledger.open_keys(sink))
    if ending == "failed":
        gate.touch()
        with pytest.raises(StreamingQueryException):
            query.awaitTermination(TIMEOUT_S)
    else:
        query.stop()
        gate.touch()
    until(lambda: not ledger.open_keys(sink))

    # Not by the end of its lease.
    assert ledger.kinds(sink) == ["abort"]
    assert ledger.ids(sink) == []


@pytest.mark.long
def test_the_driver_holds_batches_that_take_longer_than_their_leases(
    spark: SparkSession, source: Channel, sink: Channel, ledger: LedgerView, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        while not gate.exists():
            time.sleep(0.05)

    def delayed(frame: DataFrame) -> DataFrame:
        return frame.mapInArrow(wait, frame.schema)

    def are_old() -> bool:
        """Whether the batches of both are older than a lease and its reaper."""
        open_ = ledger.calls.commits(sink.name).open
        return len(open_) == 2 and all(datetime.now(UTC) - batch.since > AGE for batch in open_)

    def watch() -> None:
        try:
            until(are_old)
        finally:
            gate.touch()

    fill(source, range(10))
    frame = delayed(spark.readStream.format("channel").load(source.name))
    writer = frame.writeStream.format("channel")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(sink.name)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(watch)
        save(delayed(numbers(spark, 10, tasks=1)), sink)
        waiting.result()
    assert query.awaitTermination(TIMEOUT_S)

    assert ledger.ids(sink) == sorted([*range(10)] * 2)
    assert ledger.kinds(sink) == ["commit", "commit"]


@pytest.mark.long
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_micro_batch_in_progress_is_committed_while_its_channel_closes(
    spark: SparkSession,
    gateway: Gateway,
    source: Channel,
    ledger: LedgerView,
    name: str,
    delivery: str,
    tmp_path: Path,
) -> None:
    gate, begun = tmp_path / "gate", tmp_path / "begun"

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        begun.touch()
        while not gate.exists():
            time.sleep(0.05)

    fill(source, range(10))
    sink = gateway.channel(f"{name}-out", SCHEMA, delivery=delivery)
    frame = spark.readStream.format("channel").load(source.name)
    writer = frame.mapInArrow(wait, frame.schema).writeStream.format("channel")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(sink.name)
    until(begun.exists)
    if delivery == "exactly_once":
        until(lambda: ledger.open_keys(sink))
    sink.close()
    gate.touch()
    assert query.awaitTermination(TIMEOUT_S)

    with sink.reader(until="now") as reader:
        assert sorted(record["id"] for record in reader) == [*range(10)]
