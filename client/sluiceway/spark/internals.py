"""Facts about Spark that PySpark's public interface does not provide.

The only module that reads PySpark's private attributes, which may change with any version of
Spark. Where one is missing, a job loses its endpoint and nothing else.
"""

import logging
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sluiceway.errors import OptionError
from sluiceway.spark.options import WriteOptions

__all__ = ["QueryNotPlanned", "is_stopped", "sink_options"]

LOGGER = logging.getLogger(__name__)

_SINK_NODE = "WriteToMicroBatchDataSource"


class QueryNotPlanned(Exception):
    """Spark has not planned the query yet."""


def is_stopped(spark: SparkSession) -> bool:
    """Return whether the session was stopped. Only Spark Connect has a public property."""
    session: Any = spark
    context = getattr(session, "_sc", None)
    if context is None:
        return bool(getattr(session, "is_stopped", False))
    return context._jsc is None  # noqa: SLF001


def sink_options(query: StreamingQuery) -> WriteOptions | None:
    """Return the options of a query's write to a channel; None if it writes elsewhere.

    They are in the query's logical plan in the JVM: a query's progress describes a Python sink
    only by its object id. Always None over Spark Connect. Raises QueryNotPlanned.
    """
    java_query = getattr(query, "_jsq", None)
    if java_query is None:
        return None
    try:
        plan = java_query.streamingQuery().logicalPlan()
    except Exception as error:
        raise QueryNotPlanned from error
    try:
        if plan.getClass().getSimpleName() != _SINK_NODE or plan.table().name() != "channel":
            return None
        options = {}
        pairs = plan.writeOptions().iterator()
        while pairs.hasNext():
            pair = pairs.next()
            options[str(pair._1())] = str(pair._2())  # noqa: SLF001 - Scala's names
        return WriteOptions.parse(options, streaming=True)
    except OptionError:
        return None
    except Exception:
        LOGGER.warning("a query's write is not listed as an endpoint", exc_info=True)
        return None
