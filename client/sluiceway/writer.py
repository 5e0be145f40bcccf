"""Writing records into a channel."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from sluiceway.codecs import codec
from sluiceway.endpoint.handle import EndpointHandle
from sluiceway.endpoint.waiting import wait_until_passed
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
from sluiceway.reader import Presence
from sluiceway.records import to_batches
from sluiceway.rest.models import Connection
from sluiceway.schema import Schema

__all__ = ["ChannelWriter"]

_IDENTITY_MAX_AGE_S = 30.0


class ChannelWriter(Presence):
    """Writes records into a channel; made by `Channel.writer()`, or of a Connection alone.

    Records go round the partitions: each record to the next one, in `arrow` each message. With
    `key` (a field's name, or a function of the record that gives str, bytes, an int of 64 bits or
    None) records of one key go to one partition, the one that Kafka's Java producers take;
    records without a key go round. With `partitioner` (a function of the record
    and the number of partitions) the caller decides, with `partition` all go to that one. The
    order within a partition is that of the writes. Partitions are those of the moment at which
    the writer was opened: a channel that grows moves no key of an open writer.

    `write` returns before Kafka has acknowledged: `flush` waits for that, and so does leaving
    `with`. In `arrow`, rows wait in the writer until `batch_records` are together or `flush` is
    called. A message is given up after `delivery_timeout_s` without acknowledgement.

    A writer that `Channel.writer()` made tells the gateway, when it is closed, where its records
    end, so that readers know when they have all; when it is left by an exception, that it failed,
    and whether it can have written anything.

    Thread-safe: a write is sent whole before the next one, and the order of the writes of several
    threads is that in which they got their turn. `close` waits for the write that is under way;
    later ones raise EndpointClosed.
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

        `config` has further Kafka properties of a producer. Kafka is asked, for `timeout_s` at
        most, whether the topic is still the channel's. `attach` makes the writer an endpoint,
        when nothing else can fail any more. Raises OptionError, TopicGone, KafkaUnavailable, and
        what `attach` raises.
        """
        config = MaskedProperties(config or {})
        if type(batch_records) is not int or batch_records < 1:
            raise OptionError(f"batch_records is {batch_records!r}; it takes a number from 1")
        for name, value in (("delivery_timeout_s", delivery_timeout_s), ("timeout_s", timeout_s)):
            if not isinstance(value, int | float) or not 1 <= value <= 86_400:
                raise OptionError(f"{name} is {value!r}; it takes seconds from 1 to 86400")
        self.connection = connection
        self.schema = Schema.parse(connection.schema_definition)
        self._timeout_s = timeout_s
        self._placement = partitioning(
            self.schema,
            connection.partitions,
            key=key,
            partitioner=partitioner,
            partition=partition,
        )
        self._outgoing = record_accumulator(
            codec(connection.format, self.schema, connection.schema_id),
            connection,
            self._placement,
            batch_records=batch_records,
        )
        self._identity = TopicIdentity(connection, config)
        self._identity.verify(timeout_s=timeout_s)
        self._delivery = IdempotentProducer(
            connection.topic_name,
            producer_config(
                connection.kafka,
                config,
                delivery_timeout_ms=int(delivery_timeout_s * 1000),
                max_message_bytes=connection.max_message_bytes,
            ),
            connect_timeout_s=timeout_s,
            delivery_timeout_s=delivery_timeout_s,
            records_in=self._outgoing.records_in,
            partitions=connection.partitions,
        )
        # Held by whoever makes messages, sends them, or closes. Reports of deliveries take none.
        self._turn = FairLock()
        self._accepted_records = 0
        self._closed = False
        self._failure: KafkaFailure | None = None
        self._close_failure: BaseException | None = None
        self._ends: Mapping[int, int] | None = None
        self._attachment = None if attach is None else attach()
        if self._attachment is not None:
            self._attachment.pristine = True

    def write(self, records: Any) -> int:
        """Write one or many records and return how many they were.

        Takes a dict or a dataclass instance, an iterable of these, a pyarrow.Table or
        RecordBatch, or a pandas.DataFrame. All of it is checked and encoded before any of it is
        sent, so a write should fit in memory, and RecordError, SchemaError and OptionError mean
        that none of it was. Raises DeliveryFailed when Kafka refused a message, of this write or
        of one before; the writer is of no use after that.
        """
        self._require_open()
        batches = to_batches(records, self.schema)
        count: int = sum(batch.num_rows for batch in batches)
        with self._turn:
            self._require_open()
            messages = self._outgoing.add(batches)
            self._accepted_records += count
            self._send(messages)
            if self._attachment is not None:
                self._attachment.start(self._accepted_records)
        return count

    def go_round_from(self, partition: int) -> None:
        """Let the next record that goes round go to this partition; without, it is drawn by lot."""
        with self._turn:
            self._placement.begin(partition)

    def flush(self) -> None:
        """Return when Kafka has acknowledged every record of all writes.

        Raises DeliveryFailed, and TopicGone when the topic was deleted and made anew meanwhile.
        """
        self._require_open()
        with self._turn:
            self._require_open()
            self._send(self._outgoing.rest())
        # Others write meanwhile; if they do so without a pause, they wait for this one in the end.
        self._delivery.settle()
        try:
            with self._turn:
                self._delivery.flush()
            # Acknowledged is acknowledged: only another topic of that name matters now.
            with contextlib.suppress(KafkaUnavailable):
                self._identity.verify(timeout_s=self._timeout_s, max_age_s=_IDENTITY_MAX_AGE_S)
        except KafkaFailure as error:
            self._failure = error
            raise

    def wait_acknowledged(self, groups: Sequence[str], *, timeout_s: float = 60.0) -> None:
        """Flush, and return when these groups of readers have committed past what was written.

        In every partition that this writer wrote to, a group has to have committed up to where
        the partition ends now, which is past this writer's last record; in a broadcast group each
        member has to. A group that nobody was in yet is waited for. Raises SluicewayTimeout,
        which says for each group in which partitions how much is missing, and what `flush` raises.
        """
        self.flush()
        attachment = self._attachment
        if attachment is None:
            raise OptionError(
                "a writer made of a Connection alone asks no gateway: open it with channel.writer()"
            )
        touched = [
            p for p in range(self.connection.partitions) if self._delivery.may_have_touched(p)
        ]
        ends = self._identity.ends(touched, timeout_s=self._timeout_s) if touched else {}
        wait_until_passed(
            attachment.session.calls,
            attachment.channel,
            uid=attachment.uid,
            topic_id=self.connection.topic_id,
            groups=groups,
            ends={partition: end for partition, end in ends.items() if end},
            timeout_s=timeout_s,
        )

    def end_offsets(self) -> dict[int, int]:
        """Return the offset after the last message of each partition, as of now."""
        self._require_open()
        return self._identity.ends(range(self.connection.partitions), timeout_s=self._timeout_s)

    def close(self) -> None:
        """Flush, report where the records end, and leave. May be repeated.

        After a failed `write` or `flush` it only leaves. Index 0 of a group waits until the others
        have left; SluicewayTimeout says which have not within the `close_timeout_s` of
        `Channel.writer`. Raises Fenced for a writer that was superseded.

        After KafkaUnavailable and GatewayUnavailable all is written, but readers do not know where
        it ends: closing again tries again. It raises any other failure of closing once more.
        """
        self._finish(self._acknowledge)
        # After the writes that wait for their turn, which raise now: leaving may take long.
        self._finish(self._leave)

    @property
    def accepted_records(self) -> int:
        """How many records the writes so far held, acknowledged or not."""
        return self._accepted_records

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; after an exception throw away what was not sent, and let the exception pass."""
        if error is None:
            self.close()
            return
        if not self._closed:
            self._closed = True
            self._delivery.discard()
        elif self._attachment is not None and self._attachment.present:
            # Closing was tried in vain, and cannot be tried again once it is reported as failed.
            self._close_failure = error
        self._fail(error)

    def _finish(self, step: Callable[[], None]) -> None:
        """Take a step of closing, unless closing has failed for good."""
        with self._turn:
            if self._close_failure is not None:
                raise self._close_failure
            try:
                step()
            except BaseException as error:
                if self._attachment is None or not self._attachment.present:
                    self._close_failure = error
                raise

    def _acknowledge(self) -> None:
        """Wait for all that was written, and take no more."""
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

    def _leave(self) -> None:
        """Tell the gateway how it ended."""
        if self._attachment is None:
            return
        if self._failure is not None:
            self._attachment.fail(self._failure)
            return
        if self._ends is None:
            try:
                self._ends = self._found_ends()
            except KafkaFailure as error:
                if not error.retriable:
                    self._fail(error)
                raise
        self._attachment.leave(ends=self._ends)

    def _found_ends(self) -> Mapping[int, int] | None:
        """Return where each partition ends now that all is acknowledged; None: nothing written.

        Others' records may lie before these ends, so that readers read them too: they are there.
        Those of a writer that this one took the place of do.
        """
        if self._attachment is None:
            return None
        if not self.accepted_records and not self._attachment.attached.took_over:
            return None
        ends = self._identity.ends(range(self.connection.partitions), timeout_s=self._timeout_s)
        return {partition: end for partition, end in ends.items() if end}

    def _fail(self, error: BaseException) -> None:
        if self._attachment is not None:
            self._attachment.movement.records = self.accepted_records
            self._attachment.fail(error)

    def _send(self, messages: Messages) -> None:
        if not messages.values:
            return
        if self._attachment is not None and self._attachment.pristine:
            self._attachment.pristine = False
        try:
            self._delivery.send(messages)
        except DeliveryFailed as error:
            self._failure = error
            raise

    def _require_open(self) -> None:
        if self._failure is not None:
            raise EndpointClosed(
                f"this writer failed before and takes no more: {self._failure}"
            ) from self._failure
        if self._closed:
            raise EndpointClosed("this writer is closed; open a new one with channel.writer()")
        self._check()
