"""Average the departure delays of the channel `flights` into the channel `delays`, with Spark.

SLUICEWAY_URL=http://127.0.0.1:8900 python average_delays.py
"""

import json
import time

from checksums import delay_hash, row_hash
from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as sql

import sluiceway.spark


def main() -> None:
    """Read all flights, write their mean delays, and print the counts and checksums of both."""
    spark = SparkSession.builder.appName("average delays").getOrCreate()
    sluiceway.spark.register(spark)

    print("Reading the channel", flush=True)
    started_s = time.monotonic()
    flights = spark.read.format("channel").option("minPartitions", 8).load("flights")
    grouped = (
        flights.groupBy("carrier", "hour")
        .agg(
            sql.count("*").alias("flights"),
            sql.count("dep_delay").alias("departed"),
            sql.avg("dep_delay").alias("mean_delay_minutes"),
            sql.sum(row_hash(flights)).alias("checksum"),
        )
        .coalesce(1)
        .cache()
    )
    rows, checksum = grouped.agg(sql.sum("flights"), sql.sum("checksum")).collect()[0]
    found = {"rows": rows, "checksum": str(checksum), "seconds": time.monotonic() - started_s}

    print("Writing the mean delays", flush=True)
    written = Observation()
    (
        grouped.drop("checksum")
        .observe(written, sql.count("*").alias("rows"), sql.sum(delay_hash()).alias("checksum"))
        .write.format("channel")
        .mode("append")
        .option("create", "true")
        .option("delivery", "exactly_once")
        .save("delays")
    )
    means = {"rows": written.get["rows"], "checksum": str(written.get["checksum"])}
    print(json.dumps({"read": found, "written": means}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
