"""`sluiceway demo`: real flights through Spark, Kafka, Spark, Kafka and plain Python.

The jobs are `examples/demo/`; a wheel has them in `jobs/` beside this file.
"""
