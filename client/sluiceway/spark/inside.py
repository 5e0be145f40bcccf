"""What is asked of Spark itself, some of it Spark's inner affair, which later ones may lack.

What cannot be found out is not seen by others, and that is all.
"""

import json
import logging
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from sluiceway.errors import OptionError
from sluiceway.rest.channels import Control
from sluiceway.spark.options import WriteOptions
from sluiceway.spark.queries import NotYet, Sink

__all__ = ["InsideSpark"]

LOGGER = logging.getLogger(__name__)

_WRITES_TO_A_TABLE = "WriteToMicroBatchDataSource"


class InsideSpark:
    """One Spark session, of this process's Spark or, over Spark Connect, of a server's."""

    def __init__(self, spark: SparkSession, control: Control) -> None:
        self._spark: Any = spark
        self._control = control

    def application(self) -> tuple[str, str]:
        """Return the application's name and id."""
        try:
            conf = self._spark.conf
            return conf.get("spark.app.name", "Spark"), conf.get("spark.app.id", "")
        except Exception:
            LOGGER.debug("Spark does not tell the application's name", exc_info=True)
            return "Spark", ""

    def is_stopped(self) -> bool:
        """Whether Spark was stopped."""
        context = getattr(self._spark, "_sc", None)
        if context is None:
            return bool(getattr(self._spark, "is_stopped", False))
        return context._jsc is None  # noqa: SLF001 - nothing public tells

    def listen(self, listener: StreamingQueryListener) -> None:
        """Have a listener hear of streaming queries, where Spark lets it."""
        try:
            self._spark.streams.addListener(listener)
        except Exception:
            LOGGER.warning(
                "streaming queries are not seen by others: Spark tells of none", exc_info=True
            )

    def query(self, id_: str) -> Any:
        """Return Spark's handle of a query that runs; None if none does."""
        try:
            return self._spark.streams.get(id_)
        except Exception:
            LOGGER.debug("Spark does not know the query %s", id_, exc_info=True)
            return None

    def progress(self, handle: Any) -> Mapping[str, Any] | None:
        """Return what a query last told, in events or not."""
        try:
            last = None if handle is None else handle.lastProgress
            progress: Mapping[str, Any] | None = None if last is None else json.loads(last.json)
        except Exception:
            LOGGER.debug("Spark does not tell a query's progress", exc_info=True)
            return None
        return progress

    def sink(self, handle: Any) -> Sink | None:
        """Return the channel that a query writes to. Raises NotYet, GatewayError."""
        inner = getattr(handle, "_jsq", None)
        if inner is None:
            return None
        try:
            plan = inner.streamingQuery().logicalPlan()
        except Exception as error:
            raise NotYet from error
        try:
            if plan.getClass().getSimpleName() != _WRITES_TO_A_TABLE:
                return None
            if plan.table().name() != "channel":
                return None
            given = plan.writeOptions().iterator()
            options = {}
            while given.hasNext():
                pair = given.next()
                options[str(pair._1())] = str(pair._2())  # noqa: SLF001 - Scala's name
            wanted = WriteOptions.parse(options, streaming=True)
        except OptionError:
            return None
        except Exception:
            LOGGER.warning(
                "a query's writer is not seen by others: Spark does not tell where it writes to",
                exc_info=True,
            )
            return None
        found = self._control.channel(wanted.channel)
        return Sink(channel=found.name, uid=found.uid, group=wanted.group, kafka=wanted.kafka)
