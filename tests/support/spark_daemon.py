"""Spark's Python daemon, with what the client requires already imported when it forks workers.

A query takes several workers, and each would spend half a second on these imports. The client
itself is imported by each worker, as on a cluster.
"""

import confluent_kafka
import fastavro
import httpx
import numpy as np
import pyarrow.compute
from pyspark.daemon import manager

__all__ = ["confluent_kafka", "fastavro", "httpx", "np", "pyarrow"]

if __name__ == "__main__":
    manager()  # type: ignore[no-untyped-call]
