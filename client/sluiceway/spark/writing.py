"""Writing to a channel: what Spark makes in the driver and sends to tasks."""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from sluiceway.protocol import Connection
from sluiceway.spark.options import WriteOptions
from sluiceway.spark.shipping import Shipped
from sluiceway.spark.sinks import Outlet
from sluiceway.spark.stamps import Stamp, batch_key
from sluiceway.spark.worker import settle

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
"""The local properties by which a task knows its micro-batch."""


@dataclass(frozen=True, kw_only=True)
class TaskWrote(WriterCommitMessage):
    """What a task reports to the driver: `records` were acknowledged by Kafka."""

    records: int


@dataclass(frozen=True, kw_only=True)
class AttemptWrote(TaskWrote):
    """What a task of a stream reports besides: the ids that its records carry, 16 bytes each."""

    batch_id: bytes
    attempt_id: bytes


class ChannelDataWriter(Shipped, DataSourceArrowWriter):
    """A batch write. Task retries may write records again: it is at least once."""

    def __init__(self, connection: Connection, options: WriteOptions) -> None:
        self._outlet = Outlet(connection, options)

    def check(self) -> None:
        """Raise OptionError for a key that the channel's records do not have."""
        self._outlet.check()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWrote:
        """Write a task's batches; what `Outlet.write` raises fails the task."""
        return TaskWrote(records=self._outlet.write(iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing is left to do: every task waited for its acknowledgements."""
        del messages
        settle()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing can be taken back: what other tasks wrote stays in the channel."""


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
