"""Memory of Spark's Python workers."""

import pyarrow as pa
import pytest
from bench.workers import watched_workers
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sql

from sluiceway import Gateway

pytestmark = pytest.mark.long

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
ROWS, TEXT_BYTES = 420_000, 1000
MOST_MB = 512


@pytest.mark.parametrize("format_", ["avro", "arrow"])
def test_workers_write_and_read_a_long_partition_in_bounded_memory(
    spark: SparkSession, gateway: Gateway, name: str, format_: str
) -> None:
    """Write and read 420 MB in one partition, with one task each."""
    gateway.channel(name, SCHEMA, format=format_)
    text = f"rpad(cast(id as string), {TEXT_BYTES}, 'the quick brown fox ') text"
    frame = spark.range(0, ROWS, 1, 1).selectExpr("id", text)

    with watched_workers() as memory:
        frame.write.format("channel").mode("append").save(name)
        read = spark.read.format("channel").load(name)
        rows = read.select(
            sql.count("*").alias("rows"), sql.sum(sql.length("text")).alias("text")
        ).collect()

    assert rows == [Row(rows=ROWS, text=ROWS * TEXT_BYTES)]
    assert memory.workers
    # The whole worker, including earlier tasks.
    assert memory.peak_mb < MOST_MB
