"""Reads the channel `readings` with Spark and writes each station's warmest into `warmest`.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/warmest_by_spark.py
"""

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

import sluiceway.spark


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    try:
        sluiceway.spark.register(spark)
        readings = spark.read.format("channel").load("readings")
        warmest = readings.groupBy("station").agg(sql.max("celsius").alias("celsius"))
        warmest.write.format("channel").option("create", "true").mode("append").save("warmest")
        count = spark.read.format("channel").load("warmest").count()
    finally:
        spark.stop()
    print(f"{count} stations written")


if __name__ == "__main__":
    main()
