"""Write batch: opened, leased and written by a writer or job, then committed or aborted."""

import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from sluiceway.api.endpoints import PositionAdvance
from sluiceway.api.ledger import Batch, BatchRequest, CommitResult, LedgerCalls
from sluiceway.api.models import Connection
from sluiceway.concurrency import this_process
from sluiceway.errors import (
    ChannelNotReady,
    CommitUnknown,
    Conflict,
    EndpointClosed,
    GatewayError,
    GatewayUnavailable,
    ReplayMismatch,
    SluicewayError,
    TopicGone,
    cause_of,
)
from sluiceway.ledger.intervals import DeliveredIntervals, WrittenRecords
from sluiceway.ledger.leases import LeaseKeeper

__all__ = ["BATCH_TRANSITIONS", "BatchSequence", "BatchState", "Block", "WriteBatch"]

LOGGER = logging.getLogger("sluiceway.ledger.write_batch")

_ABORT_TIMEOUT_S = 5.0
_MAX_CAUSE_CHARACTERS = 1000


class BatchState(StrEnum):
    """State of a batch in the view of its writer, also after an interrupt between any two calls."""

    NEW = "new"
    """It was not requested yet, or its opening was refused."""
    OPENING = "opening"
    """Its opening was requested; without a response, the gateway may have opened it."""
    OPEN = "open"
    """Records may be produced."""
    REPLAYED = "replayed"
    """Its key was committed before, so its records are only counted."""
    COMMITTING = "committing"
    """Its commit has no response yet: repeat it with the same records, or resolve it."""
    COMMITTED = "committed"
    """Its records are visible, for good."""
    ABORTED = "aborted"
    """Its records stay invisible, for good."""


BATCH_TRANSITIONS: Final[Mapping[BatchState, frozenset[BatchState]]] = {
    BatchState.NEW: frozenset({BatchState.OPENING, BatchState.OPEN, BatchState.REPLAYED}),
    BatchState.OPENING: frozenset({BatchState.NEW, BatchState.OPEN, BatchState.REPLAYED}),
    BatchState.OPEN: frozenset(
        {BatchState.REPLAYED, BatchState.COMMITTING, BatchState.COMMITTED, BatchState.ABORTED}
    ),
    BatchState.REPLAYED: frozenset(),
    BatchState.COMMITTING: frozenset({BatchState.COMMITTED, BatchState.ABORTED}),
    BatchState.COMMITTED: frozenset(),
    BatchState.ABORTED: frozenset(),
}
"""The transition table. Other processes may open, commit or abort the same batch."""

_UNENDED: Final = frozenset({BatchState.OPENING, BatchState.OPEN, BatchState.COMMITTING})


class WriteBatch:
    """A batch of a channel: all of its records become visible together, or none.

    Produce only after `open` has returned, and nothing if the batch is `replayed`, because its key
    was committed before. `open` starts the renewal of the lease, which lasts until the batch is
    committed, aborted or garbage-collected. A process that writes only a part of the batch calls
    `release` at the end, and sends its `WrittenRecords` to the committing process. A forked child
    neither commits nor aborts the batch of its parent.

    Not thread-safe.
    """

    def __init__(
        self, calls: LedgerCalls, request: BatchRequest, *, leases: LeaseKeeper | None = None
    ) -> None:
        """Describe a batch; several may share `leases`."""
        self._calls = calls
        self.request = request
        self.leases = leases or LeaseKeeper(
            calls, request.channel, request.uid, lease_ms=request.lease_ms
        )
        self.state = BatchState.NEW
        self._batch: Batch | None = None
        self._release: Callable[[], object] | None = None
        self.result: CommitResult | None = None
        self._process = this_process()

    @property
    def key(self) -> str:
        """The batch's key."""
        return self.request.key

    @property
    def opened(self) -> Batch:
        """The gateway's response to `open`. Raises EndpointClosed before it."""
        if self._batch is None:
            raise EndpointClosed(f"the batch {self.key!r} is not open: call open() first")
        return self._batch

    @property
    def replayed(self) -> bool:
        """Whether the key was committed before, so its records are not written again."""
        return self.state is BatchState.REPLAYED

    @property
    def committed(self) -> bool | None:
        """True once its commit was accepted, False once it was aborted, otherwise None."""
        return {BatchState.COMMITTED: True, BatchState.ABORTED: False}.get(self.state)

    @property
    def is_requested(self) -> bool:
        """Whether its commit was requested; then it gets no more records."""
        return self.state in {BatchState.COMMITTING, BatchState.COMMITTED}

    def open(self, *, partitions: int = 0, timeout_s: float | None = None) -> Batch:
        """Open the batch, to write to this number of partitions; all calls return the same one.

        Raises Conflict `batch_key_taken` for a key of another owner or ordinal, `batch_open` while
        another live instance has it, `batch_aborted` and `batch_fenced` for an instance that has to
        stop, `stale_batch` for an ordinal below a committed one, `ledger_restored` after a restore
        of the database to a state without the `previous` commit; TopicGone for another topic,
        ChannelNotReady if the ledger lacks a partition, and GatewayUnavailable, after which the
        batch may be open: call it again, or `abort`.
        """
        request = self.request
        if self.state is BatchState.NEW:
            self._become(BatchState.OPENING)
        if self.state is BatchState.OPENING or self._missing(partitions):
            self._request(timeout_s)
        if len({self.opened.topic_id, request.topic_id} - {None}) > 1:
            raise TopicGone(
                f"the topic of the channel {request.channel!r} was deleted and created again; open "
                "the channel again"
            )
        if missing := self._missing(partitions):
            raise ChannelNotReady(
                f"the ledger of the channel {request.channel!r} does not have the partition "
                f"{min(missing)} yet; try again in a few seconds"
            )
        return self.opened

    def adopt(self, batch: Batch) -> Self:
        """Continue the batch that another process of the same instance has opened."""
        self._batch = batch
        self._become(BatchState.REPLAYED if batch.is_committed else BatchState.OPEN)
        if not batch.is_committed and self._release is None:
            self._release = self.leases.hold(self, batch.id, self.request.instance)
        return self

    def check(self) -> None:
        """Raise Conflict if the batch has ended, but not by its writer."""
        state = self.leases.lost(self.opened.id)
        if state is not None:
            raise Conflict(
                f"the batch {self.key!r} of the channel {self.request.channel!r} is {state}: its "
                "lease or its time ended, or another instance took over. None of its records are "
                "visible; write it again with a new writer",
                code="batch_aborted",
            )

    def verify_replay(self, records: int) -> None:
        """Compare a replay's number of records with the committed one. Raises ReplayMismatch."""
        committed = self.opened.records
        if committed is not None and committed != records:
            raise ReplayMismatch(
                f"the batch {self.key!r} of the channel {self.request.channel!r} was committed "
                f"with {committed:,} records, and now has {records:,}. Nothing was written. Use a "
                "different key for each batch; if the input has changed, write the difference with "
                "another key"
            )

    def commit(
        self,
        written: WrittenRecords,
        *,
        positions: PositionAdvance | None = None,
        timeout_s: float | None = None,
    ) -> CommitResult:
        """Make the written records visible, and commit a reader's positions with them.

        May be repeated with the same records, as after an interrupt. Raises a GatewayError that is
        final if nothing was committed, and CommitUnknown if that is unknown; then repeat it, or
        call `resolve`.
        """
        self._process.check(f"the batch {self.key!r}")
        batch, repeats = self.opened, self.is_requested
        if self.state is not BatchState.COMMITTED:
            self._become(BatchState.COMMITTING)
        try:
            self.result = self._calls.commit(
                self.request,
                batch,
                manifest=written.manifest,
                records=written.records,
                counts=written.counts,
                positions=positions,
                timeout_s=timeout_s,
            )
        except CommitUnknown:
            # If it was not committed, it ends with its lease.
            self.release()
            raise
        except GatewayError as error:
            if error.is_final or not repeats:
                raise
            # An earlier request may have been applied, whatever this one has failed by.
            self.release()
            raise CommitUnknown(channel=self.request.channel, key=self.key) from error
        self._become(BatchState.COMMITTED)
        self.release()
        return self.result

    def resolve(self, *, timeout_s: float | None = None) -> bool:
        """Return whether an unanswered commit was applied; if not, it never will be.

        Raises CommitUnknown if the gateway does not answer.
        """
        self._process.check(f"the batch {self.key!r}")
        if self.committed is None:
            try:
                # The endpoint of its writer may have ended, and closed its connections.
                with closing(self._calls.clone()) as calls:
                    self._abort(calls, "the response to its commit was lost", timeout_s)
            except Conflict:
                if self.committed is None:
                    raise
            except GatewayError as error:
                raise CommitUnknown(channel=self.request.channel, key=self.key) from error
        self.release()
        return self.state is BatchState.COMMITTED

    def abort(self, cause: BaseException | str) -> None:
        """End the batch without its records; an unreachable gateway is only logged.

        The batch then ends with its lease. It is `committed` afterwards if its commit was
        interrupted after the request. Does nothing in a forked child.
        """
        if self._process.forked:
            return
        try:
            if self.state is BatchState.OPENING:
                # Otherwise it would keep the key, and hold readers back.
                self._request(_ABORT_TIMEOUT_S)
            self.release()
            if self.state in {BatchState.OPEN, BatchState.COMMITTING}:
                reason = cause if isinstance(cause, str) else cause_of(cause)
                self._abort(self._calls, reason, _ABORT_TIMEOUT_S)
        except SluicewayError as failure:
            LOGGER.warning("the batch %r was not aborted: %s", self.key, failure)
            if self.state is BatchState.OPEN:
                self._become(BatchState.ABORTED)

    def release(self) -> None:
        """Stop renewing the lease."""
        if self._release is not None:
            self._release()
            self._release = None

    def _request(self, timeout_s: float | None) -> None:
        """Request the batch, which the gateway may have opened before. Raises GatewayError."""
        try:
            batch = self._calls.open(self.request, timeout_s=timeout_s)
        except GatewayUnavailable:
            # The gateway may have opened it.
            raise
        except SluicewayError:
            if self.state is BatchState.OPENING:
                self._become(BatchState.NEW)
            raise
        self.adopt(batch)

    def _missing(self, partitions: int) -> set[int]:
        """Return the partitions to write to that the ledger lacks."""
        return set() if self.replayed else set(range(partitions)) - self.opened.begin.keys()

    def _abort(self, calls: LedgerCalls, cause: str, timeout_s: float | None) -> None:
        """Request the abort. Raises Conflict, also if the batch is `committed`, GatewayError."""
        cause = cause[:_MAX_CAUSE_CHARACTERS]
        try:
            calls.abort(self.request, self.opened.id, cause=cause, timeout_s=timeout_s)
        except Conflict as error:
            if error.code == "batch_committed":
                self._become(BatchState.COMMITTED)
            raise
        self._become(BatchState.ABORTED)

    def _become(self, state: BatchState) -> None:
        """Change the state. Raises Conflict if the table does not allow it."""
        if state is not self.state and state not in BATCH_TRANSITIONS[self.state]:
            raise Conflict(
                f"the batch {self.key!r} of the channel {self.request.channel!r} is {self.state}, "
                f"and cannot become {state}",
                code=f"batch_{self.state}",
            )
        self.state = state


@dataclass(eq=False)
class Block:
    """The records between two commits of a writer.

    An `explicit` one is a `with` block of the program, which ends by `commit` or `abort`; the
    others end by `flush`, by time or with the writer.
    """

    explicit: bool = False
    statement: Callable[[], object] | None = None
    """The `with` statement of an explicit block: see `StatementExit`."""
    batch: WriteBatch | None = None
    """Opened, or replayed; None before the first message."""
    admitted: int = 0
    undelivered: int = 0
    """The number of failed messages, if the writer counts them, and the reason of the first."""
    reason: str = ""
    on_resolved: Callable[[bool], None] | None = None
    """Called with the result of `resolve`, after CommitUnknown."""

    @property
    def abandoned(self) -> bool:
        """Whether an interrupt has ended its `with` statement, so that nothing ends the block."""
        return self.statement is not None and self.statement() is None

    @property
    def committed(self) -> bool | None:
        """Whether its batch was committed; None after a commit without a response."""
        return self.batch.committed if self.batch and self.batch.is_requested else False


class BatchSequence:
    """The batches of one writer, one after the other, and their leases.

    A writer's own batches have numbered keys; others have a key of the program. Each one names the
    last commit before it, so that a database that was restored to a state without it refuses it.

    The writer counts the records of the current block as admitted, and adds Kafka's delivery
    reports to `intervals`, or as failures. A batch with a failed message is never committed. After
    a commit without a response none is opened until `commit` has repeated it, or `resolve` or
    `abort` has ended its batch.

    All state of the current block is in one object, so that a block begins and ends by one
    assignment, and an interrupt comes before or after it.

    Not thread-safe, except for the reports.
    """

    def __init__(
        self,
        calls: LedgerCalls,
        connection: Connection,
        intervals: DeliveredIntervals,
        *,
        writer: str,
        owner: str | None = None,
    ) -> None:
        """Describe a writer by its endpoint's id.

        Its own batches belong to the `owner`, and each aborts those of the owner's other instances;
        by default they belong to the writer alone.
        """
        self._calls, self._connection, self._writer = calls, connection, writer
        self._owner = owner
        self.intervals = intervals
        self.leases = LeaseKeeper(calls, connection.channel_name, connection.channel_uid)
        self.block = Block()
        self.unresolved: Block | None = None
        """The block whose commit raised CommitUnknown."""
        self.ends: dict[int, int] = {}
        """By partition, the offset after the last committed record."""
        self._count = 0
        self._latest: WriteBatch | None = None

    @property
    def current(self) -> WriteBatch | None:
        """The batch to commit, to resolve or to abort; None without one."""
        return (self.unresolved or self.block).batch

    @property
    def is_open(self) -> bool:
        """Whether messages may be produced."""
        return self.block.batch is not None and self.block.batch.state is BatchState.OPEN

    @property
    def unknown(self) -> WriteBatch | None:
        """The batch whose commit has no response, or was interrupted; None without one."""
        batch = self.current
        return batch if self.unresolved or (batch is not None and batch.is_requested) else None

    @property
    def is_stray(self) -> bool:
        """Whether an interrupt of its abort has left the batch before the current one open."""
        latest = self._latest
        return latest is not None and latest is not self.current and latest.state in _UNENDED

    @property
    def admitted(self) -> int:
        """The number of records to commit."""
        return (self.unresolved or self.block).admitted

    @property
    def pending(self) -> int:
        """The number of the block's messages, of one record each, without a delivery report."""
        return self.block.admitted - len(self.intervals) - self.block.undelivered

    def add_failure(self, reason: str) -> None:
        """Record a message that was not delivered."""
        self.block.reason = self.block.reason or reason
        self.block.undelivered += 1

    def end_stray(self) -> None:
        """Abort the batch before the current one if it `is_stray`."""
        if self._latest is not None and self.is_stray:
            self._latest.abort(EndpointClosed("an interrupt ended the batch"))

    def open(
        self,
        block: Block | None = None,
        *,
        key: str | None = None,
        owner: str | None = None,
        takeover: bool = False,
    ) -> WriteBatch:
        """Open the batch of a block, by default a new one, for all of the connection's partitions.

        The block has it before it is opened, so that an interrupt right after that leaves it to be
        aborted. A batch with a `key` is an instance of its own, so it may be repeated after a
        failure. Raises CommitUnknown while the last commit has no response, and the errors of
        `WriteBatch.open`.
        """
        if self.unknown is not None:
            raise CommitUnknown(channel=self._connection.channel_name, key=self.unknown.key)
        if block is None:
            block = self.block = Block()
        self.end_stray()
        # The last block has ended: it has no more reports, and needs its records no more.
        self.intervals.take()
        own_key, latest = key is None, self._latest
        if own_key:
            owner, takeover = self._owner, self._owner is not None
            self._count += 1
        request = BatchRequest(
            channel=self._connection.channel_name,
            uid=self._connection.channel_uid,
            key=key or f"{self._writer}-{self._count}",
            owner=owner or self._writer,
            # A random part, because another writer object may have the same endpoint id.
            instance=self._writer if own_key else f"{self._writer}-{secrets.token_hex(8)}",
            takeover=takeover,
            own_key=own_key,
            lease_ms=self.leases.lease_ms,
            topic_id=self._connection.topic_id,
            previous=latest.result or latest.request.previous if latest else None,
        )
        batch = self._latest = WriteBatch(self._calls, request, leases=self.leases)
        try:
            block.batch = batch
            batch.open(partitions=self._connection.partitions)
        except BaseException as error:
            try:
                batch.abort(error)
            finally:
                block.batch = None
            raise
        return batch

    def commit(
        self, positions: PositionAdvance | None = None, *, timeout_s: float | None = None
    ) -> None:
        """Commit the batch once every message has a delivery report.

        Without a batch, positions are committed with an empty one; a replay is only compared. After
        CommitUnknown or an interrupt, the same call repeats the commit. After any other error,
        abort the batch. Raises DeliveryFailed, ReplayMismatch, and the errors of
        `WriteBatch.commit`.
        """
        block = self.unresolved or self.block
        batch = block.batch
        if batch is None and positions is not None:
            batch = self.open(block)
        if batch is None or batch.replayed:
            self._end()
            if batch is not None:
                batch.verify_replay(block.admitted)
            return
        written = self.intervals.written()
        written.require(block.admitted, block.reason)
        try:
            batch.commit(written, positions=positions, timeout_s=timeout_s)
        except CommitUnknown:
            self.block, self.unresolved = Block(), block
            raise
        self.ends |= written.ends
        self._end()

    def resolve(self, *, timeout_s: float | None = None) -> bool | None:
        """Return whether a commit without a response was applied; None without such a commit.

        If not, the batch has ended. Raises CommitUnknown if the gateway does not answer.
        """
        if self.unknown is None:
            return None
        committed = self.unknown.resolve(timeout_s=timeout_s)
        # After an interrupt, the next call repeats both.
        if (on_resolved := (self.unresolved or self.block).on_resolved) is not None:
            on_resolved(committed)
        self._end()
        return committed

    def abort(self, error: BaseException) -> None:
        """Abort the batch, if any. The caller must not add later reports."""
        try:
            if self.current is not None:
                self.current.abort(error)
        finally:
            self._end()

    def close(self, error: BaseException | None = None) -> None:
        """Abort the uncommitted batch after an `error`, and stop renewing leases."""
        if error is not None:
            self.abort(error)
            self.end_stray()
        self.leases.close()

    def _end(self) -> None:
        self.block, self.unresolved = Block(), None
