"""ChannelWriter: writes records into a channel."""

import contextlib
import logging
import math
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from typing import Any, NoReturn, TypeVar

import pyarrow as pa

from sluiceway.api.arguments import check_seconds, whole_number
from sluiceway.api.ledger import LedgerCalls
from sluiceway.api.models import Connection
from sluiceway.concurrency import FairLock, this_process
from sluiceway.endpoint.attached import AttachedEndpoint
from sluiceway.endpoint.channel_endpoint import ChannelEndpoint
from sluiceway.endpoint.waiting import wait_for_commits
from sluiceway.errors import (
    CommitUnknown,
    DeliveryFailed,
    EndpointClosed,
    Fenced,
    GatewayError,
    KafkaFailure,
    OptionError,
    SluicewayError,
)
from sluiceway.kafka.accumulator import RecordAccumulator, certain_row_bytes, row_check
from sluiceway.kafka.config import MaskedProperties
from sluiceway.kafka.messages import Messages
from sluiceway.kafka.partitioner import Key, Partitioner, partitioning
from sluiceway.kafka.producer import IdempotentProducer
from sluiceway.kafka.topic import TopicIdentity
from sluiceway.ledger.intervals import DeliveredIntervals
from sluiceway.ledger.write_batch import WriteBatch
from sluiceway.ledger.writer_batches import WriterBatches
from sluiceway.records import import_pandas, to_batches
from sluiceway.records.row_buffer import FULL, RowBuffer, Rows
from sluiceway.runtime.threads import call, start
from sluiceway.schema import Schema
from sluiceway.tracing import ActiveSpan, channel_span

__all__ = ["ChannelWriter", "PreparedRecords"]

LOGGER = logging.getLogger("sluiceway.writer")

T = TypeVar("T")

_GROWTH_RETRY_S = 1.0
_LINGER_S = 0.005
"""The time that single records wait for others, if some were produced within this time before."""

PreparedRecords = Rows | list[pa.RecordBatch]
"""Validated records of one write."""


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
    the current write; later ones raise EndpointClosed.

    Ports and facades validate by `prepare`, and send by `write_prepared`. What `WriterBatches` uses
    is public as well. `turn` is held to accumulate, send, or close; delivery reports do not take
    it. After `failure` nothing more is accepted. It is `failed_unnoticed` until a call has raised
    the failure of a background thread, or that of an interrupted call.
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
        attach: Callable[[], AttachedEndpoint] | None = None,
    ) -> None:
        """Open a writer.

        `config` has further properties of a Kafka producer. `timeout_s` limits the check that the
        topic is the channel's. `attach` makes the writer an endpoint; it is called last, when
        nothing else can fail, and required for an exactly_once channel. Raises OptionError,
        TopicGone, KafkaUnavailable, and the errors of `attach`.
        """
        import_pandas()
        config = MaskedProperties(config or {})
        rows = whole_number(batch_records, 1)
        if rows is None:
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
        super().__init__(None)
        self.turn = FairLock()
        self.failure: SluicewayError | None = None
        self.failed_unnoticed = False
        self.closed = False
        self._close_failure: BaseException | None = None
        self._ends: Mapping[int, int] | None = None
        self._timeout_s = timeout_s
        self._partitioning = partitioning(
            self.schema,
            connection.partitions,
            key=key,
            partitioner=partitioner,
            partition=partition,
            key_partitioner=connection.partitioner,
        )
        self._accumulator = RecordAccumulator.of(
            connection, self.schema, self._partitioning, batch_records=rows
        )
        # A caller's function runs within the record's own `write`, and may refuse the record.
        self._row_by_row = not callable(key) and partitioner is None
        self._rows = RowBuffer(
            self.schema,
            max_row_bytes=certain_row_bytes(connection, self.schema),
            accepts=row_check(connection, self.schema),
        )
        # The trace of the oldest row's write, to which the requests for waiting rows belong.
        self._oldest_context = copy_context()
        self._lingering = False
        self._rows_sent_s = -math.inf
        self._batch_records = 0
        self._growth_due_s = 0.0
        self._identity = TopicIdentity(connection, config)
        self._identity.verify(timeout_s=timeout_s)
        intervals = DeliveredIntervals.of(connection)
        self.producer = IdempotentProducer(
            connection,
            config,
            connect_timeout_s=timeout_s,
            delivery_timeout_s=delivery_timeout_s,
            on_delivery=None if intervals is None else intervals.add,
        )
        self._batches: WriterBatches | None = None
        if attach is not None:
            self._handle = attach()
        if intervals is not None:
            with self.handle.reporting_failure():
                self._batches = self._create_batches(intervals, commit_every_s)
        this_process().finalize(self, _warn_if_open, weakref.ref(self))

    def write(self, records: Any) -> int:
        """Write one or many records and return their number.

        Takes a dict or an instance of a record class (a dataclass, a pydantic model, a
        msgspec.Struct, an attrs class, a NamedTuple), an iterable of these, a pandas.DataFrame, or
        anything with `__arrow_c_stream__`: tables and batches of pyarrow, frames of polars,
        relations of DuckDB, … An iterator may change a record and yield it again. All
        records are validated and encoded before any is sent, so one write should fit in memory,
        and after RecordError, SchemaError and OptionError none of its records was sent. Raises
        DeliveryFailed when Kafka refused a message of this or an earlier write; the writer cannot
        be used after that.
        """
        few = self._prepare_few(records)
        if few is not None:
            # They only join a buffer, which takes less time than a span.
            return self.write_prepared(few)
        with self._span("send", kind="send") as span:
            count = self.write_prepared(to_batches(records, self.schema))
            span.set("sluiceway.records", count)
        return count

    def prepare(self, records: Any) -> PreparedRecords:
        """Validate records for `write_prepared`. Raises RecordError, SchemaError, OptionError."""
        rows = self._prepare_few(records)
        return to_batches(records, self.schema) if rows is None else rows

    def write_prepared(self, prepared: PreparedRecords) -> int:
        """Write the result of `prepare`, and return the number of records.

        It may come from another writer with the same schema, format and message size.
        """
        if not isinstance(prepared, Rows):
            return self._write_batches(prepared)
        if not self._row_by_row:
            return self._write_batches(self._rows.to_batches(prepared.values))
        return self._buffer(prepared)

    def delete(self, key: Any) -> None:
        """Delete all records with a key that were written before, once Kafka compacts the topic.

        Writes a message with the key and without a value, in the order of the writes; see `deletes`
        of `ChannelReader`. `key` is a value of the writer's `key` field, or what its key function
        returns; the message is one record in its counts. Raises OptionError for a key of another
        type, for a writer without `key`, and on channels that are not compacted or exactly_once;
        otherwise like `write`.
        """
        self.require_open()
        connection = self.connection
        if not connection.compacted:
            exactly_once = connection.delivery == "exactly_once"
            raise OptionError(
                f"the channel {connection.channel_name!r} has no deletes: "
                + (
                    "its delivery is exactly_once, which excludes compaction. Write a record that "
                    "says it, or use a channel with the delivery at_least_once"
                    if exactly_once
                    else "its topic is not compacted. Set cleanup.policy to compact, as by "
                    'channel.update(config={"cleanup.policy": "compact"}), and open the writer '
                    "again"
                )
            )
        encoded = self._partitioning.encode_key(key)
        if not self._accumulator.fits(encoded):
            raise OptionError(
                f"the key to delete has {len(encoded):,} bytes, too many for a message of the "
                f"channel {connection.channel_name!r}"
            )
        self._buffer(Rows(encoded))

    def _buffer(self, prepared: Rows) -> int:
        count = len(prepared.values)
        buffered = self._rows.add(prepared)
        if not buffered:
            with self.turn:
                self.require_open()
        elif buffered >= FULL:
            self._send_rows_now()
        else:
            if buffered == count:
                self._oldest_context = copy_context()
            if not self._lingering:
                self._linger()
        return count

    def start_round_robin_at(self, partition: int) -> None:
        """Send the next record without a key to this partition; the first is random by default."""
        with self.turn:
            self._send_rows()
            self._partitioning.start_round_robin_at(partition)

    def flush(self) -> None:
        """Return when Kafka has acknowledged every record of all writes.

        On an exactly_once channel, they are then committed and visible, all together; in a
        `batch` only at its end. Raises DeliveryFailed, TopicGone if the topic was deleted and
        created again meanwhile, Conflict if a batch was lost, CommitUnknown, and OptionError in a
        `batch` that was not begun by a `with` statement, as by an ExitStack.
        """
        with self._span("flush"):
            self.require_open()
            self._as_a_whole(self._send_all)
            if self._batches is not None:
                with self.turn:
                    # Also while it is committed: a batch ends with its writes.
                    self.require_open()
                    self._batches.flush()
                return
            # Other threads may write during this step; the second step makes them wait.
            self.producer.flush_briefly()
            self.deliver()

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
        again afterwards, unless it was closed. Raises CommitUnknown while the gateway does not
        answer.
        """
        return self.batches.resolve(timeout_s=timeout_s)

    @property
    def batches(self) -> WriterBatches:
        """The writer's batches, for facades and transactions. Raises OptionError without any."""
        if self._batches is None:
            raise OptionError(
                f"the channel {self.connection.channel_name!r} has the delivery at_least_once, "
                'which has no batches: create a channel with delivery="exactly_once"'
            )
        return self._batches

    def wait_acknowledged(self, groups: Sequence[str], *, timeout_s: float = 60.0) -> None:
        """Flush, and return when these reading groups have committed past the written records.

        In every partition that this writer wrote to, a group must have committed up to the
        partition's current end; in a broadcast group, each member must. The group may get its
        first member during the wait. Raises the errors of `flush`, SluicewayTimeout with the
        missing messages by group and partition, and OptionError within a `batch` or transaction,
        whose records nobody can read before its end.
        """
        if self._batches is not None:
            self._batches.require_ended("wait for acknowledgements")
        self.flush()
        handle = self._handle
        if handle is None:
            raise OptionError(
                "a writer of a Connection alone has no gateway: open it with channel.writer()"
            )
        if self._batches is not None:
            ends = dict(self._batches.ends)
        else:
            partitions = range(self._partitioning.partitions)
            ends = self._nonempty_ends([*filter(self.producer.may_have_written_to, partitions)])
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
        self.require_open()
        partitions = range(self._partitioning.partitions)
        return self._identity.ends(partitions, timeout_s=self._timeout_s)

    def close(self) -> None:
        """Flush, report the end offsets, and detach. May be repeated.

        After a failed `write` or `flush` it only detaches. A failure in the background that no call
        has raised yet is raised. Index 0 of a group waits for the other members; SluicewayTimeout
        names those that are still attached after the `close_timeout_s` of `Channel.writer`. Raises
        Fenced for a superseded writer.

        A failure to write the last records is raised again by every call. After a KafkaUnavailable,
        or a GatewayError of the report that is not final, all records are written: call it again to
        retry. Any other failure is raised again.
        """
        self._close_step(self._finish_writing)
        # Waiting writes raise before this step, which may take long.
        self._close_step(self._detach)

    def is_unfinished(self, error: BaseException | None) -> bool:
        """Whether `error` left a block of this writer, which aborted its batch."""
        batches = self._batches
        return error is not None and batches is not None and batches.was_left_by(error)

    def abort(self, error: BaseException) -> None:
        """Discard unsent records, and report to the gateway that `error` ended this writer.

        After an interrupt of this, `close` does the rest, and raises EndpointClosed.
        """
        if not self.closed:
            # No call between the two: the interpreter handles interrupts at calls.
            self._close_failure = error
            self.closed = True
            self._rows.close()
            self.producer.discard()
            self._end_as_failed(error)
            self._close_failure = None
        elif self._handle is not None and self._handle.is_open:
            # A reported failure is final, so a failed `close` cannot be retried.
            self._close_failure = error
            self._end_as_failed(error)

    @property
    def accepted_records(self) -> int:
        """The number of records of the writes so far, acknowledged or not."""
        return self._batch_records + self._rows.added

    def use_partitions(self, total: int) -> None:
        """Send records without a key to added partitions too, once Kafka's client has them.

        `total` is the channel's number of partitions. Call it with the turn held.
        """
        partitioning = self._partitioning
        if total <= partitioning.partitions or not partitioning.follows_growth:
            return
        if time.monotonic() < self._growth_due_s:
            return
        try:
            partitions = min(total, self.producer.discover_partitions())
        except KafkaFailure as error:
            # The partitions at hand are used on; a later write tries again.
            LOGGER.info("added partitions are used later: %s", error)
            return
        finally:
            # After the request, which may take longer than the pause.
            self._growth_due_s = time.monotonic() + _GROWTH_RETRY_S
        if partitions > partitioning.partitions:
            partitioning.grow(partitions)

    def send_accumulated(self) -> None:
        """Produce the accumulated records."""
        self._send_rows(accumulated=True)

    def deliver(self) -> None:
        """Wait until everything is acknowledged, in the channel's topic."""
        try:
            with self.turn:
                self.producer.flush(self._require_endpoint)
                delivered = self.producer.accepted_records
            # A topic that was created again acknowledges like the old one.
            self._identity.confirm_delivery(delivered, timeout_s=self._timeout_s)
        except KafkaFailure as error:
            self._fail(error)
            raise

    def discard_accumulated(self) -> None:
        """Discard records that are not produced yet."""
        self._rows.drain()
        self._accumulator.drain()

    def require_open(self) -> None:
        """Raise unless the writer may be used."""
        if self.failure is not None:
            if self.failed_unnoticed or isinstance(self.failure, CommitUnknown):
                self.failed_unnoticed = False
                raise self._with_unsent(self.failure)
            raise EndpointClosed(
                f"this writer failed, so it cannot be used any more: {self.failure}"
            ) from self.failure
        if self._batches is not None:
            self._batches.end_abandoned()
        if self.closed:
            raise EndpointClosed("this writer is closed; open a new one with channel.writer()")
        if self._handle is not None:
            self._handle.check()

    def _span(
        self, operation: str, *, kind: str | None = None
    ) -> contextlib.AbstractContextManager[ActiveSpan]:
        connection = self.connection
        return channel_span(
            operation, connection.channel_name, kind=kind, topic=connection.topic_name
        )

    def _prepare_few(self, records: Any) -> Rows | None:
        """Like `prepare` for a few records of common types; return None for others."""
        self.require_open()
        return self._rows.check(records) if self._row_by_row else None

    def _write_batches(self, batches: Sequence[pa.RecordBatch]) -> int:
        def write() -> int:
            self.require_open()
            self._send_rows()
            self._follow_growth()
            messages = self._accumulator.add(batches)
            try:
                count: int = sum(batch.num_rows for batch in batches)
                self._batch_records += count
                self._send(messages)
            except BaseException as error:
                self._fail_interrupted(error)
                raise
            self._record_cycle()
            return count

        return self._as_a_whole(write)

    def _send_rows_now(self) -> None:
        def send() -> None:
            # If another thread has closed the writer meanwhile, it has sent these rows.
            if not self.closed:
                self.require_open()
                self._send_rows()

        self._as_a_whole(send)

    def _send_all(self) -> None:
        self.require_open()
        self.send_accumulated()

    def _as_a_whole(self, work: Callable[[], T]) -> T:
        """Run `work` with the turn, in a thread where no signal handler runs.

        An interrupt, such as `sys.exit()` in a handler of SIGTERM, ends the wait for it. The work
        then goes on to its end, or is left out if it has not begun: nobody who takes the turn after
        the interrupt sees a part of it.
        """
        interrupted = failed = False

        def run() -> T:
            nonlocal failed
            with self.turn:
                if interrupted:
                    raise EndpointClosed("an interrupt came before these records were sent")
                try:
                    return work()
                except SluicewayError:
                    if self.failure is not None:
                        # The interrupted caller does not get it.
                        self.failed_unnoticed = failed = True
                    raise

        try:
            return run() if self.turn.held else call(run)
        except BaseException as error:
            interrupted = True
            if failed and isinstance(error, SluicewayError):
                self.failed_unnoticed = False
            raise

    def _linger(self) -> None:
        """Send the buffered rows a moment later, in another thread."""
        try:
            start(self._send_lingering)
        except RuntimeError:  # no more threads
            self._send_rows_now()

    def _send_lingering(self) -> None:
        # Set by the thread that clears it: an interrupt before its start leaves nothing behind.
        self._lingering = True
        after_pause = True
        while (wait_s := self._rows_sent_s + _LINGER_S - time.monotonic()) > 0:
            # Rows that were added after the last send have not waited as long.
            after_pause = False
            time.sleep(wait_s)
        self._oldest_context.copy().run(self._send_waiting, after_pause)

    def _send_waiting(self, after_pause: bool) -> None:
        with self.turn:
            self._lingering = False
            if self.failure is not None:
                return
            alone = after_pause and not self.producer.missing
            try:
                self.require_open()
                self._send_rows()
            except SluicewayError:
                # The next call raises it, if only `close`.
                self.failed_unnoticed = self.failure is not None
            except Exception:
                # The next call raises that the writer has failed, with this error as the cause.
                LOGGER.exception("records of a writer were not sent in the background")
        if alone:
            # Kafka's client would wait for others.
            self.producer.flush_briefly()

    def _send_rows(self, *, accumulated: bool = False) -> None:
        """Send the buffered rows, before anything that is written after them.

        `accumulated`: then also the accumulated records, which do not fill a message yet.
        """
        try:
            rows = self._rows.drain()
            if rows:
                self._rows_sent_s = time.monotonic()
                self._follow_growth()
                self._send(self._accumulator.add(rows))
                self._record_cycle()
            if accumulated:
                self._send(self._accumulator.drain())
        except BaseException as error:
            self._fail_interrupted(error)
            raise

    def _follow_growth(self) -> None:
        """Use the partitions of the last heartbeat; batches use those with which they opened."""
        if self._handle is not None and self._batches is None:
            self.use_partitions(self._handle.partitions)

    def _record_cycle(self) -> None:
        if self._handle is not None:
            self._handle.record_cycle(self.accepted_records)

    def _send(self, messages: Messages) -> None:
        if not len(messages):
            return
        if self._batches is not None and not self._batches.admit(messages.records):
            return
        if self._handle is not None and self._handle.pristine:
            self._handle.pristine = False
        self.producer.send(messages)

    def _require_endpoint(self) -> None:
        """Fail once the gateway has no record of the endpoint, as of a deleted channel.

        Kafka's client reports a deleted topic much later. A fenced writer's records stay.
        """
        if self._handle is None:
            return
        try:
            self._handle.check()
        except Fenced:
            return
        except SluicewayError as error:
            self._fail(error)
            raise

    def _fail(self, error: SluicewayError) -> None:
        """Refuse further work, and abort the open batch so that it does not hold back readers."""
        self.failure = error
        if self._batches is not None:
            self._batches.fail(error)

    def _fail_interrupted(self, error: BaseException) -> None:
        """Refuse further work if records of earlier writes were lost without a failure."""
        if self.failure is not None:
            return
        if isinstance(error, SluicewayError):
            self._fail(error)
            return
        failure = EndpointClosed(
            f"{type(error).__name__} interrupted a writer while it sent records, so some of its "
            "records may not be written. Open a new writer, and write again what was not flushed"
        )
        failure.__cause__ = error
        self._fail(failure)
        # The interrupt does not say that earlier writes are affected.
        self.failed_unnoticed = True

    def _with_unsent(self, failure: SluicewayError) -> SluicewayError:
        """Return a background thread's failure that also counts the records that wait here."""
        if self._batches is not None or not isinstance(failure, DeliveryFailed):
            return failure
        return DeliveryFailed(
            partition=failure.partition,
            reason=failure.reason,
            written_records=failure.written_records,
            failed_records=self.accepted_records - failure.written_records,
        )

    def _nonempty_ends(self, partitions: Sequence[int]) -> dict[int, int]:
        """Return the end offsets of the given partitions that are not empty."""
        if not partitions:
            return {}
        ends = self._identity.ends(partitions, timeout_s=self._timeout_s)
        return {partition: end for partition, end in ends.items() if end}

    def _close_step(self, step: Callable[[], None]) -> None:
        """Run a step of closing, unless closing has failed for good."""
        with self.turn:
            if self._close_failure is not None:
                self._raise_again(self._close_failure)
            try:
                step()
            except Exception as error:
                unreported = isinstance(error, GatewayError) and not error.is_final and self.closed
                if not unreported and (self._handle is None or not self._handle.is_open):
                    self._close_failure = error
                raise

    def _raise_again(self, failure: BaseException) -> NoReturn:
        """Raise the failure of closing, or EndpointClosed after an interrupt or another error."""
        # A second interrupt may have come before the end of this.
        self._end_as_failed(failure)
        if isinstance(failure, SluicewayError):
            raise failure
        raise EndpointClosed(
            f"{type(failure).__name__} ended a writer before it was closed, so records since its "
            "last flush may not be written. Open a new writer, and write them again"
        ) from failure

    def _finish_writing(self) -> None:
        if self.closed:
            return
        if self._batches is not None:
            self._batches.require_ended("close it")
        try:
            self._rows.close()
            if self.failure is None or self.failed_unnoticed:
                self.flush()
        except BaseException as error:
            # Also an outage: its records are lost, so no repeated call may succeed.
            self._close_failure = error
            self._end_as_failed(error)
            raise
        finally:
            self.closed = True
        self._end_batches()

    def _end_batches(self, error: BaseException | None = None) -> None:
        if self._batches is not None:
            self._batches.close(error)

    def _detach(self) -> None:
        if self._handle is None:
            return
        if self.failure is not None:
            self._handle.fail(self.failure)
            return
        if self._ends is None and (self.accepted_records or self._handle.attached.took_over):
            # The ends may include records of other writers. They must include those of a
            # predecessor in this place.
            try:
                self._ends = self._nonempty_ends(range(self._partitioning.partitions))
            except KafkaFailure as error:
                if not error.retriable:
                    self._report_failure(error)
                raise
        self._handle.detach(ends=self._ends)

    def _end_as_failed(self, error: BaseException) -> None:
        self._end_batches(error)
        self._report_failure(error)

    def _report_failure(self, error: BaseException) -> None:
        if self._handle is not None:
            self._handle.metrics.records = self.accepted_records
            self._handle.fail(error)

    def _create_batches(
        self, intervals: DeliveredIntervals, commit_every_s: float
    ) -> WriterBatches:
        handle = self.handle
        member = handle.membership
        return WriterBatches(
            self,
            self.turn,
            LedgerCalls(handle.calls.transport),
            self.connection,
            intervals,
            writer_id=handle.id,
            place=None if member is None else f"{member.group}[{member.index}]",
            commit_every_s=commit_every_s,
        )


def _warn_if_open(writer: weakref.ref[ChannelWriter]) -> None:
    """Log a writer that is open when the process ends; one that is collected is gone by now."""
    open_writer = writer()
    if open_writer is not None and not open_writer.closed and open_writer.failure is None:
        LOGGER.warning(
            "a writer of the channel %r was not closed before the process ended: records since its "
            "last flush may be missing, and readers wait until it is lost. Use `with`, or close it",
            open_writer.connection.channel_name,
        )
