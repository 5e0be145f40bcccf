"""Commits of a writer: at each flush, by time, at the end of a block, and in transactions."""

import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, Self

from sluiceway.concurrency import FairLock, ForkGuard
from sluiceway.endpoint.handle import EndpointHandle
from sluiceway.errors import (
    CommitUnknown,
    KafkaFailure,
    OptionError,
    ReplayMismatch,
    SluicewayError,
    StaleGeneration,
)
from sluiceway.ledger.batch_sequence import BatchSequence
from sluiceway.ledger.write_batch import WriteBatch
from sluiceway.rest.endpoint_models import Position
from sluiceway.rest.ledger_models import PositionAdvance

__all__ = ["BatchWriter", "BatchedWriter", "Transaction", "TransactionalReader", "WriterBatches"]

LOGGER = logging.getLogger("sluiceway.ledger.writer_batches")


class BatchedWriter(Protocol):
    """What a writer does for its batches, with its turn held."""

    failure: SluicewayError | None
    """Why it refuses further work, if it does."""

    def require_open(self) -> None:
        """Raise unless it may be used."""

    def send_accumulated(self) -> None:
        """Produce everything that was written."""

    def discard_accumulated(self) -> None:
        """Forget what was written and not produced yet."""

    def deliver(self) -> None:
        """Wait until Kafka has acknowledged everything. Raises KafkaFailure."""


class WriterBatches:
    """Ends the batches of a writer when everything in them is acknowledged.

    Thread-safe, by the writer's turn. A failure ends the writer and aborts its batch at once, so
    that it does not hold readers back.
    """

    def __init__(
        self,
        writer: BatchedWriter,
        sequence: BatchSequence,
        turn: FairLock,
        *,
        commit_every_s: float,
    ) -> None:
        # Timers must not keep a writer that was dropped.
        self._writer: BatchedWriter = weakref.proxy(writer)
        self._sequence = sequence
        self._turn = turn
        self._commit_every_s = commit_every_s
        self._fork_guard = ForkGuard()

    @property
    def in_block(self) -> bool:
        """Whether a block decides when the current batch ends."""
        return self._sequence.in_block

    @property
    def ends(self) -> Mapping[int, int]:
        """By partition, the offset after the last record that was committed."""
        return self._sequence.ends

    def admit(self, records: int) -> bool:
        """Whether messages with so many records may be produced now; opens a batch if needed."""
        sequence = self._sequence
        before = sequence.current
        try:
            admitted = sequence.admit(records)
        except SluicewayError as error:
            # The caller has its records no more.
            self.fail(error)
            raise
        if before is None and not sequence.in_block:
            self._commit_later(sequence.current)
        return admitted

    def flush(self) -> None:
        """Wait for acknowledgements, then commit, except within a block."""
        self._writer.deliver()
        if not self._sequence.in_block:
            self._commit(None, None)

    @contextmanager
    def block(self, key: str, *, owner: str | None = None) -> Iterator[WriteBatch]:
        """Commit what is written in the block, or abort it after an exception."""
        batch = self.begin(key, owner=owner)
        assert batch is not None  # noqa: S101 - a batch with a key is open
        try:
            yield batch
        except BaseException as error:
            self.abort(error)
            raise
        try:
            self.commit()
        except (CommitUnknown, ReplayMismatch):
            raise
        except BaseException as error:
            self.abort(error)
            raise

    def begin(self, key: str | None, *, owner: str | None = None) -> WriteBatch | None:
        """Begin a block, which `commit` or `abort` ends.

        What was written before is committed first. Without a key, the batch is opened with its
        first message.
        """
        with self._turn:
            self._writer.require_open()
            if not self._sequence.in_block:
                self._writer.send_accumulated()
                self.flush()
            return self._sequence.begin(key, owner)

    def commit(
        self,
        positions: PositionAdvance | None = None,
        *,
        on_resolved: Callable[[bool], None] | None = None,
    ) -> None:
        """Commit the batch of a block, and positions of a reader with it.

        After CommitUnknown, `on_resolved` is called with the answer to `resolve`.
        """
        with self._turn:
            self._writer.require_open()
            self._writer.send_accumulated()
            self._writer.deliver()
            self._commit(positions, on_resolved)

    def abort(self, error: BaseException) -> None:
        """Abort the batch of a block; the writer goes on. Does nothing in a forked child."""
        if self._fork_guard.forked:
            return
        writer = self._writer
        with self._turn:
            writer.discard_accumulated()
            if writer.failure is None:
                try:
                    # The reports of messages that are on their way belong to this batch.
                    writer.deliver()
                except KafkaFailure as failure:
                    LOGGER.warning("a writer failed while its batch was aborted: %s", failure)
            self._sequence.abort(error)

    def fail(self, error: SluicewayError) -> None:
        """End the writer with an error, and abort its current batch."""
        self._writer.failure = error
        self._sequence.abort(error)

    def resolve(self, *, timeout_s: float | None = None) -> bool | None:
        """Return whether the batch of the last CommitUnknown was committed; None without one."""
        with self._turn:
            committed = self._sequence.resolve(timeout_s=timeout_s)
            if isinstance(self._writer.failure, CommitUnknown):
                self._writer.failure = None
            return committed

    def close(self, error: BaseException | None = None) -> None:
        """Abort what is not committed, and renew no more leases."""
        if error is not None:
            with self._turn:
                self._sequence.abort(error)
        self._sequence.close()

    def require_ended(self) -> None:
        """Raise OptionError within a block."""
        if self._sequence.in_block:
            raise OptionError("this writer is in a batch: leave its block before it is closed")

    def _commit(
        self, positions: PositionAdvance | None, on_resolved: Callable[[bool], None] | None
    ) -> None:
        try:
            self._sequence.commit(positions, on_resolved=on_resolved)
        except ReplayMismatch:
            raise
        except CommitUnknown as error:
            self._writer.failure = error
            raise
        except SluicewayError as error:
            self.fail(error)
            raise

    def _commit_later(self, batch: WriteBatch | None) -> None:
        """Commit a batch after a time, so that it does not hold readers back."""
        batches = weakref.ref(self)

        def commit() -> None:
            found = batches()
            if found is not None:
                found._commit_if_current(batch)  # noqa: SLF001

        timer = threading.Timer(self._commit_every_s, commit)
        timer.daemon = True
        timer.start()

    def _commit_if_current(self, batch: WriteBatch | None) -> None:
        with self._turn:
            if self._sequence.current is not batch or self._sequence.in_block:
                return
            try:
                self._writer.require_open()
                self._writer.send_accumulated()
                self.flush()
            except SluicewayError as error:
                # The next call raises it.
                LOGGER.warning("a writer's commit by time failed: %s", error)


class TransactionalReader(Protocol):
    """A reader whose positions a transaction commits."""

    in_transaction: bool
    """True while a transaction commits its positions, so that it commits none by itself."""

    @property
    def handle(self) -> EndpointHandle:
        """The reader's endpoint. Raises OptionError if it has none."""

    @property
    def revocations(self) -> int:
        """Number of times that partitions were revoked."""

    def commit_with(self, send: Callable[[PositionAdvance | None], None]) -> None:
        """Commit the positions by a request of the caller; None: they did not move."""

    def mark_committed(self, positions: Mapping[int, Position]) -> None:
        """Note positions that a commit of `commit_with` has stored after all."""

    def rewind(self) -> None:
        """Hand out again what was handed out since the last commit."""

    def suspend(self, error: SluicewayError | None) -> None:
        """Refuse further work with an error; None ends that."""


class BatchWriter(Protocol):
    """A writer with batches."""

    @property
    def handle(self) -> EndpointHandle:
        """The writer's endpoint. Raises OptionError if it has none."""

    @property
    def batches(self) -> WriterBatches:
        """The writer's batches. Raises OptionError if it has none."""


class Transaction:
    """A block whose output and input are committed together, or not at all.

    Everything written in the block becomes visible in one commit, which also stores the reader's
    positions for its group: all records that were handed out, also within a message, and before
    the block. After an exception in the block, or of the commit, nothing was written, and the
    reader hands out again what it has handed out since its last commit. A transaction may be used
    again for the next block.

    After CommitUnknown neither is known: reader and writer refuse further work until
    `writer.resolve()`, after which the reader continues behind that, or at its last commit.

    Not thread-safe: while the block runs, the reader is the transaction's alone, and commits
    nothing else.
    """

    def __init__(self, reader: TransactionalReader, writer: BatchWriter) -> None:
        """Combine a reader with a group, and a writer of an exactly_once channel.

        Raises OptionError for others, and for those of two gateways.
        """
        if reader.handle.membership is None:
            raise OptionError(
                "a transaction commits the positions of a group: open the reader with "
                "channel.reader(group=…)"
            )
        if reader.handle.calls.identity != writer.handle.calls.identity:
            raise OptionError(
                "the reader and the writer of a transaction have different gateways: open both "
                "with the same Gateway"
            )
        self._reader, self._writer = reader, writer
        self._batches = writer.batches
        self._revocations = 0

    def __enter__(self) -> Self:
        """Begin a block. What was written before is committed first."""
        if self._reader.in_transaction:
            raise OptionError(
                "this reader is in a transaction already: its positions are committed with the "
                "output of one writer. Leave the block before the next one begins"
            )
        self._revocations = self._reader.revocations
        self._batches.begin(None)
        self._reader.in_transaction = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._end(error)
        finally:
            self._reader.in_transaction = False

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            self._batches.abort(error)
            self._rewind()
            return
        try:
            self._require_assignment()
            self._reader.commit_with(self._commit)
        except CommitUnknown as unknown:
            self._reader.suspend(unknown)
            raise
        except BaseException as failure:
            self._batches.abort(failure)
            self._rewind()
            raise

    def _require_assignment(self) -> None:
        """Raise unless all that was read in the block is still this reader's to commit."""
        if self._reader.revocations != self._revocations:
            raise StaleGeneration(
                "partitions were taken from the reader within a transaction, so nothing of it was "
                "committed. Their records go to other members; read on, in shorter transactions"
            )

    def _commit(self, advance: PositionAdvance | None) -> None:
        def resolved(committed: bool) -> None:
            self._reader.suspend(None)
            if not committed:
                self._rewind()
            elif advance is not None:
                self._reader.mark_committed(advance.after)

        self._batches.commit(advance, on_resolved=resolved)

    def _rewind(self) -> None:
        try:
            self._reader.rewind()
        except SluicewayError as error:
            # Reading on would skip the records of this block.
            LOGGER.warning("a reader cannot go back after an aborted transaction: %s", error)
            self._reader.suspend(error)
