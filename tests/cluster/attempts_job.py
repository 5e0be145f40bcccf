"""Writes under retries, speculation, and lost executors and drivers, with two executor processes.

Arguments: the gateway's URL; batch, stream, or batch,stream for one after the other; the fault; the
name of the channel; a directory, in which each kind records what has happened; and optionally the
URL of Spark's master.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import sluiceway.spark
from sluiceway import Gateway
from sluiceway.kafka.topic import TopicIdentity

ROWS, TASKS = 100_000, 4
TIMEOUT_S = 240
Rows = Iterator[pa.RecordBatch]


def first(directory: str, event: str) -> bool:
    """Return whether this is the first call for the event in all processes."""
    try:
        Path(directory, event).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def topic_of(url: str, channel: str) -> TopicIdentity:
    with Gateway(url) as gateway:
        return TopicIdentity(gateway.channel(channel).connection("read"), {})


def ends_of(topic: TopicIdentity) -> list[int]:
    """Return the ends of the partitions that the tasks write to."""
    ends = topic.ends(range(TASKS), timeout_s=TIMEOUT_S)
    return [ends[partition] for partition in range(TASKS)]


def wait_for_records(url: str, channel: str, before: Sequence[int]) -> None:
    """Wait until this kind has records in Kafka, in the partition with the task's number."""
    topic = topic_of(url, channel)
    deadline_s = time.monotonic() + TIMEOUT_S
    while ends_of(topic)[number()] == before[number()]:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def failing(batches: Rows, directory: str) -> Rows:
    """Fail the first attempt of each task."""
    if first(directory, f"failed-{number()}"):
        raise RuntimeError("forced")
    yield from batches


def killed(batches: Rows, directory: str) -> Rows:
    """Kill the executor of one task."""
    if number() == 1 and first(directory, "killed"):
        # The worker's parent is the daemon of the executor, whose parent is the executor.
        stat = Path(f"/proc/{os.getppid()}/stat").read_text()
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
        signal.pause()
    yield from batches


def held(batches: Rows, directory: str) -> Rows:
    """Wait until the test kills the driver, which then knows the run."""
    task = TaskContext.get()
    assert task is not None
    Path(directory, "run").write_text(task.getLocalProperty("spark.jobGroup.id") or "")
    if first(directory, f"held-{number()}"):
        signal.pause()
    yield from batches


def slow(batches: Rows, directory: str) -> Rows:
    """Delay the first attempt of one task until the speculative one has written its records."""
    if number() == 1 and first(directory, "slow"):
        deadline_s = time.monotonic() + TIMEOUT_S
        while not Path(directory, "speculated").exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
    elif number() == 1:
        Path(directory, "speculated").touch()
    yield from batches


def number() -> int:
    task = TaskContext.get()
    assert task is not None
    return task.partitionId()


FAULTS = {"failing": failing, "killed": killed, "held": held, "slow": slow}
MASTER = "local-cluster[2,2,1024]"


def spark_session(url: str, master: str) -> SparkSession:
    spark = (
        SparkSession.builder.master(master)
        .appName("attempts")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.speculation", str(master != MASTER).lower())
        .config("spark.speculation.quantile", "0.5")
        .config("spark.speculation.minTaskRuntime", "1s")
        .getOrCreate()
    )
    sluiceway.spark.register(spark, gateway=url)
    return spark


def first_ends(url: str, channel: str, directory: str) -> Sequence[int]:
    """Return the ends before the first run in this directory."""
    file = Path(directory, "before")
    if not file.exists():
        file.write_text(json.dumps(ends_of(topic_of(url, channel))))
    ends: list[int] = json.loads(file.read_text())
    return ends


def faulty(frame: DataFrame, url: str, fault: str, channel: str, directory: str) -> DataFrame:
    """Return the rows with a fault in each task after its rows."""
    before = first_ends(url, channel, directory)

    def fail(batches: Rows) -> Rows:
        own_batches = list(batches)
        yield from own_batches
        if not Path(directory, f"passed-{fault}-{number()}").exists():
            wait_for_records(url, channel, before)
        yield from FAULTS[fault](iter(()), directory)
        Path(directory, f"passed-{fault}-{number()}").touch()

    # After a shuffle, the order of a task's rows may differ between attempts.
    shuffled = frame.repartition(TASKS)
    return shuffled.mapInArrow(fail, shuffled.schema)


def main(
    url: str, kinds: str, fault: str, channel: str, directory: str, master: str = MASTER
) -> None:
    spark = spark_session(url, master)
    for kind in kinds.split(","):
        own = f"{directory}/{kind}"
        Path(own).mkdir(exist_ok=True)
        if kind == "batch":
            rows = spark.range(0, ROWS, 1, TASKS).selectExpr("id", "cast(id as string) s")
            write = faulty(rows, url, fault, channel, own).write.format("channel").mode("append")
            write.option("batchKey", fault).save(channel)
        else:
            frame = spark.readStream.format("channel").load(f"{channel}-in")
            stream = faulty(frame, url, fault, channel, own).writeStream.format("channel")
            stream = stream.option("checkpointLocation", f"{own}/checkpoint")
            stream.trigger(availableNow=True).start(channel).awaitTermination()
        Path(own, "messages").write_text(str(sum(ends_of(topic_of(url, channel)))))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
