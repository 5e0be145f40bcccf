"""Flows of the pipeline in spark-pipeline.yml: a channel as source and as sink."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

import sluiceway.spark

spark = SparkSession.active()
sluiceway.spark.register(spark)

dp.create_sink(
    "fahrenheit",
    "channel",
    {"path": "fahrenheit", "create": "true", "delivery": "exactly_once"},
)


@dp.append_flow(target="fahrenheit")
def convert() -> DataFrame:
    readings = spark.readStream.format("channel").load("readings")
    return readings.selectExpr("station", "at", "celsius * 1.8 + 32 AS fahrenheit")


@dp.materialized_view
def warmest() -> DataFrame:
    readings = spark.read.format("channel").load("readings")
    return readings.groupBy("station").agg(sql.max("celsius").alias("celsius"))
