"""The first job: a CSV file's flights into the channel `flights`, by Spark.

python -m sluiceway_gateway.demo.write_flights PATH
"""

import sys
import time

from pyspark.sql import functions as sql

from sluiceway_gateway.demo import flights
from sluiceway_gateway.demo.checksums import row_hash
from sluiceway_gateway.demo.events import Events
from sluiceway_gateway.demo.spark_job import spark_session, watched

_TASKS = 4 * flights.PARTITIONS


def main(path: str) -> None:
    """Read, count and sum up the flights, write them, and tell what was written."""
    events = Events()
    events.step("Spark starts")
    with spark_session("write flights") as spark:
        frame = spark.read.csv(path, schema=flights.DDL, header=True, nullValue=flights.NULL)
        spread = frame.repartition(_TASKS).cache()
        with watched(spark, events, "Reading the flights", tasks=_TASKS + 8):
            found = spread.agg(
                sql.count("*").alias("rows"), sql.sum(row_hash(spread)).alias("checksum")
            ).first()
        assert found is not None  # noqa: S101 - an aggregate has one row
        started_s = time.monotonic()
        with watched(spark, events, "Writing them into the channel", tasks=_TASKS):
            (
                spread.write.format("channel")
                .mode("append")
                .option("create", "true")
                .option("format", "arrow")
                .option("partitions", flights.PARTITIONS)
                .save(flights.CHANNEL)
            )
        seconds = time.monotonic() - started_s
        events.result(
            {"rows": found.rows, "checksum": str(found.checksum), "write_seconds": seconds}
        )


if __name__ == "__main__":
    main(sys.argv[1])
