"""Write batch: opened, leased and written by a writer or job, then committed or aborted."""

import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import closing
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
from sluiceway.ledger.intervals import WrittenRecords
from sluiceway.ledger.leases import LeaseKeeper

__all__ = ["BATCH_TRANSITIONS", "BatchSequence", "BatchState", "WriteBatch"]

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


class BatchSequence:
    """The batches of one writer, one after the other, and their leases.

    A writer's own batches have numbered keys; others have a key of the program. Each one names the
    last commit before it, so that a database that was restored to a state without it refuses it.
    """

    def __init__(self, calls: LedgerCalls, connection: Connection, *, writer: str) -> None:
        """Describe a writer by its endpoint's id."""
        self._calls, self._connection, self._writer = calls, connection, writer
        self.leases = LeaseKeeper(calls, connection.channel_name, connection.channel_uid)
        self._count = 0
        self._latest: WriteBatch | None = None

    def is_stray(self, current: WriteBatch | None) -> bool:
        """Whether an interrupt of its abort has left the batch before the current one open."""
        latest = self._latest
        return latest is not None and latest is not current and latest.state in _UNENDED

    def end_stray(self, current: WriteBatch | None) -> None:
        """Abort the batch before the current one if it `is_stray`."""
        if self._latest is not None and self.is_stray(current):
            self._latest.abort(EndpointClosed("an interrupt ended the batch"))

    def open(
        self,
        keep: Callable[[WriteBatch | None], object],
        *,
        key: str | None = None,
        owner: str | None = None,
        takeover: bool = False,
    ) -> WriteBatch:
        """Open a batch for all of the connection's partitions.

        `keep` gets the batch before it is opened, so that an interrupt right after that leaves it
        to be aborted, and None if it is not open. The `owner` is by default the writer alone. A
        batch with a `key` is an instance of its own, so it may be repeated after a failure. Raises
        the errors of `WriteBatch.open`.
        """
        self.end_stray(None)
        own_key, latest = key is None, self._latest
        self._count += own_key
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
            keep(batch)
            batch.open(partitions=self._connection.partitions)
        except BaseException as error:
            try:
                batch.abort(error)
            finally:
                keep(None)
            raise
        return batch
