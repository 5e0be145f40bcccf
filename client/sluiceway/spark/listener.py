"""What Spark tells of streaming queries, handed on."""

import json
from collections.abc import Mapping
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from sluiceway.spark.queries import Queries

__all__ = ["QueryListener"]


class QueryListener(StreamingQueryListener):
    """Tells `queries` what becomes of an application's streaming queries; never waits.

    `queries` may be changed at any time, for the queries that start afterwards.
    """

    def __init__(self, queries: Queries) -> None:
        self.queries = queries
        self._runs: dict[str, Queries] = {}
        self._java: Any = None

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Note a query that starts; Spark waits for this."""
        run = str(event.runId)
        self._runs[run] = self.queries
        self.queries.started(run, str(event.id), event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Note a batch that was done."""
        self.progressed(json.loads(event.progress.json))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: the session's beats say that the query lives."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Note that a query ended."""
        run = str(event.runId)
        self._runs.pop(run, self.queries).terminated(
            run, event.exception, event.errorClassOnException
        )

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """Note a batch that was done, by the JSON of its progress."""
        self._runs.get(progress["runId"], self.queries).progressed(progress)

    @property
    def _jlistener(self) -> Any:
        # Not for Spark Connect, which has no JVM here.
        if self._java is None:
            jvm: Any = SparkContext._jvm  # noqa: SLF001 - as PySpark's own listeners are made
            self._java = jvm.PythonStreamingQueryListenerWrapper(_Called(self))
        return self._java


class _Called:
    """What the JVM calls. PySpark's own asks it for every field of a progress, one by one.

    That takes 17 ms of the driver's time for each micro-batch; its JSON takes a tenth of one.
    """

    def __init__(self, listener: QueryListener) -> None:
        self._listener = listener

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        self._listener.onQueryStarted(QueryStartedEvent.fromJObject(event))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        self._listener.progressed(json.loads(event.progress().json()))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        self._listener.onQueryTerminated(QueryTerminatedEvent.fromJObject(event))

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)
