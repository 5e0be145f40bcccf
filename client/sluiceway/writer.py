"""ChannelWriter: writes records into a channel."""

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from sluiceway.codecs import codec
from sluiceway.endpoint.handle import ChannelEndpoint, EndpointHandle
from sluiceway.endpoint.waiting import wait_for_commits
from sluiceway.errors import (
    DeliveryFailed,
    EndpointClosed,
    KafkaFailure,
    KafkaUnavailable,
    OptionError,
    SluicewayError,
)
from sluiceway.fair_lock import FairLock
from sluiceway.kafka.accumulator import Messages, certain_row_bytes, record_accumulator
from sluiceway.kafka.config import MaskedProperties, producer_config
from sluiceway.kafka.partitioner import Key, Partitioner, partitioning
from sluiceway.kafka.producer import IdempotentProducer
from sluiceway.kafka.topic import TopicIdentity
from sluiceway.records import to_batches
from sluiceway.records.row_buffer import FULL, RowBuffer, Rows
from sluiceway.rest.models import Connection
from sluiceway.rest.transport import check_seconds
from sluiceway.schema import Schema

__all__ = ["ChannelWriter", "PreparedRecords"]

_IDENTITY_MAX_AGE_S = 30.0
_LINGER_S = 0.005
"""How long single records wait for others, before Kafka's client has them."""

PreparedRecords = Rows | list[pa.RecordBatch]
"""Validated records of one write."""


class ChannelWriter(ChannelEndpoint):
    """Writes records into a channel; opened by `Channel.writer()`, or with a Connection alone.

    By default, records go round robin over the partitions; in `arrow`, messages do. With `key` (a
    field name, or a function of the record that returns str, bytes, a 64-bit int or None),
    records with the same key go to one partition, the same as with Kafka's Java producers;
    records without a key go round robin. With `partitioner` (a function of the record and the
    number of partitions) the caller decides; with `partition` all records go to that one. The
    order within a partition is that of the writes. A writer uses the partitions that the channel
    had when it was opened: growth of the channel moves no key of an open writer.

    `write` returns before Kafka has acknowledged the records: `flush` waits for that, and so does
    leaving `with`. Single records are checked at once, wait a few milliseconds for others, and are
    encoded together; with a function as `key` or with `partitioner`, each write is encoded alone.
    In `arrow`, rows accumulate until there are `batch_records`, or until `flush`.
    A message fails after `delivery_timeout_s` without acknowledgement.

    A writer of `Channel.writer()` reports its end offsets to the gateway when it is closed, so
    that readers know when they have read everything; if an exception ends it, the failure, and
    whether it may have written anything.

    Thread-safe: writes are sent one after the other, in the order in which the threads called.
    `close` waits for the current write; later ones raise EndpointClosed.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        key: Key | None = None,
        partitioner: Partitioner | None = None,
        partition: int | None = None,
        batch_records: int = 8192,
        delivery_timeout_s: float = 120.0,
        timeout_s: float = 30.0,
        config: Mapping[str, object] | None = None,
        attach: Callable[[], EndpointHandle] | None = None,
    ) -> None:
        """Open a writer.

        `config` has further properties of a Kafka producer. Within `timeout_s`, the topic is
        verified to be the channel's. `attach` makes the writer an endpoint; it is called last,
        when nothing else can fail. Raises OptionError, TopicGone, KafkaUnavailable, and the
        errors of `attach`.
        """
        config = MaskedProperties(config or {})
        if type(batch_records) is not int or batch_records < 1:
            raise OptionError(f"batch_records is {batch_records!r}; it takes a number from 1")
        for name, value in (("delivery_timeout_s", delivery_timeout_s), ("timeout_s", timeout_s)):
            check_seconds(name, value, 1)
        self.connection = connection
        self.schema = Schema.parse(connection.schema_definition)
        self._timeout_s = timeout_s
        self._partitioning = partitioning(
            self.schema,
            connection.partitions,
            key=key,
            partitioner=partitioner,
            partition=partition,
        )
        self._accumulator = record_accumulator(
            codec(connection.format, self.schema, connection.schema_id),
            connection,
            self._partitioning,
            batch_records=batch_records,
        )
        self._identity = TopicIdentity(connection, config)
        self._identity.verify(timeout_s=timeout_s)
        self._producer = IdempotentProducer(
            connection.topic_name,
            producer_config(
                connection.kafka,
                config,
                delivery_timeout_ms=int(delivery_timeout_s * 1000),
                max_message_bytes=connection.max_message_bytes,
            ),
            connect_timeout_s=timeout_s,
            delivery_timeout_s=delivery_timeout_s,
            records_in=self._accumulator.records_in,
            partitions=connection.partitions,
        )
        # A caller's function sees each record in the call that brings it, and may refuse it.
        self._row_by_row = not callable(key) and partitioner is None
        self._rows = RowBuffer(
            self.schema, max_row_bytes=certain_row_bytes(connection, self.schema)
        )
        self._lingering = False
        self._send_at_once = False
        # Held to accumulate, send, or close. Delivery reports do not take it.
        self._turn = FairLock()
        self._batch_records = 0
        self._closed = False
        self._failure: KafkaFailure | None = None
        self._close_failure: BaseException | None = None
        self._ends: Mapping[int, int] | None = None
        super().__init__(None if attach is None else attach())
        if self._handle is not None:
            self._handle.pristine = True

    def write(self, records: Any) -> int:
        """Write one or many records and return their number.

        Takes a dict or a dataclass instance, an iterable of these, a pyarrow.Table or
        RecordBatch, or a pandas.DataFrame. All records are validated and encoded before any is
        sent, so one write should fit in memory, and after RecordError, SchemaError and OptionError
        none of its records was sent. Raises DeliveryFailed when Kafka refused a message of this or
        an earlier write; the writer cannot be used after that.
        """
        return self.write_prepared(self.prepare(records))

    def prepare(self, records: Any) -> PreparedRecords:
        """Validate records for `write_prepared`. Raises RecordError, SchemaError, OptionError."""
        self._require_open()
        rows = self._rows.check(records) if self._row_by_row else None
        return to_batches(records, self.schema) if rows is None else rows

    def write_prepared(self, prepared: PreparedRecords) -> int:
        """Write what `prepare` has returned, and return the number of records.

        `prepare` may be that of another writer with the same schema, format and message size.
        """
        if not isinstance(prepared, Rows):
            return self._write_batches(prepared)
        buffered = self._rows.add(prepared)
        if not buffered:
            with self._turn:
                self._require_open()
        elif buffered >= FULL or self._send_at_once:
            with self._turn:
                # If another thread has closed the writer meanwhile, it has sent these rows.
                if not self._closed:
                    self._require_open()
                    self._send_rows()
        elif not self._lingering:
            self._linger()
        return len(prepared)

    def start_round_robin_at(self, partition: int) -> None:
        """Send the next record without a key to this partition; the first is random by default."""
        with self._turn:
            self._send_rows()
            self._partitioning.start_round_robin_at(partition)

    def flush(self) -> None:
        """Return when Kafka has acknowledged every record of all writes.

        Raises DeliveryFailed, and TopicGone if the topic was deleted and created again meanwhile.
        """
        self._require_open()
        with self._turn:
            self._require_open()
            self._send_rows()
            self._send(self._accumulator.drain())
        # Other threads may write meanwhile. If they never pause, they wait in the second step.
        self._producer.flush_briefly()
        try:
            with self._turn:
                self._producer.flush()
            # Everything is acknowledged, so an unavailable broker makes no difference here.
            with contextlib.suppress(KafkaUnavailable):
                self._identity.verify(timeout_s=self._timeout_s, max_age_s=_IDENTITY_MAX_AGE_S)
        except KafkaFailure as error:
            self._failure = error
            raise

    def wait_acknowledged(self, groups: Sequence[str], *, timeout_s: float = 60.0) -> None:
        """Flush, and return when these groups of readers have committed past what was written.

        In every partition that this writer wrote to, a group must have committed up to the
        partition's current end, which is past this writer's last record; in a broadcast group,
        each member must. A group without any members yet is waited for. Raises the errors of
        `flush`, and SluicewayTimeout, which says for each group how much is missing in which
        partitions.
        """
        self.flush()
        handle = self._handle
        if handle is None:
            raise OptionError(
                "a writer made of a Connection alone asks no gateway: open it with channel.writer()"
            )
        written_to = [
            p for p in range(self.connection.partitions) if self._producer.may_have_written_to(p)
        ]
        wait_for_commits(
            handle.calls,
            handle.channel,
            uid=handle.uid,
            topic_id=self.connection.topic_id,
            groups=groups,
            ends=self._nonempty_ends(written_to),
            timeout_s=timeout_s,
        )

    def end_offsets(self) -> dict[int, int]:
        """Return the offset after the last message of each partition."""
        self._require_open()
        return self._identity.ends(range(self.connection.partitions), timeout_s=self._timeout_s)

    def close(self) -> None:
        """Flush, report the end offsets, and detach. May be repeated.

        After a failed `write` or `flush` it only detaches. Index 0 of a group waits for the other
        members; SluicewayTimeout names those that are still attached after the `close_timeout_s`
        of `Channel.writer`. Raises Fenced for a superseded writer.

        After KafkaUnavailable and GatewayUnavailable all records are written, but readers do not
        know the end offsets: closing again retries. Any other failure of closing is raised again.
        """
        self._close_step(self._finish_writing)
        # After the writes that wait for their turn, which raise now: detaching may take long.
        self._close_step(self._detach)

    def abort(self, error: BaseException) -> None:
        """Discard unsent records, and report to the gateway that `error` ended this writer."""
        if not self._closed:
            self._closed = True
            self._rows.close()
            self._producer.discard()
        elif self._handle is not None and self._handle.is_open:
            # `close` failed; it cannot be retried after a failure was reported.
            self._close_failure = error
        self._fail(error)

    @property
    def accepted_records(self) -> int:
        """The number of records of the writes so far, acknowledged or not."""
        return self._batch_records + self._rows.added

    def _close_step(self, step: Callable[[], None]) -> None:
        """Run a step of closing, unless closing has failed for good."""
        with self._turn:
            if self._close_failure is not None:
                raise self._close_failure
            try:
                step()
            except BaseException as error:
                if self._handle is None or not self._handle.is_open:
                    self._close_failure = error
                raise

    def _finish_writing(self) -> None:
        if self._closed:
            return
        self._rows.close()
        try:
            if self._failure is None:
                self.flush()
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._closed = True

    def _detach(self) -> None:
        if self._handle is None:
            return
        if self._failure is not None:
            self._handle.fail(self._failure)
            return
        if self._ends is None and (self.accepted_records or self._handle.attached.took_over):
            # Other writers' records may lie before these ends; those of a writer whose place this
            # one took must.
            try:
                self._ends = self._nonempty_ends(range(self.connection.partitions))
            except KafkaFailure as error:
                if not error.retriable:
                    self._fail(error)
                raise
        self._handle.detach(ends=self._ends)

    def _nonempty_ends(self, partitions: Sequence[int]) -> dict[int, int]:
        if not partitions:
            return {}
        ends = self._identity.ends(partitions, timeout_s=self._timeout_s)
        return {partition: end for partition, end in ends.items() if end}

    def _fail(self, error: BaseException) -> None:
        if self._handle is not None:
            self._handle.metrics.records = self.accepted_records
            self._handle.fail(error)

    def _write_batches(self, batches: Sequence[pa.RecordBatch]) -> int:
        with self._turn:
            self._require_open()
            self._send_rows()
            messages = self._accumulator.add(batches)
            count: int = sum(batch.num_rows for batch in batches)
            self._batch_records += count
            self._send(messages)
            self._record_cycle()
        return count

    def _linger(self) -> None:
        """Send the buffered rows a moment later, in another thread."""
        timer = threading.Timer(_LINGER_S, self._send_lingering)
        timer.daemon = True
        self._lingering = True
        try:
            timer.start()
        except RuntimeError:  # no more threads
            self._lingering = False
            self._send_rows()

    def _send_lingering(self) -> None:
        with self._turn:
            self._lingering = False
            try:
                self._require_open()
                self._send_rows()
            except DeliveryFailed:
                # There is no caller to raise it to. The producer raises it again in the next call.
                self._failure, self._send_at_once = None, True
            except SluicewayError:
                # The next call raises it.
                return

    def _send_rows(self) -> None:
        """Send the buffered rows, before anything that is written after them."""
        rows = self._rows.drain()
        if rows:
            self._send(self._accumulator.add(rows))
            self._record_cycle()

    def _record_cycle(self) -> None:
        if self._handle is not None:
            self._handle.record_cycle(self.accepted_records)

    def _send(self, messages: Messages) -> None:
        if not messages.values:
            return
        if self._handle is not None and self._handle.pristine:
            self._handle.pristine = False
        try:
            self._producer.send(messages)
        except DeliveryFailed as error:
            self._failure = error
            raise

    def _require_open(self) -> None:
        if self._failure is not None:
            raise EndpointClosed(
                f"this writer failed before and cannot be used any more: {self._failure}"
            ) from self._failure
        if self._closed:
            raise EndpointClosed("this writer is closed; open a new one with channel.writer()")
        if self._handle is not None:
            self._handle.check()
