"""Reads the channel `readings` with Spark and writes each station's maximum to `warmest`.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/spark_maximum.py
"""

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

import sluiceway.spark
from sluiceway import Gateway


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
        print(f"{count} stations written")
        # The write is an endpoint of the channel.
        with Gateway() as gateway:
            for each in gateway.channel("warmest").endpoints():
                if each.role == "writer":
                    print(f"its writer is {each.state} after {each.counters['records']} records")
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
