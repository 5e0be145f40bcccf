"""Record sender: validates, accumulates and produces records in the order of the writes."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any, TypeVar

import pyarrow as pa

from sluiceway.concurrency import FairLock
from sluiceway.endpoint.handle import EndpointHandle
from sluiceway.errors import (
    CommitUnknown,
    DeliveryFailed,
    EndpointClosed,
    Fenced,
    KafkaFailure,
    SluicewayError,
)
from sluiceway.kafka.accumulator import certain_row_bytes, record_accumulator
from sluiceway.kafka.config import MaskedProperties
from sluiceway.kafka.messages import Messages
from sluiceway.kafka.partitioner import Partitioning
from sluiceway.kafka.producer import IdempotentProducer
from sluiceway.kafka.topic import TopicIdentity
from sluiceway.ledger.intervals import DeliveredIntervals
from sluiceway.ledger.writer_batches import WriterBatches
from sluiceway.records import import_pandas, to_batches
from sluiceway.records.row_buffer import FULL, RowBuffer, Rows
from sluiceway.rest.models import Connection
from sluiceway.runtime.threads import call, start
from sluiceway.schema import Schema

__all__ = ["PreparedRecords", "RecordSender"]

LOGGER = logging.getLogger("sluiceway.writer")

T = TypeVar("T")

_GROWTH_RETRY_S = 1.0
_LINGER_S = 0.005
"""The time that single records wait for others, if some were produced within this time before."""

PreparedRecords = Rows | list[pa.RecordBatch]
"""Validated records of one write."""


class RecordSender:
    """Sends the records of one writer.

    `turn` is held to accumulate, send, or close; delivery reports do not take it. After `failure`
    nothing more is accepted. `failed_unnoticed` is true until a call has raised the failure of a
    background thread, or that of an interrupted call. `handle` and `batches` are set once the
    writer is an endpoint: with `batches`, each record is produced in an open batch.
    """

    def __init__(
        self,
        connection: Connection,
        schema: Schema,
        partitioning: Partitioning,
        *,
        row_by_row: bool,
        batch_records: int,
        delivery_timeout_s: float,
        timeout_s: float,
        config: MaskedProperties,
    ) -> None:
        """Verify the topic, and connect. Raises OptionError, TopicGone, KafkaUnavailable."""
        import_pandas()
        self.handle: EndpointHandle | None = None
        self.batches: WriterBatches | None = None
        self.turn = FairLock()
        self.failure: SluicewayError | None = None
        self.failed_unnoticed = False
        self.closed = False
        self.schema = schema
        self._timeout_s = timeout_s
        self._partitioning = partitioning
        self._accumulator = record_accumulator(
            connection, schema, partitioning, batch_records=batch_records
        )
        self.intervals = DeliveredIntervals.of(connection)
        self.identity = TopicIdentity(connection, config)
        self.identity.verify(timeout_s=timeout_s)
        self.producer = IdempotentProducer(
            connection,
            config,
            connect_timeout_s=timeout_s,
            delivery_timeout_s=delivery_timeout_s,
            on_delivery=None if self.intervals is None else self.intervals.add,
        )
        self._row_by_row = row_by_row
        self._rows = RowBuffer(schema, max_row_bytes=certain_row_bytes(connection, schema))
        # The trace of the oldest row's write, to which the requests for waiting rows belong.
        self._oldest_context = copy_context()
        self._lingering = False
        self._rows_sent_s = -math.inf
        self._batch_records = 0
        # The number of delivered records whose topic was certainly the channel's.
        self._confirmed_records = 0
        self._growth_due_s = 0.0

    @property
    def partitions(self) -> int:
        """The number of partitions that the writer uses."""
        return self._partitioning.partitions

    @property
    def accepted_records(self) -> int:
        """The number of records of the writes so far, acknowledged or not."""
        return self._batch_records + self._rows.added

    def prepare_few(self, records: Any) -> Rows | None:
        """Like `prepare` for a few records of common types; return None for others."""
        self.require_open()
        return self._rows.check(records) if self._row_by_row else None

    def prepare(self, records: Any) -> PreparedRecords:
        """Validate records for `write_prepared`. Raises RecordError, SchemaError, OptionError."""
        rows = self.prepare_few(records)
        return to_batches(records, self.schema) if rows is None else rows

    def write_prepared(self, prepared: PreparedRecords) -> int:
        """Write the result of `prepare`, and return the number of records.

        It may come from another writer with the same schema, format and message size.
        """
        if not isinstance(prepared, Rows):
            return self._write_batches(prepared)
        if not self._row_by_row:
            return self._write_batches(self._rows.to_batches(prepared.values))
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
            known = min(total, self.producer.discover_partitions())
        except KafkaFailure as error:
            # The partitions at hand are used on; a later write tries again.
            LOGGER.info("added partitions are used later: %s", error)
            return
        finally:
            # After the request, which may take longer than the pause.
            self._growth_due_s = time.monotonic() + _GROWTH_RETRY_S
        if known > partitioning.partitions:
            partitioning.grow(known)

    def flush(self) -> None:
        """Wait until everything is acknowledged and, with batches, commit it."""
        self.require_open()
        self._as_a_whole(self._send_all)
        if self.batches is not None:
            with self.turn:
                # Hold the turn: one thread serves the reports, and a batch ends with its writes.
                self.require_open()
                self.batches.flush()
            return
        # Other threads may write during this step; the second step makes them wait.
        self.producer.flush_briefly()
        self.deliver()

    def close_rows(self) -> None:
        """Accept no more rows."""
        self._rows.close()

    def nonempty_ends(self, partitions: Sequence[int]) -> dict[int, int]:
        """Return the end offsets of the given partitions that are not empty."""
        if not partitions:
            return {}
        ends = self.identity.ends(partitions, timeout_s=self._timeout_s)
        return {partition: end for partition, end in ends.items() if end}

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
        if self.handle is not None and self.batches is None:
            self.use_partitions(self.handle.partitions)

    def _record_cycle(self) -> None:
        if self.handle is not None:
            self.handle.record_cycle(self.accepted_records)

    def send_accumulated(self) -> None:
        """Produce the accumulated records."""
        self._send_rows(accumulated=True)

    def _send(self, messages: Messages) -> None:
        if not len(messages):
            return
        if self.batches is not None and not self.batches.admit(messages.records):
            return
        if self.handle is not None and self.handle.pristine:
            self.handle.pristine = False
        self.producer.send(messages)

    def deliver(self) -> None:
        """Wait until everything is acknowledged, in the channel's topic."""
        try:
            with self.turn:
                self.producer.flush(self._require_endpoint)
                delivered = self.producer.accepted_records
            # A topic that was created again acknowledges like the old one.
            if delivered != self._confirmed_records and self.identity.confirm_delivery(
                timeout_s=self._timeout_s
            ):
                self._confirmed_records = delivered
        except KafkaFailure as error:
            self._fail(error)
            raise

    def _require_endpoint(self) -> None:
        """Fail once the gateway has no record of the endpoint, as of a deleted channel.

        Kafka's client reports a deleted topic much later. A fenced writer's records stay.
        """
        if self.handle is None:
            return
        try:
            self.handle.check()
        except Fenced:
            return
        except SluicewayError as error:
            self._fail(error)
            raise

    def _fail(self, error: SluicewayError) -> None:
        """Refuse further work, and abort the open batch so that it does not hold back readers."""
        self.failure = error
        if self.batches is not None:
            self.batches.fail(error)

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
        if self.batches is not None or not isinstance(failure, DeliveryFailed):
            return failure
        return DeliveryFailed(
            partition=failure.partition,
            reason=failure.reason,
            written_records=failure.written_records,
            failed_records=self.accepted_records - failure.written_records,
        )

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
        if self.batches is not None:
            self.batches.end_abandoned()
        if self.closed:
            raise EndpointClosed("this writer is closed; open a new one with channel.writer()")
        if self.handle is not None:
            self.handle.check()
