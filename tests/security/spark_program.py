"""A Spark program that gets its gateway from the environment; run by test_spark_secrets.py.

Arguments: a directory for Spark's files and event log, and a file with the executors' `good` and
`bad` credentials as JSON. Prints plans and results.
"""

import json
import logging
import sys
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import sluiceway.spark

VARIABLE = "SLUICEWAY_KAFKA_CREDENTIALS_FILE"

directory, file = map(Path, sys.argv[1:])
credentials = json.loads(file.read_text())
logging.basicConfig(level=logging.DEBUG)
(directory / "events").mkdir()
file.write_text("{}")
spark = (
    SparkSession.builder.master("local-cluster[1,2,1024]")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config(f"spark.executorEnv.{VARIABLE}", str(file))
    .config("spark.eventLog.enabled", "true")
    .config("spark.eventLog.dir", f"file://{directory / 'events'}")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
    .config("spark.task.maxFailures", "1")
    .getOrCreate()
)
sluiceway.spark.register(spark)
frame = spark.range(1000).withColumnRenamed("id", "a")
writer = frame.write.format("channel").option("create", "true").mode("append")

# With the gateway's properties.
writer.save("by-spark")
read = spark.read.format("channel").load("by-spark")
read.explain(extended=True)
print("sum", read.selectExpr("sum(a)").first()[0])  # noqa: T201
stream = spark.readStream.format("channel").load("by-spark")
query = (
    stream.writeStream.format("channel")
    .option("checkpointLocation", str(directory / "checkpoint"))
    .option("create", "true")
    .trigger(availableNow=True)
    .start("by-stream")
)
query.awaitTermination()
query.explain(True)

# With the executors' own credentials, which each new Kafka client reads again. Planning a write
# needs only the gateway; only executors connect to Kafka.
file.write_text(json.dumps(credentials["good"]))
writer.save("by-own-user")
file.write_text(json.dumps(credentials["bad"]))
try:
    writer.save("by-nobody")
except PySparkException as error:
    print("refused", error)  # noqa: T201
spark.stop()
