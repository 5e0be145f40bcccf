"""Channels in Spark beside Spark's own Kafka connector with `to_avro` and `from_avro`.

One Spark session (`local[2]`), one broker. All sides write the same generated rows, each turn
into a fresh topic, and read them into the sink that drops every row after computing it. Sides
take turns; each has one turn before the measured rounds, so that all are as warm.
"""

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from bench.measure import Measured, Ratio, measure, report
from bench.spark_jars import connector_jars
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.avro.functions import from_avro, to_avro

import sluiceway.spark
from sluiceway import Gateway
from sluiceway.kafka.properties import producer_config
from sluiceway_gateway.demo.surroundings import surroundings

ROWS = 5_000_000
PARTITIONS = 4
ROUNDS = 3
COLUMNS = (
    "id",
    "concat('station-', cast(id % 10000 as string)) station",
    "id * 0.001D celsius",
    "id * 0.01D + 1000D pascal",
    "cast(id % 100 as int) sensor",
)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("station", pa.string(), nullable=False),
        pa.field("celsius", pa.float64(), nullable=False),
        pa.field("pascal", pa.float64(), nullable=False),
        pa.field("sensor", pa.int32(), nullable=False),
    ]
)
AVRO = """{"type": "record", "name": "Record", "fields": [
    {"name": "id", "type": "long"}, {"name": "station", "type": "string"},
    {"name": "celsius", "type": "double"}, {"name": "pascal", "type": "double"},
    {"name": "sensor", "type": "int"}]}"""
# What the client's own producers have; both sides get them.
SHARED = {
    name: str(value).lower()
    for name, value in producer_config(
        {}, delivery_timeout_ms=120_000, max_message_bytes=1_048_588
    ).items()
    if name in {"acks", "enable.idempotence", "compression.type", "linger.ms", "batch.size"}
}
RATIOS = {
    "arrow_write_to_jvm": Ratio(side="arrow_write", to="jvm_write", goal=1.2),
    "arrow_read_to_jvm": Ratio(side="arrow_read", to="jvm_read", goal=2.0),
    "avro_write_to_jvm": Ratio(side="avro_write", to="jvm_write", goal=0.8),
    "avro_read_to_jvm": Ratio(side="avro_read", to="jvm_read", goal=0.8),
}


class Bench:
    """The sides; a write makes the topic that the read of the same round takes."""

    def __init__(self, spark: SparkSession, gateway: Gateway, rows: int) -> None:
        self._spark = spark
        self._gateway = gateway
        self._rows = rows
        self._numbers = itertools.count(1)
        self._channels: dict[str, str] = {}

    def sides(self) -> dict[str, Callable[[], Measured]]:
        """Return each side by its name, writes before reads."""
        return {
            "arrow_write": lambda: self._write("arrow", self._channel_write),
            "avro_write": lambda: self._write("avro", self._channel_write),
            "jvm_write": lambda: self._write("jvm", self._jvm_write),
            "arrow_read": lambda: self._read("arrow", self._channel_read),
            "avro_read": lambda: self._read("avro", self._channel_read),
            "jvm_read": lambda: self._read("jvm", self._jvm_read),
        }

    def _write(self, side: str, write: Callable[[DataFrame, str], None]) -> Measured:
        # The JVM side gets a topic made in the same way.
        if side in self._channels:
            self._gateway.channel(self._channels[side]).delete()
        name = self._channels[side] = f"bench-{side}-{next(self._numbers)}"
        kind = "arrow" if side == "arrow" else "avro"
        self._gateway.channel(name, SCHEMA, format=kind, partitions=PARTITIONS)
        frame = self._spark.range(0, self._rows, 1, PARTITIONS).selectExpr(*COLUMNS)
        started_s = time.perf_counter()
        write(frame, name)
        return Measured(records=self._rows, seconds=time.perf_counter() - started_s)

    def _read(self, side: str, read: Callable[[str], DataFrame]) -> Measured:
        started_s = time.perf_counter()
        read(self._channels[side]).write.format("noop").mode("overwrite").save()
        seconds = time.perf_counter() - started_s
        counted = read(self._channels[side]).agg(sql.count("station"), sql.sum("id")).first()
        assert counted is not None
        assert tuple(counted) == (self._rows, self._rows * (self._rows - 1) // 2), side
        return Measured(records=self._rows, seconds=seconds)

    def _channel_write(self, frame: DataFrame, name: str) -> None:
        frame.write.format("channel").mode("append").save(name)

    def _channel_read(self, name: str) -> DataFrame:
        return self._spark.read.format("channel").load(name)

    def _jvm_write(self, frame: DataFrame, name: str) -> None:
        connection = self._gateway.channel(name).connection("write")
        record = sql.struct(*(frame[column] for column in frame.columns))
        (
            frame.select(to_avro(record, AVRO).alias("value"))
            .write.format("kafka")
            .option("kafka.bootstrap.servers", connection.kafka["bootstrap.servers"])
            .option("topic", connection.topic_name)
            .options(**{f"kafka.{name}": value for name, value in SHARED.items()})
            .save()
        )

    def _jvm_read(self, name: str) -> DataFrame:
        connection = self._gateway.channel(name).connection("read")
        messages = (
            self._spark.read.format("kafka")
            .option("kafka.bootstrap.servers", connection.kafka["bootstrap.servers"])
            .option("subscribe", connection.topic_name)
            .option("kafka.check.crcs", "true")
            .load()
        )
        return messages.select(from_avro("value", AVRO).alias("record")).select("record.*")


@contextmanager
def session(directory: Path) -> Iterator[SparkSession]:
    """Run one Spark for all sides, with the connector's jars."""
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("bench")
        .config("spark.jars", ",".join(map(str, connector_jars())))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={directory}")
        .config("spark.local.dir", str(directory))
        .config("spark.log.level", "ERROR")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    try:
        yield spark
    finally:
        spark.stop()


def main() -> None:
    """Measure and report; the rows can be fewer, for a quick look that is written nowhere."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=ROWS)
    rows = arguments.parse_args().rows
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(prefix="sluiceway-bench-") as name:
        directory = Path(name)
        with surroundings(directory, print) as around:
            url = around.environment["SLUICEWAY_URL"]
            with session(directory) as spark, Gateway(url) as gateway:
                sluiceway.spark.register(spark, gateway=url)
                sides = Bench(spark, gateway, rows).sides()
                measure(sides, rounds=1)
                measured = measure(sides, rounds=ROUNDS)
    report(
        "spark",
        measured,
        RATIOS,
        title=f"{rows:,} rows of 5 fields, Spark local[2], {PARTITIONS} partitions, one broker",
        settings={
            "rows": rows,
            "topics": 1,
            "partitions": PARTITIONS,
            "rounds": ROUNDS,
            "warm_up_rounds": 1,
            "producer": SHARED,
            "consumer": {"check.crcs": "true"},
            "processes": "one Spark, local[2], for all sides; its two tasks at a time work in "
            "two Python workers for channels, in Spark's own threads for the connector",
            "source": "spark.range and expressions, computed anew by every write of every side",
            "sink": "noop: every row is computed and dropped",
        },
    )


if __name__ == "__main__":
    main()
