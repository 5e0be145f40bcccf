"""Spark drivers: batch jobs with keys, and a streaming query, with tasks that fail on demand.

`python -m tests.chaos.spark_jobs TASK`. A failed driver exits, like the jobs in Python.
"""

import random
import sys
import time
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from tests.chaos.checker import Identity, Record, rows_of, scan_of
from tests.chaos.journal import Task, attempt_name, record_of

import sluiceway.spark

TASKS = 3
_SCHEMA = "job string, batch bigint, row bigint, unit string, part int, attempt string, seq bigint"
_CHUNK = 8
_PAUSE_S = 0.05
_PAUSES = 10
_SLOW_S = 8.0
_SCAN_EVERY = 4
_OPTIONS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.locality.wait": "0",
    "spark.log.level": "ERROR",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(_CHUNK),
    "spark.sql.shuffle.partitions": str(TASKS),
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.speculation": "true",
    "spark.speculation.efficiency.enabled": "false",
    "spark.speculation.interval": "200ms",
    "spark.speculation.minTaskRuntime": "1500ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5",
}


def spark_session(task: Task) -> SparkSession:
    builder = SparkSession.builder.master(task.master).appName(task.name)
    for name, value in _OPTIONS.items():
        builder = builder.config(name, value)
    # `executors_of` finds the executors by this property.
    builder = builder.config("spark.executor.extraJavaOptions", f"-Dchaos.job={task.name}")
    spark = builder.getOrCreate()
    sluiceway.spark.register(spark, gateway=task.url)
    return spark


def stamped(frame: DataFrame, task: Task, unit: str | None) -> DataFrame:
    """Return the rows as a task's attempt writes them: shuffled, numbered, with armed faults."""

    def stamp(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        part, attempt = context.partitionId(), attempt_name()
        unit_name = unit or "-".join(
            str(context.getLocalProperty(name))
            for name in ("sql.streaming.queryId", "streaming.sql.batchId")
        )
        rows = [row for batch in batches for row in batch.to_pylist()]
        random.shuffle(rows)
        for first in range(0, len(rows), _CHUNK):
            portion = [
                record_of(row)._replace(unit=unit_name, part=part, attempt=attempt, seq=first + at)
                for at, row in enumerate(rows[first : first + _CHUNK])
            ]
            yield pa.RecordBatch.from_pylist([record._asdict() for record in portion], _ARROW)
            if first < _PAUSES * _CHUNK:
                time.sleep(_PAUSE_S)
        if task.forced("slow"):
            time.sleep(_SLOW_S)
        if task.forced("retry"):
            raise RuntimeError("forced")
        task.journal.note("ready", unit_name, part=part, parts=TASKS, attempt=attempt)

    return frame.repartition(TASKS, "job", "row").mapInArrow(stamp, _SCHEMA)


_ARROW = pa.schema(
    [
        pa.field(name, {"string": pa.string(), "bigint": pa.int64(), "int": pa.int32()}[type_])
        for name, type_ in (column.split(" ") for column in _SCHEMA.split(", "))
    ]
)


def run_batches(task: Task, spark: SparkSession) -> None:
    """Write batches in consecutive jobs, each with a key, and read the channel now and then."""
    identities: set[Identity] = set()
    for number in task.batches():
        unit, rows = f"{task.name}-{number}", rows_of(task.name, number)
        fields = {"channel": task.channel, "job": task.name, "batch": number}
        task.journal.note("begun", unit, rows=rows, **fields)
        records = [Record(task.name, number, row, "", 0, "", 0) for row in range(rows)]
        frame = stamped(spark.createDataFrame(records, _SCHEMA), task, unit)
        write = frame.write.format("channel").mode("append")
        if task.exactly_once:
            write = write.option("batchKey", unit)
        write.save(task.channel)
        task.journal.note("committed", unit, batch=number)
        if (number + 1) % _SCAN_EVERY == 0:
            identities = scan(task, spark, identities)


def scan(task: Task, spark: SparkSession, earlier: set[Identity]) -> set[Identity]:
    """Read the whole channel, and log violations; return the identities of its records."""
    rows = spark.read.format("channel").load(task.channel).collect()
    records = [record_of(row.asDict()) for row in rows]
    task.journal.scan(scan_of(task.channel, records, earlier))
    return {record.identity for record in records}


def run_query(task: Task, spark: SparkSession) -> None:
    """Copy a channel with a streaming query."""
    frame = spark.readStream.format("channel").load(task.source)
    query = (
        stamped(frame, task, None)
        .writeStream.format("channel")
        .option("checkpointLocation", f"{task.directory}/checkpoint")
        .trigger(processingTime="1 second")
        .start(task.channel)
    )
    while not task.stopping():
        if query.awaitTermination(1):
            raise RuntimeError("the query ended")
    query.stop()


def main(text: str) -> None:
    task = Task.of(text)
    spark = spark_session(task)
    (run_batches if task.kind == "spark-write" else run_query)(task, spark)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
