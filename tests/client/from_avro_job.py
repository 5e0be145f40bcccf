"""Spark's own Kafka connector and `from_avro`, with the schema from the registry: rows as JSON."""

import sys
import urllib.request

from pyspark.sql import SparkSession
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.functions import expr

jars, servers, topic, schema_url = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", jars)
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "OFF")
    .getOrCreate()
)
with urllib.request.urlopen(schema_url) as response:  # noqa: S310 - of this machine
    schema = response.read().decode()
messages = (
    spark.read.format("kafka")
    .option("kafka.bootstrap.servers", servers)
    .option("subscribe", topic)
    .load()
)
# After a zero byte and the four bytes of the schema's id.
payload = expr("substring(value, 6, length(value) - 5)")
rows = messages.select(from_avro(payload, schema).alias("record")).select("record.*")
for line in rows.toJSON().collect():
    sys.stdout.write(f"{line}\n")
spark.stop()
