"""Write batch: opened, leased and written by a writer or job, then committed or aborted."""

import logging
from collections.abc import Callable

from sluiceway.concurrency import ForkGuard
from sluiceway.errors import (
    ChannelNotReady,
    CommitUnknown,
    Conflict,
    EndpointClosed,
    GatewayError,
    ReplayMismatch,
    SluicewayError,
    TopicGone,
    cause_of,
)
from sluiceway.ledger.intervals import WrittenRecords
from sluiceway.ledger.leases import LeaseKeeper
from sluiceway.rest.ledger import LedgerCalls
from sluiceway.rest.ledger_models import Batch, BatchRequest, CommitResult, PositionAdvance
from sluiceway.rest.models import Connection

__all__ = ["WriteBatch", "open_batch"]

LOGGER = logging.getLogger("sluiceway.ledger.write_batch")

_ABORT_TIMEOUT_S = 5.0
_MAX_CAUSE_CHARACTERS = 1000


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
        self._batch: Batch | None = None
        self._release: Callable[[], object] | None = None
        self.result: CommitResult | None = None
        self.committed: bool | None = None
        """Whether it was committed by this instance; None as long as that is not known."""
        # Whether the gateway may have opened it without a response, because of an interrupt.
        self._opening = False
        self._fork_guard = ForkGuard()

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
        return self.opened.is_committed

    def open(self, *, timeout_s: float | None = None) -> Batch:
        """Open the batch; every call of an instance gets the same one.

        Raises Conflict `batch_key_taken` for a key of another owner, `batch_open` while another
        live instance has it, `batch_aborted` and `batch_fenced` for an instance that has to stop,
        `stale_batch` for an ordinal below a committed one, `ledger_restored` after a restore of the
        database to a state without the `previous` commit; TopicGone for another topic.
        """
        request = self.request
        self._opening = True
        try:
            batch = self._calls.open(request, timeout_s=timeout_s)
            topic_ids = {batch.topic_id, request.topic_id} - {None}
            if len(topic_ids) > 1:
                raise TopicGone(
                    f"the topic of the channel {request.channel!r} was deleted and created again; "
                    "open the channel again"
                )
        except SluicewayError:
            self._opening = False
            raise
        self.adopt(batch)
        return batch

    def adopt(self, batch: Batch) -> None:
        """Continue the batch that another process of the same instance has opened."""
        self._batch, self._opening = batch, False
        if not batch.is_committed and self._release is None:
            self._release = self.leases.hold(self, batch.id, self.request.instance)

    def require_partitions(self, partitions: int) -> None:
        """Raise ChannelNotReady if the ledger lacks one of this number of partitions."""
        missing = set(range(partitions)) - self.opened.begin.keys()
        if missing and not self.replayed:
            raise ChannelNotReady(
                f"the ledger of the channel {self.request.channel!r} does not have the partition "
                f"{min(missing)} yet; try again in a few seconds"
            )

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

        May be repeated with the same records. Raises Conflict and InvalidRequest if nothing was
        committed, and CommitUnknown if the state is unknown; then call `resolve`.
        """
        self._fork_guard.check(f"the batch {self.key!r}")
        self.result = self._calls.commit(
            self.request,
            self.opened,
            manifest=written.manifest,
            records=written.records,
            counts=written.counts,
            positions=positions,
            timeout_s=timeout_s,
        )
        self.committed = True
        self.release()
        return self.result

    def resolve(self, *, timeout_s: float | None = None) -> bool:
        """Return whether an unanswered commit was applied; if not, it never will be.

        Raises CommitUnknown if the gateway does not answer.
        """
        self._fork_guard.check(f"the batch {self.key!r}")
        try:
            self._abort("the response to its commit was lost", timeout_s)
        except Conflict as error:
            if error.code != "batch_committed":
                raise
            self.committed = True
        except GatewayError as error:
            raise CommitUnknown(channel=self.request.channel, key=self.key) from error
        else:
            self.committed = False
        self.release()
        return self.committed

    def abort(self, cause: BaseException | str) -> None:
        """End the batch without its records; an unreachable gateway is only logged.

        The batch then ends with its lease. It is `committed` afterwards if its commit was
        interrupted after the request. Does nothing in a forked child.
        """
        if self._fork_guard.forked:
            return
        if self._opening:
            # Otherwise it would keep the key, and hold readers back.
            try:
                self.open(timeout_s=_ABORT_TIMEOUT_S)
            except SluicewayError as failure:
                LOGGER.warning(
                    "the batch %r may be open until its lease ends: %s", self.key, failure
                )
        self.release()
        if self._batch is None or self._batch.is_committed or self.committed is not None:
            return
        try:
            self._abort(cause if isinstance(cause, str) else cause_of(cause), _ABORT_TIMEOUT_S)
        except GatewayError as failure:
            LOGGER.warning("the batch %r was not aborted: %s", self.key, failure)
            if failure.code == "batch_committed":
                self.committed = True
        else:
            self.committed = False

    @property
    def is_renewed(self) -> bool:
        """Whether its lease is renewed: it is open here."""
        return self._release is not None

    def release(self) -> None:
        """Stop renewing the lease."""
        if self._release is not None:
            self._release()
            self._release = None

    def _abort(self, cause: str, timeout_s: float | None) -> None:
        cause = cause[:_MAX_CAUSE_CHARACTERS]
        self._calls.abort(self.request, self.opened.id, cause=cause, timeout_s=timeout_s)


def open_batch(
    calls: LedgerCalls,
    connection: Connection,
    leases: LeaseKeeper,
    *,
    key: str,
    owner: str,
    instance: str,
    takeover: bool,
    own_key: bool,
    previous: CommitResult | None,
    keep: Callable[[WriteBatch | None], object],
) -> WriteBatch:
    """Open a batch for all of a connection's partitions.

    `keep` gets the batch before it is opened, so that an interrupt right after that leaves it to be
    aborted, and None if it is not open. Raises the errors of `WriteBatch.open`, and ChannelNotReady
    if the ledger lacks a partition.
    """
    request = BatchRequest(
        channel=connection.channel_name,
        uid=connection.channel_uid,
        key=key,
        owner=owner,
        instance=instance,
        takeover=takeover,
        own_key=own_key,
        lease_ms=leases.lease_ms,
        topic_id=connection.topic_id,
        previous=previous,
    )
    batch = WriteBatch(calls, request, leases=leases)
    try:
        keep(batch)
        batch.open()
        batch.require_partitions(connection.partitions)
    except BaseException as error:
        batch.abort(error)
        keep(None)
        raise
    return batch
