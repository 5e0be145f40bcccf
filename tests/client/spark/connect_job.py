"""A job over Spark Connect that writes its results into a JSON file."""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import sluiceway.spark
from sluiceway import Gateway
from sluiceway.api.endpoints import Endpoint


def save(frame: DataFrame, name: str, format_: str) -> None:
    options = {"create": "true", "format": format_, "partitions": 2}
    frame.write.format("channel").mode("append").options(**options).save(name)


def batch(spark: SparkSession, format_: str) -> list[int]:
    """Write and read a channel; return sums of its rows."""
    frame = spark.range(1000).selectExpr("id", "cast(id as string) s")
    save(frame, f"connect-{format_}", format_)
    back = spark.read.format("channel").load(f"connect-{format_}")
    return list(back.selectExpr("count(*)", "sum(id)", "sum(cast(s as bigint))").first() or ())


def stream(spark: SparkSession) -> int:
    """Copy a channel as a stream, in two runs on one checkpoint; return the copy's records."""
    save(spark.range(0), "connect-copy", "avro")
    with tempfile.TemporaryDirectory() as checkpoint:
        for _ in range(2):
            query = (
                spark.readStream.format("channel")
                .load("connect-avro")
                .select("id")
                .writeStream.format("channel")
                .option("checkpointLocation", checkpoint)
                .trigger(processingTime="0 seconds")
                .start("connect-copy")
            )
            query.processAllAvailable()
            query.stop()
            save(spark.range(1000, 1500).selectExpr("id", "'' s"), "connect-avro", "avro")
    return spark.read.format("channel").load("connect-copy").count()


def seen(url: str) -> list[list[str | None]]:
    """Return the endpoints of the queries once both have ended."""
    with Gateway(url) as gateway:
        channel = gateway.channel("connect-avro")

        def absent(endpoints: Sequence[Endpoint]) -> list[str]:
            query_endpoints = queries(endpoints)
            return (
                [endpoint.place for endpoint in query_endpoints if endpoint.state != "closed"]
                if query_endpoints
                else ["any"]
            )

        def queries(endpoints: Sequence[Endpoint]) -> list[Endpoint]:
            return [
                endpoint
                for endpoint in endpoints
                if endpoint.title and endpoint.title.startswith("Spark q")
            ]

        closed_endpoints = queries(channel.wait_until(absent, timeout_s=180))
        return [[endpoint.role, endpoint.state, endpoint.cause] for endpoint in closed_endpoints]


def failure(spark: SparkSession) -> str:
    try:
        spark.read.format("channel").load("no-such-channel").count()
    except Exception as error:
        return str(error)
    return ""


def main(server: str, url: str, file: str) -> None:
    spark = SparkSession.builder.remote(server).getOrCreate()
    sluiceway.spark.register(spark, gateway=url)
    results = {
        "session": type(spark).__module__,
        "avro": batch(spark, "avro"),
        "arrow": batch(spark, "arrow"),
        "streamed": stream(spark),
        "seen": seen(url),
        "failure": failure(spark),
    }
    Path(file).write_text(json.dumps(results))
    spark.stop()


main(*sys.argv[1:])
