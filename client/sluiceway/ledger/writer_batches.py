"""Writer batches: commits at each flush, by time, and at the end of a block."""

import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Protocol

from sluiceway.api.endpoints import PositionAdvance
from sluiceway.api.ledger import LedgerCalls
from sluiceway.api.models import Connection
from sluiceway.concurrency import FairLock, StatementExit, this_process
from sluiceway.errors import (
    CommitUnknown,
    EndpointClosed,
    KafkaFailure,
    OptionError,
    ReplayMismatch,
    SluicewayError,
)
from sluiceway.ledger.intervals import DeliveredIntervals
from sluiceway.ledger.write_batch import BatchSequence, Block, WriteBatch
from sluiceway.runtime.timers import Timer

__all__ = ["BatchedWriter", "KeyedBlock", "WriterBatches"]

LOGGER = logging.getLogger("sluiceway.ledger.writer_batches")

_MAX_NAME_CHARACTERS = 200
_OUTCOMES = {
    True: "its records are written, as it was committed before",
    False: "none of its records are written",
    None: "whether its records are written is unknown, as the gateway does not answer",
}


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

    A writer's own batches are opened with their first message, that of a key when its block begins.
    After CommitUnknown nothing more is admitted until `resolve` has returned. Another failure ends
    the writer and aborts its batch at once, so the batch does not hold readers back.

    A block that an interrupt has abandoned is aborted by the next call.

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
        # A timer that runs must not keep a dropped writer alive.
        self._writer: BatchedWriter = weakref.proxy(writer)
        self._turn = turn
        self._sequence = BatchSequence(calls, connection, intervals, writer=writer_id)
        self._place = place
        self._commit_every_s = commit_every_s
        self._timer = Timer(self._commit_if_due)
        self._process = this_process()
        self._superseding = place is not None
        self.left_by: SystemExit | None = None
        """The exit of the program that aborted the last block."""

    @property
    def ends(self) -> Mapping[int, int]:
        """By partition, the offset after the last committed record."""
        return self._sequence.ends

    @property
    def current_block(self) -> Block:
        """The block that records are written to."""
        return self._sequence.block

    def admit(self, records: int) -> bool:
        """Open a batch if needed, count records, and return whether to produce them.

        The records of a replayed batch are only counted. An interrupted commit is repeated first.
        """
        opened = self.current_block.batch
        try:
            if opened is not None and opened.is_requested:
                self._sequence.commit()
            block = self.current_block
            batch = block.batch or self._open(block)
            block.admitted += records
            if not batch.replayed:
                batch.check()
        except CommitUnknown as error:
            # `resolve` would not include the records of this call, so it cannot continue either.
            failure = EndpointClosed(f"later records were not written, because {error}")
            self.fail(failure)
            raise failure from error
        except SluicewayError as error:
            # The records of this call are lost, so the writer cannot continue.
            self.fail(error)
            raise
        if batch is not opened and not block.explicit:
            # Later, so that it does not hold readers back.
            self._timer.set(self._commit_every_s)
        return not batch.replayed

    def flush(self) -> None:
        """Wait for acknowledgements, then commit, except within a block.

        Raises OptionError in a block without a `with` statement: the program may have been
        interrupted before it could end the block, so nothing may ever commit the records.
        """
        self.end_abandoned()
        if self.current_block.explicit and self.current_block.statement is None:
            raise OptionError(
                "this writer is in a batch that was not begun by a `with` statement, such as in an "
                "ExitStack: leave it before you flush"
            )
        self._writer.deliver()
        if not self.current_block.explicit:
            self._commit()

    def was_left_by(self, error: BaseException) -> bool:
        """Whether an error ended the last block, or came before the current one could end."""
        return self.current_block.explicit or self.left_by is error

    def end_abandoned(self) -> None:
        """Abort the current block if an interrupt has abandoned it."""
        if not self.current_block.abandoned and not self._sequence.is_stray:
            return
        with self._turn:
            block = self.current_block
            if block.abandoned:
                self.abort(block, EndpointClosed("an interrupt ended the block of the batch"))
                outcome = _OUTCOMES[block.committed]
                LOGGER.warning("an interrupt ended a batch of a writer; %s", outcome)
            self._sequence.end_stray()

    def block(self, key: str, *, owner: str | None = None) -> "KeyedBlock":
        """Return a `with` block of a batch with this key."""
        _check_name("a batch's key", key)
        return KeyedBlock(self, key, owner)

    def begin(self, block: Block, key: str | None = None, *, owner: str | None = None) -> None:
        """Begin an explicit block, which `commit` or `abort` ends.

        Earlier records are committed first. Without a key, the batch is opened with its first
        message. The key of the last CommitUnknown resolves it. After an exception, the caller
        aborts the block.
        """
        with self._turn:
            if self._sequence.unknown is not None and key == self._sequence.unknown.key:
                self.resolve()
            self._writer.require_open()
            if self.current_block.explicit:
                raise OptionError(
                    "this writer is already in a batch: leave its block before you begin the next "
                    "one"
                )
            self._writer.send_accumulated()
            self.flush()
            if key is not None:
                self._open(block, key, owner)
                self._superseding = False
            self._sequence.block = block

    def commit(
        self,
        block: Block,
        positions: PositionAdvance | None = None,
        *,
        on_resolved: Callable[[bool], None] | None = None,
    ) -> None:
        """Commit the batch of an explicit block, and positions of a reader with it.

        Without a batch, positions are committed with an empty one. After CommitUnknown,
        `on_resolved` is called with the result of `resolve`. Raises ReplayMismatch, after which the
        writer remains usable.
        """
        with self._turn:
            self._writer.require_open()
            if self.current_block is not block:
                raise EndpointClosed("this block has ended: begin a new one")
            self._writer.send_accumulated()
            self._writer.deliver()
            block.on_resolved = on_resolved
            self._commit(positions)

    def abort(self, block: Block, error: BaseException) -> None:
        """Abort an explicit block; the writer remains usable. No effect in a forked child.

        It is `committed` afterwards if its commit was interrupted after the request.
        """
        if self._process.forked:
            return
        self.left_by = error if isinstance(error, SystemExit) else None
        with self._turn:
            if self.current_block is not block:
                if block.batch is not None and not block.batch.is_requested:
                    # It was opened for a block that has not begun.
                    block.batch.abort(error)
                return
            self._writer.discard_accumulated()
            if self._writer.failure is None:
                try:
                    # The reports of messages in flight belong to this batch.
                    self._writer.deliver()
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
            self._sequence.abort(error)

    def fail(self, error: SluicewayError) -> None:
        """End the writer with an error, and abort its current batch."""
        self._writer.failure = error
        # The program resolves a commit without a response.
        if self._sequence.unresolved is None:
            self._sequence.abort(error)

    def resolve(self, *, timeout_s: float | None = None) -> bool | None:
        """Return whether the batch of the last CommitUnknown was committed; None without one."""
        committed = None
        with self._turn:
            if self._sequence.unresolved is not None:
                committed = self._sequence.resolve(timeout_s=timeout_s)
            if isinstance(self._writer.failure, CommitUnknown):
                self._writer.failure, self._writer.failed_unnoticed = None, False
        return committed

    def close(self, error: BaseException | None = None) -> None:
        """Abort the uncommitted batch after an `error`, and stop renewing leases."""
        with self._turn:
            # The program resolves a commit without a response, also afterwards.
            self._sequence.close(None if self._sequence.unresolved else error)

    def require_ended(self, doing: str) -> None:
        """Raise OptionError within a block, for what is possible after it only."""
        self.end_abandoned()
        if self.current_block.explicit:
            raise OptionError(f"this writer is in a batch: leave its block before you {doing}")

    def _commit(self, positions: PositionAdvance | None = None) -> None:
        try:
            self._sequence.commit(positions)
        except ReplayMismatch:
            raise
        except CommitUnknown as error:
            self._writer.failure = error
            raise
        except SluicewayError as error:
            self.fail(error)
            raise

    def _commit_if_due(self) -> None:
        with self._turn:
            writer, block = self._writer, self.current_block
            if block.batch is None or block.explicit or writer.failure:
                return
            try:
                writer.require_open()
                writer.send_accumulated()
                self.flush()
            except SluicewayError as error:
                # The next call raises it, if only `close`.
                writer.failed_unnoticed = writer.failure is not None
                LOGGER.warning("the timed commit of a writer failed: %s", error)

    def _open(self, block: Block, key: str | None = None, owner: str | None = None) -> WriteBatch:
        """Open a block's batch, of a key or, without one, the writer's next one."""
        takeover = False
        if key is not None:
            owner = owner or self._place or key
            _check_name("a batch's owner", owner)
            takeover = self._superseding
        batch = self._sequence.open(block, key=key, owner=owner, takeover=takeover)
        self._writer.use_partitions(len(batch.opened.begin))
        return batch


class KeyedBlock:
    """A `with` block of a batch: it commits the block's records, or none after an exception."""

    def __init__(self, batches: WriterBatches, key: str, owner: str | None) -> None:
        self._batches = batches
        self._key, self._owner = key, owner
        self._block = Block()

    def __enter__(self) -> WriteBatch:
        statement = StatementExit.statement_of(self)
        self._block = block = Block(explicit=True, statement=statement)
        try:
            self._batches.begin(block, self._key, owner=self._owner)
            assert block.batch is not None  # noqa: S101 - a batch with a key is open
            return block.batch  # noqa: TRY300 - an interrupt here aborts it
        except BaseException as error:
            self._batches.abort(block, error)
            raise

    def _leave(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            self._batches.abort(self._block, error)
            return
        try:
            self._batches.commit(self._block)
        except BaseException as failure:
            # Without effect on a batch that was replayed, or whose state is unknown.
            self._batches.abort(self._block, failure)
            raise

    __exit__ = StatementExit(_leave)


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not 1 <= len(name) <= _MAX_NAME_CHARACTERS:
        raise OptionError(f"{what} is {name!r}; it takes a text of 1 to 200 characters")
