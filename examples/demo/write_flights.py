"""Write the flights of a CSV file into the channel `flights`, with Spark.

SLUICEWAY_URL=http://127.0.0.1:8900 python write_flights.py flights.csv
"""

import json
import sys
import time

from checksums import row_hash
from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as sql

import sluiceway.spark

SCHEMA = """
    year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int,
    sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string,
    dest string, air_time int, distance int, hour int, minute int, time_hour timestamp
"""


def main(path: str) -> None:
    """Write all flights, and print their number and the sum of their hashes."""
    spark = SparkSession.builder.appName("write flights").getOrCreate()
    sluiceway.spark.register(spark)

    print("Writing the flights into the channel", flush=True)
    started_s = time.monotonic()
    flights = spark.read.csv(path, schema=SCHEMA, header=True, nullValue="NA")
    written = Observation()
    checksum = sql.sum(row_hash(flights)).alias("checksum")
    (
        flights.observe(written, sql.count("*").alias("rows"), checksum)
        .write.format("channel")
        .mode("append")
        .option("create", "true")
        .option("format", "arrow")
        .option("partitions", 4)
        .option("delivery", "exactly_once")
        .save("flights")
    )
    seconds = time.monotonic() - started_s
    found = {"rows": written.get["rows"], "checksum": str(written.get["checksum"])}
    print(json.dumps(found | {"seconds": seconds}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
