"""Exactly-once writes and reads over Spark Connect, with a server that the client starts.

Writes its results into a JSON file.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import sluiceway.spark
from sluiceway import Gateway

TARGET, COPY = "connect-once", "connect-once-copy"
KEYED, FORGETFUL = "connect-once-keyed", "connect-once-forgetful"
TIMEOUT_S = 240


class Abandoned(Exception):
    """Ends a batch without a commit."""


def save(frame: DataFrame, name: str, **options: str) -> None:
    frame.write.format("channel").mode("append").options(**options).save(name)


def numbers(spark: SparkSession, first: int, end: int) -> DataFrame:
    return spark.range(first, end, 1, 3).selectExpr("id", "cast(id as string) s")


def ids(spark: SparkSession, name: str, **options: str) -> list[int]:
    rows = spark.read.format("channel").options(**options).load(name).select("id").collect()
    return sorted(row.id for row in rows)


def failure(work: Callable[[], object]) -> str:
    try:
        work()
    except Exception as error:
        return str(error)
    return ""


def batches(spark: SparkSession, gateway: Gateway) -> dict[str, object]:
    """Write two batches, one of them twice; read them, also with an open batch."""
    target = gateway.channel(TARGET)
    for _ in range(2):
        save(numbers(spark, 0, 100), TARGET, batchKey="monday")
    first = target.commits().events[0].number
    save(numbers(spark, 100, 150), TARGET, batchKey="tuesday")
    with suppress(Abandoned), target.writer() as writer, writer.batch("open"):
        writer.write([{"id": -1, "s": None}])
        all_ids = ids(spark, TARGET)
        then = ids(spark, TARGET, snapshot=str(first))
        raise Abandoned
    return {
        "all": all_ids,
        "snapshot": then,
        "another": failure(lambda: save(numbers(spark, 0, 99), TARGET, batchKey="monday")),
        "keys": [event.key for event in target.commits().events if event.kind == "commit"],
    }


def stream(spark: SparkSession, gateway: Gateway) -> dict[str, object]:
    """Copy the channel as a stream; delete its last commit-log entry, and run it again."""
    copy = gateway.channel(COPY)

    def run() -> int:
        query = (
            spark.readStream.format("channel")
            .load(TARGET)
            .writeStream.format("channel")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start(COPY)
        )
        if not query.awaitTermination(TIMEOUT_S):
            raise TimeoutError("the query did not end")
        return len(copy.commits().events)

    with tempfile.TemporaryDirectory() as checkpoint:
        commits = [run()]
        for note in Path(checkpoint, "commits").glob("*0*"):
            note.unlink()
        commits.append(run())
        save(numbers(spark, 150, 160), TARGET, batchKey="wednesday")
        commits.append(run())
    return {"copy": ids(spark, COPY), "commits": commits}


def foreach_batch(spark: SparkSession, gateway: Gateway) -> dict[str, object]:
    """Write in foreachBatch, each batch twice: with a key, then without one, which fails."""

    def keyed(batch: DataFrame, number: int) -> None:
        for _ in range(2):
            save(batch, KEYED, batchKey=f"copy-{number}")

    def forgetful(batch: DataFrame, number: int) -> None:
        del number
        save(batch, FORGETFUL)

    def run(function: Callable[[DataFrame, int], None]) -> None:
        with tempfile.TemporaryDirectory() as checkpoint:
            writer = spark.readStream.format("channel").load(TARGET).writeStream
            writer = writer.foreachBatch(function).option("checkpointLocation", checkpoint)
            if not writer.trigger(availableNow=True).start().awaitTermination(TIMEOUT_S):
                raise TimeoutError("the query did not end")

    run(keyed)
    return {
        "in_foreach_batch": failure(lambda: run(forgetful)),
        "outside": failure(lambda: save(numbers(spark, 0, 10), FORGETFUL)),
        **{name: len(gateway.channel(name).commits().events) for name in (KEYED, FORGETFUL)},
    }


def main(url: str, file: str) -> None:
    # A free port for the server.
    os.environ["SPARK_TESTING"] = "1"
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    sluiceway.spark.register(spark, gateway=url)
    with Gateway(url) as gateway:
        schema = {
            "type": "record",
            "name": "N",
            "fields": [{"name": "id", "type": "long"}, {"name": "s", "type": ["null", "string"]}],
        }
        for name in (TARGET, COPY, KEYED, FORGETFUL):
            gateway.channel(name, schema, partitions=2, delivery="exactly_once")
        results = {"session": type(spark).__module__}
        results |= batches(spark, gateway) | stream(spark, gateway)
        results |= foreach_batch(spark, gateway)
    Path(file).write_text(json.dumps(results))
    spark.stop()


main(*sys.argv[1:])
