"""Streaming queries as endpoints: Spark's listener for start, progress and end."""

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from sluiceway.errors import CheckpointMismatch, GatewayError, GatewayUnavailable, OptionError
from sluiceway.spark.endpoints import EndpointSpec, Job, QueryEndpoint
from sluiceway.spark.offsets import StreamOffset
from sluiceway.spark.options import WriteOptions
from sluiceway.spi import BatchRequest, ChannelResource, Control, HeartbeatSession, Role

__all__ = [
    "Queries",
    "active_jobs",
    "is_driver_stopped",
    "is_stopped",
    "public_cause",
    "ui_address",
]


LOGGER = logging.getLogger(__name__)

T = TypeVar("T")

_PAUSE_AFTER_FAILURE_S: Final = 10.0
_NO_DRIVER: Final = "Spark's driver is not in this process, or has ended"
_REPORTED_S: Final = BatchRequest.lease_ms / 1000 + 5
"""Time for which the end of a run is reported. A task that outlives it may still open a batch."""
_JAVA_CLASS: Final = re.compile(r"(?:[A-Za-z_$][\w$]*\.)+[A-Za-z_$][\w$]*(?=:|\s|$)")
"""Matches the class at the start of a JVM exception's text."""
_ERROR_CLASS: Final = re.compile(r"[A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*")
_GROUP: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,199}")


@dataclass(kw_only=True, eq=False)
class _QueryRun:
    """One run of a query. The listener's thread writes progress, records and causes."""

    id: str
    name: str | None
    query: StreamingQuery | None
    progress: Mapping[str, Any] | None = None
    records_read: dict[int, int] = field(default_factory=dict)
    """Records by the number of the source."""
    records_written: int = 0
    causes: Mapping[Role, str | None] | None = None
    """The cause of the failure by role; set when the run ends."""
    endpoints: dict[EndpointSpec, QueryEndpoint] = field(default_factory=dict)
    planned: bool = False
    sink: tuple[ChannelResource, WriteOptions] | None = None
    """The channel that it writes to, once the write is planned."""

    @property
    def default_group(self) -> str:
        """The group if no option sets one."""
        name = self.name
        return name if name is not None and _GROUP.fullmatch(name) else self.id

    @property
    def title(self) -> str:
        """The title of its endpoints."""
        name = "" if self.name is None else f"{self.name} "
        return f"Spark query {name}({self.id})"[:200]


class Queries(StreamingQueryListener):
    """The streaming queries of an application, as endpoints.

    Spark calls the listener's methods, which return at once. `advance`, called in the background,
    reports to the gateway.
    """

    def __init__(
        self,
        spark: SparkSession,
        session: HeartbeatSession,
        control: Control,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark = spark
        self._monotonic = monotonic
        # Read once: Spark may have ended when a query's end is reported.
        self._application: str | None = spark.conf.get("spark.app.name", None)
        self._ui = ui_address(spark)
        self._session = session
        self._control = control
        self._lock = threading.Lock()
        self._runs: dict[str, _QueryRun] = {}
        self._ended_s: dict[str, float] = {}
        """When Spark reported the end of a run, by its id."""
        self._retired = False
        self.is_listening = False
        """True while this listener is registered with Spark."""
        self._retry_at_s = float("-inf")
        self._failing = False

    @property
    def running(self) -> list[str]:
        """The ids of the runs that have not ended."""
        with self._lock:
            return [run_id for run_id, run in self._runs.items() if run.causes is None]

    @property
    def ended(self) -> list[str]:
        """The ids of the runs that have ended, for as long as they may have an open batch."""
        since_s = self._monotonic() - _REPORTED_S
        with self._lock:
            self._ended_s = {
                run_id: at_s for run_id, at_s in self._ended_s.items() if at_s > since_s
            }
            return list(self._ended_s)

    @property
    def all_ended(self) -> bool:
        """Whether no query is running or left to report."""
        with self._lock:
            return not self._runs

    def listen(self) -> None:
        """Observe the queries that start from now on, if Spark accepts the listener."""
        try:
            self._spark.streams.addListener(self)
        except Exception:
            LOGGER.warning(
                "streaming queries are not listed as endpoints: Spark rejected the listener",
                exc_info=True,
            )
        else:
            self.is_listening = True

    def retire(self) -> None:
        """Ignore queries that start from now on."""
        self._retired = True

    def stop_listening(self) -> None:
        """Remove the listener from Spark."""
        _from_spark(
            lambda: self._spark.streams.removeListener(self), "Spark did not remove the listener"
        )

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Record the start of a run; Spark waits for this method."""
        if self._retired:
            return
        query = _from_spark(
            lambda: self._spark.streams.get(str(event.id)), "Spark does not return a query"
        )
        with self._lock:
            run = _QueryRun(id=str(event.id), name=event.name, query=query)
            self._runs[str(event.runId)] = run
        self._session.wake()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Record a completed micro-batch."""
        progress = json.loads(event.progress.json)
        with self._lock:
            run = self._runs.get(progress["runId"])
            if run is None:
                return
            is_first = run.progress is None
            run.progress = progress
            for number, source in enumerate(progress["sources"]):
                rows = source.get("numInputRows", 0)
                run.records_read[number] = run.records_read.get(number, 0) + rows
            run.records_written += max(0, progress["sink"].get("numOutputRows", 0))
        if is_first:
            self._session.wake()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: heartbeats keep the endpoints alive."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Record the end of a run.

        The gateway gets only an exception's type and error class, because its text may quote
        records.
        """
        cause = None
        if event.exception is not None:
            cause = public_cause(event.exception, event.errorClassOnException)
        with self._lock:
            self._ended_s[str(event.runId)] = self._monotonic()
            run = self._runs.get(str(event.runId))
            if run is not None:
                run.causes = {"reader": cause, "writer": cause}
        self._session.wake()

    def end(self, cause: str, *, stopped: bool) -> None:
        """Record the end of all queries, which `advance` reports.

        Writers end in error with `cause`, because their queries may be unfinished. `stopped`: Spark
        was stopped, so that their batches have ended, too; else Spark's driver may continue.
        """
        with self._lock:
            for run_id, run in self._runs.items():
                if stopped:
                    self._ended_s.setdefault(run_id, self._monotonic())
                if run.causes is None:
                    run.causes = {"reader": None, "writer": cause}
        self._retry_at_s = float("-inf")

    def drop(self) -> None:
        """Stop the heartbeats of queries, which then become lost."""
        with self._lock:
            runs, self._runs = self._runs, {}
        for run in runs.values():
            for endpoint in list(run.endpoints.values()):
                endpoint.endpoint.end()

    def advance(self) -> None:
        """Report all changes to the gateway; retries 10 s after a failure. Not thread-safe."""
        if self._monotonic() < self._retry_at_s:
            return
        with self._lock:
            runs = dict(self._runs)
        failed_before, self._failing = self._failing, False
        for run_id, run in runs.items():
            try:
                ended = self._advance(run)
            except GatewayError as error:
                level = logging.DEBUG if failed_before else logging.WARNING
                LOGGER.log(level, "the query %s is not reported: %s", run.default_group, error)
                self._failing = True
                self._retry_at_s = self._monotonic() + _PAUSE_AFTER_FAILURE_S
                if isinstance(error, GatewayUnavailable):
                    return
                continue
            if ended:
                with self._lock:
                    self._runs.pop(run_id, None)

    def _advance(self, run: _QueryRun) -> bool:
        """Report a run's changes; return whether its end is reported."""
        causes = run.causes
        self._update_endpoints(run)
        if causes is None:
            return False
        for spec, endpoint in list(run.endpoints.items()):
            kafka = run.sink[1].kafka if run.sink and spec.role == "writer" else {}
            endpoint.close(cause=causes[spec.role], kafka=kafka)
            del run.endpoints[spec]
        return True

    def _update_endpoints(self, run: _QueryRun) -> None:
        self._find_sink(run)
        job = Job(
            session=self._session.id,
            title=run.title,
            application=self._application,
            query=run.name or run.id,
            ui=self._ui,
        )
        totals: dict[EndpointSpec, tuple[int, Mapping[int, int]]] = {}
        progress = run.progress or _last_progress(run.query) or {}
        for number, source in enumerate(progress.get("sources", ())):
            try:
                offset = StreamOffset.parse(source.get("endOffset"))
            except CheckpointMismatch:
                continue  # not a channel
            group = offset.group or run.default_group
            spec = EndpointSpec(
                channel=offset.channel, uid=offset.uid, role="reader", group=group, job=job
            )
            # A query that reads a channel twice has read up to the lower offset.
            records, others = totals.get(spec, (0, offset.next_offsets))
            totals[spec] = (
                records + run.records_read.get(number, 0),
                {p: min(o, others.get(p, o)) for p, o in offset.next_offsets.items()},
            )
        if run.sink is not None:
            channel, options = run.sink
            group = options.group or run.default_group
            spec = EndpointSpec(
                channel=channel.name, uid=channel.uid, role="writer", group=group, job=job
            )
            totals[spec] = (run.records_written, {})
        for spec, (records, offsets) in totals.items():
            endpoint = run.endpoints.get(spec)
            if endpoint is None:
                endpoint = run.endpoints[spec] = QueryEndpoint(spec, self._control)
            endpoint.report(records, offsets)

    def _find_sink(self, run: _QueryRun) -> None:
        if run.planned:
            return
        try:
            options = None if run.query is None else _sink_options(run.query)
            if options is not None:
                run.sink = (self._control.channel(options.channel), options)
            run.planned = True
        except _QueryNotPlanned:
            pass
        except GatewayUnavailable:
            raise
        except GatewayError as error:
            # The query may still create its channel, and must not delay the reports of others.
            LOGGER.debug("the sink of the query %s is not listed: %s", run.default_group, error)


def _last_progress(query: StreamingQuery | None) -> Mapping[str, Any] | None:
    """Return the last progress of a query; an idle query has one without an event."""

    def request() -> Mapping[str, Any] | None:
        last = None if query is None else query.lastProgress
        return None if last is None else json.loads(last.json)

    return _from_spark(request, "Spark does not return a query's progress")


def _from_spark(request: Callable[[], T], failure: str) -> T | None:
    """Return the result of a request to Spark; log a failure, and return None."""
    try:
        return request()
    except Exception:
        LOGGER.debug(failure, exc_info=True)
        return None


def public_cause(exception: str, error_class: str | None) -> str:
    """Return the type and error class of a JVM exception, without its message."""
    match = _JAVA_CLASS.match(exception.strip())
    type_ = "the query failed" if match is None else match[0]
    is_public = error_class is not None and _ERROR_CLASS.fullmatch(error_class)
    return f"{type_}: {error_class}" if is_public else type_


def active_jobs(spark: SparkSession) -> Sequence[int] | None:
    """Return the ids of the jobs that Spark is running.

    None over Spark Connect, and once the JVM of Spark's driver has ended.
    """
    return _from_spark(lambda: spark.sparkContext.statusTracker().getActiveJobsIds(), _NO_DRIVER)


def ui_address(spark: SparkSession) -> str | None:
    """Return the address of the application's UI.

    None if it has no UI, over Spark Connect, and once the JVM of Spark's driver has ended.
    """
    address = _from_spark(lambda: spark.sparkContext.uiWebUrl, _NO_DRIVER)
    return address if address and address.startswith(("http://", "https://")) else None


# PySpark's public interface does not provide the following facts. They are read from private
# attributes, which may change with any version of Spark; if one is missing, a job loses its
# endpoint and nothing else.


class _QueryNotPlanned(Exception):
    """Spark has not planned the query yet."""


def is_stopped(spark: SparkSession) -> bool:
    """Return whether the session was stopped. Only Spark Connect has a public property."""
    return is_driver_stopped(spark) or bool(getattr(spark, "is_stopped", False))


def is_driver_stopped(spark: SparkSession) -> bool:
    """Return whether Spark's driver, in this process, was stopped."""
    context: Any = getattr(spark, "_sc", None)
    return context is not None and context._jsc is None  # noqa: SLF001


def _sink_options(query: StreamingQuery) -> WriteOptions | None:
    """Return the options of a query's write to a channel; None if it writes elsewhere.

    They are in the query's logical plan in the JVM: a query's progress describes a Python sink
    only by its object id. Always None over Spark Connect. Raises _QueryNotPlanned.
    """
    java_query = getattr(query, "_jsq", None)
    if java_query is None:
        return None
    try:
        plan = java_query.streamingQuery().logicalPlan()
    except Exception as error:
        raise _QueryNotPlanned from error
    try:
        is_data_source = plan.getClass().getSimpleName() == "WriteToMicroBatchDataSource"
        if not is_data_source or plan.table().name() != "channel":
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
