"""The second job: mean departure delays by carrier and hour, from `flights` into `delays`.

python -m sluiceway_gateway.demo.average_delays
"""

import time

from pyspark.sql import Observation
from pyspark.sql import functions as sql

from sluiceway_gateway.demo import delays, flights
from sluiceway_gateway.demo.checksums import delay_hash, row_hash
from sluiceway_gateway.demo.events import Events
from sluiceway_gateway.demo.spark_job import spark_session, watched

_TASKS = 2 * flights.PARTITIONS


def main() -> None:
    """Read the channel once, for the means, the count and the checksum, and write the means."""
    events = Events()
    events.step("Spark starts")
    with spark_session("average delays") as spark:
        frame = spark.read.format("channel").option("minPartitions", _TASKS).load(flights.CHANNEL)
        grouped = (
            frame.groupBy("carrier", "hour")
            .agg(
                sql.count("*").alias("flights"),
                sql.count("dep_delay").alias("departed"),
                sql.avg("dep_delay").alias("mean_delay_minutes"),
                sql.sum(row_hash(frame)).alias("checksum"),
            )
            .coalesce(1)
            .cache()
        )
        started_s = time.monotonic()
        with watched(spark, events, "Reading the channel", tasks=_TASKS + 1):
            read = grouped.agg(sql.sum("flights"), sql.sum("checksum")).first()
        assert read is not None  # noqa: S101 - an aggregate has one row
        seconds = time.monotonic() - started_s
        wrote = Observation("delays")
        checksum = sql.sum(delay_hash()).alias("checksum")
        means = grouped.drop("checksum").observe(wrote, sql.count("*").alias("rows"), checksum)
        with watched(spark, events, "Writing the mean delays", tasks=1):
            means.write.format("channel").mode("append").option("create", "true").save(
                delays.CHANNEL
            )
        events.result(
            {
                "rows_read": read[0],
                "checksum_read": str(read[1]),
                "read_seconds": seconds,
                "rows_written": wrote.get["rows"],
                "checksum_written": str(wrote.get["checksum"]),
            }
        )


if __name__ == "__main__":
    main()
