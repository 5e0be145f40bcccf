"""The main job on real data: flights through Spark, Kafka, Spark, Kafka and plain Python."""
