"""Writes under retries, speculation and lost executors, with two executor processes.

Arguments: the gateway's URL, batch or stream, the fault, the name of the channel, and a directory
in which processes note which faults have happened.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import sluiceway.spark

ROWS, TASKS = 2_000, 4
PASS_TIMEOUT_S = 120
Rows = Iterator[pa.RecordBatch]


def first(directory: str, event: str) -> bool:
    """Whether this call, of all processes, is the first one for the event."""
    try:
        Path(directory, event).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def failing(directory: str) -> Callable[[Rows], Rows]:
    """Fail the first attempt of each task after its rows."""

    def fail(batches: Rows) -> Rows:
        yield from batches
        if first(directory, f"failed-{number()}"):
            raise RuntimeError("forced")

    return fail


def killed(directory: str) -> Callable[[Rows], Rows]:
    """Kill the executor of one task, after some of its rows."""

    def kill(batches: Rows) -> Rows:
        yield from batches
        if number() == 1 and first(directory, "killed"):
            # The worker's parent is the daemon of the executor, whose parent is the executor.
            stat = Path(f"/proc/{os.getppid()}/stat").read_text()
            os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
            signal.pause()

    return kill


def slow(directory: str) -> Callable[[Rows], Rows]:
    """Hold the first attempt of one task until its speculative copy has got its rows."""

    def hold(batches: Rows) -> Rows:
        held = number() == 0 and first(directory, "held")
        yield from batches
        if held:
            deadline_s = time.monotonic() + PASS_TIMEOUT_S
            while not Path(directory, "copied").exists() and time.monotonic() < deadline_s:
                time.sleep(0.05)
        elif number() == 0:
            Path(directory, "copied").touch()

    return hold


def number() -> int:
    task = TaskContext.get()
    assert task is not None
    return task.partitionId()


FAULTS = {"failing": failing, "killed": killed, "slow": slow}


def spark_session(url: str, *, speculation: bool) -> SparkSession:
    spark = (
        SparkSession.builder.master("local-cluster[2,2,1024]")
        .appName("attempts")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.speculation", str(speculation).lower())
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.multiplier", "1.1")
        .config("spark.speculation.quantile", "0.5")
        .config("spark.speculation.minTaskRuntime", "100ms")
        .getOrCreate()
    )
    sluiceway.spark.register(spark, gateway=url)
    return spark


def faulty(frame: DataFrame, fault: str, directory: str) -> DataFrame:
    # A shuffle before, so that the order of a task's rows differs between attempts.
    shuffled = frame.repartition(TASKS)
    return shuffled.mapInArrow(FAULTS[fault](directory), shuffled.schema)


def main(url: str, kind: str, fault: str, channel: str, directory: str) -> None:
    spark = spark_session(url, speculation=fault == "slow")
    if kind == "batch":
        rows = spark.range(0, ROWS, 1, TASKS).selectExpr("id", "cast(id as string) s")
        write = faulty(rows, fault, directory).write.format("channel").mode("append")
        write.option("batchKey", fault).save(channel)
    else:
        frame = spark.readStream.format("channel").load(f"{channel}-in")
        stream = faulty(frame, fault, directory).writeStream.format("channel")
        stream = stream.option("checkpointLocation", f"{directory}/checkpoint")
        query = stream.trigger(availableNow=True).start(channel)
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
