"""Writes, reads and queries of channels that the job creates, at Spark's default log level."""

import sys

from pyspark.sql import DataFrame, SparkSession

import sluiceway.spark

gateway_url, name, directory = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
sluiceway.spark.register(spark, gateway=gateway_url)


def save(frame: DataFrame, channel: str, **options: str) -> None:
    frame.write.format("channel").options(create="true", **options).mode("append").save(channel)


def count(channel: str) -> int:
    return spark.read.format("channel").load(channel).count()


rows = spark.range(100).selectExpr("id", "cast(id as string) s")
save(rows, f"{name}-batch")
save(rows, f"{name}-exact", delivery="exactly_once", batchKey="all")
assert count(f"{name}-batch") == count(f"{name}-exact") == 100
assert len(spark.read.format("channel").load(f"{name}-batch").limit(3).collect()) == 3

stream = spark.readStream.format("channel").load(f"{name}-batch")
written = stream.writeStream.format("channel").options(create="true", path=f"{name}-stream")
written = written.option("checkpointLocation", f"{directory}/one")
saved = stream.writeStream.foreachBatch(lambda batch, _: save(batch, f"{name}-each"))
saved = saved.option("checkpointLocation", f"{directory}/two")
for writer in (written, saved):
    # Spark 4.1 warns of `availableNow` with any source in Python.
    query = writer.start()
    query.processAllAvailable()
    query.stop()
assert count(f"{name}-stream") == count(f"{name}-each") == 100
spark.stop()
