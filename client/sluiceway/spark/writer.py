"""Writes: task writers, pooled producers, commits of jobs and micro-batches."""

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

from sluiceway import Connection, Schema
from sluiceway.errors import DeliveryFailed, Fenced, RecordError, SluicewayError
from sluiceway.spark.endpoints import JobEndpoint, TaskSlice, reporting
from sluiceway.spark.ledger_batches import CommitMessages, JobBatch, TaskBatch, TaskResult
from sluiceway.spark.options import WriteOptions
from sluiceway.spark.worker import ClientPool, Shipped, prepare_worker, traced
from sluiceway.spi import (
    DeliveredIntervals,
    IdempotentProducer,
    MaskedProperties,
    RecordAccumulator,
    TopicIdentity,
    WrittenRecords,
    partitioning,
    to_batches,
    tracing,
)

LOGGER = logging.getLogger(__name__)

_VERIFY_TIMEOUT_S: Final = 30.0
_VERIFY_EVERY_S: Final = 30.0
_ENDS_TIMEOUT_S: Final = 10.0
_TUNING: Final[dict[str, object]] = {
    # Limits the producer's queue, which together with one of Spark's batches is a task's memory. A
    # few batches keep Kafka busy, and a short queue makes the flush at the task's end short.
    "queue.buffering.max.kbytes": 16 * 1024
}
_BATCH_RECORDS: Final = 10_000
"""Records per `arrow` message, the default size of Spark's Arrow batches."""


@dataclass(frozen=True, kw_only=True)
class PooledProducer:
    """A worker's producer for one topic; `intervals` are for exactly-once channels."""

    producer: IdempotentProducer
    identity: TopicIdentity
    intervals: DeliveredIntervals | None = None


PRODUCERS: ClientPool[PooledProducer] = ClientPool(close=lambda pooled: pooled.producer.discard())


class TaskWriter:
    """Writes the batches of a task to the channel; picklable.

    Without a key, a task writes its rows in order to one partition, its own number modulo the
    number of partitions. Raises OptionError for a key that is not a field of the channel.
    """

    def __init__(
        self,
        connection: Connection,
        options: WriteOptions,
        *,
        verify_timeout_s: float = _VERIFY_TIMEOUT_S,
    ) -> None:
        self.connection = connection
        self.options = options
        self._verify_timeout_s = verify_timeout_s
        self._schema = Schema.parse(connection.schema_definition)
        self._accumulator()

    @property
    def channel(self) -> str:
        """The channel's name."""
        return self.connection.channel_name

    def end_offsets(self) -> Mapping[int, int]:
        """Return the end offset of each partition. Raises KafkaFailure."""
        with self._borrow() as pooled:
            partitions = range(self.connection.partitions)
            return pooled.identity.ends(partitions, timeout_s=_ENDS_TIMEOUT_S)

    def write(self, batches: Iterator[pa.RecordBatch], job: JobBatch | None = None) -> TaskResult:
        """Write batches, wait for their acknowledgement, and return the task's result.

        With a `job`, the records belong to its batch: nothing is produced before it is open, or if
        it was committed before. Raises InvalidRecord, RecordTooLarge, DeliveryFailed, TopicGone,
        KafkaUnavailable, and the errors of `TaskBatch.open`.
        """
        prepare_worker()
        rows: Iterator[pa.RecordBatch] = (batch for batch in batches if batch.num_rows)
        if job is None:
            first = next(rows, None)
            if first is None:
                return TaskResult(records=0)
            records, _ = self._produce(itertools.chain((first,), rows), None)
            return TaskResult(records=records)
        with job.in_task() as task:
            first = next(rows, None)
            if first is None:
                return task.result(0)
            rows = itertools.chain((first,), rows)
            if not task.open():
                return task.result(sum(batch.num_rows for batch in rows))
            return task.result(*self._produce(rows, task))

    def _produce(
        self, batches: Iterator[pa.RecordBatch], task: TaskBatch | None
    ) -> tuple[int, WrittenRecords]:
        accumulator = self._accumulator()
        with self._borrow() as pooled:
            pooled.identity.verify(timeout_s=self._verify_timeout_s, max_age_s=_VERIFY_EVERY_S)
            producer = pooled.producer
            accepted = producer.accepted_records
            records = 0
            try:
                for batch in batches:
                    with _noting(written=records):
                        messages = accumulator.add(to_batches(batch, self._schema))
                    if task is not None:
                        task.check()
                    producer.send(messages)
                    records += batch.num_rows
                producer.send(accumulator.drain())
                producer.flush()
                delivered = producer.accepted_records
                pooled.identity.confirm_delivery(delivered, timeout_s=self._verify_timeout_s)
            except DeliveryFailed as error:
                raise DeliveryFailed(
                    partition=error.partition,
                    reason=error.reason,
                    written_records=error.written_records - accepted,
                    failed_records=error.failed_records,
                ) from error
            if pooled.intervals is None:
                return records, WrittenRecords()
            written = pooled.intervals.take()
            written.require(records)
        return records, written

    def _accumulator(self) -> RecordAccumulator:
        connection, schema, key = self.connection, self._schema, self.options.key
        partition = None if key else _task_number() % connection.partitions
        return RecordAccumulator.of(
            connection,
            schema,
            partitioning(
                schema,
                connection.partitions,
                key=key,
                partitioner=None,
                partition=partition,
                key_partitioner=connection.partitioner,
            ),
            batch_records=_BATCH_RECORDS,
        )

    def _borrow(self) -> AbstractContextManager[PooledProducer]:
        connection, options = self.connection, self.options
        properties = MaskedProperties(connection.kafka).over(options.kafka)
        key = (
            *(connection.topic_name, connection.topic_id, connection.max_message_bytes),
            *(connection.format, connection.delivery, connection.partitions),
            *(options.delivery_timeout_ms, properties),
        )
        return PRODUCERS.borrow(key, self._open)

    def _open(self) -> PooledProducer:
        connection, options = self.connection, self.options
        identity = TopicIdentity(connection, options.kafka)
        # Before the producer, which would report a wrong password as a timeout.
        identity.verify(timeout_s=self._verify_timeout_s)
        intervals = DeliveredIntervals.of(connection)
        return PooledProducer(
            identity=identity,
            intervals=intervals,
            producer=IdempotentProducer(
                connection,
                MaskedProperties(_TUNING).over(options.kafka),
                connect_timeout_s=self._verify_timeout_s,
                delivery_timeout_s=options.delivery_timeout_ms / 1000,
                on_delivery=None if intervals is None else intervals.add,
                until_flush=True,
            ),
        )


@contextmanager
def _noting(*, written: int) -> Iterator[None]:
    """Add to the error of an invalid batch that earlier records of its task are written."""
    try:
        yield
    except RecordError as error:
        error.add_note(
            f"The error is in one batch of a Spark task. {written:,} earlier records of this task, "
            "and records of other tasks, may already be in the channel; only exactly-once delivery "
            "keeps them invisible."
        )
        raise


def _task_number() -> int:
    task = TaskContext.get()
    return 0 if task is None else task.partitionId()


@contextmanager
def _group_advice() -> Iterator[None]:
    try:
        yield
    except Fenced as error:
        error.add_note(
            "A group has one batch write at a time, and readers wait for the last one only. Give "
            "writes that run at the same time groups of their own, or none. Records of an "
            "at-least-once channel stay"
        )
        raise


class ChannelDataWriter(Shipped, DataSourceArrowWriter):
    """Batch write.

    At least once: a retried task writes its records again. With a `batch`, exactly once: the
    records of one attempt of each task become visible together.
    """

    def __init__(
        self,
        task_writer: TaskWriter,
        endpoint: JobEndpoint | None = None,
        batch: JobBatch | None = None,
        *,
        trace: Mapping[str, str] | None = None,
    ) -> None:
        self._task_writer = task_writer
        self._endpoint = endpoint
        self._batch = batch
        self._trace = trace or {}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Write a task's batches. Raises the errors of `TaskWriter.write`."""
        with (
            traced("send", self._task_writer.channel, self._trace, kind="send") as span,
            _group_advice(),
        ):
            result = self._write(iterator)
            span.set("sluiceway.records", result.records)
        return result

    def _write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        endpoint = self._endpoint
        slice_ = None if endpoint is None else TaskSlice(endpoint=endpoint, number=_task_number())
        with reporting(slice_) as report:
            result = self._task_writer.write(report.counted(iterator), self._batch)
        if self._batch is None and endpoint and result.records:
            return replace(result, ends=self._end_offsets())
        return result

    def commit(self, messages: CommitMessages) -> None:
        """Commit the batch, if there is one, and close the endpoint with the end offsets.

        Raises the errors of `JobBatch.commit`, and Fenced if another write has taken its place.
        """
        prepare_worker()
        with traced("commit", self._task_writer.channel, self._trace), _group_advice():
            self._commit(messages)

    def _commit(self, messages: CommitMessages) -> None:
        results = [message for message in messages if isinstance(message, TaskResult)]
        records = sum(result.records for result in results)
        ends = partial(self._merge_end_offsets, results)
        if self._batch is not None:
            written = self._batch.commit(messages)
            records, ends = written.records, partial(dict, written.ends)
        if self._endpoint is None:
            return
        try:
            self._endpoint.close(records=records, tasks=len(results), ends=ends)
        except Fenced:
            # A batch was committed while the write had its place, or before.
            if self._batch is None:
                raise

    def abort(self, messages: CommitMessages) -> None:
        """Abort the batch and report the failure.

        Without a batch, records of successful tasks stay in the channel.
        """
        written = sum(message is not None for message in messages)
        progress = f"after {written} of its {len(messages)} tasks" if written else "before a task"
        cause = (
            f"the Spark job failed or was cancelled {progress} had written; the driver's log has "
            "the cause"
        )
        with traced("abort", self._task_writer.channel, self._trace):
            if self._batch is not None:
                self._batch.abort(messages, cause)
            if self._endpoint is not None:
                self._endpoint.fail(cause)

    def _end_offsets(self) -> Mapping[int, int] | None:
        try:
            return self._task_writer.end_offsets()
        except SluicewayError as error:
            LOGGER.warning("the end offsets after this task's records are unknown: %s", error)
            return None

    def _merge_end_offsets(self, results: Sequence[TaskResult]) -> Mapping[int, int]:
        task_ends = [result.ends for result in results if result.records]
        known_ends = [ends for ends in task_ends if ends is not None]
        if not known_ends or len(known_ends) < len(task_ends):
            return self._task_writer.end_offsets()
        return {
            partition: max(ends[partition] for ends in known_ends) for partition in known_ends[0]
        }


class ChannelStreamWriter(Shipped, DataSourceStreamArrowWriter):
    """Write of one micro-batch. Spark creates another instance for the commit.

    At least once: a replayed micro-batch and a retried task write their records again. With a
    `batch`, exactly once: a micro-batch's records become visible together, and the replay of a
    committed micro-batch writes nothing. The instance for the commit has no `task_writer`: it uses
    the tasks' messages only, so that it depends on neither the channel's phase nor, at least once,
    the gateway.
    """

    def __init__(
        self, channel: str, task_writer: TaskWriter | None = None, batch: JobBatch | None = None
    ) -> None:
        self._channel = channel
        self._task_writer = task_writer
        self._batch = batch
        self._trace: Mapping[str, str] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle for the tasks of a micro-batch, and begin its trace.

        The instance for the commit is never pickled, so it begins no other trace.
        """
        if self._trace is None:
            with traced("write", self._channel, {}):
                self._trace = tracing.carrier()
        return super().__reduce__()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Write a task's batches. Raises the errors of `TaskWriter.write`."""
        assert self._task_writer is not None  # noqa: S101 - planned for tasks
        trace = self._trace or {}
        with traced("send", self._channel, trace, kind="send") as span:
            result = self._task_writer.write(iterator, self._batch)
            span.set("sluiceway.records", result.records)
        return replace(result, trace=trace)

    def commit(self, messages: CommitMessages, batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit the micro-batch. Raises the errors of `JobBatch.commit`."""
        prepare_worker()
        if self._batch is not None:
            with traced("commit", self._channel, _trace_of(messages)):
                self._batch.commit(messages, number=batchId)

    def abort(self, messages: CommitMessages, batchId: int) -> None:  # noqa: N803 - Spark's name
        """Abort the micro-batch's batch if a task's message names it.

        Without a batch, records of successful tasks stay in the channel.
        """
        if self._batch is not None:
            with traced("abort", self._channel, _trace_of(messages)):
                self._batch.abort(messages, f"the micro-batch {batchId} failed or was cancelled")


def _trace_of(messages: CommitMessages) -> Mapping[str, str]:
    """Return the trace of a micro-batch's tasks."""
    traces = (
        message.trace for message in messages if isinstance(message, TaskResult) and message.trace
    )
    return next(traces, {})
