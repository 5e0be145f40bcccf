"""The first job: a CSV file's flights into the channel `flights`, by Spark.

python -m sluiceway_gateway.demo.write_flights PATH
"""

import sys
import time

from pyspark.sql import Observation
from pyspark.sql import functions as sql

from sluiceway_gateway.demo import flights
from sluiceway_gateway.demo.checksums import row_hash
from sluiceway_gateway.demo.events import Events
from sluiceway_gateway.demo.spark_job import spark_session, watched

_TASKS = 2 * flights.PARTITIONS


def main(path: str) -> None:
    """Read the flights and write them, counted and summed up as they pass; tell what was."""
    events = Events()
    events.step("Spark starts")
    with spark_session("write flights") as spark:
        frame = spark.read.csv(path, schema=flights.DDL, header=True, nullValue=flights.NULL)
        passed = Observation("flights")
        checksum = sql.sum(row_hash(frame)).alias("checksum")
        observed = frame.observe(passed, sql.count("*").alias("rows"), checksum)
        started_s = time.monotonic()
        with watched(spark, events, "Writing the flights into the channel", tasks=_TASKS):
            (
                observed.write.format("channel")
                .mode("append")
                .option("create", "true")
                .option("format", "arrow")
                .option("partitions", flights.PARTITIONS)
                .save(flights.CHANNEL)
            )
        seconds = time.monotonic() - started_s
        events.result(
            {
                "rows": passed.get["rows"],
                "checksum": str(passed.get["checksum"]),
                "write_seconds": seconds,
            }
        )


if __name__ == "__main__":
    main(sys.argv[1])
