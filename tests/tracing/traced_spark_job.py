"""Write and read with Spark in one trace, then run a stream. Arguments: two channels, a directory.

Ends after a line of standard input.

The program sets up the SDK, as an application does. Spark's workers have the same variables.
"""

import sys
from pathlib import Path

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pyspark.sql import SparkSession

import sluiceway.spark


def main(source: str, sink: str, checkpoint: str) -> None:
    """Fill the source, count it, and stream it into the sink."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    spark = (
        SparkSession.builder.master("local-cluster[1,2,1024]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    with trace.get_tracer("job").start_as_current_span("nightly"):
        sluiceway.spark.register(spark)
        rows = spark.range(0, 1000, numPartitions=2)
        rows.write.format("channel").mode("append").save(source)
        assert spark.read.format("channel").load(source).count() == 1000
    query = (
        spark.readStream.format("channel")
        .load(source)
        .writeStream.format("channel")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(sink)
    )
    assert query.awaitTermination(300)
    # Workers may still export spans, and Spark ends them.
    sys.stdin.readline()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], str(Path(sys.argv[3])))
