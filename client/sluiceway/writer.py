"""ChannelWriter: writes records into a channel."""

import contextlib
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from sluiceway.concurrency import ForkGuard
from sluiceway.endpoint.channel_endpoint import ChannelEndpoint
from sluiceway.endpoint.handle import EndpointHandle
from sluiceway.endpoint.waiting import wait_for_commits
from sluiceway.errors import EndpointClosed, GatewayUnavailable, KafkaFailure, OptionError
from sluiceway.kafka.config import MaskedProperties
from sluiceway.kafka.partitioner import Key, Partitioner, partitioning
from sluiceway.ledger.write_batch import WriteBatch
from sluiceway.ledger.writer_batches import WriterBatches
from sluiceway.record_sender import RecordSender
from sluiceway.records import to_batches
from sluiceway.rest.arguments import check_seconds
from sluiceway.rest.ledger import LedgerCalls
from sluiceway.rest.models import Connection
from sluiceway.schema import Schema
from sluiceway.tracing import ActiveSpan, channel_span

__all__ = ["ChannelWriter"]

LOGGER = logging.getLogger("sluiceway.writer")


class ChannelWriter(ChannelEndpoint):
    """Writes records into a channel; opened by `Channel.writer()`, or with a Connection alone.

    By default, records go round robin over the partitions, in `arrow` message by message. With
    `key` (a field name, or a function of the record that returns str, bytes, a 64-bit int or None),
    records with the same key go to one partition, the same as with Kafka's Java producers;
    records without a key go round robin. `partitioner` is a function of the record and the number
    of partitions; with `partition` all records go to this partition. The order within a partition
    is that of the writes. When the channel grows, records of a writer without `key`, `partitioner`
    and `partition` go to the added partitions too, within ten seconds, or with the next batch;
    other writers use the partitions that the channel had when they were opened, so that keys of an
    open writer do not move.

    `write` returns before Kafka has acknowledged the records; `flush` and leaving `with` wait for
    that. Single records are checked at once, wait a few milliseconds for others, and are encoded
    together; with a function as `key` or with `partitioner`, each write is encoded alone. In
    `arrow`, rows accumulate until there are `batch_records`, or until `flush`. A message fails
    after `delivery_timeout_s` without acknowledgement.

    A writer of `Channel.writer()` reports its end offsets to the gateway when it is closed, and
    readers read up to them. If an exception ends it, it reports the failure, and whether it may
    have written anything.

    On a channel with delivery exactly_once, records are invisible until they are committed: by
    `flush`, which is atomic, by `close`, and every `commit_every_s`. Leaving `with` by an exception
    aborts the uncommitted ones. `batch` makes a block all or nothing, and idempotent by a key. A
    failed `flush` ends the writer, except by CommitUnknown: see `resolve`.

    A KeyboardInterrupt in `write` leaves its records wholly written or not at all, and the writer
    usable. One while `close`, or the begin or end of a `batch`, sends records ends the writer: the
    next call raises EndpointClosed, because records since the last `flush` may not be written.

    Thread-safe: writes are sent one after the other, in the order of the calls. `close` waits for
    the current write; later ones raise EndpointClosed. `sender` validates and sends in two steps,
    for ports and facades.
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
        commit_every_s: float = 5.0,
        config: Mapping[str, object] | None = None,
        attach: Callable[[], EndpointHandle] | None = None,
    ) -> None:
        """Open a writer.

        `config` has further properties of a Kafka producer. `timeout_s` limits the check that the
        topic is the channel's. `attach` makes the writer an endpoint; it is called last, when
        nothing else can fail, and required for an exactly_once channel. Raises OptionError,
        TopicGone, KafkaUnavailable, and the errors of `attach`.
        """
        config = MaskedProperties(config or {})
        if type(batch_records) is not int or batch_records < 1:
            raise OptionError(f"batch_records is {batch_records!r}; it takes a number from 1")
        for name, value in (("delivery_timeout_s", delivery_timeout_s), ("timeout_s", timeout_s)):
            check_seconds(name, value, 1)
        check_seconds("commit_every_s", commit_every_s, 0.001)
        exactly_once = connection.delivery == "exactly_once"
        if exactly_once and attach is None:
            raise OptionError(
                "a writer of an exactly_once channel commits at the gateway: open it with "
                "channel.writer()"
            )
        self.connection = connection
        self.schema = Schema.parse(connection.schema_definition)
        self._timeout_s = timeout_s
        self.sender = RecordSender(
            connection,
            self.schema,
            partitioning(
                self.schema,
                connection.partitions,
                key=key,
                partitioner=partitioner,
                partition=partition,
            ),
            # A caller's function runs within the record's own `write`, and may refuse the record.
            row_by_row=not callable(key) and partitioner is None,
            batch_records=batch_records,
            delivery_timeout_s=delivery_timeout_s,
            timeout_s=timeout_s,
            config=config,
        )
        self._close_failure: BaseException | None = None
        self._ends: Mapping[int, int] | None = None
        super().__init__(None if attach is None else attach())
        self.sender.handle = self._handle
        if exactly_once:
            with self.handle.reporting_failure():
                self.sender.batches = self._create_batches(commit_every_s)
        ForkGuard().finalize(self, _warn_if_open, weakref.ref(self))

    def write(self, records: Any) -> int:
        """Write one or many records and return their number.

        Takes a dict or a dataclass instance, an iterable of these, a pyarrow.Table or
        RecordBatch, or a pandas.DataFrame. An iterator may change a record and yield it again. All
        records are validated and encoded before any is sent, so one write should fit in memory,
        and after RecordError, SchemaError and OptionError none of its records was sent. Raises
        DeliveryFailed when Kafka refused a message of this or an earlier write; the writer cannot
        be used after that.
        """
        sender = self.sender
        few = sender.prepare_few(records)
        if few is not None:
            # They only join a buffer, which takes less time than a span.
            return sender.write_prepared(few)
        with self._span("send", kind="send") as span:
            count = sender.write_prepared(to_batches(records, self.schema))
            span.set("sluiceway.records", count)
        return count

    def start_round_robin_at(self, partition: int) -> None:
        """Send the next record without a key to this partition; the first is random by default."""
        self.sender.start_round_robin_at(partition)

    def flush(self) -> None:
        """Return when Kafka has acknowledged every record of all writes.

        On an exactly_once channel, they are then committed and visible, all together; in a
        `batch` only at its end. Raises DeliveryFailed, TopicGone if the topic was deleted and
        created again meanwhile, Conflict if a batch was lost, CommitUnknown, and OptionError in a
        `batch` that was not begun by a `with` statement, as by an ExitStack.
        """
        with self._span("flush"):
            self.sender.flush()

    def batch(
        self, key: str, *, owner: str | None = None
    ) -> contextlib.AbstractContextManager[WriteBatch, None]:
        """Write a batch: the block's records become visible together, or none of them.

        Idempotent by `key`: if it was committed before, the block runs, nothing is written, and
        `replayed` of the result is true; a different number of records raises ReplayMismatch. A
        key belongs to its `owner`, by default the writer's place in its group, or else the key
        itself. Records that were written before the block are committed first. The block includes
        the writes of all threads, and `flush` commits nothing in it. An exception in the block, or
        an interrupt that ends it, aborts the batch, and the writer remains usable. Only on
        exactly_once channels.

        Raises Conflict: `batch_key_taken` for a key of another owner, `batch_open` while another
        live writer has it; and CommitUnknown: write the batch again, or call `resolve`.
        """
        return self.batches.block(key, owner=owner)

    def resolve(self, *, timeout_s: float | None = None) -> bool | None:
        """Return whether the batch of the last CommitUnknown was committed; None without one.

        If it was not committed, it never will be: write its records again. The writer is usable
        again afterwards. Raises CommitUnknown while the gateway does not answer.
        """
        return self.batches.resolve(timeout_s=timeout_s)

    @property
    def batches(self) -> WriterBatches:
        """The writer's batches, for facades and transactions. Raises OptionError without any."""
        if self.sender.batches is None:
            raise OptionError(
                f"the channel {self.connection.channel_name!r} has the delivery at_least_once, "
                'which has no batches: create a channel with delivery="exactly_once"'
            )
        return self.sender.batches

    def wait_acknowledged(self, groups: Sequence[str], *, timeout_s: float = 60.0) -> None:
        """Flush, and return when these reading groups have committed past the written records.

        In every partition that this writer wrote to, a group must have committed up to the
        partition's current end; in a broadcast group, each member must. The group may get its
        first member during the wait. Raises the errors of `flush`, SluicewayTimeout with the
        missing messages by group and partition, and OptionError within a `batch` or transaction,
        whose records nobody can read before its end.
        """
        if self.sender.batches is not None:
            self.sender.batches.require_ended("wait for acknowledgements")
        self.flush()
        handle = self._handle
        if handle is None:
            raise OptionError(
                "a writer of a Connection alone has no gateway: open it with channel.writer()"
            )
        if self.sender.batches is not None:
            ends = dict(self.sender.batches.ends)
        else:
            written_to = range(self.sender.partitions)
            ends = self.sender.nonempty_ends(
                [*filter(self.sender.producer.may_have_written_to, written_to)]
            )
        wait_for_commits(
            handle.calls,
            handle.channel,
            uid=handle.uid,
            topic_id=self.connection.topic_id,
            groups=groups,
            ends=ends,
            timeout_s=timeout_s,
        )

    def end_offsets(self) -> dict[int, int]:
        """Return the offset after the last message of each partition."""
        self.sender.require_open()
        return self.sender.identity.ends(range(self.sender.partitions), timeout_s=self._timeout_s)

    def close(self) -> None:
        """Flush, report the end offsets, and detach. May be repeated.

        After a failed `write` or `flush` it only detaches. A failure in the background that no call
        has raised yet is raised. Index 0 of a group waits for the other members; SluicewayTimeout
        names those that are still attached after the `close_timeout_s` of `Channel.writer`. Raises
        Fenced for a superseded writer.

        A failure to write the last records is raised again by every call. After a KafkaUnavailable
        or GatewayUnavailable of the report all records are written: call it again to retry. Any
        other failure is raised again.
        """
        self._close_step(self._finish_writing)
        # Waiting writes raise before this step, which may take long.
        self._close_step(self._detach)

    def is_unfinished(self, error: BaseException | None) -> bool:
        """Whether `error` left a block of this writer, which aborted its batch."""
        batches = self.sender.batches
        return error is not None and batches is not None and batches.was_left_by(error)

    def abort(self, error: BaseException) -> None:
        """Discard unsent records, and report to the gateway that `error` ended this writer."""
        if not self.sender.closed:
            self.sender.closed = True
            self.sender.close_rows()
            self.sender.producer.discard()
            self._end_batches(error)
        elif self._handle is not None and self._handle.is_open:
            # A reported failure is final, so a failed `close` cannot be retried.
            self._close_failure = error
        self._fail(error)

    @property
    def accepted_records(self) -> int:
        """The number of records of the writes so far, acknowledged or not."""
        return self.sender.accepted_records

    def _span(
        self, operation: str, *, kind: str | None = None
    ) -> contextlib.AbstractContextManager[ActiveSpan]:
        connection = self.connection
        return channel_span(
            operation, connection.channel_name, kind=kind, topic=connection.topic_name
        )

    def _close_step(self, step: Callable[[], None]) -> None:
        """Run a step of closing, unless closing has failed for good."""
        with self.sender.turn:
            if self._close_failure is not None:
                self._raise_again(self._close_failure)
            try:
                step()
            except Exception as error:
                unreported = isinstance(error, GatewayUnavailable) and self.sender.closed
                if not unreported and (self._handle is None or not self._handle.is_open):
                    self._close_failure = error
                raise

    def _raise_again(self, failure: BaseException) -> NoReturn:
        """Raise the failure of closing, or of an interrupted close that the writer has failed."""
        # A second interrupt may have come before the end of these.
        self._end_batches(failure)
        self._fail(failure)
        if isinstance(failure, Exception):
            raise failure
        raise EndpointClosed(
            f"{type(failure).__name__} interrupted a writer while it was closed, so records since "
            "its last flush may not be written. Open a new writer, and write them again"
        ) from failure

    def _finish_writing(self) -> None:
        if self.sender.closed:
            return
        if self.sender.batches is not None:
            self.sender.batches.require_ended("close it")
        try:
            self.sender.close_rows()
            if self.sender.failure is None or self.sender.failed_unnoticed:
                self.flush()
        except BaseException as error:
            # Also an outage: its records are lost, so no repeated call may succeed.
            self._close_failure = error
            self._end_batches(error)
            self._fail(error)
            raise
        finally:
            self.sender.closed = True
        self._end_batches()

    def _end_batches(self, error: BaseException | None = None) -> None:
        if self.sender.batches is not None:
            self.sender.batches.close(error)

    def _detach(self) -> None:
        if self._handle is None:
            return
        if self.sender.failure is not None:
            self._handle.fail(self.sender.failure)
            return
        if self._ends is None and (self.accepted_records or self._handle.attached.took_over):
            # The ends may include records of other writers. They must include those of a
            # predecessor in this place.
            try:
                self._ends = self.sender.nonempty_ends(range(self.sender.partitions))
            except KafkaFailure as error:
                if not error.retriable:
                    self._fail(error)
                raise
        self._handle.detach(ends=self._ends)

    def _fail(self, error: BaseException) -> None:
        if self._handle is not None:
            self._handle.metrics.records = self.accepted_records
            self._handle.fail(error)

    def _create_batches(self, commit_every_s: float) -> WriterBatches:
        handle, sender = self.handle, self.sender
        assert sender.intervals is not None  # noqa: S101 - the channel is exactly_once
        member = handle.membership
        return WriterBatches(
            sender,
            sender.turn,
            LedgerCalls(handle.calls.transport),
            self.connection,
            sender.intervals,
            writer_id=handle.id,
            place=None if member is None else f"{member.group}[{member.index}]",
            commit_every_s=commit_every_s,
        )


def _warn_if_open(writer: weakref.ref[ChannelWriter]) -> None:
    """Log a writer that is open when the process ends; one that is collected is gone by now."""
    found = writer()
    if found is not None and not found.sender.closed and found.sender.failure is None:
        LOGGER.warning(
            "a writer of the channel %r was not closed before the process ended: records since its "
            "last flush may be missing, and readers wait until it is lost. Use `with`, or close it",
            found.connection.channel_name,
        )
