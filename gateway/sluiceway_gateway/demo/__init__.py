"""The main job on real data: flights through Spark, Kafka, Spark, Kafka and plain Python."""

from sluiceway_gateway.demo.command import run

__all__ = ["run"]
