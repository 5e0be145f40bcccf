"""ChannelWriter: writes records into a channel; WriterEndpoint: attaches another producer."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sluiceway.codecs import codec
from sluiceway.codecs.wire import WireFormatValidator
from sluiceway.endpoint.handle import ChannelEndpoint, EndpointHandle
from sluiceway.endpoint.waiting import wait_for_commits
from sluiceway.errors import (
    DeliveryFailed,
    EndpointClosed,
    KafkaFailure,
    KafkaUnavailable,
    OptionError,
)
from sluiceway.fair_lock import FairLock
from sluiceway.kafka.accumulator import Messages, record_accumulator
from sluiceway.kafka.config import MaskedProperties, producer_config
from sluiceway.kafka.partitioner import Key, Partitioner, partitioning
from sluiceway.kafka.producer import IdempotentProducer
from sluiceway.kafka.topic import TopicIdentity
from sluiceway.records import to_batches
from sluiceway.rest.channels import Control
from sluiceway.rest.models import Connection
from sluiceway.rest.transport import check_seconds
from sluiceway.schema import Schema

__all__ = ["ChannelWriter", "WriterEndpoint"]


_IDENTITY_MAX_AGE_S = 30.0


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
    leaving `with`. In `arrow`, rows accumulate until there are `batch_records`, or until `flush`.
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
        # Held to accumulate, send, or close. Delivery reports do not take it.
        self._turn = FairLock()
        self._accepted_records = 0
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
        self._require_open()
        batches = to_batches(records, self.schema)
        count: int = sum(batch.num_rows for batch in batches)
        with self._turn:
            self._require_open()
            messages = self._accumulator.add(batches)
            self._accepted_records += count
            self._send(messages)
            if self._handle is not None:
                self._handle.record_cycle(self._accepted_records)
        return count

    def start_round_robin_at(self, partition: int) -> None:
        """Send the next record without a key to this partition; the first is random by default."""
        with self._turn:
            self._partitioning.start_round_robin_at(partition)

    def flush(self) -> None:
        """Return when Kafka has acknowledged every record of all writes.

        Raises DeliveryFailed, and TopicGone if the topic was deleted and created again meanwhile.
        """
        self._require_open()
        with self._turn:
            self._require_open()
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
            self._producer.discard()
        elif self._handle is not None and self._handle.is_open:
            # `close` failed; it cannot be retried after a failure was reported.
            self._close_failure = error
        self._fail(error)

    @property
    def accepted_records(self) -> int:
        """The number of records of the writes so far, acknowledged or not."""
        return self._accepted_records

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


class WriterEndpoint:
    """A channel's writer whose messages are encoded and produced by the caller's own client.

    Attaches when it is created. Raises GatewayError, KafkaFailure. `records` counts the messages
    handed to Kafka's client, `failures` those that it did not deliver.
    """

    def __init__(
        self,
        control: Control,
        channel: str,
        *,
        uid: str,
        timeout_s: float,
        config: Mapping[str, object] | None = None,
    ) -> None:
        self.records = 0
        self.failures = 0
        self._reason = ""
        self.handle = EndpointHandle(
            control,
            channel=channel,
            uid=uid,
            role="writer",
            membership=None,
            timeout_s=timeout_s,
            close_timeout_s=0,
        )
        try:
            self.connection = self.handle.attached.connection
            # One more than the highest partition that may hold a message of this writer.
            self.partitions_used = self.connection.partitions
            self.identity = TopicIdentity(self.connection, config)
            self.identity.verify(timeout_s=timeout_s)
            self.validator = WireFormatValidator(
                self.connection, refresh=lambda: control.connection(channel, "write")
            )
        except BaseException as error:
            self.handle.fail(error)
            raise

    def add_failure(self, reason: str) -> None:
        """Count a message that was not delivered."""
        self._reason = self._reason or reason
        self.failures += 1

    def report(self) -> None:
        """Let heartbeats report the count of messages."""
        self.handle.record_cycle(self.records)

    def close(self, error: BaseException | None = None, *, timeout_s: float) -> None:
        """Report where the channel's messages end, or that the writer failed.

        It failed if there is an `error` or if messages were lost. Raises GatewayError, after which
        it may be repeated, and KafkaFailure where the ends are unknown.
        """
        if error is None and self.failures:
            error = DeliveryFailed(
                partition=None,
                reason=self._reason,
                written_records=self.records - self.failures,
                failed_records=self.failures,
            )
        if error is not None:
            self.handle.fail(error)
            return
        self.handle.detach(ends=self._ends(timeout_s) if self.records else None)

    def _ends(self, timeout_s: float) -> dict[int, int]:
        """Return where each partition ends. Raises KafkaFailure, TopicGone if it was deleted."""
        try:
            # The channel may have grown, and messages without a key go to any partition.
            found = self.identity.all_ends(timeout_s=timeout_s, least=self.partitions_used)
        except KafkaFailure:
            self.identity.verify(timeout_s=timeout_s)
            raise
        return {partition: end for partition, end in found.items() if end}
