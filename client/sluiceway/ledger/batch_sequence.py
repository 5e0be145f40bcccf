"""Batch sequence: the consecutive batches of one writer of an exactly-once channel."""

import secrets
from collections.abc import Callable, Mapping

from sluiceway.errors import ChannelNotReady, CommitUnknown, DeliveryFailed, OptionError
from sluiceway.ledger.intervals import DeliveredIntervals, WrittenRecords
from sluiceway.ledger.write_batch import BatchRequest, LeaseKeeper, WriteBatch
from sluiceway.rest.ledger import LedgerCalls
from sluiceway.rest.ledger_models import PositionAdvance
from sluiceway.rest.models import Connection

__all__ = ["BatchSequence"]

_MAX_NAME_CHARACTERS = 200


class BatchSequence:
    """The batches of one writer.

    A writer's own batches are opened with their first message and have numbered keys. The batch of
    a block is opened when the block begins, with the caller's key. Each block is a new instance, so
    a failed block may be repeated.

    After CommitUnknown nothing more is admitted until `resolve` has returned. Not thread-safe: a
    writer calls it with its turn held.
    """

    def __init__(
        self,
        calls: LedgerCalls,
        connection: Connection,
        intervals: DeliveredIntervals,
        *,
        writer: str,
        place: str | None,
    ) -> None:
        """Describe a writer: its endpoint id, and its place if it has a group."""
        self._calls = calls
        self._connection = connection
        self._intervals = intervals
        self._writer, self._place = writer, place
        self._leases = LeaseKeeper(calls, connection.channel_name, connection.channel_uid)
        self._count = 0
        self._superseding = place is not None
        self._batch: WriteBatch | None = None
        self._in_block = False
        self._admitted = 0
        self._written = WrittenRecords()
        self._ends: dict[int, int] = {}
        # Whether the current batch's commit was requested, and interrupted before its response.
        self._interrupted = False
        self._unknown: tuple[CommitUnknown, WriteBatch] | None = None
        self._on_resolved: Callable[[bool], None] | None = None

    @property
    def current(self) -> WriteBatch | None:
        """The open batch, or the replayed one of a block."""
        return self._batch

    @property
    def in_block(self) -> bool:
        """Whether a block ends the current batch."""
        return self._in_block

    @property
    def ends(self) -> Mapping[int, int]:
        """By partition, the offset after the last committed record."""
        return self._ends

    def begin(self, key: str | None, owner: str | None) -> WriteBatch | None:
        """Begin a block with the batch of a key, or without a key with the writer's next batch."""
        if self._in_block:
            raise OptionError(
                "this writer is already in a batch: leave its block before you begin the next one"
            )
        if key is not None:
            self._open(self._new(key, owner))
            self._superseding = False
        self._in_block = True
        return self._batch

    def admit(self, records: int) -> bool:
        """Open a batch if needed, count records, and return whether to produce them.

        The records of a replayed batch are only counted. Raises the errors of `WriteBatch.open`,
        Conflict for a batch that was lost, and CommitUnknown if an interrupted commit, which is
        repeated first, gets no response, or while the state of the last batch is unknown.
        """
        if self._unknown is not None:
            raise self._unknown[0]
        if self._interrupted:
            self.commit()
        batch = self._batch or self._open(self._new(None, None))
        self._admitted += records
        if batch.replayed:
            return False
        batch.check()
        return True

    def commit(
        self,
        positions: PositionAdvance | None = None,
        *,
        on_resolved: Callable[[bool], None] | None = None,
    ) -> None:
        """Commit the current batch, if any; all its messages must be delivered.

        Without a batch, positions are committed with an empty one. After CommitUnknown,
        `on_resolved` is called with the result of `resolve`. Raises ReplayMismatch, after which the
        writer remains usable.
        """
        batch = self._batch
        if batch is None:
            if positions is None:
                self._in_block = False
                return
            batch = self._open(self._new(None, None))
        if batch.replayed:
            admitted = self._admitted
            self._end()
            batch.verify_replay(admitted)
            return
        # Kept until there is a response: an interrupted commit is repeated with the same records.
        self._written = WrittenRecords.merged([self._written, self._intervals.take()])
        if self._written.records != self._admitted:
            raise DeliveryFailed(
                partition=None,
                reason="not every message has a delivery report with its offset",
                written_records=self._written.records,
                failed_records=self._admitted - self._written.records,
            )
        self._interrupted = True
        try:
            batch.commit(self._written, positions=positions)
        except CommitUnknown as error:
            self._unknown, self._on_resolved = (error, batch), on_resolved
            # If it was not committed, it ends with its lease.
            batch.release()
            self._end()
            raise
        self._ends |= self._written.ends
        self._end()

    def resolve(self, *, timeout_s: float | None = None) -> bool | None:
        """Return whether the batch with an unknown state was committed; None without one."""
        if self._unknown is None:
            return None
        committed = self._unknown[1].resolve(timeout_s=timeout_s)
        on_resolved, self._on_resolved = self._on_resolved, None
        if on_resolved is not None:
            on_resolved(committed)
        self._unknown = None
        return committed

    def abort(self, error: BaseException) -> bool:
        """Abort the current batch, if any, and forget its delivered records.

        Returns True if it is committed, because its commit was interrupted after the request.
        """
        batch = self._batch
        self._end()
        self._intervals.take()
        return batch is not None and batch.abort(error)

    def close(self) -> None:
        """Stop renewing leases."""
        self._leases.close()

    def _open(self, batch: WriteBatch) -> WriteBatch:
        opened = batch.open()
        missing = set(range(self._connection.partitions)) - opened.begin.keys()
        if missing and not batch.replayed:
            error = ChannelNotReady(
                f"the ledger of the channel {self._connection.channel_name!r} does not have the "
                f"partition {min(missing)} yet; open a new writer in a few seconds"
            )
            batch.abort(error)
            raise error
        self._batch = batch
        return batch

    def _end(self) -> None:
        self._batch, self._in_block, self._admitted = None, False, 0
        self._interrupted = False
        self._written = WrittenRecords()

    def _new(self, key: str | None, owner: str | None) -> WriteBatch:
        self._count += 1
        instance, takeover = self._writer, False
        own_key = key is None
        if key is None:
            key, owner = f"{self._writer}-{self._count}", self._writer
        else:
            _check_name("a batch's key", key)
            owner = owner or self._place or key
            _check_name("a batch's owner", owner)
            # A random part, because another writer object may have the same endpoint id.
            instance = f"{self._writer}-{secrets.token_hex(8)}"
            takeover = self._superseding
        return WriteBatch(
            self._calls,
            BatchRequest(
                channel=self._connection.channel_name,
                uid=self._connection.channel_uid,
                key=key,
                owner=owner,
                instance=instance,
                takeover=takeover,
                own_key=own_key,
                lease_ms=self._leases.lease_ms,
                topic_id=self._connection.topic_id,
            ),
            leases=self._leases,
        )


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not 1 <= len(name) <= _MAX_NAME_CHARACTERS:
        raise OptionError(f"{what} is {name!r}; it takes a text of 1 to 200 characters")
