"""Endpoints of Spark jobs and queries, and the heartbeats of tasks."""

import logging
import os
import pickle
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa
from pyspark import TaskContext

from sluiceway import Connection, Position
from sluiceway.errors import Fenced, GatewayError, GatewayUnavailable, SluicewayError, cause_of
from sluiceway.spi import (
    AttachedEndpoint,
    Control,
    EndpointEnd,
    EndpointMetrics,
    EndpointState,
    HeartbeatReply,
    HeartbeatSession,
    Membership,
    Process,
    Role,
    SessionReport,
    SparkJob,
    TaskProgress,
    TopicIdentity,
    Transport,
    this_process,
)

__all__ = [
    "EndpointSpec",
    "Job",
    "JobEndpoint",
    "QueryEndpoint",
    "TaskReports",
    "TaskSlice",
    "UnreportedEnd",
    "UnreportedEnds",
    "control",
    "heartbeat_session",
    "reporting",
]

LOGGER = logging.getLogger(__name__)

_TIMEOUT_S: Final = 5.0
_MAX_CAUSE_CHARACTERS: Final = 1000
_MAX_NAME_CHARACTERS: Final = 200
_MAX_UI_CHARACTERS: Final = 500


def control(gateway_url: str) -> Control:
    """Return calls to a gateway with a short timeout, for work that must not delay a job."""
    return Control(
        Transport(gateway_url, timeout_s=_TIMEOUT_S), listener=os.environ.get("SLUICEWAY_LISTENER")
    )


def heartbeat_session(gateway_url: str) -> HeartbeatSession:
    """Return this process's heartbeat session with a gateway."""
    return HeartbeatSession.of(control(gateway_url))


@dataclass(frozen=True, kw_only=True)
class UnreportedEnd:
    """The end of a batch write that the gateway has not accepted yet."""

    id: str
    channel: str
    end: EndpointEnd


@dataclass(frozen=True, kw_only=True)
class UnreportedEnds:
    """Ends that the driver reports later, in a private directory of its process; picklable.

    Spark commits a write in a process that may end right after it, on the driver's machine.
    """

    directory: Path

    @classmethod
    def create(cls) -> "UnreportedEnds":
        """Return an empty directory, which `remove` removes. Raises OSError."""
        return cls(directory=Path(tempfile.mkdtemp(prefix="sluiceway-")))

    def add(self, end: UnreportedEnd) -> None:
        """Add an end. Raises OSError on another machine than the driver's, and once it is over."""
        part = self.directory / f"{end.id}.part"
        part.write_bytes(pickle.dumps(end))
        part.replace(part.with_suffix(".end"))

    def pending(self) -> list[UnreportedEnd]:
        """Return the ends that are not discarded."""
        paths = sorted(self.directory.glob("*.end"))
        return [pickle.loads(path.read_bytes()) for path in paths]  # noqa: S301 - private

    def discard(self, end: UnreportedEnd) -> None:
        """Remove an end that is reported."""
        (self.directory / f"{end.id}.end").unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self.directory, ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class Job:
    """The shared part of a Spark application's endpoints; picklable, no secrets.

    The heartbeats of `session`, in the user's process, keep them alive. `application` is the
    application's name, the same in each run.
    """

    session: str
    title: str
    application: str | None = None
    query: str | None = None
    """The name of a streaming query, or its id."""
    ui: str | None = None
    """The address of the application's UI, if it has one."""
    renews: bool = False
    """Whether the session is in Spark's driver, and so renews the batches of running jobs."""
    remote: bool = False
    """True for Spark Connect, where a write in `foreachBatch` is not recognizable."""
    trace: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The current trace at registration of the data source, to which batch jobs belong."""
    unreported: UnreportedEnds | None = None
    """Where commits leave the ends that the gateway does not answer, for the session's process."""

    @property
    def facts(self) -> SparkJob:
        """The application, query and UI, as far as they are known."""
        return SparkJob(
            application=(self.application or "")[:_MAX_NAME_CHARACTERS] or None,
            query=(self.query or "")[:_MAX_NAME_CHARACTERS] or None,
            ui=self.ui if self.ui and len(self.ui) <= _MAX_UI_CHARACTERS else None,
        )


@dataclass(frozen=True, kw_only=True)
class EndpointSpec:
    """A place at a channel for a job or query: the only member of `group`, or without a group."""

    channel: str
    uid: str
    role: Role
    group: str | None
    job: Job

    def __str__(self) -> str:
        return f"the {self.role} {self.job.title!r} of the channel {self.channel!r}"

    @property
    def membership(self) -> Membership | None:
        """The place in the group."""
        return None if self.group is None else Membership(group=self.group, index=0, size=1)

    def end(
        self, epoch: int, cause: str | None, ends: Callable[[], Mapping[int, int]] | None
    ) -> EndpointEnd:
        """Return the end of an instance, in error if there is a cause or `ends` raises."""
        offsets = None
        if cause is None and ends is not None:
            try:
                offsets = {partition: end for partition, end in ends().items() if end}
            except SluicewayError as error:
                cause = (
                    f"all records are written, but the end offsets are unknown: {cause_of(error)}"
                )
        if cause is not None:
            cause = cause[:_MAX_CAUSE_CHARACTERS]
            return EndpointEnd(uid=self.uid, epoch=epoch, state="error", cause=cause)
        return EndpointEnd(uid=self.uid, epoch=epoch, state="closed", ends=offsets)


@dataclass(frozen=True, kw_only=True)
class JobEndpoint:
    """Endpoint of a batch read or write; picklable, shared by planning, tasks and commit.

    A failure to report is logged and never fails the job, unless another write has taken its place.
    An end that the gateway has not refused for good is reported later, by the driver.
    """

    spec: EndpointSpec
    gateway_url: str
    id: str
    epoch: int
    heartbeat_interval_ms: int
    took_over: bool
    takes_causes: bool = False
    """Whether the gateway takes the causes of failed tasks."""

    @classmethod
    def attach(
        cls,
        job: Job | None,
        gateway_url: str | None,
        connection: Connection,
        role: Role,
        group: str | None = None,
        *,
        instance: str | None = None,
    ) -> "JobEndpoint | None":
        """Attach an endpoint for a job; None without a job, or if the gateway rejects it."""
        if job is None or gateway_url is None:
            return None
        channel, uid = connection.channel_name, connection.channel_uid
        spec = EndpointSpec(channel=channel, uid=uid, role=role, group=group, job=job)
        instance = instance or uuid.uuid4().hex
        try:
            with closing(control(gateway_url)) as gateway:
                attached = gateway.endpoints.attach(
                    channel,
                    uid=uid,
                    instance=instance,
                    session=job.session,
                    role=role,
                    membership=spec.membership,
                    title=job.title,
                    spark=job.facts,
                )
        except SluicewayError as error:
            LOGGER.warning("%s is not listed as an endpoint: %s", spec, error)
            return None
        return cls(
            spec=spec,
            gateway_url=gateway_url,
            id=instance,
            epoch=attached.epoch,
            heartbeat_interval_ms=attached.heartbeat_interval_ms,
            took_over=attached.took_over,
            takes_causes="task_cause" in attached.takes,
        )

    def close(self, *, records: int, tasks: int, ends: Callable[[], Mapping[int, int]]) -> None:
        """Report a successful write with the end offsets after it.

        Reports a failure if `ends` raises SluicewayError: for readers, a write without end offsets
        would be empty. Raises Fenced if it has lost its place, so readers did not wait for it.
        """
        end = self.spec.end(self.epoch, None, ends if records or self.took_over else None)
        counters = {"records": records, "tasks_done": tasks, "tasks_running": 0}
        self._detach(replace(end, counters=counters))

    def fail(self, cause: str) -> None:
        """Report a failure."""
        try:
            self._detach(self.spec.end(self.epoch, cause, None))
        except Fenced as error:
            LOGGER.warning("the failure of %s was not reported: %s", self.spec, error)

    def _detach(self, end: EndpointEnd) -> None:
        try:
            with closing(control(self.gateway_url)) as gateway:
                gateway.endpoints.detach(self.spec.channel, self.id, end, timeout_s=_TIMEOUT_S)
        except Fenced:
            raise
        except GatewayError as error:
            if error.is_final:
                LOGGER.warning("the end of %s was not reported: %s", self.spec, error)
            else:
                self._report_later(end, error)

    def _report_later(self, end: EndpointEnd, failure: GatewayError) -> None:
        unreported = self.spec.job.unreported
        reason = "there is no driver to report it later"
        if unreported is not None:
            try:
                unreported.add(UnreportedEnd(id=self.id, channel=self.spec.channel, end=end))
            except OSError as error:
                reason = f"it cannot be left to the driver: {error}"
            else:
                LOGGER.warning("the driver reports the end of %s later: %s", self.spec, failure)
                return
        LOGGER.warning("the end of %s was not reported: %s; %s", self.spec, failure, reason)


@dataclass(frozen=True, kw_only=True)
class TaskSlice:
    """One task's part of an endpoint's work; picklable. `of` is the planned number of tasks."""

    endpoint: JobEndpoint
    number: int
    of: int | None = None


_MAX_TASKS: Final = 1000
_PAUSE_AFTER_OUTAGE_S: Final = 60.0
_DELIVERY_S: Final = 1.0
_REPORTS: Final[dict[tuple[Process, str], "TaskReports"]] = {}


@dataclass(kw_only=True, eq=False)
class TaskReport:
    """State and counters of a task attempt, written by the task, read by the heartbeat thread."""

    attempt: int = 0
    state: Literal["running", "done", "failed"] = "running"
    records: int = 0
    bytes: int = 0
    cause: str | None = None
    """Of a failed attempt, if it is one of the client's errors."""
    answered: threading.Event = field(default_factory=threading.Event)
    """Set when the gateway has its end."""

    def counted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass the batches through and count them."""
        for batch in batches:
            self.records += batch.num_rows
            self.bytes += batch.nbytes
            yield batch

    def progress(self, task: TaskSlice) -> TaskProgress:
        """Return its part of a heartbeat."""
        return TaskProgress(
            endpoint=task.endpoint.id,
            epoch=task.endpoint.epoch,
            task=str(task.number),
            attempt=self.attempt,
            state=self.state,
            counters={"records": self.records, "bytes": self.bytes},
            parts=task.of,
            cause=self.cause if task.endpoint.takes_causes else None,
        )


@contextmanager
def reporting(task: TaskSlice | None) -> Iterator[TaskReport]:
    """Report a task with the heartbeats of its process; the task does not wait for the gateway.

    Only a failed one waits, for a second at most: Spark ends the job right after it, and its cause
    is a part of the job's. Without a `task`, and if the gateway rejects reports, the report is only
    local.
    """
    report = TaskReport()
    if task is not None:
        context = TaskContext.get()
        report.attempt = 0 if context is None else context.taskAttemptId()
        try:
            TaskReports.of(task.endpoint.gateway_url).add(task, report)
        except SluicewayError as error:
            LOGGER.warning("this task is not reported to the gateway: %s", error)
    try:
        yield report
    except GeneratorExit:
        # Spark closes the iterator when it has enough rows.
        report.state = "done"
        raise
    except BaseException as error:
        # Other errors are those of Spark's connection to this process, and tell nothing.
        if isinstance(error, SluicewayError):
            report.cause = cause_of(error)[:_MAX_CAUSE_CHARACTERS]
        report.state = "failed"
        if report.cause is not None and task is not None and task.endpoint.takes_causes:
            TaskReports.of(task.endpoint.gateway_url).deliver(report)
        raise
    else:
        report.state = "done"


class TaskReports:
    """The task reports of this process for one gateway.

    A worker may lack network access to the gateway, or a token. Then its tasks are not reported,
    which is logged, and attempted again once a minute.
    """

    def __init__(self, gateway_url: str) -> None:
        self.session = heartbeat_session(gateway_url)
        self._lock = threading.Lock()
        self._reports: list[tuple[TaskSlice, TaskReport]] = []
        self._ended: set[TaskReport] = set()
        self._paused_until_s = float("-inf")

    @classmethod
    def of(cls, gateway_url: str) -> "TaskReports":
        """Return this process's reports for a gateway."""
        key = (this_process(), gateway_url)
        return _REPORTS.get(key) or _REPORTS.setdefault(key, cls(gateway_url))

    def add(self, task: TaskSlice, report: TaskReport) -> None:
        """Report a task attempt until its end is reported."""
        if time.monotonic() < self._paused_until_s:
            return
        with self._lock:
            self._reports.append((task, report))
            self.session.add_extension(self)
            self.session.require_interval(task.endpoint.heartbeat_interval_ms)

    def deliver(self, report: TaskReport) -> None:
        """Report the end of an attempt now, and wait for the response, or for a second."""
        with self._lock:
            is_reported = any(report is reported for _, reported in self._reports)
        if is_reported:
            self.session.wake()
            report.answered.wait(_DELIVERY_S)

    def report(self) -> SessionReport | None:
        """Return the attempts whose end is not reported yet."""
        outage = self.session.outage
        if outage is not None:
            self._pause(outage, time.monotonic() + _PAUSE_AFTER_OUTAGE_S)
        with self._lock:
            reports = self._reports[:_MAX_TASKS]
            # Before the report is created: a task may end meanwhile.
            self._ended = {report for _, report in reports if report.state != "running"}
        tasks = tuple(report.progress(task) for task, report in reports)
        return SessionReport(tasks=tasks) if tasks else None

    def on_response(self, response: HeartbeatReply) -> None:
        """Remove attempts whose end is reported, or whose endpoint has ended."""
        ended = {id_ for id_, result in response.tasks.items() if result.status != "ok"}
        for report in self._ended:
            report.answered.set()
        with self._lock:
            self._reports = [
                (task, report)
                for task, report in self._reports
                if report not in self._ended and task.endpoint.id not in ended
            ]
            self._stop_if_idle()

    def on_rejected(self, error: GatewayError) -> None:
        """Stop reporting from this process: the gateway has an older version."""
        self._pause(error, float("inf"))

    def _pause(self, error: SluicewayError, until_s: float) -> None:
        LOGGER.warning("the tasks of this process are not reported to the gateway: %s", error)
        with self._lock:
            self._paused_until_s = until_s
            self._reports.clear()
            self._stop_if_idle()

    def _stop_if_idle(self) -> None:
        if not self._reports:
            self.session.remove_extension(self)


class QueryMetrics(EndpointMetrics):
    """The records and positions of a query, whose cycles are Spark's."""

    def counters(self) -> dict[str, float]:
        """Return the number of records."""
        return {"records": self.records}


class QueryEndpoint:
    """A streaming query as a reader or writer of one channel, in the driver's session.

    It only observes the query. When another query takes its place, it logs that and stops
    reporting.
    """

    def __init__(self, spec: EndpointSpec, control: Control) -> None:
        self._spec = spec
        self._metrics = QueryMetrics(spec.role)
        self.endpoint = AttachedEndpoint(
            control,
            channel=spec.channel,
            uid=spec.uid,
            role=spec.role,
            membership=spec.membership,
            title=spec.job.title,
            spark=spec.job.facts,
            metrics=self._metrics,
        )
        self._refused = False

    def report(self, records: int, offsets: Mapping[int, int]) -> None:
        """Attach unless it is attached or has ended, and report a reader's or writer's progress.

        Raises GatewayUnavailable. Others are logged; the next call repeats what is not final.
        """
        endpoint = self.endpoint
        self._metrics.records = records
        self._metrics.positions = {p: Position(offset=at) for p, at in offsets.items()} or None
        try:
            if endpoint.state is EndpointState.NEW:
                endpoint.attach(timeout_s=0)
                # Spark may have written before.
                endpoint.pristine = False
                endpoint.record_cycle(records)
            if endpoint.is_open:
                endpoint.check()
        except GatewayUnavailable:
            raise
        except SluicewayError as error:
            if endpoint.is_open:
                endpoint.end()
            level = logging.DEBUG if self._refused else logging.WARNING
            LOGGER.log(level, "%s is not listed as an endpoint: %s", self._spec, error)
            self._refused = True

    def close(self, *, cause: str | None, kafka: Mapping[str, str]) -> None:
        """Report the query's end, in error if there is a `cause`.

        A successful writer ends at its topic's end offsets, which are read with the properties
        `kafka`. Raises a GatewayError that may pass; repeatable.
        """
        endpoint = self.endpoint
        if not endpoint.is_open:
            return

        def ends() -> Mapping[int, int]:
            # The channel may have grown, and the query writes to added partitions.
            topic = TopicIdentity(endpoint.attached.connection, kafka)
            return topic.all_ends(timeout_s=_TIMEOUT_S, least=endpoint.partitions)

        writes = self._spec.role == "writer"
        end = self._spec.end(endpoint.attached.epoch, cause, ends if writes else None)
        try:
            endpoint.detach(cause=end.cause, ends=end.ends, timeout_s=_TIMEOUT_S)
        except GatewayError as error:
            if not error.is_final:
                raise
            LOGGER.warning("the gateway rejected the end of %s: %s", self._spec, error)
