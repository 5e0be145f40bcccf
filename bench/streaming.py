"""Streams from channel to channel, compared with Spark's Kafka connector from topic to topic.

One Spark session (`local[2]`), one broker. `micro_batch`: records arrive one at a time in a running
query, each in a separate micro-batch; the result is the `triggerExecution` of Spark's progress.
`throughput`: a new query processes its source in one micro-batch; the result is the time of that
batch. Both sides decode and encode every record. The side `exactly_once` writes to a channel with
that delivery; the others deliver at least once. Sides alternate; each has one warm-up turn.

`--sides exactly_once jvm --work micro_batch` measures some parts, and writes no results.
"""

import argparse
import itertools
import os
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from bench.measure import Measured, Ratio, measure, report
from bench.shapes import SHAPES
from bench.spark import CONSUMER, PARTITIONS, ROUNDS, SHARED, session
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

import sluiceway.spark
from sluiceway import Gateway
from sluiceway.api.models import Connection
from sluiceway.codecs import codec
from sluiceway.kafka.config import producer_config
from sluiceway.schema import Schema
from sluiceway_gateway.dev.demo.environment import demo_environment

ROWS = 3_000_000
BATCHES = 20
_UNCOUNTED = 3
_SHAPE = SHAPES["flat"]
_TIMEOUT_S = 300
RATIOS = {
    # Ratios of times.
    "micro_batch_to_jvm": Ratio(
        side="jvm_micro_batch", to="avro_micro_batch", goal=2.0, at_most=True
    ),
    "arrow_micro_batch_to_jvm": Ratio(
        side="jvm_micro_batch", to="arrow_micro_batch", goal=2.0, at_most=True
    ),
    "exactly_once_micro_batch_to_jvm": Ratio(
        side="jvm_micro_batch", to="exactly_once_micro_batch", goal=1.5, at_most=True
    ),
    "throughput_to_jvm": Ratio(side="arrow_throughput", to="jvm_throughput", goal=1.5),
    "avro_throughput_to_jvm": Ratio(side="avro_throughput", to="jvm_throughput", goal=0.8),
    "exactly_once_throughput_to_jvm": Ratio(
        side="exactly_once_throughput", to="jvm_throughput", goal=None
    ),
}
RECORD = {"id": 1, "station": "station-1", "celsius": 0.5, "pascal": 1000.5, "sensor": 7}


class Side(ABC):
    """A stream between two topics, both created by channels with the same settings."""

    kind = "avro"
    delivery = "at_least_once"
    """Delivery of the channel that is written to."""

    def __init__(self, spark: SparkSession, gateway: Gateway, directory: Path, name: str) -> None:
        self._spark = spark
        self._gateway = gateway
        self._directory = directory
        self._name = name
        self._numbers = itertools.count(1)

    def channel(self, role: str) -> str:
        """Create an empty channel, and return its name."""
        name = f"bench-{self._name}-{role}-{next(self._numbers)}"
        self._gateway.channel(
            name,
            _SHAPE.schema,
            format=self.kind,
            delivery=self.delivery if role == "sink" else "at_least_once",
            partitions=PARTITIONS,
        )
        return name

    def connection(self, channel: str) -> Connection:
        """Return the connection of a channel."""
        return self._gateway.channel(channel).connection("write")

    @abstractmethod
    def fill(self, frame: DataFrame, channel: str) -> None:
        """Write a dataframe in the form that this side reads."""

    @abstractmethod
    def source(self, channel: str) -> DataFrame:
        """Return the stream of a channel's records as columns."""

    @abstractmethod
    def sink(self, frame: DataFrame, channel: str) -> DataStreamWriter:
        """Return the write of such columns to a channel."""

    @abstractmethod
    def value(self, connection: Connection) -> bytes:
        """Return the message of one record."""

    def start(self, source: str, **trigger: Any) -> StreamingQuery:
        """Start a query from a channel to a new one."""
        checkpoint = self._directory / f"{self._name}-{next(self._numbers)}"
        sink = self.sink(self.source(source), self.channel("sink"))
        return sink.option("checkpointLocation", str(checkpoint)).trigger(**trigger).start()

    def micro_batches(self, batches: int) -> Measured:
        """Send records one by one, each after the previous one was written."""
        source = self.channel("source")
        connection = self.connection(source)
        value = self.value(connection)
        config = producer_config(
            connection.kafka, {"linger.ms": 0}, delivery_timeout_ms=60_000, max_message_bytes=10**6
        )
        producer = Producer(config)
        query = self.start(source, processingTime="0 seconds")
        try:
            took_s: list[float] = []
            for number in range(_UNCOUNTED + batches):
                producer.produce(connection.topic_name, value, partition=number % PARTITIONS)
                assert producer.flush(30) == 0
                took_s = _written(query, records=number + 1)
        finally:
            query.stop()
        return Measured(records=batches, seconds=sum(took_s[_UNCOUNTED:][:batches]))

    def throughput(self, rows: int) -> Measured:
        """Process all records of a channel in one micro-batch."""
        source = self.channel("source")
        self.fill(self._spark.range(0, rows, 1, PARTITIONS).selectExpr(*_SHAPE.columns), source)
        query = self.start(source, availableNow=True)
        assert query.awaitTermination(_TIMEOUT_S)
        return Measured(records=rows, seconds=sum(_written(query, records=rows)))


class ChannelSide(Side):
    """`format("channel")` on both ends."""

    def fill(self, frame: DataFrame, channel: str) -> None:
        """Write a batch."""
        frame.write.format("channel").mode("append").save(channel)

    def source(self, channel: str) -> DataFrame:
        """Read from the first record."""
        return self._spark.readStream.format("channel").load(channel)

    def sink(self, frame: DataFrame, channel: str) -> DataStreamWriter:
        """Start the write of a stream."""
        return frame.writeStream.format("channel").option("path", channel)

    def value(self, connection: Connection) -> bytes:
        """Encode one record."""
        encoding = codec(self.kind, Schema.of(_SHAPE.schema), connection.schema_id)
        batch = pa.RecordBatch.from_pylist([RECORD], _SHAPE.schema)
        return encoding.encode(batch, limit_bytes=10**6)[0]


class ArrowSide(ChannelSide):
    """`format("channel")` with many records per message."""

    kind = "arrow"


class ExactlyOnceSide(ChannelSide):
    """`format("channel")` with exactly-once delivery."""

    delivery = "exactly_once"


class ConnectorSide(Side):
    """Spark's Kafka connector on both ends, with Spark's Avro functions between."""

    def fill(self, frame: DataFrame, channel: str) -> None:
        """Write a batch."""
        self._encoded(frame).write.format("kafka").options(**self._options(channel)).save()

    def source(self, channel: str) -> DataFrame:
        """Read from the first record."""
        connection = self.connection(channel)
        messages = (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", connection.kafka["bootstrap.servers"])
            .option("subscribe", connection.topic_name)
            .option("startingOffsets", "earliest")
            .options(**CONSUMER)
            .load()
        )
        return messages.select(from_avro("value", _SHAPE.avro).alias("record")).select("record.*")

    def sink(self, frame: DataFrame, channel: str) -> DataStreamWriter:
        """Start the write of a stream."""
        encoded = self._encoded(frame)
        return encoded.writeStream.format("kafka").options(**self._options(channel))

    def value(self, connection: Connection) -> bytes:
        """Encode one record, without the registry's prefix."""
        del connection
        batch = pa.RecordBatch.from_pylist([RECORD], _SHAPE.schema)
        encoded = codec("avro", Schema.of(_SHAPE.schema), 0).encode(batch, limit_bytes=10**6)
        value: bytes = encoded.values[0].as_py()
        return value[5:]

    def _encoded(self, frame: DataFrame) -> DataFrame:
        record = sql.struct(*(frame[column] for column in frame.columns))
        return frame.select(to_avro(record, _SHAPE.avro).alias("value"))

    def _options(self, channel: str) -> dict[str, str]:
        connection = self.connection(channel)
        return {
            "kafka.bootstrap.servers": connection.kafka["bootstrap.servers"],
            "topic": connection.topic_name,
            **{f"kafka.{name}": value for name, value in SHARED.items()},
        }


def _written(query: StreamingQuery, *, records: int) -> list[float]:
    """Wait until a query has written `records` records; return the seconds of its batches."""
    deadline_s = time.monotonic() + _TIMEOUT_S
    while True:
        progress = {each["batchId"]: each for each in query.recentProgress if each["numInputRows"]}
        if sum(each["numInputRows"] for each in progress.values()) >= records:
            return [each["durationMs"]["triggerExecution"] / 1000 for each in progress.values()]
        assert query.exception() is None, query.exception()
        assert time.monotonic() < deadline_s, "the query does not finish"
        time.sleep(0.005)


KINDS: dict[str, type[Side]] = {
    "arrow": ArrowSide,
    "avro": ChannelSide,
    "exactly_once": ExactlyOnceSide,
    "jvm": ConnectorSide,
}
WORKS = ["micro_batch", "throughput"]


def sides(
    made: Mapping[str, Side], works: Sequence[str], *, rows: int, batches: int
) -> dict[str, Callable[[], Measured]]:
    """Return the turns of all sides by name."""
    found: dict[str, Callable[[], Measured]] = {}
    for work in works:
        for name, side in made.items():
            if work == "micro_batch":
                found[f"{name}_{work}"] = partial(side.micro_batches, batches)
            else:
                found[f"{name}_{work}"] = partial(side.throughput, rows)
    return found


def main() -> None:
    """Measure and report."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--sides", nargs="+", choices=list(KINDS), default=list(KINDS))
    arguments.add_argument("--work", nargs="+", choices=WORKS, default=WORKS)
    arguments.add_argument("--rows", type=int, default=ROWS)
    arguments.add_argument("--batches", type=int, default=BATCHES)
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    given = arguments.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(prefix="sluiceway-bench-") as name:
        directory = Path(name)
        with demo_environment(directory, print) as environment:
            url = environment.url
            with session(directory) as spark, Gateway(url) as gateway:
                sluiceway.spark.register(spark, gateway=url)
                made = {name: KINDS[name](spark, gateway, directory, name) for name in given.sides}
                turns = sides(made, given.work, rows=given.rows, batches=given.batches)
                measure(turns, rounds=1)
                measured = measure(turns, rounds=given.rounds)
    sizes = (given.rows, given.batches, given.rounds)
    whole = sizes == (ROWS, BATCHES, ROUNDS) and len(turns) == len(KINDS) * len(WORKS)
    report(
        "streaming" if whole else None,
        measured,
        {key: ratio for key, ratio in RATIOS.items() if {ratio.side, ratio.to} <= turns.keys()},
        title=f"Streams on Spark local[2], {PARTITIONS} partitions, one broker",
        settings={
            "shape": _SHAPE.title,
            "rows": given.rows,
            "batches": given.batches,
            "batches_not_counted": _UNCOUNTED,
            "partitions": PARTITIONS,
            "rounds": given.rounds,
            "warm_up_rounds": 1,
            "producer": SHARED,
            "consumer": CONSUMER,
            "measure": "the triggerExecution of Spark's progress, of batches that had records",
            "processes": "one Spark, local[2], for all sides",
        },
    )


if __name__ == "__main__":
    main()
