"""Transaction: output and input positions that are committed together."""

import logging
from typing import Any, Self

from sluiceway.api.endpoints import PositionAdvance
from sluiceway.concurrency import StatementExit
from sluiceway.errors import (
    CommitUnknown,
    EndpointClosed,
    OptionError,
    SluicewayError,
    StaleGeneration,
)
from sluiceway.ledger.write_batch import Block
from sluiceway.reader import ChannelReader
from sluiceway.writer import ChannelWriter

__all__ = ["Transaction"]

LOGGER = logging.getLogger("sluiceway.transaction")


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

    def __init__(self, reader: ChannelReader[Any], writer: ChannelWriter) -> None:
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
        self._block = Block()
        # The positions of the commit that was requested last.
        self._advance: PositionAdvance | None = None

    def __enter__(self) -> Self:
        """Begin a block. Earlier records are committed first."""
        self._reader.require_continued()
        if self._reader.in_transaction:
            raise OptionError(
                "this reader is already in a transaction: its positions are committed with the "
                "output of one writer. Leave the block before you begin the next one"
            )
        statement = StatementExit.statement_of(self)
        self._block = block = Block(explicit=True, statement=statement)
        self._reader.transaction = block
        try:
            self._batches.begin(block)
            return self  # noqa: TRY300 - an interrupt here aborts it
        except BaseException as error:
            self._batches.abort(block, error)
            self._reader.transaction = None
            raise

    def _leave(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            self._abort(error)
            return
        try:
            self._require_assignment()
            self._reader.commit_with(self._commit)
            self._reader.transaction = None
        except CommitUnknown as unknown:
            self._reader.suspend(unknown)
            self._reader.transaction = None
            raise
        except BaseException as failure:
            self._abort(failure)
            raise

    __exit__ = StatementExit(_leave)

    def _abort(self, error: BaseException) -> None:
        block = self._block
        try:
            self._batches.abort(block, error)
        finally:
            self._continue(block.committed)
            self._reader.transaction = None

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
            self._continue(committed)

        self._advance = advance
        self._batches.commit(self._block, advance, on_resolved=resolved)

    def _continue(self, committed: bool | None) -> None:
        """Continue reading after the positions that the last commit has stored, or go back."""
        if committed is None:
            self._reader.suspend(
                EndpointClosed(
                    "the commit of a transaction was interrupted, and the gateway did not answer "
                    "whether it was applied: open a new reader, which continues at the committed "
                    "positions"
                )
            )
        elif not committed:
            self._rewind()
        elif self._advance is not None:
            self._reader.mark_committed(self._advance.after)

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
