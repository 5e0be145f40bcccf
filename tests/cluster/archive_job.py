"""A job for spark-submit that writes its results to a JSON file.

Writes and reads a channel, then reads it with the Pythons of broken environments.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import sluiceway.spark


def locations(_: object) -> dict[str, str]:
    """Return the directory and the locations of modules of a Python process."""
    import confluent_kafka

    import sluiceway

    return {
        "directory": str(Path.cwd()),
        "python": sys.executable,
        "client": sluiceway.__file__,
        "kafka": confluent_kafka.__file__,
    }


def failure(spark: SparkSession, environment: str, name: str) -> str:
    """Read with another environment's Python on executors, and return the error."""
    spark.sparkContext.pythonExec = f"./{environment}/bin/python"
    sluiceway.spark.register(spark)
    try:
        return str(spark.read.format("channel").load(name).count())
    except Exception as error:
        return str(error)


def main(name: str, file: str, *environments: str) -> None:
    spark = SparkSession.builder.appName("archives").getOrCreate()
    sluiceway.spark.register(spark)
    frame = spark.range(1000, numPartitions=2).selectExpr("id", "cast(id as string) s")
    frame.write.format("channel").mode("append").option("create", "true").save(name)
    read = spark.read.format("channel").option("minPartitions", 2).load(name)
    results = {
        "rows": read.selectExpr("count(*)", "sum(id)", "sum(cast(s as bigint))").first(),
        "driver": locations(None),
        "executors": spark.sparkContext.parallelize(range(2), 2).map(locations).collect(),
        "failures": {
            environment: failure(spark, environment, name) for environment in environments
        },
    }
    Path(file).write_text(json.dumps(results))
    spark.stop()


main(*sys.argv[1:])
