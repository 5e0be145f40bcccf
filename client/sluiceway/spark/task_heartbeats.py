"""Heartbeats of Spark tasks, one session per Python worker."""

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa
from pyspark import TaskContext

from sluiceway.concurrency import ForkGuard
from sluiceway.errors import GatewayError, SluicewayError
from sluiceway.rest.parsing import JsonNode
from sluiceway.spark.endpoints import TaskSlice, heartbeat_session

__all__ = ["TaskReport", "TaskReports", "reporting"]

LOGGER = logging.getLogger(__name__)

_MAX_TASKS: Final = 1000
_PAUSE_AFTER_OUTAGE_S: Final = 60.0
_REPORTS: Final[dict[tuple[ForkGuard, str], "TaskReports"]] = {}


@dataclass(kw_only=True, eq=False)
class TaskReport:
    """State and counters of a task attempt, written by the task, read by the heartbeat thread."""

    attempt: int = 0
    state: Literal["running", "done", "failed"] = "running"
    records: int = 0
    bytes: int = 0

    def counted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass the batches through and count them."""
        for batch in batches:
            self.records += batch.num_rows
            self.bytes += batch.nbytes
            yield batch

    def to_json(self, task: TaskSlice) -> dict[str, Any]:
        """Return the report's fields in a heartbeat."""
        return {
            "endpoint": task.endpoint.id,
            "epoch": task.endpoint.epoch,
            "task": str(task.number),
            "attempt": self.attempt,
            "state": self.state,
            "counters": {"records": self.records, "bytes": self.bytes},
            "parts": task.of,
        }


@contextmanager
def reporting(task: TaskSlice | None) -> Iterator[TaskReport]:
    """Report a task with the heartbeats of its process; the task never waits for the gateway.

    Without a `task`, and if the gateway rejects reports, the report is only local.
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
    except BaseException:
        report.state = "failed"
        raise
    else:
        report.state = "done"


class TaskReports:
    """The task reports of this process for one gateway.

    A worker may lack network access to the gateway, or a token. Then its tasks are not reported,
    which is logged once.
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
        key = (ForkGuard(), gateway_url)
        return _REPORTS.get(key) or _REPORTS.setdefault(key, cls(gateway_url))

    def add(self, task: TaskSlice, report: TaskReport) -> None:
        """Report a task attempt until its end is reported."""
        if time.monotonic() < self._paused_until_s:
            return
        with self._lock:
            self._reports.append((task, report))
            self.session.add_extension(self)
            self.session.require_interval(task.endpoint.heartbeat_interval_ms)

    def fields(self) -> Mapping[str, Any]:
        """Return the attempts whose end is not reported yet."""
        outage = self.session.outage
        if outage is not None:
            self._pause(outage, time.monotonic() + _PAUSE_AFTER_OUTAGE_S)
        with self._lock:
            reports = self._reports[:_MAX_TASKS]
            # Before the fields are created: a task may end meanwhile.
            self._ended = {report for _, report in reports if report.state != "running"}
        tasks = [report.to_json(task) for task, report in reports]
        return {"tasks": tasks} if tasks else {}

    def on_response(self, response: JsonNode) -> None:
        """Remove attempts whose end is reported, or whose endpoint has ended."""
        statuses = {
            each.read(str, "endpoint"): each.read(str, "status") for each in response.items("tasks")
        }
        with self._lock:
            self._reports = [
                (task, report)
                for task, report in self._reports
                if report not in self._ended and statuses.get(task.endpoint.id, "ok") == "ok"
            ]
            self._stop_if_idle()

    def on_rejected(self, error: GatewayError) -> None:
        """Stop reporting from this process."""
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
