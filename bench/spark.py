"""Channels in Spark compared with Spark's Kafka connector.

The connector encodes records by `to_avro` and `from_avro`, or by `to_json` and `from_json` for
comparison with the format `json`. The format `protobuf` is compared with `to_avro` and `from_avro`.

One Spark session (`local[2]`), one broker. For each shape of records all sides write the same
generated rows, each turn to a new topic, and then read them into the `noop` sink, which computes
and discards every row. Sides alternate, first in writing and then in reading; each has one warm-up
turn.
"""

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.measure import Measured, Ratio, measure, report
from bench.shapes import SHAPES
from bench.spark_jars import connector_jars
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.avro.functions import from_avro, to_avro

import sluiceway.spark
from sluiceway import Gateway
from sluiceway.kafka.config import producer_config
from sluiceway.spark.types import struct_of
from sluiceway_gateway.dev.demo.environment import demo_environment

PARTITIONS = 4
ROUNDS = 3
# The properties of the client's producers, for both sides.
SHARED = {
    name: str(value).lower()
    for name, value in producer_config(
        {}, delivery_timeout_ms=120_000, max_message_bytes=1_048_588
    ).items()
    if name in {"acks", "enable.idempotence", "compression.type", "linger.ms", "batch.size"}
}
# The properties of the client's consumers: by default the connector's wait half a second at a
# partition's end, and delay the request after each fetch.
CONSUMER = {"kafka.check.crcs": "true", "kafka.fetch.max.wait.ms": "10"}
_FAR = {
    "arrow_write_to_jvm": 0.9,
    "arrow_read_to_jvm": 0.9,
    "avro_write_to_jvm": 0.8,
    "avro_read_to_jvm": 0.8,
    "json_write_to_jvm": 1.0,
    "json_read_to_jvm": 1.0,
}
GOALS = {
    "flat": {
        "arrow_write_to_jvm": 1.2,
        "arrow_read_to_jvm": 2.0,
        "avro_write_to_jvm": 0.85,
        "avro_read_to_jvm": 0.8,
        "json_write_to_jvm": 1.0,
        "json_read_to_jvm": 1.0,
    },
    "wide": _FAR,
    "text": _FAR,
}
"""Shapes with goals; others are only shown."""


class Bench:
    """The sides of one shape; reads use the last written topic."""

    def __init__(self, spark: SparkSession, gateway: Gateway, name: str, rows: int) -> None:
        self._spark = spark
        self._gateway = gateway
        self._name = name
        self._shape = SHAPES[name]
        self._rows = rows
        self._numbers = itertools.count(1)
        self._channels: dict[str, str] = {}

    def writes(self) -> dict[str, Callable[[], Measured]]:
        """Return the writing sides by name."""
        return {
            f"{self._name}_arrow_write": lambda: self._write("arrow", self._channel_write),
            f"{self._name}_avro_write": lambda: self._write("avro", self._channel_write),
            f"{self._name}_json_write": lambda: self._write("json", self._channel_write),
            f"{self._name}_protobuf_write": lambda: self._write("protobuf", self._channel_write),
            f"{self._name}_jvm_write": lambda: self._write("jvm", self._jvm_write),
            f"{self._name}_jvm_json_write": lambda: self._write("jvm_json", self._jvm_json_write),
        }

    def reads(self) -> dict[str, Callable[[], Measured]]:
        """Return the reading sides by name."""
        return {
            f"{self._name}_arrow_read": lambda: self._read("arrow", self._channel_read),
            f"{self._name}_avro_read": lambda: self._read("avro", self._channel_read),
            f"{self._name}_json_read": lambda: self._read("json", self._channel_read),
            f"{self._name}_protobuf_read": lambda: self._read("protobuf", self._channel_read),
            f"{self._name}_jvm_read": lambda: self._read("jvm", self._jvm_read),
            f"{self._name}_jvm_json_read": lambda: self._read("jvm_json", self._jvm_json_read),
        }

    def _write(self, side: str, write: Callable[[DataFrame, str], None]) -> Measured:
        # The JVM side gets a topic created in the same way.
        if side in self._channels:
            self._gateway.channel(self._channels[side]).delete(force=True)
        name = self._channels[side] = f"bench-{self._name}-{side}-{next(self._numbers)}"
        kind = side if side in ("arrow", "json", "protobuf") else "avro"
        self._gateway.channel(name, self._shape.schema, format=kind, partitions=PARTITIONS)
        frame = self._spark.range(0, self._rows, 1, PARTITIONS).selectExpr(*self._shape.columns)
        started_s = time.perf_counter()
        write(frame, name)
        return Measured(records=self._rows, seconds=time.perf_counter() - started_s)

    def _read(self, side: str, read: Callable[[str], DataFrame]) -> Measured:
        started_s = time.perf_counter()
        read(self._channels[side]).write.format("noop").mode("overwrite").save()
        seconds = time.perf_counter() - started_s
        counted = read(self._channels[side]).agg(sql.count("*"), sql.sum("id")).first()
        assert counted is not None
        assert tuple(counted) == (self._rows, self._rows * (self._rows - 1) // 2), side
        return Measured(records=self._rows, seconds=seconds)

    def _channel_write(self, frame: DataFrame, name: str) -> None:
        frame.write.format("channel").mode("append").save(name)

    def _channel_read(self, name: str) -> DataFrame:
        return self._spark.read.format("channel").load(name)

    def _jvm_write(self, frame: DataFrame, name: str) -> None:
        self._connector_write(frame, name, to_avro(_record(frame), self._shape.avro))

    def _jvm_json_write(self, frame: DataFrame, name: str) -> None:
        self._connector_write(frame, name, sql.to_json(_record(frame)))

    def _connector_write(self, frame: DataFrame, name: str, value: Column) -> None:
        connection = self._gateway.channel(name).connection("write")
        (
            frame.select(value.alias("value"))
            .write.format("kafka")
            .option("kafka.bootstrap.servers", connection.kafka["bootstrap.servers"])
            .option("topic", connection.topic_name)
            .options(**{f"kafka.{name}": value for name, value in SHARED.items()})
            .save()
        )

    def _jvm_read(self, name: str) -> DataFrame:
        return self._connector_read(name, from_avro("value", self._shape.avro))

    def _jvm_json_read(self, name: str) -> DataFrame:
        schema = struct_of(self._shape.schema)
        return self._connector_read(name, sql.from_json(sql.col("value").cast("string"), schema))

    def _connector_read(self, name: str, record: Column) -> DataFrame:
        connection = self._gateway.channel(name).connection("read")
        messages = (
            self._spark.read.format("kafka")
            .option("kafka.bootstrap.servers", connection.kafka["bootstrap.servers"])
            .option("subscribe", connection.topic_name)
            .options(**CONSUMER)
            .load()
        )
        return messages.select(record.alias("record")).select("record.*")


def _record(frame: DataFrame) -> Column:
    return sql.struct(*(frame[column] for column in frame.columns))


@contextmanager
def session(directory: Path) -> Iterator[SparkSession]:
    """Run one Spark session for all sides, with the connector's jars."""
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


def ratios(shapes: Sequence[str]) -> dict[str, Ratio]:
    """Return the ratios of all sides to the connector."""
    return {
        f"{shape}_{side}_to_jvm" if shape != "flat" else f"{side}_to_jvm": Ratio(
            side=f"{shape}_{side}",
            to=f"{shape}_jvm_{side if side.startswith('json') else side.partition('_')[2]}",
            goal=GOALS.get(shape, {}).get(f"{side}_to_jvm"),
        )
        for shape in shapes
        for format_ in ("arrow", "avro", "json", "protobuf")
        for side in (f"{format_}_write", f"{format_}_read")
    }


def main() -> None:
    """Measure and report; a run with fewer rows or shapes writes no results."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--part", type=float, default=1.0, help="of each shape's rows")
    arguments.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    given = arguments.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    measured: dict[str, list[Measured]] = {}
    with tempfile.TemporaryDirectory(prefix="sluiceway-bench-") as name:
        directory = Path(name)
        with demo_environment(directory, print) as environment:
            url = environment.url
            with session(directory) as spark, Gateway(url) as gateway:
                sluiceway.spark.register(spark, gateway=url)
                for shape in given.shapes:
                    rows = int(SHAPES[shape].rows * given.part)
                    bench = Bench(spark, gateway, shape, rows)
                    for sides in (bench.writes(), bench.reads()):
                        measure(sides, rounds=1)
                        measured |= measure(sides, rounds=ROUNDS)
    report(
        "spark" if given.part == 1.0 and given.shapes == list(SHAPES) else None,
        measured,
        ratios(given.shapes),
        title=f"Spark local[2], {PARTITIONS} partitions, one broker",
        settings={
            "shapes": {
                shape: {"title": SHAPES[shape].title, "rows": SHAPES[shape].rows}
                for shape in SHAPES
            },
            "topics": 1,
            "partitions": PARTITIONS,
            "rounds": ROUNDS,
            "warm_up_rounds": 1,
            "producer": SHARED,
            "consumer": CONSUMER,
            "processes": "one Spark, local[2], for all sides; its two tasks at a time work in "
            "two Python workers for channels, in Spark's own threads for the connector",
            "source": "spark.range and expressions, computed anew by every write of every side",
            "sink": "noop: every row is computed and dropped",
        },
    )


if __name__ == "__main__":
    main()
