"""Channels as a Spark data source: `format("channel")`, for Spark 4.1 and later.

    import sluiceway.spark
    sluiceway.spark.register(spark, gateway="http://127.0.0.1:8900")
    df.write.format("channel").mode("append").save("flights")
    spark.read.format("channel").load("flights")

Only this package imports PySpark.
"""

from sluiceway.spark.datasource import register

__all__ = ["register"]
