"""Writes: task writers, pooled producers, commit messages."""

import itertools
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from sluiceway.codecs import Envelope, codec
from sluiceway.errors import DeliveryFailed, RecordError, SluicewayError
from sluiceway.kafka.accumulator import Messages, RecordAccumulator, record_accumulator
from sluiceway.kafka.config import MaskedProperties, producer_config
from sluiceway.kafka.partitioner import partitioning
from sluiceway.kafka.producer import IdempotentProducer
from sluiceway.kafka.topic import TopicIdentity
from sluiceway.records import to_batches
from sluiceway.rest.models import Connection
from sluiceway.schema import Schema
from sluiceway.spark.endpoints import Job, JobEndpoint, TaskSlice
from sluiceway.spark.options import WriteOptions
from sluiceway.spark.provenance import STAMP_BYTES, ProvenanceMarker, batch_key
from sluiceway.spark.shipping import Shipped
from sluiceway.spark.task_heartbeats import reporting
from sluiceway.spark.worker import ClientPool, prepare_worker

_VERIFY_TIMEOUT_S: Final = 30.0
_VERIFY_EVERY_S: Final = 30.0
_ENDS_TIMEOUT_S: Final = 10.0
_TUNING: Final[dict[str, object]] = {
    # What waits for Kafka; together with a batch of Spark's, this is a task's memory.
    "queue.buffering.max.kbytes": 64 * 1024,
}
_BATCH_RECORDS: Final = 10_000
"""Rows of an `arrow` message: as many as Spark hands over at once by default."""


@dataclass(frozen=True, kw_only=True)
class PooledProducer:
    """What a worker process keeps of a topic that it writes to."""

    delivery: IdempotentProducer
    identity: TopicIdentity

    def close(self) -> None:
        """Throw away what was not sent."""
        self.delivery.discard()


SINKS: ClientPool[PooledProducer] = ClientPool(close=PooledProducer.close)


class TaskWriter:
    """Writes the batches of a task; plain data, pickled with what Spark sends to tasks.

    A task writes to one Kafka partition, its own number modulo the channel's, in the order of
    its rows; with a key each record goes where its key belongs.
    """

    def __init__(self, connection: Connection, options: WriteOptions) -> None:
        self.connection = connection
        self._options = options

    def check(self) -> None:
        """Raise OptionError for a key that the channel's records do not have."""
        self._outgoing(Schema.parse(self.connection.schema_definition), stamped=False)

    def ends(self) -> Mapping[int, int]:
        """Return where each partition of the topic ends. Raises KafkaFailure."""
        with SINKS.borrow(self._key(), self._open) as sink:
            return sink.identity.ends(range(self.connection.partitions), timeout_s=_ENDS_TIMEOUT_S)

    def write(
        self, iterator: Iterator[pa.RecordBatch], stamp: ProvenanceMarker | None = None
    ) -> int:
        """Write a task's batches, wait for their acknowledgement, and return how many records.

        With a `stamp` each message tells who wrote it. Raises InvalidRecord, RecordTooLarge,
        DeliveryFailed, TopicGone, KafkaUnavailable; the task fails with each of them.
        """
        prepare_worker()
        first = next(iterator, None)
        if first is None:  # Spark runs a task without rows where there is nothing else
            return 0
        schema = Schema.parse(self.connection.schema_definition)
        messages = self._outgoing(schema, stamped=stamp is not None)
        mark = stamp.mark if stamp is not None else _unmarked
        with SINKS.borrow(self._key(), self._open) as sink:
            sink.identity.verify(timeout_s=_VERIFY_TIMEOUT_S, max_age_s=_VERIFY_EVERY_S)
            before = sink.delivery.accepted_records
            records = 0
            try:
                for batch in itertools.chain((first,), iterator):
                    sink.delivery.send(mark(_made(messages, batch, schema, before=records)))
                    records += batch.num_rows
                sink.delivery.send(mark(messages.drain()))
                sink.delivery.flush()
            except DeliveryFailed as error:
                raise DeliveryFailed(
                    partition=error.partition,
                    reason=error.reason,
                    written_records=error.written_records - before,
                    failed_records=error.failed_records,
                ) from error
        return records

    def _outgoing(self, schema: Schema, *, stamped: bool) -> RecordAccumulator:
        connection, key = self.connection, self._options.key
        task = TaskContext.get()
        number = 0 if task is None else task.partitionId()
        partition = None if key else number % connection.partitions
        if stamped:
            room_bytes = connection.max_message_bytes - STAMP_BYTES
            connection = replace(connection, max_message_bytes=room_bytes)
        return record_accumulator(
            codec(connection.format, schema, connection.schema_id),
            connection,
            partitioning(
                schema, connection.partitions, key=key, partitioner=None, partition=partition
            ),
            batch_records=_BATCH_RECORDS,
        )

    def _key(self) -> tuple[object, ...]:
        connection, options = self.connection, self._options
        properties = MaskedProperties(connection.kafka).over(options.kafka)
        return (
            *(connection.topic_name, connection.topic_id, connection.max_message_bytes),
            *(connection.format, options.delivery_timeout_ms, properties),
        )

    def _open(self) -> PooledProducer:
        connection, options = self.connection, self._options
        identity = TopicIdentity(connection, options.kafka)
        # Before there is a producer, which says of a wrong password that nobody answers.
        identity.verify(timeout_s=_VERIFY_TIMEOUT_S)
        return PooledProducer(
            identity=identity,
            delivery=IdempotentProducer(
                connection.topic_name,
                producer_config(
                    connection.kafka,
                    {**_TUNING, **options.kafka},
                    delivery_timeout_ms=options.delivery_timeout_ms,
                    max_message_bytes=connection.max_message_bytes,
                ),
                connect_timeout_s=_VERIFY_TIMEOUT_S,
                delivery_timeout_s=options.delivery_timeout_ms / 1000,
                records_in=_records_in_batch if connection.format == "arrow" else _one_record,
            ),
        )


def _unmarked(messages: Messages) -> Messages:
    return messages


def _made(
    messages: RecordAccumulator, batch: pa.RecordBatch, schema: Schema, *, before: int
) -> Messages:
    """Check and encode a batch of Spark's, or raise before any of it is sent."""
    try:
        return messages.add(to_batches(batch, schema))
    except RecordError as error:
        error.add_note(
            f"Here a write is one batch of a Spark task. {before:,} records that this task wrote "
            "before it, and those of other tasks, may be in the channel already."
        )
        raise


def _records_in_batch(value: bytes | None) -> int:
    return Envelope.unpack(value or b"").records


def _one_record(value: bytes | None) -> int:
    del value
    return 1


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
        self._outlet = TaskWriter(connection, options)
        self._group = options.group
        self._work: JobEndpoint | None = None

    def attach(self, job: Job | None, gateway_url: str | None) -> None:
        """Let others see the write."""
        if gateway_url is not None:
            connection = self._outlet.connection
            self._work = JobEndpoint.attach(job, gateway_url, connection, "writer", self._group)

    def check(self) -> None:
        """Raise OptionError for a key that the channel's records do not have."""
        self._outlet.check()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWrote:
        """Write a task's batches; what `TaskWriter.write` raises fails the task."""
        task = TaskContext.get()
        work, number = self._work, 0 if task is None else task.partitionId()
        with reporting(None if work is None else TaskSlice(work=work, number=number)) as report:
            records = self._outlet.write(report.counted(iterator))
        return TaskWrote(records=records, ends=self._ends() if work and records else None)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Report where the records end; every task waited for its acknowledgements."""
        prepare_worker()
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
        self._outlet = TaskWriter(connection, options)

    def check(self) -> None:
        """Raise OptionError for a key that the channel's records do not have."""
        self._outlet.check()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> AttemptWrote:
        """Write a task's batches; what `TaskWriter.write` raises fails the task."""
        batch_id = _batch_id()
        stamp = ProvenanceMarker(self._outlet.connection, batch_id)
        records = self._outlet.write(iterator, stamp)
        return AttemptWrote(records=records, batch_id=batch_id, attempt_id=stamp.attempt_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing is left to do: every task waited for its acknowledgements."""
        del messages, batchId
        prepare_worker()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing can be taken back: what other tasks wrote stays in the channel."""


def _batch_id() -> bytes:
    task = TaskContext.get()
    query = None if task is None else task.getLocalProperty(_QUERY_ID)
    batch = None if task is None else task.getLocalProperty(_BATCH_ID)
    if query is None or batch is None:
        raise RuntimeError("Spark did not tell its task which query and which batch it works for")
    return batch_key(uuid.UUID(query), int(batch))
