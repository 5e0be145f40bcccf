"""Heartbeats of Spark tasks, one session per Python worker."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa
from pyspark import TaskContext

from sluiceway.endpoint.heartbeat import HeartbeatSession
from sluiceway.errors import GatewayError, SluicewayError
from sluiceway.rest.channels import Control
from sluiceway.rest.parsing import JsonNode
from sluiceway.rest.transport import Transport
from sluiceway.spark.endpoints import TaskSlice

__all__ = ["TaskReport", "TaskReports", "reporting"]

LOGGER = logging.getLogger(__name__)

_MOST_TASKS: Final = 1000
_GRACE_S: Final = 60.0
_REPORTS: Final[dict[tuple[int, str], "TaskReports"]] = {}


@dataclass(kw_only=True, eq=False)
class TaskReport:
    """How an attempt at a part stands; its task counts, the thread of the beats reads."""

    part: TaskSlice | None
    attempt: int = 0
    state: Literal["running", "done", "failed"] = "running"
    records: int = 0
    bytes: int = 0

    def counted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give the batches on, and count them."""
        for batch in batches:
            self.records += batch.num_rows
            self.bytes += batch.nbytes
            yield batch

    def to_json(self, part: TaskSlice) -> dict[str, Any]:
        """Return what a beat says of it."""
        return {
            "endpoint": part.work.endpoint,
            "epoch": part.work.epoch,
            "task": str(part.number),
            "attempt": self.attempt,
            "state": self.state,
            "counters": {"records": self.records, "bytes": self.bytes},
            "parts": part.parts,
        }


@contextmanager
def reporting(part: TaskSlice | None) -> Iterator[TaskReport]:
    """Have a task's report go along with the beats of its process; nothing waits for that.

    Without a part, and where the gateway takes no reports, it is for the task alone.
    """
    report = TaskReport(part=part)
    if part is not None:
        task = TaskContext.get()
        report.attempt = 0 if task is None else task.taskAttemptId()
        try:
            TaskReports.of(part.work.gateway_url).begin(report)
        except SluicewayError as error:
            LOGGER.warning("this task goes on, but others do not see how it stands: %s", error)
    try:
        yield report
    except GeneratorExit:
        # Spark has what it wants of it.
        report.state = "done"
        raise
    except BaseException:
        report.state = "failed"
        raise
    else:
        report.state = "done"


class TaskReports:
    """The reports of this process to one gateway.

    Workers may have no way to the gateway, or no token for it. Then its tasks go unseen, which
    the log says once.
    """

    def __init__(
        self, gateway_url: str, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        control = Control(
            Transport(gateway_url), listener=os.environ.get("SLUICEWAY_LISTENER"), grace_s=_GRACE_S
        )
        self.session = HeartbeatSession.of(control.endpoints, grace_s=control.grace_s)
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._reports: list[TaskReport] = []
        self._telling: list[tuple[TaskReport, str]] = []
        self._quiet_until_s = float("-inf")

    @classmethod
    def of(cls, gateway_url: str) -> "TaskReports":
        """Return those of this process; one that was forked has its own."""
        key = (os.getpid(), gateway_url)
        return _REPORTS.get(key) or _REPORTS.setdefault(key, cls(gateway_url))

    def begin(self, report: TaskReport) -> None:
        """Report an attempt until it is over."""
        if report.part is None or self._monotonic() < self._quiet_until_s:
            return
        with self._lock:
            self._reports.append(report)
            self.session.add_extension(self)
            self.session.require_interval(report.part.work.heartbeat_interval_ms)

    def fields(self) -> Mapping[str, Any]:
        """Return the attempts of which the gateway does not know the end."""
        trouble = self.session.outage
        if trouble is not None:
            self._give_up(trouble, self._monotonic() + _GRACE_S)
        with self._lock:
            some = self._reports[:_MOST_TASKS]
            self._telling = [(each, each.state) for each in some]
            told = [each.to_json(each.part) for each in some if each.part is not None]
        return {"tasks": told} if told else {}

    def on_answer(self, answer: JsonNode) -> None:
        """Forget what has come to its end, and endpoints that want to hear no more."""
        statuses = {
            each.read(str, "endpoint"): each.read(str, "status") for each in answer.items("tasks")
        }
        told = {id(report) for report, state in self._telling if state != "running"}
        with self._lock:
            self._reports = [
                each
                for each in self._reports
                if id(each) not in told
                if each.part is None or statuses.get(each.part.work.endpoint, "ok") == "ok"
            ]
            self._part_if_idle()

    def on_rejected(self, error: GatewayError) -> None:
        """Report no more from this process."""
        self._give_up(error, float("inf"))

    def _give_up(self, error: SluicewayError, until_s: float) -> None:
        LOGGER.warning(
            "the tasks of this process go on, but others do not see how they stand: %s", error
        )
        with self._lock:
            self._quiet_until_s = until_s
            self._reports.clear()
            self._part_if_idle()

    def _part_if_idle(self) -> None:
        if not self._reports:
            self.session.remove_extension(self)
