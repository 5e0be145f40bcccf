"""A streaming query that writes the average delay of each completed hour of departures.

The query is stopped halfway and resumes from its checkpoint. No departure is lost.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/streaming_delays.py
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming import StreamingQuery

import sluiceway.spark
from sluiceway import Gateway

DAY = datetime(2013, 1, 1, tzinfo=UTC)
EVERY = timedelta(minutes=2)
PARTS = 4


@dataclass
class Departure:
    """The departure of a flight, with its delay in minutes."""

    flight: int
    at: datetime
    delay: float


def departures(start: datetime, end: datetime) -> Iterator[Departure]:
    """Yield a departure every two minutes, with delays that grow during the day."""
    while start < end:
        number = (start - DAY) // EVERY
        yield Departure(flight=number, at=start, delay=start.hour + number % 3)
        start += EVERY


def by_hour(stream: DataFrame) -> DataFrame:
    """Return departures and average delay per hour, once the watermark has passed it."""
    hours = stream.withWatermark("at", "10 minutes").groupBy(sql.window("at", "1 hour"))
    sums = hours.agg(sql.count("flight").alias("departures"), sql.avg("delay").alias("delay"))
    return sums.select(sql.col("window.start").alias("hour"), "departures", "delay")


def follow(spark: SparkSession, checkpoint: str) -> StreamingQuery:
    """Start or resume the query."""
    hours = by_hour(spark.readStream.format("channel").load("departures-of-a-day"))
    options = {"checkpointLocation": checkpoint, "create": "true"}
    return hours.writeStream.format("channel").options(**options).start("delays-by-hour")


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    part = timedelta(days=1) / PARTS
    with Gateway() as gateway, tempfile.TemporaryDirectory() as checkpoint:
        sluiceway.spark.register(spark)
        channel = gateway.channel("departures-of-a-day", schema=Departure, partitions=2)
        query = follow(spark, checkpoint)
        for number in range(PARTS):
            start = DAY + number * part
            with channel.writer() as writer:
                writer.write(departures(start, start + part))
            if number == 1:
                # Unfinished work is repeated from the checkpoint.
                query.stop()
                query = follow(spark, checkpoint)
            query.processAllAvailable()
        with channel.writer() as writer:
            # Departures of the next day advance the watermark past this day's last hour.
            writer.write(departures(DAY + part * PARTS, DAY + part * PARTS + timedelta(hours=1)))
        query.processAllAvailable()
        query.stop()
        # Delivery is at least once: an hour may be written before and after the restart.
        hours = spark.read.format("channel").load("delays-by-hour").dropDuplicates(["hour"])
        rows = hours.orderBy("hour").collect()
    spark.stop()
    for row in rows:
        print(f"{row.hour:%H:%M}  {row.departures} departures, {row.delay:.1f} minutes late")
    print(f"{len(rows)} hours, {sum(row.departures for row in rows)} departures")


if __name__ == "__main__":
    main()
