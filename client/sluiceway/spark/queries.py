"""Streaming queries as endpoints: progress, end, and the query listener."""

import contextlib
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from pyspark import SparkContext
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from sluiceway.endpoint.heartbeat import HeartbeatSession
from sluiceway.errors import CheckpointMismatch, GatewayError
from sluiceway.rest.endpoint_models import Role
from sluiceway.rest.endpoints import EndpointCalls
from sluiceway.spark.endpoints import QueryEndpoint
from sluiceway.spark.offsets import StreamOffset

LOGGER = logging.getLogger(__name__)

_TIMEOUT_S: Final = 5.0
_PAUSE_AFTER_FAILURE_S: Final = 10.0
_MAX_CAUSE_CHARACTERS: Final = 1000
_JAVA_CLASS: Final = re.compile(r"(?:[A-Za-z_$][\w$]*\.)+[A-Za-z_$][\w$]*(?=:|\s|$)")
"""With which the text of an exception of the JVM begins."""
_ERROR_CLASS: Final = re.compile(r"[A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*")
_GROUP: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,199}")


@dataclass(frozen=True, kw_only=True)
class Sink:
    """The channel that a query writes to, with options of Kafka's client."""

    channel: str
    uid: str
    group: str | None
    kafka: Mapping[str, str]


class NotYet(Exception):
    """Spark has not planned the query yet."""


class Inside(Protocol):
    """What is asked of Spark."""

    def query(self, id_: str) -> Any:
        """Return Spark's handle of a query that runs; None if none does."""

    def progress(self, handle: Any) -> Mapping[str, Any] | None:
        """Return what a query last told, in events or not."""

    def sink(self, handle: Any) -> Sink | None:
        """Return the channel that a query writes to. Raises NotYet, GatewayError."""


@dataclass(kw_only=True, eq=False)
class _Query:
    """One run of a query; `told` and what came with it are written by the listener's thread."""

    id: str
    name: str | None
    handle: Any = None
    told: Mapping[str, Any] | None = None
    read: dict[int, int] = field(default_factory=dict)
    written: int = 0
    ended: bool = False
    cause: str | None = None
    given_up: str | None = None
    endpoints: dict[tuple[str, Role, str], QueryEndpoint] = field(default_factory=dict)
    sink: Sink | None = None
    sink_known: bool = False

    @property
    def group(self) -> str:
        """The group where no option names one."""
        name = self.name
        return name if name is not None and _GROUP.fullmatch(name) else self.id


class Queries:
    """The streaming queries of an application.

    A listener tells of them and returns at once; `advance`, in the thread of the beats, tells
    the gateway. `spark` knows of a query what its progress does not tell.
    """

    def __init__(
        self,
        session: HeartbeatSession,
        calls: EndpointCalls,
        *,
        spark: "Inside",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._calls = calls
        self._spark = spark
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._queries: dict[str, _Query] = {}
        self._not_before_s = float("-inf")
        self._failing = False
        self._turn = threading.Lock()

    @property
    def are_over(self) -> bool:
        """Whether none is at work."""
        with self._lock:
            return not self._queries

    def started(self, run: str, id_: str, name: str | None) -> None:
        """Note that a run of a query began."""
        handle = self._spark.query(id_)
        with self._lock:
            self._queries[run] = _Query(id=id_, name=name, handle=handle)
        self._session.wake()

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """Note a batch that a query has done."""
        run = progress["runId"]
        if run not in self._queries:
            # It was started before there was a listener.
            self.started(run, progress["id"], progress.get("name"))
        with self._lock:
            query = self._queries.get(run)
            if query is None:
                return  # its application ended meanwhile
            fresh = query.told is None
            query.told = progress
            for number, source in enumerate(progress["sources"]):
                query.read[number] = query.read.get(number, 0) + source.get("numInputRows", 0)
            query.written += max(0, progress["sink"].get("numOutputRows", 0))
        if fresh:
            self._session.wake()

    def terminated(self, run: str, exception: str | None, error_class: str | None = None) -> None:
        """Note that a run ended; with the text and Spark's error class of an exception that did it.

        The gateway is told the exception's type and the error class: the text may quote records.
        """
        with self._lock:
            query = self._queries.get(run)
            if query is not None:
                query.ended = True
                query.cause = None if exception is None else public_cause(exception, error_class)
        self._session.wake()

    def end(self, cause: str) -> None:
        """Note that all queries end with their application, and tell the gateway.

        Those that write are in error then: nobody knows whether they had come to their end.
        """
        with self._lock:
            for query in self._queries.values():
                if not query.ended:
                    query.ended, query.given_up = True, cause
        self._not_before_s = float("-inf")
        self.advance()

    def advance(self) -> None:
        """Tell the gateway of queries that came, moved on and ended; later where it is away."""
        with self._turn:
            if self._monotonic() >= self._not_before_s:
                self._advance_all()

    def _advance_all(self) -> None:
        with self._lock:
            queries = dict(self._queries)
        for run, query in queries.items():
            try:
                self._advance(query)
            except GatewayError as error:
                # The first time; that the gateway is away is said by the session.
                level = logging.DEBUG if self._failing else logging.WARNING
                LOGGER.log(
                    level, "the query %s is not seen by others as it is: %s", query.group, error
                )
                self._failing = True
                self._not_before_s = self._monotonic() + _PAUSE_AFTER_FAILURE_S
                return
            self._failing = False
            if query.ended:
                with self._lock:
                    self._queries.pop(run, None)

    def _advance(self, query: _Query) -> None:
        self._observe(query, query.told or self._spark.progress(query.handle) or {})
        if query.ended:
            for key, endpoint in list(query.endpoints.items()):
                writes = key[1] == "writer"
                endpoint.close(
                    cause=query.cause or (query.given_up if writes else None),
                    kafka=query.sink.kafka if query.sink and writes else {},
                )
                del query.endpoints[key]

    def _observe(self, query: _Query, told: Mapping[str, Any]) -> None:
        if not query.sink_known:
            with contextlib.suppress(NotYet):
                query.sink, query.sink_known = self._spark.sink(query.handle), True
        seen: dict[tuple[str, Role, str], tuple[str, int, Mapping[int, int]]] = {}
        for number, source in enumerate(told.get("sources", ())):
            try:
                offset = StreamOffset.parse(source.get("endOffset"))
            except CheckpointMismatch:
                continue  # not a channel
            key: tuple[str, Role, str] = (offset.uid, "reader", offset.group or query.group)
            _, records, others = seen.get(key, ("", 0, offset.next_offsets))
            seen[key] = (
                offset.channel,
                records + query.read.get(number, 0),
                {p: min(o, others.get(p, o)) for p, o in offset.next_offsets.items()},
            )
        sink = query.sink
        if sink is not None:
            seen[sink.uid, "writer", sink.group or query.group] = (sink.channel, query.written, {})
        for (uid, role, group), (channel, records, offsets) in seen.items():
            endpoint = query.endpoints.get((uid, role, group))
            if endpoint is None:
                endpoint = query.endpoints[uid, role, group] = QueryEndpoint(
                    self._session,
                    self._calls,
                    channel=channel,
                    uid=uid,
                    role=role,
                    group=group,
                    title=_title(query),
                )
            endpoint.records, endpoint.offsets = records, offsets
            if not endpoint.is_there:
                endpoint.attach()


def public_cause(exception: str, error_class: str | None) -> str:
    """Return the cause that everybody may read, of an exception's text and its error class."""
    found = _JAVA_CLASS.match(exception.strip())
    type_ = "the query failed" if found is None else found[0]
    known = error_class is not None and _ERROR_CLASS.fullmatch(error_class)
    return f"{type_}: {error_class}" if known else type_


def _title(query: _Query) -> str:
    name = "" if query.name is None else f"{query.name} "
    return f"Spark query {name}({query.id})"[:200]


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


__all__ = ["Inside", "NotYet", "Queries", "QueryListener", "Sink", "public_cause"]
