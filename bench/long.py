"""A long channel: speed and memory from its first to its last rows.

One Spark session (`local[2]`), one broker. In each format a channel is written sequentially in ten
equal parts, and then read in the same parts by offset, checked by count and sum. Each part has its
speed and the peak memory of Spark's Python workers.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.measure import RESULTS, machine
from bench.shapes import SHAPES
from bench.spark import PARTITIONS, session
from bench.workers import watched_workers
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql
from rich.console import Console
from rich.table import Table

import sluiceway.spark
from sluiceway import Gateway
from sluiceway.kafka.config import consumer_config
from sluiceway_gateway.dev.demo.environment import demo_environment

ROWS = 50_000_000
PARTS = 10
FORMATS = ("arrow", "avro")
_WARM_UP_ROWS = 200_000
_SHAPE = SHAPES["flat"]
_NAME = "long"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One tenth of a channel, written or read; `peak_mb` is that of the largest worker."""

    rows: int
    seconds: float
    peak_mb: int

    @property
    def rows_per_s(self) -> int:
        """Rows per second."""
        return round(self.rows / self.seconds)


@dataclass(frozen=True, kw_only=True)
class Work:
    """The parts of one side, in order."""

    side: str
    parts: tuple[Part, ...]

    @property
    def last_to_first(self) -> float:
        """Ratio of the last part's speed to the first's; 1 means constant."""
        return self.parts[-1].rows_per_s / self.parts[0].rows_per_s

    @property
    def peak_mb(self) -> int:
        """Peak memory of a worker."""
        return max(part.peak_mb for part in self.parts)


class Long:
    """One channel of a format, written and read part by part."""

    def __init__(self, spark: SparkSession, gateway: Gateway, kind: str, rows: int) -> None:
        self._spark = spark
        self._kind = kind
        self._edges = [rows * part // PARTS for part in range(PARTS + 1)]
        self._channel = gateway.channel(
            f"bench-{_NAME}-{kind}-{rows}", _SHAPE.schema, format=kind, partitions=PARTITIONS
        )
        self._offsets = [dict.fromkeys(range(PARTITIONS), 0)]

    def works(self) -> Iterator[Work]:
        """Write, then read, then delete the channel."""
        parts = range(PARTS)
        yield Work(side=f"{self._kind}_write", parts=tuple(self._written(part) for part in parts))
        yield Work(side=f"{self._kind}_read", parts=tuple(self._read(part) for part in parts))
        self._channel.delete(force=True)

    def _written(self, part: int) -> Part:
        start, stop = self._edges[part], self._edges[part + 1]
        frame = self._spark.range(start, stop, 1, PARTITIONS).selectExpr(*_SHAPE.columns)
        with _timed(stop - start) as found:
            frame.write.format("channel").mode("append").save(self._channel.name)
        self._offsets.append(self._ends())
        return found[0]

    def _read(self, part: int) -> Part:
        start, stop = self._edges[part], self._edges[part + 1]
        frame = (
            self._spark.read.format("channel")
            .option("startingOffsets", json.dumps(self._offsets[part]))
            .option("endingOffsets", json.dumps(self._offsets[part + 1]))
            .load(self._channel.name)
        )
        with _timed(stop - start) as found:
            counted = frame.agg(sql.count("*"), sql.sum("id"), sql.max("station")).first()
        assert counted is not None
        assert tuple(counted)[:2] == (stop - start, (start + stop - 1) * (stop - start) // 2)
        return found[0]

    def _ends(self) -> dict[int, int]:
        connection = self._channel.connection("read")
        consumer = Consumer(consumer_config(connection.kafka))
        try:
            ends = {}
            for partition in range(PARTITIONS):
                place = TopicPartition(connection.topic_name, partition)
                ends[partition] = consumer.get_watermark_offsets(place, timeout=30)[1]
            return ends
        finally:
            consumer.close()


@contextmanager
def _timed(rows: int) -> Iterator[list[Part]]:
    """Measure the block, and append the part to the yielded list."""
    found: list[Part] = []
    with watched_workers() as memory:
        started_s = time.perf_counter()
        yield found
        seconds = time.perf_counter() - started_s
    assert memory.workers, "no worker was found, so its memory is unknown"
    found.append(Part(rows=rows, seconds=seconds, peak_mb=memory.peak_mb))


def main() -> None:
    """Measure, print, and write results/long.json; a run with fewer rows writes no results."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=ROWS)
    rows = arguments.parse_args().rows
    os.environ["PYSPARK_PYTHON"] = sys.executable
    console = Console()
    works: list[Work] = []
    with tempfile.TemporaryDirectory(prefix="sluiceway-bench-") as name:
        directory = Path(name)
        with demo_environment(directory, print) as environment:
            url = environment.url
            with session(directory) as spark, Gateway(url) as gateway:
                sluiceway.spark.register(spark, gateway=url)
                for kind in FORMATS:
                    list(Long(spark, gateway, kind, _WARM_UP_ROWS).works())
                    for work in Long(spark, gateway, kind, rows).works():
                        works.append(work)
                        console.print(_table(work))
    if rows != ROWS:
        return
    path = RESULTS / f"{_NAME}.json"
    path.write_text(json.dumps(_result(rows, works), indent=2) + "\n")
    console.print(f"Written to {path.relative_to(RESULTS.parent.parent)}")


def _result(rows: int, works: list[Work]) -> dict[str, Any]:
    return {
        "name": _NAME,
        "last_to_first": {work.side: round(work.last_to_first, 3) for work in works},
        "peak_mb": {work.side: work.peak_mb for work in works},
        "parts": {
            work.side: [
                {
                    "rows_per_s": part.rows_per_s,
                    **asdict(replace(part, seconds=round(part.seconds, 3))),
                }
                for part in work.parts
            ]
            for work in works
        },
        "settings": {
            "shape": _SHAPE.title,
            "rows": rows,
            "parts": PARTS,
            "partitions": PARTITIONS,
            "warm_up_rows": _WARM_UP_ROWS,
            "memory": "the largest peak (VmHWM) of a Python worker, asked for anew by each part",
            "reading": "counted, and summed by id: every row is computed",
            "processes": "one Spark, local[2]; its two tasks at a time work in two Python workers",
        },
        "machine": machine(),
    }


def _table(work: Work) -> Table:
    table = Table(
        "part",
        title=f"{work.side}: last to first {work.last_to_first:.2f}, at most {work.peak_mb} MB",
    )
    for heading in ("rows", "rows/s", "seconds", "worker's peak MB"):
        table.add_column(heading, justify="right")
    for number, part in enumerate(work.parts, 1):
        figures = (f"{part.rows:,}", f"{part.rows_per_s:,}", f"{part.seconds:.2f}")
        table.add_row(str(number), *figures, str(part.peak_mb))
    return table


if __name__ == "__main__":
    main()
