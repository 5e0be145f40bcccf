"""Transactions: records written and positions read are committed together."""

import logging
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Protocol, Self

from sluiceway.endpoint.handle import EndpointHandle
from sluiceway.errors import CommitUnknown, OptionError, SluicewayError, StaleGeneration
from sluiceway.ledger.writer_batches import WriterBatches
from sluiceway.rest.endpoint_models import Position
from sluiceway.rest.ledger_models import PositionAdvance

__all__ = ["BatchWriter", "Transaction", "TransactionalReader"]

LOGGER = logging.getLogger("sluiceway.ledger.transaction")


class TransactionalReader(Protocol):
    """A reader whose positions a transaction commits."""

    @property
    def handle(self) -> EndpointHandle:
        """The reader's endpoint. Raises OptionError if it has none."""

    @property
    def revocations(self) -> int:
        """How often partitions were taken from it."""

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

    Not thread-safe: while the block runs, the reader is the transaction's alone.
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
        self._revocations = self._reader.revocations
        self._batches.begin(None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
