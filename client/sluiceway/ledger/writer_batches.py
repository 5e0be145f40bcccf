"""Writer batches: commits at each flush, by time, at the end of a block, in transactions."""

import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, Self

from sluiceway.concurrency import FairLock, ForkGuard
from sluiceway.endpoint.handle import EndpointHandle
from sluiceway.errors import (
    CommitUnknown,
    EndpointClosed,
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
    """A writer's operations for its batches; call them with its turn held."""

    failure: SluicewayError | None
    """The reason why it refuses further work, or None."""
    failed_unnoticed: bool
    """Whether it failed in a background thread, and no call has raised the failure yet."""

    def require_open(self) -> None:
        """Raise unless it may be used."""

    def send_accumulated(self) -> None:
        """Produce the accumulated records."""

    def discard_accumulated(self) -> None:
        """Discard records that are not produced yet."""

    def deliver(self) -> None:
        """Wait until Kafka has acknowledged everything. Raises KafkaFailure."""


class WriterBatches:
    """Commits a writer's batches after Kafka has acknowledged their records.

    Thread-safe, by the writer's turn. A failure ends the writer and aborts its batch at once, so
    the batch does not hold readers back.
    """

    def __init__(
        self,
        writer: BatchedWriter,
        sequence: BatchSequence,
        turn: FairLock,
        *,
        commit_every_s: float,
    ) -> None:
        # Timers must not keep a dropped writer alive.
        self._writer: BatchedWriter = weakref.proxy(writer)
        self._sequence = sequence
        self._turn = turn
        self._commit_every_s = commit_every_s
        self._fork_guard = ForkGuard()

    @property
    def ends(self) -> Mapping[int, int]:
        """By partition, the offset after the last committed record."""
        return self._sequence.ends

    def admit(self, records: int) -> bool:
        """Open a batch if needed, count records, and return whether to produce them."""
        sequence = self._sequence
        before = sequence.current
        try:
            admitted = sequence.admit(records)
        except CommitUnknown as error:
            # `resolve` would not include the records of this call, so it cannot continue either.
            failure = EndpointClosed(f"later records were not written, because {error}")
            self.fail(failure)
            raise failure from error
        except SluicewayError as error:
            # The records of this call are lost, so the writer cannot continue.
            self.fail(error)
            raise
        if sequence.current is not before and not sequence.in_block:
            self._commit_later(sequence.current)
        return admitted

    def flush(self) -> None:
        """Wait for acknowledgements, then commit, except within a block."""
        self._writer.deliver()
        if not self._sequence.in_block:
            self._commit(None, None)

    @contextmanager
    def block(self, key: str, *, owner: str | None = None) -> Iterator[WriteBatch]:
        """Commit the block's records, or abort them after an exception."""
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

        Earlier records are committed first. Without a key, the batch is opened with its first
        message.
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

        After CommitUnknown, `on_resolved` is called with the result of `resolve`.
        """
        with self._turn:
            self._writer.require_open()
            self._writer.send_accumulated()
            self._writer.deliver()
            self._commit(positions, on_resolved)

    def abort(self, error: BaseException) -> bool:
        """Abort the batch of a block; the writer remains usable. No effect in a forked child.

        Returns True if it is committed, because its commit was interrupted after the request.
        """
        if self._fork_guard.forked:
            return False
        writer = self._writer
        with self._turn:
            writer.discard_accumulated()
            if writer.failure is None:
                try:
                    # The reports of messages in flight belong to this batch.
                    writer.deliver()
                except KafkaFailure as failure:
                    LOGGER.warning("a writer failed while its batch was aborted: %s", failure)
                except BaseException as interrupt:
                    # Late reports would be taken for those of the next batch.
                    self.fail(
                        EndpointClosed(
                            f"{type(interrupt).__name__} interrupted a writer while it aborted a "
                            "batch. Nothing of the batch is visible; open a new writer"
                        )
                    )
                    raise
            return self._sequence.abort(error)

    def fail(self, error: SluicewayError) -> None:
        """End the writer with an error, and abort its current batch."""
        self._writer.failure = error
        self._sequence.abort(error)

    def resolve(self, *, timeout_s: float | None = None) -> bool | None:
        """Return whether the batch of the last CommitUnknown was committed; None without one."""
        with self._turn:
            committed = self._sequence.resolve(timeout_s=timeout_s)
            if isinstance(self._writer.failure, CommitUnknown):
                self._writer.failure, self._writer.failed_unnoticed = None, False
            return committed

    def close(self, error: BaseException | None = None) -> None:
        """Abort the uncommitted batch, and stop renewing leases."""
        if error is not None:
            with self._turn:
                self._sequence.abort(error)
        self._sequence.close()

    def require_ended(self) -> None:
        """Raise OptionError within a block."""
        if self._sequence.in_block:
            raise OptionError("this writer is in a batch: leave its block before you close it")

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
        """Commit a batch after a time, so it does not hold readers back."""
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
            writer = self._writer
            if self._sequence.current is not batch or self._sequence.in_block or writer.failure:
                return
            try:
                writer.require_open()
                writer.send_accumulated()
                self.flush()
            except SluicewayError as error:
                # The next call raises it, if only `close`.
                writer.failed_unnoticed = writer.failure is not None
                LOGGER.warning("the timed commit of a writer failed: %s", error)


class TransactionalReader(Protocol):
    """A reader whose positions a transaction commits."""

    in_transaction: bool
    """True while a transaction commits its positions, and it may not commit them itself."""

    @property
    def handle(self) -> EndpointHandle:
        """The reader's endpoint. Raises OptionError if it has none."""

    @property
    def revoked_uncommitted(self) -> bool:
        """True after the loss of a partition with returned records that were not committed."""

    def commit_with(self, send: Callable[[PositionAdvance | None], None]) -> None:
        """Commit the positions by the caller's `send`, which gets None if they did not move."""

    def mark_committed(self, positions: Mapping[int, Position]) -> None:
        """Record positions that an unanswered commit of `commit_with` has stored."""

    def rewind(self) -> None:
        """Return to the last commit."""

    def suspend(self, error: SluicewayError | None) -> None:
        """Refuse further calls with an error; None accepts them again."""


class BatchWriter(Protocol):
    """A writer with batches."""

    @property
    def handle(self) -> EndpointHandle:
        """The writer's endpoint. Raises OptionError if it has none."""

    @property
    def batches(self) -> WriterBatches:
        """The writer's batches. Raises OptionError if it has none."""


class Transaction:
    """A block whose output and input positions are committed together, or not at all.

    All records written in the block become visible in one commit, which also stores the reader's
    positions for its group, after the last returned record, which may be in the middle of a message
    or from before the block. After an exception in the block, or of the commit, nothing was
    written, and the reader returns to its last commit. A transaction may be used again for the next
    block. A KeyboardInterrupt during the commit leaves both committed, or neither: the reader
    continues accordingly.

    After CommitUnknown the state of both is unknown: reader and writer refuse further calls until
    `writer.resolve()`. The reader then continues at the positions that were committed last.

    Not thread-safe: while the block runs, only the transaction may use the reader to commit.
    """

    def __init__(self, reader: TransactionalReader, writer: BatchWriter) -> None:
        """Combine a reader with a group, and a writer of an exactly_once channel.

        Raises OptionError for others, and for different gateways.
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
        # The positions of the commit that was requested last.
        self._advance: PositionAdvance | None = None

    def __enter__(self) -> Self:
        """Begin a block. Earlier records are committed first."""
        if self._reader.in_transaction:
            raise OptionError(
                "this reader is already in a transaction: its positions are committed with the "
                "output of one writer. Leave the block before you begin the next one"
            )
        self._batches.begin(None)
        self._reader.in_transaction = True
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._end(error)
        finally:
            self._reader.in_transaction = False

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            self._abort(error)
            return
        try:
            self._require_assignment()
            self._reader.commit_with(self._commit)
        except CommitUnknown as unknown:
            self._reader.suspend(unknown)
            raise
        except BaseException as failure:
            self._abort(failure)
            raise

    def _abort(self, error: BaseException) -> None:
        committed = False
        try:
            committed = self._batches.abort(error)
        finally:
            if not committed:
                self._rewind()
            elif self._advance is not None:
                self._reader.mark_committed(self._advance.after)

    def _require_assignment(self) -> None:
        """Raise if partitions were revoked whose records may be in the output."""
        if self._reader.revoked_uncommitted:
            raise StaleGeneration(
                "partitions of the reader were revoked after records of them were read, so the "
                "transaction was not committed. Other members read these records; continue with "
                "shorter transactions"
            )

    def _commit(self, advance: PositionAdvance | None) -> None:
        def resolved(committed: bool) -> None:
            self._reader.suspend(None)
            if not committed:
                self._rewind()
            elif advance is not None:
                self._reader.mark_committed(advance.after)

        self._advance = advance
        self._batches.commit(advance, on_resolved=resolved)

    def _rewind(self) -> None:
        try:
            self._reader.rewind()
        except BaseException as error:
            # Further reads would skip the records of this block.
            LOGGER.warning("a reader cannot go back after an aborted transaction: %r", error)
            if isinstance(error, SluicewayError):
                self._reader.suspend(error)
                return
            self._reader.suspend(
                EndpointClosed(
                    f"{type(error).__name__} interrupted the return to this reader's last commit "
                    "after an aborted transaction: open a new reader"
                )
            )
            raise
