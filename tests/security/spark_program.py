"""A Spark program that knows its gateway by the environment alone; run by test_spark_secrets.py.

Arguments: a directory for Spark's files, and where the event log goes. Prints plans and results.
"""

import logging
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import sluiceway.spark

directory = Path(sys.argv[1])
logging.basicConfig(level=logging.DEBUG)
(directory / "events").mkdir()
spark = (
    SparkSession.builder.master("local-cluster[1,2,1024]")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.eventLog.enabled", "true")
    .config("spark.eventLog.dir", f"file://{directory / 'events'}")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
    .getOrCreate()
)
sluiceway.spark.register(spark)
frame = spark.range(1000).withColumnRenamed("id", "a")
frame.write.format("channel").option("create", "true").mode("append").save("by-spark")
read = spark.read.format("channel").load("by-spark")
read.explain(extended=True)
print("sum", read.selectExpr("sum(a)").first()[0])  # noqa: T201
stream = spark.readStream.format("channel").load("by-spark")
query = (
    stream.writeStream.format("channel")
    .option("checkpointLocation", str(directory / "checkpoint"))
    .option("create", "true")
    .trigger(processingTime="0 seconds")
    .start("by-stream")
)
query.processAllAvailable()
query.explain(True)
query.stop()
print("streamed", spark.read.format("channel").load("by-stream").count())  # noqa: T201
spark.stop()
