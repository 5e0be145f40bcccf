"""Writing to a channel: what Spark makes in the driver and sends to tasks."""

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from sluiceway.errors import SluicewayError
from sluiceway.rest.models import Connection
from sluiceway.spark.endpoints import Job, Part, Work
from sluiceway.spark.options import WriteOptions
from sluiceway.spark.provenance import Stamp, batch_key
from sluiceway.spark.shipping import Shipped
from sluiceway.spark.sinks import Outlet
from sluiceway.spark.task_heartbeats import reporting
from sluiceway.spark.worker import settle

LOGGER = logging.getLogger(__name__)

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
"""The local properties by which a task knows its micro-batch."""


@dataclass(frozen=True, kw_only=True)
class TaskWrote(WriterCommitMessage):
    """What a task reports to the driver: `records` were acknowledged by Kafka.

    `ends` is where the topic's partitions ended then; None where nobody asks.
    """

    records: int
    ends: Mapping[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class AttemptWrote(TaskWrote):
    """What a task of a stream reports besides: the ids that its records carry, 16 bytes each."""

    batch_id: bytes
    attempt_id: bytes


class ChannelDataWriter(Shipped, DataSourceArrowWriter):
    """A batch write. Task retries may write records again: it is at least once."""

    def __init__(self, connection: Connection, options: WriteOptions) -> None:
        self._outlet = Outlet(connection, options)
        self._group = options.group
        self._work: Work | None = None

    def attach(self, job: Job | None, gateway_url: str | None) -> None:
        """Let others see the write."""
        if gateway_url is not None:
            connection = self._outlet.connection
            self._work = Work.attach(job, gateway_url, connection, "writer", self._group)

    def check(self) -> None:
        """Raise OptionError for a key that the channel's records do not have."""
        self._outlet.check()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWrote:
        """Write a task's batches; what `Outlet.write` raises fails the task."""
        task = TaskContext.get()
        work, number = self._work, 0 if task is None else task.partitionId()
        with reporting(None if work is None else Part(work=work, number=number)) as report:
            records = self._outlet.write(report.counted(iterator))
        return TaskWrote(records=records, ends=self._ends() if work and records else None)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Report where the records end; every task waited for its acknowledgements."""
        settle()
        if self._work is not None:
            wrote = [each for each in messages if isinstance(each, TaskWrote)]
            self._work.close(
                records=sum(each.records for each in wrote),
                tasks=len(wrote),
                ends=lambda: self._merged_ends(wrote),
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Report that it failed. What other tasks wrote stays in the channel."""
        if self._work is not None:
            wrote = sum(each is not None for each in messages)
            self._work.fail(
                f"the Spark job failed or was cancelled; {wrote} of its {len(messages)} tasks "
                "had written"
            )

    def _ends(self) -> Mapping[int, int] | None:
        """Return where the topic ends; the task has done its work whether Kafka tells or not."""
        try:
            return self._outlet.ends()
        except SluicewayError as error:
            LOGGER.warning("where this task's records end is not known: %s", error)
            return None

    def _merged_ends(self, wrote: Sequence[TaskWrote]) -> Mapping[int, int]:
        told = [each.ends for each in wrote if each.records]
        if not told or None in told:
            return self._outlet.ends()
        ends: dict[int, int] = {}
        for partition, end in (pair for each in told if each for pair in each.items()):
            ends[partition] = max(end, ends.get(partition, 0))
        return ends


class ChannelStreamWriter(Shipped, DataSourceStreamArrowWriter):
    """A micro-batch's write; Spark makes one before the tasks and another one to commit.

    It is at least once: a batch that is replayed and a task that is retried write their records
    again. Each record carries the batch's id, which is the same on a replay, the id of the
    attempt, and its number in it, by which a reader can tell them apart.
    """

    def __init__(self, connection: Connection, options: WriteOptions) -> None:
        self._outlet = Outlet(connection, options)

    def check(self) -> None:
        """Raise OptionError for a key that the channel's records do not have."""
        self._outlet.check()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> AttemptWrote:
        """Write a task's batches; what `Outlet.write` raises fails the task."""
        batch_id = _batch_id()
        stamp = Stamp(self._outlet.connection, batch_id)
        records = self._outlet.write(iterator, stamp)
        return AttemptWrote(records=records, batch_id=batch_id, attempt_id=stamp.attempt_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing is left to do: every task waited for its acknowledgements."""
        del messages, batchId
        settle()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing can be taken back: what other tasks wrote stays in the channel."""


def _batch_id() -> bytes:
    task = TaskContext.get()
    query = None if task is None else task.getLocalProperty(_QUERY_ID)
    batch = None if task is None else task.getLocalProperty(_BATCH_ID)
    if query is None or batch is None:
        raise RuntimeError("Spark did not tell its task which query and which batch it works for")
    return batch_key(uuid.UUID(query), int(batch))
