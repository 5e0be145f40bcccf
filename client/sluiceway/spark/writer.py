"""Writes: task writers, pooled producers, provenance markers, commit messages."""

import hashlib
import itertools
import logging
import struct
import uuid
from base64 import urlsafe_b64decode
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from sluiceway.codecs import Envelope, Provenance, codec
from sluiceway.errors import DeliveryFailed, RecordError, SluicewayError
from sluiceway.kafka.accumulator import Messages, RecordAccumulator, record_accumulator
from sluiceway.kafka.config import MaskedProperties, producer_config
from sluiceway.kafka.partitioner import partitioning
from sluiceway.kafka.producer import IdempotentProducer
from sluiceway.kafka.topic import TopicIdentity
from sluiceway.records import to_batches
from sluiceway.rest.models import Connection
from sluiceway.schema import Schema
from sluiceway.spark.endpoints import JobEndpoint, TaskSlice
from sluiceway.spark.options import WriteOptions
from sluiceway.spark.task_heartbeats import reporting
from sluiceway.spark.worker import ClientPool, Shipped, prepare_worker

LOGGER = logging.getLogger(__name__)

_VERIFY_TIMEOUT_S: Final = 30.0
_VERIFY_EVERY_S: Final = 30.0
_ENDS_TIMEOUT_S: Final = 10.0
_TUNING: Final[dict[str, object]] = {
    # Limits the producer's queue, which with one of Spark's batches makes up a task's memory.
    "queue.buffering.max.kbytes": 64 * 1024,
}
_BATCH_RECORDS: Final = 10_000
"""Records per `arrow` message, the default size of Spark's Arrow batches."""
HEADER: Final = "sluiceway.provenance"
MARKER_BYTES: Final = 96
"""Upper limit of a marker's size in a message: 56 bytes, and the header's name and lengths."""
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
"""Spark's local properties that identify a task's micro-batch."""


def provenance_batch_id(query_id: uuid.UUID, batch: int) -> bytes:
    """Return the 16-byte id of a micro-batch, which is the same on every replay."""
    hashed = hashlib.blake2b(query_id.bytes, digest_size=16, person=b"sluiceway.batch")
    hashed.update(struct.pack(">q", batch))
    return hashed.digest()


class ProvenanceMarker:
    """Marks the messages of one task attempt with a new random attempt id.

    Sequence numbers count the attempt's records in each partition from 0.
    """

    def __init__(self, connection: Connection, batch_id: bytes) -> None:
        self._format = connection.format
        self._provenance = Provenance(
            topic_id=topic_id_bytes(connection.topic_id),
            batch_id=batch_id,
            attempt_id=uuid.uuid4().bytes,
            sequence=0,
        )
        self._sequences: defaultdict[int, int] = defaultdict(int)

    def mark(self, messages: Messages) -> Messages:
        """Return the messages with provenance in a header or, in `arrow`, in the envelope."""
        partitions = list(itertools.islice(messages.partitions, len(messages.values)))
        if self._format == "arrow":
            values = [
                self._with_provenance(value, partition)
                for value, partition in zip(messages.values, partitions, strict=True)
            ]
            return replace(messages, values=values, partitions=partitions)
        headers = [(HEADER, self._advance(partition, 1).pack()) for partition in partitions]
        return replace(messages, headers=headers, partitions=partitions)

    def _with_provenance(self, value: bytes | None, partition: int) -> bytes:
        value = value or b""  # Spark writes no tombstones
        envelope = Envelope.unpack(value)
        marked = replace(envelope, provenance=self._advance(partition, envelope.records))
        return b"".join((marked.pack(), memoryview(value)[envelope.size_bytes :]))

    def _advance(self, partition: int, records: int) -> Provenance:
        sequence = self._sequences[partition]
        self._sequences[partition] += records
        return replace(self._provenance, sequence=sequence)


def topic_id_bytes(topic_id: str | None) -> bytes:
    """Return the 16 bytes of Kafka's base64 topic id; zeros if unknown."""
    if topic_id is None:
        return bytes(16)
    return urlsafe_b64decode(topic_id + "==")  # also accepts + and /


@dataclass(frozen=True, kw_only=True)
class PooledProducer:
    """A worker's producer for one topic."""

    producer: IdempotentProducer
    identity: TopicIdentity


PRODUCERS: ClientPool[PooledProducer] = ClientPool(close=lambda pooled: pooled.producer.discard())


class TaskWriter:
    """Writes the batches of a task to the channel; picklable.

    Without a key, a task writes its rows in order to one partition, its own number modulo the
    number of partitions. Raises OptionError for a key that is not a field of the channel.
    """

    def __init__(self, connection: Connection, options: WriteOptions) -> None:
        self.connection = connection
        self.options = options
        self._schema = Schema.parse(connection.schema_definition)
        self._accumulator(marked=False)

    def end_offsets(self) -> Mapping[int, int]:
        """Return the end offset of each partition. Raises KafkaFailure."""
        with self._borrow() as pooled:
            partitions = range(self.connection.partitions)
            return pooled.identity.ends(partitions, timeout_s=_ENDS_TIMEOUT_S)

    def write(
        self, batches: Iterator[pa.RecordBatch], marker: ProvenanceMarker | None = None
    ) -> int:
        """Write batches, wait for their acknowledgement, and return the number of records.

        `marker` adds provenance to each message. Raises InvalidRecord, RecordTooLarge,
        DeliveryFailed, TopicGone, KafkaUnavailable.
        """
        prepare_worker()
        first = next(batches, None)
        if first is None:
            return 0
        accumulator = self._accumulator(marked=marker is not None)
        with self._borrow() as pooled:
            pooled.identity.verify(timeout_s=_VERIFY_TIMEOUT_S, max_age_s=_VERIFY_EVERY_S)
            producer = pooled.producer
            accepted = producer.accepted_records
            records = 0
            try:
                for batch in itertools.chain((first,), batches):
                    messages = _encode(accumulator, batch, self._schema, written=records)
                    producer.send(marker.mark(messages) if marker else messages)
                    records += batch.num_rows
                rest = accumulator.drain()
                producer.send(marker.mark(rest) if marker else rest)
                producer.flush()
            except DeliveryFailed as error:
                raise DeliveryFailed(
                    partition=error.partition,
                    reason=error.reason,
                    written_records=error.written_records - accepted,
                    failed_records=error.failed_records,
                ) from error
        return records

    def _accumulator(self, *, marked: bool) -> RecordAccumulator:
        connection, schema, key = self.connection, self._schema, self.options.key
        partition = None if key else _task_number() % connection.partitions
        if marked:
            room_bytes = connection.max_message_bytes - MARKER_BYTES
            connection = replace(connection, max_message_bytes=room_bytes)
        return record_accumulator(
            codec(connection.format, schema, connection.schema_id),
            connection,
            partitioning(
                schema, connection.partitions, key=key, partitioner=None, partition=partition
            ),
            batch_records=_BATCH_RECORDS,
        )

    def _borrow(self) -> AbstractContextManager[PooledProducer]:
        connection, options = self.connection, self.options
        properties = MaskedProperties(connection.kafka).over(options.kafka)
        key = (
            *(connection.topic_name, connection.topic_id, connection.max_message_bytes),
            *(connection.format, options.delivery_timeout_ms, properties),
        )
        return PRODUCERS.borrow(key, self._open)

    def _open(self) -> PooledProducer:
        connection, options = self.connection, self.options
        identity = TopicIdentity(connection, options.kafka)
        # Before the producer connects, which reports a wrong password as a timeout.
        identity.verify(timeout_s=_VERIFY_TIMEOUT_S)
        return PooledProducer(
            identity=identity,
            producer=IdempotentProducer(
                connection.topic_name,
                producer_config(
                    connection.kafka,
                    {**_TUNING, **options.kafka},
                    delivery_timeout_ms=options.delivery_timeout_ms,
                    max_message_bytes=connection.max_message_bytes,
                ),
                connect_timeout_s=_VERIFY_TIMEOUT_S,
                delivery_timeout_s=options.delivery_timeout_ms / 1000,
                records_in=self._accumulator(marked=False).records_in,
            ),
        )


def _encode(
    accumulator: RecordAccumulator, batch: pa.RecordBatch, schema: Schema, *, written: int
) -> Messages:
    """Validate and encode one of Spark's batches; raises before any of it is sent."""
    try:
        return accumulator.add(to_batches(batch, schema))
    except RecordError as error:
        error.add_note(
            f"The error is in one batch of a Spark task. {written:,} records that this task wrote "
            "before, and records of other tasks, may be in the channel already."
        )
        raise


def _task_number() -> int:
    task = TaskContext.get()
    return 0 if task is None else task.partitionId()


@dataclass(frozen=True, kw_only=True)
class TaskResult(WriterCommitMessage):
    """Commit message of a task: `records` were acknowledged by Kafka.

    `ends` has the end offset of each partition after that; None if nobody needs it.
    """

    records: int
    ends: Mapping[int, int] | None = None


class ChannelDataWriter(Shipped, DataSourceArrowWriter):
    """Batch write, at least once: a retried task writes its records again."""

    def __init__(self, task_writer: TaskWriter, endpoint: JobEndpoint | None = None) -> None:
        self._task_writer = task_writer
        self._endpoint = endpoint

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Write a task's batches. Raises the errors of `TaskWriter.write`."""
        endpoint = self._endpoint
        slice_ = None if endpoint is None else TaskSlice(endpoint=endpoint, number=_task_number())
        with reporting(slice_) as report:
            records = self._task_writer.write(report.counted(iterator))
        return TaskResult(
            records=records, ends=self._end_offsets() if endpoint and records else None
        )

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Close the endpoint with the end offsets; the records are acknowledged already."""
        prepare_worker()
        if self._endpoint is not None:
            results = [each for each in messages if isinstance(each, TaskResult)]
            self._endpoint.close(
                records=sum(each.records for each in results),
                tasks=len(results),
                ends=lambda: self._merge_end_offsets(results),
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Report the failure. Records of successful tasks stay in the channel."""
        if self._endpoint is not None:
            written = sum(each is not None for each in messages)
            self._endpoint.fail(
                f"the Spark job failed or was cancelled; {written} of its {len(messages)} tasks "
                "had written"
            )

    def _end_offsets(self) -> Mapping[int, int] | None:
        try:
            return self._task_writer.end_offsets()
        except SluicewayError as error:
            LOGGER.warning("the end offsets after this task's records are unknown: %s", error)
            return None

    def _merge_end_offsets(self, results: Sequence[TaskResult]) -> Mapping[int, int]:
        found = [each.ends for each in results if each.records]
        known = [ends for ends in found if ends is not None]
        if not known or len(known) < len(found):
            return self._task_writer.end_offsets()
        return {partition: max(ends[partition] for ends in known) for partition in known[0]}


class ChannelStreamWriter(Shipped, DataSourceStreamArrowWriter):
    """Write of one micro-batch, at least once. Spark makes another instance to commit.

    A replayed batch and a retried task write their records again. Each record has a provenance
    marker: the batch id, which is the same on a replay, the attempt id, and the record's sequence
    number, from which a reader can recognize duplicates.
    """

    def __init__(self, task_writer: TaskWriter) -> None:
        self._task_writer = task_writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Write a task's batches. Raises the errors of `TaskWriter.write`."""
        marker = ProvenanceMarker(self._task_writer.connection, _micro_batch_id())
        return TaskResult(records=self._task_writer.write(iterator, marker))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: the records are acknowledged already."""
        del messages, batchId
        prepare_worker()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: records of successful tasks stay in the channel."""


def _micro_batch_id() -> bytes:
    task = TaskContext.get()
    query = None if task is None else task.getLocalProperty(_QUERY_ID)
    batch = None if task is None else task.getLocalProperty(_BATCH_ID)
    if query is None or batch is None:
        raise RuntimeError(f"Spark's task lacks the local property {_QUERY_ID} or {_BATCH_ID}")
    return provenance_batch_id(uuid.UUID(query), int(batch))
