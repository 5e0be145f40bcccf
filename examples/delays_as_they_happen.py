"""Follows departures as they happen and writes the average delay of every hour that is over.

The query ends in the middle of its work and goes on from its checkpoint. No departure is lost.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/delays_as_they_happen.py
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
    """A flight that has left, and how many minutes late it was."""

    flight: int
    at: datetime
    delay: float


def departures(start: datetime, end: datetime) -> Iterator[Departure]:
    """Give a departure every two minutes, later and later as the day goes on."""
    while start < end:
        number = (start - DAY) // EVERY
        yield Departure(flight=number, at=start, delay=start.hour + number % 3)
        start += EVERY


def by_hour(stream: DataFrame) -> DataFrame:
    """Return each hour with its departures, once none of them can come any more."""
    hours = stream.withWatermark("at", "10 minutes").groupBy(sql.window("at", "1 hour"))
    sums = hours.agg(sql.count("flight").alias("departures"), sql.avg("delay").alias("delay"))
    return sums.select(sql.col("window.start").alias("hour"), "departures", "delay")


def follow(spark: SparkSession, checkpoint: str) -> StreamingQuery:
    """Start the query, from its checkpoint if it has one."""
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
                # Whatever the query has in hand is left undone; the checkpoint knows.
                query.stop()
                query = follow(spark, checkpoint)
            query.processAllAvailable()
        with channel.writer() as writer:
            # The first departures of the next day end this one's last hour.
            writer.write(departures(DAY + part * PARTS, DAY + part * PARTS + timedelta(hours=1)))
        query.processAllAvailable()
        query.stop()
        # An hour that was written twice, before the end and after it, is one hour.
        hours = spark.read.format("channel").load("delays-by-hour").dropDuplicates(["hour"])
        rows = hours.orderBy("hour").collect()
    spark.stop()
    for row in rows:
        print(f"{row.hour:%H:%M}  {row.departures} departures, {row.delay:.1f} minutes late")
    print(f"{len(rows)} hours, {sum(row.departures for row in rows)} departures")


if __name__ == "__main__":
    main()
