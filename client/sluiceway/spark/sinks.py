"""How a task's record batches become acknowledged messages, of a batch write and of a stream."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark import TaskContext

from sluiceway.codecs import Envelope, codec
from sluiceway.errors import DeliveryFailed, RecordError
from sluiceway.kafka.accumulator import Messages, Outgoing, outgoing
from sluiceway.kafka.config import producer_config
from sluiceway.kafka.masked import MaskedProperties
from sluiceway.kafka.partitioner import placement
from sluiceway.kafka.producer import Delivery
from sluiceway.kafka.topic import TopicIdentity
from sluiceway.records import to_batches
from sluiceway.rest.models import Connection
from sluiceway.schema import Schema
from sluiceway.spark.options import WriteOptions
from sluiceway.spark.provenance import STAMP_BYTES, Stamp
from sluiceway.spark.worker import ClientPool, settle

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
class Sink:
    """What a worker process keeps of a topic that it writes to."""

    delivery: Delivery
    identity: TopicIdentity

    def close(self) -> None:
        """Throw away what was not sent."""
        self.delivery.discard()


SINKS: ClientPool[Sink] = ClientPool(close=Sink.close)


class Outlet:
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

    def write(self, iterator: Iterator[pa.RecordBatch], stamp: Stamp | None = None) -> int:
        """Write a task's batches, wait for their acknowledgement, and return how many records.

        With a `stamp` each message tells who wrote it. Raises InvalidRecord, RecordTooLarge,
        DeliveryFailed, TopicGone, KafkaUnavailable; the task fails with each of them.
        """
        settle()
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
                sink.delivery.send(mark(messages.rest()))
                sink.delivery.flush()
            except DeliveryFailed as error:
                raise DeliveryFailed(
                    partition=error.partition,
                    reason=error.reason,
                    written_records=error.written_records - before,
                    failed_records=error.failed_records,
                ) from error
        return records

    def _outgoing(self, schema: Schema, *, stamped: bool) -> Outgoing:
        connection, key = self.connection, self._options.key
        task = TaskContext.get()
        number = 0 if task is None else task.partitionId()
        partition = None if key else number % connection.partitions
        if stamped:
            room_bytes = connection.max_message_bytes - STAMP_BYTES
            connection = replace(connection, max_message_bytes=room_bytes)
        return outgoing(
            codec(connection.format, schema, connection.schema_id),
            connection,
            placement(
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

    def _open(self) -> Sink:
        connection, options = self.connection, self._options
        identity = TopicIdentity(connection, options.kafka)
        # Before there is a producer, which says of a wrong password that nobody answers.
        identity.verify(timeout_s=_VERIFY_TIMEOUT_S)
        return Sink(
            identity=identity,
            delivery=Delivery(
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


def _made(messages: Outgoing, batch: pa.RecordBatch, schema: Schema, *, before: int) -> Messages:
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
