"""Writer batches: commits at each flush, by time, and at the end of a block."""

import logging
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from sluiceway.concurrency import FairLock, ForkGuard
from sluiceway.errors import (
    CommitUnknown,
    EndpointClosed,
    KafkaFailure,
    OptionError,
    ReplayMismatch,
    SluicewayError,
)
from sluiceway.ledger.intervals import DeliveredIntervals, WrittenRecords
from sluiceway.ledger.leases import LeaseKeeper
from sluiceway.ledger.write_batch import WriteBatch, open_batch
from sluiceway.rest.ledger import LedgerCalls
from sluiceway.rest.ledger_models import CommitResult, PositionAdvance
from sluiceway.rest.models import Connection

__all__ = ["BatchedWriter", "WriterBatches"]

LOGGER = logging.getLogger("sluiceway.ledger.writer_batches")

_MAX_NAME_CHARACTERS = 200


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

    def use_partitions(self, total: int) -> None:
        """Send records without a key to all of this number of partitions."""


class WriterBatches:
    """The consecutive batches of one writer, committed once Kafka has acknowledged their records.

    A writer's own batches are opened with their first message and have numbered keys. The batch of
    a block is opened when the block begins, with the caller's key. Each block is a new instance, so
    a failed block may be repeated.

    After CommitUnknown nothing more is admitted until `resolve` has returned. Another failure ends
    the writer and aborts its batch at once, so the batch does not hold readers back.

    Thread-safe, by the writer's turn; `admit`, `flush` and `fail` are called with the turn held.
    """

    def __init__(
        self,
        writer: BatchedWriter,
        turn: FairLock,
        calls: LedgerCalls,
        connection: Connection,
        intervals: DeliveredIntervals,
        *,
        writer_id: str,
        place: str | None,
        commit_every_s: float,
    ) -> None:
        """Describe a writer: its endpoint id, and its place if it has a group."""
        # Timers must not keep a dropped writer alive.
        self._writer: BatchedWriter = weakref.proxy(writer)
        self._turn = turn
        self._calls = calls
        self._connection = connection
        self._intervals = intervals
        self._writer_id, self._place = writer_id, place
        self._commit_every_s = commit_every_s
        self._timer = threading.Timer(0, lambda: None)
        self._leases = LeaseKeeper(calls, connection.channel_name, connection.channel_uid)
        self._fork_guard = ForkGuard()
        self._count = 0
        self._superseding = place is not None
        # The open batch, or the replayed one of a block.
        self._batch: WriteBatch | None = None
        # Whether a block ends the current batch.
        self._in_block = False
        self._admitted = 0
        self._written = WrittenRecords()
        # Whether the current batch's commit was requested, and interrupted before its response.
        self._interrupted = False
        self._unknown: tuple[CommitUnknown, WriteBatch] | None = None
        self._last: CommitResult | None = None
        self._on_resolved: Callable[[bool], None] | None = None
        self.left_by: SystemExit | None = None
        """The exit of the program that aborted the last block."""
        self.ends: dict[int, int] = {}
        """By partition, the offset after the last committed record."""

    def admit(self, records: int) -> bool:
        """Open a batch if needed, count records, and return whether to produce them.

        The records of a replayed batch are only counted. An interrupted commit is repeated first.
        """
        before = self._batch
        try:
            batch = self._admit(records)
        except CommitUnknown as error:
            # `resolve` would not include the records of this call, so it cannot continue either.
            failure = EndpointClosed(f"later records were not written, because {error}")
            self.fail(failure)
            raise failure from error
        except SluicewayError as error:
            # The records of this call are lost, so the writer cannot continue.
            self.fail(error)
            raise
        if batch is not before and not self._in_block:
            self._commit_later(batch)
        return not batch.replayed

    def flush(self) -> None:
        """Wait for acknowledgements, then commit, except within a block."""
        self._writer.deliver()
        if not self._in_block:
            self._commit(None, None)

    @contextmanager
    def block(self, key: str, *, owner: str | None = None) -> Iterator[WriteBatch]:
        """Commit the block's records, or abort them after an exception."""
        _check_name("a batch's key", key)
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
        message. The key of the last CommitUnknown resolves it.
        """
        with self._turn:
            if self._unknown is not None and key == self._unknown[1].key:
                self.resolve()
            self._writer.require_open()
            if self._in_block:
                raise OptionError(
                    "this writer is already in a batch: leave its block before you begin the next "
                    "one"
                )
            self._writer.send_accumulated()
            self.flush()
            if key is not None:
                self._open(key, owner)
                self._superseding = False
            self._in_block = True
            return self._batch

    def commit(
        self,
        positions: PositionAdvance | None = None,
        *,
        on_resolved: Callable[[bool], None] | None = None,
    ) -> None:
        """Commit the batch of a block, and positions of a reader with it.

        Without a batch, positions are committed with an empty one. After CommitUnknown,
        `on_resolved` is called with the result of `resolve`. Raises ReplayMismatch, after which the
        writer remains usable.
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
        self.left_by = error if isinstance(error, SystemExit) else None
        writer = self._writer
        with self._turn:
            writer.discard_accumulated()
            if writer.failure is None:
                try:
                    # The reports of messages in flight belong to this batch.
                    writer.deliver()
                except (KafkaFailure, EndpointClosed) as failure:
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
            return self._abort_batch(error)

    def fail(self, error: SluicewayError) -> None:
        """End the writer with an error, and abort its current batch."""
        self._writer.failure = error
        self._abort_batch(error)

    def resolve(self, *, timeout_s: float | None = None) -> bool | None:
        """Return whether the batch of the last CommitUnknown was committed; None without one."""
        committed = None
        with self._turn:
            if self._unknown is not None:
                committed = self._unknown[1].resolve(timeout_s=timeout_s)
                # After an interrupt, the next call repeats both.
                if self._on_resolved is not None:
                    self._on_resolved(committed)
                self._unknown = self._on_resolved = None
            if isinstance(self._writer.failure, CommitUnknown):
                self._writer.failure, self._writer.failed_unnoticed = None, False
        return committed

    def close(self, error: BaseException | None = None) -> None:
        """Abort the uncommitted batch after an `error`, and stop renewing leases."""
        if error is not None:
            with self._turn:
                self._abort_batch(error)
        self._leases.close()

    def require_ended(self, doing: str) -> None:
        """Raise OptionError within a block, for what is possible after it only."""
        if self._in_block:
            raise OptionError(f"this writer is in a batch: leave its block before you {doing}")

    def _admit(self, records: int) -> WriteBatch:
        """Return the batch of these records.

        Raises the errors of `WriteBatch.open`, Conflict for a batch that was lost, and
        CommitUnknown while the state of the last batch is unknown.
        """
        if self._unknown is not None:
            raise self._unknown[0]
        if self._interrupted:
            self._commit_batch(None, None)
        batch = self._batch or self._open()
        self._admitted += records
        if not batch.replayed:
            batch.check()
        return batch

    def _commit(
        self, positions: PositionAdvance | None, on_resolved: Callable[[bool], None] | None
    ) -> None:
        try:
            self._commit_batch(positions, on_resolved)
        except ReplayMismatch:
            raise
        except CommitUnknown as error:
            self._writer.failure = error
            raise
        except SluicewayError as error:
            self.fail(error)
            raise

    def _commit_batch(
        self, positions: PositionAdvance | None, on_resolved: Callable[[bool], None] | None
    ) -> None:
        """Commit the current batch, if any; all its messages must be delivered."""
        batch = self._batch
        if batch is None:
            if positions is None:
                self._in_block = False
                return
            batch = self._open()
        if batch.replayed:
            admitted = self._admitted
            self._end()
            batch.verify_replay(admitted)
            return
        # Kept until there is a response: an interrupted commit is repeated with the same records.
        self._written = WrittenRecords.merged([self._written, self._intervals.take()])
        self._written.require(self._admitted)
        self._interrupted = True
        try:
            self._last = batch.commit(self._written, positions=positions)
        except CommitUnknown as error:
            self._unknown, self._on_resolved = (error, batch), on_resolved
            # If it was not committed, it ends with its lease.
            batch.release()
            self._end()
            raise
        self.ends |= self._written.ends
        self._end()

    def _abort_batch(self, error: BaseException) -> bool:
        """Abort the current batch, if any, and forget its delivered records.

        Returns True if it is committed, because its commit was interrupted after the request.
        """
        batch = self._batch
        self._end()
        self._intervals.take()
        return batch is not None and batch.abort(error)

    def _end(self) -> None:
        # A program that flushes each record, or opens many writers, would have many timers.
        self._timer.cancel()
        self._batch, self._in_block, self._admitted = None, False, 0
        self._interrupted = False
        self._written = WrittenRecords()

    def _commit_later(self, batch: WriteBatch) -> None:
        """Commit a batch after a time, so it does not hold readers back."""
        batches = weakref.ref(self)

        def commit() -> None:
            found = batches()
            if found is not None:
                found._commit_if_current(batch)  # noqa: SLF001

        self._timer = threading.Timer(self._commit_every_s, commit)
        self._timer.daemon = True
        self._timer.start()

    def _commit_if_current(self, batch: WriteBatch) -> None:
        with self._turn:
            writer = self._writer
            if self._batch is not batch or self._in_block or writer.failure:
                return
            try:
                writer.require_open()
                writer.send_accumulated()
                self.flush()
            except SluicewayError as error:
                # The next call raises it, if only `close`.
                writer.failed_unnoticed = writer.failure is not None
                LOGGER.warning("the timed commit of a writer failed: %s", error)

    def _open(self, key: str | None = None, owner: str | None = None) -> WriteBatch:
        """Open the batch of a key, or without a key the writer's next one."""
        self._count += 1
        instance, takeover, own_key = self._writer_id, False, key is None
        if key is None:
            key, owner = f"{self._writer_id}-{self._count}", self._writer_id
        else:
            owner = owner or self._place or key
            _check_name("a batch's owner", owner)
            # A random part, because another writer object may have the same endpoint id.
            instance = f"{self._writer_id}-{secrets.token_hex(8)}"
            takeover = self._superseding
        self._batch = open_batch(
            self._calls,
            self._connection,
            self._leases,
            key=key,
            owner=owner,
            instance=instance,
            takeover=takeover,
            own_key=own_key,
            previous=self._last,
        )
        self._writer.use_partitions(len(self._batch.opened.begin))
        return self._batch


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not 1 <= len(name) <= _MAX_NAME_CHARACTERS:
        raise OptionError(f"{what} is {name!r}; it takes a text of 1 to 200 characters")
