"""A batch of one writer or job: opened, leased, written, then committed or aborted."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sluiceway.concurrency import ForkGuard
from sluiceway.errors import (
    ChannelNotFound,
    CommitUnknown,
    Conflict,
    EndpointClosed,
    GatewayError,
    ReplayMismatch,
    TopicGone,
    cause_of,
)
from sluiceway.ledger.intervals import WrittenRecords
from sluiceway.rest.ledger import LedgerCalls
from sluiceway.rest.ledger_models import Batch, CommitResult, PositionAdvance

__all__ = ["DEFAULT_LEASE_MS", "BatchRequest", "LeaseKeeper", "WriteBatch"]

LOGGER = logging.getLogger("sluiceway.ledger.write_batch")

DEFAULT_LEASE_MS: Final = 30_000
"""Time for which the batch of a vanished writer holds readers back; the gateway's default too."""
_RENEWALS_PER_LEASE = 3


class LeaseKeeper:
    """Renews the leases of a channel's open batches, in a thread that lives while there are any.

    A batch whose writer was dropped without an end is renewed no more. Where another process
    renews them, it only finds out which have ended. Thread-safe.
    """

    def __init__(
        self,
        calls: LedgerCalls,
        channel: str,
        uid: str,
        *,
        lease_ms: int = DEFAULT_LEASE_MS,
        renews: bool = True,
    ) -> None:
        self._calls, self._channel, self._uid = calls, channel, uid
        self.lease_ms = lease_ms
        self._renews = renews
        self._interval_s = lease_ms / 1000 / _RENEWALS_PER_LEASE
        # Instances by batch id. Changed by single operations, also while objects are collected.
        self._held: dict[str, str] = {}
        self._lost: dict[str, str] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._fork_guard = ForkGuard()

    def hold(self, owner: object, batch_id: str, instance: str) -> Callable[[], object]:
        """Renew a batch's lease until the result is called, or `owner` is garbage collected."""
        self._held[batch_id] = instance
        finalizer = self._fork_guard.finalize(owner, self._release, batch_id)
        finalizer.atexit = False
        with self._lock:
            if self._thread is None:
                self._stop.clear()
                self._thread = threading.Thread(
                    target=self._run, name="sluiceway-leases", daemon=True
                )
                self._thread.start()
        return finalizer

    def lost(self, batch_id: str) -> str | None:
        """Return the state of a batch that was found not to be open any more, else None."""
        return self._lost.get(batch_id)

    def run_once(self) -> int:
        """Renew all leases, and return the number of batches that are still open."""
        held = dict(self._held)
        if not held:
            return 0
        try:
            leases = self._calls.renew(
                self._channel,
                held,
                uid=self._uid,
                lease_ms=self.lease_ms if self._renews else 0,
                timeout_s=self._interval_s,
            )
        except (ChannelNotFound, Conflict) as error:
            LOGGER.warning("the batches of the channel %r ended: %s", self._channel, error)
            self._lost |= {batch_id: error.code for batch_id in held if batch_id in self._held}
            return 0
        except GatewayError as error:
            # The next renewal may be in time.
            LOGGER.warning("leases in the channel %r are not renewed: %s", self._channel, error)
            return 0
        for batch_id in held:
            lease = leases.get(batch_id)
            if (lease is None or not lease.is_open) and batch_id in self._held:
                self._lost[batch_id] = "gone" if lease is None else lease.state
        return len(held) - len(self._lost)

    def close(self) -> None:
        """End the thread, without a wait for it."""
        self._held.clear()
        self._stop.set()

    def _release(self, batch_id: str) -> None:
        self._held.pop(batch_id, None)
        self._lost.pop(batch_id, None)

    def _run(self) -> None:
        while True:
            stopped = self._stop.wait(self._interval_s)
            if not stopped:
                self.run_once()
            with self._lock:
                if not self._held:
                    self._thread = None
                    return
                # Held after `close`: a writer that goes on.
                self._stop.clear()


_ABORT_TIMEOUT_S = 5.0
_MAX_CAUSE_CHARACTERS = 1000


@dataclass(frozen=True, kw_only=True)
class BatchRequest:
    """What opens a batch. Plain data: all processes that open it get the same batch.

    `owner` is the query or job, and the sink, that the key belongs to. `instance` is one run of
    it; with `takeover`, it ends the earlier instances of the owner at once. `ordinal` is the
    batch's place in the order of a stream, and `partitions` are those it writes to, by default
    all. With `own_key`, only this instance ever asks for the key, which is not kept for ever.
    """

    channel: str
    uid: str
    key: str
    owner: str
    instance: str
    takeover: bool = False
    ordinal: int | None = None
    partitions: tuple[int, ...] | None = None
    own_key: bool = False
    lease_ms: int = DEFAULT_LEASE_MS
    topic_id: str | None = None


class WriteBatch:
    """A batch of a channel: all of its records become visible together, or none.

    Nothing may be produced before `open` has returned; nothing at all if the batch is `replayed`,
    as its key was committed before. Its lease is renewed from then on, until it is committed,
    aborted or dropped. A process that only writes a part of the batch calls `release` at the end,
    and sends its `WrittenRecords` to the one that commits. A forked child neither commits nor
    aborts the batch of its parent.

    Not thread-safe.
    """

    def __init__(
        self, calls: LedgerCalls, request: BatchRequest, *, leases: LeaseKeeper | None = None
    ) -> None:
        """Describe a batch; `leases` may renew those of several."""
        self._calls = calls
        self.request = request
        self._leases = leases or LeaseKeeper(
            calls, request.channel, request.uid, lease_ms=request.lease_ms
        )
        self._batch: Batch | None = None
        self._release: Callable[[], object] | None = None
        self.result: CommitResult | None = None
        self._fork_guard = ForkGuard()

    @property
    def key(self) -> str:
        """The batch's key."""
        return self.request.key

    @property
    def opened(self) -> Batch:
        """The gateway's answer to `open`. Raises EndpointClosed before it."""
        if self._batch is None:
            raise EndpointClosed(f"the batch {self.key!r} is not open: call open() first")
        return self._batch

    @property
    def replayed(self) -> bool:
        """Whether the key was committed before: its records are not written again."""
        return self.opened.is_committed

    def open(self, *, timeout_s: float | None = None) -> Batch:
        """Open the batch; every call of an instance gets the same one.

        Raises Conflict `batch_key_taken` for a key of another owner, `batch_open` while another
        living instance has it, `batch_aborted` and `batch_fenced` for an instance that has to
        stop, `stale_batch` for an ordinal below a committed one; TopicGone for another topic.
        """
        request = self.request
        batch = self._calls.open(
            request.channel,
            uid=request.uid,
            key=request.key,
            owner=request.owner,
            instance=request.instance,
            takeover=request.takeover,
            ordinal=request.ordinal,
            partitions=request.partitions,
            own_key=request.own_key,
            lease_ms=request.lease_ms,
            timeout_s=timeout_s,
        )
        if None not in (batch.topic_id, request.topic_id) and batch.topic_id != request.topic_id:
            raise TopicGone(
                f"the topic of the channel {request.channel!r} was deleted and created again; "
                "open the channel again"
            )
        self.adopt(batch)
        return batch

    def adopt(self, batch: Batch) -> None:
        """Go on with the batch that another process of the same instance has opened."""
        self._batch = batch
        if not batch.is_committed and self._release is None:
            self._release = self._leases.hold(self, batch.id, self.request.instance)

    def check(self) -> None:
        """Raise Conflict if the batch was found to have ended without its writer's doing."""
        state = self._leases.lost(self.opened.id)
        if state is not None:
            raise Conflict(
                f"the batch {self.key!r} of the channel {self.request.channel!r} is {state}: its "
                "lease or its time ended, or another instance took over. Nothing of it is "
                "visible; write it again with a new writer",
                code="batch_aborted",
            )

    def verify_replay(self, records: int) -> None:
        """Compare a replay's number of records with the committed one. Raises ReplayMismatch.

        The gateway keeps the numbers of an owner's last 100 batches.
        """
        committed = self.opened.records
        if committed is not None and committed != records:
            raise ReplayMismatch(
                f"the batch {self.key!r} of the channel {self.request.channel!r} was committed "
                f"with {committed:,} records, and now has {records:,}. Nothing was written. Give "
                "each batch a key of its own; if the input was changed, write the difference "
                "under another key"
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
        committed, and CommitUnknown if that is not known: `resolve` asks again.
        """
        self._fork_guard.check(f"the batch {self.key!r}")
        request = self.request
        self.result = self._calls.commit(
            request.channel,
            self.opened,
            uid=request.uid,
            instance=request.instance,
            manifest=written.manifest,
            records=written.records,
            counts=written.counts,
            positions=positions,
            timeout_s=timeout_s,
        )
        self.release()
        return self.result

    def resolve(self, *, timeout_s: float | None = None) -> bool:
        """Find out whether an unanswered commit counted; if not, it never will.

        Raises CommitUnknown if the gateway does not answer.
        """
        self._fork_guard.check(f"the batch {self.key!r}")
        try:
            self._abort("the answer to its commit was lost", timeout_s)
        except Conflict as error:
            if error.code != "batch_committed":
                raise
            committed = True
        except GatewayError as error:
            raise CommitUnknown(channel=self.request.channel, key=self.key) from error
        else:
            committed = False
        self.release()
        return committed

    def abort(self, cause: BaseException | str) -> None:
        """End the batch without its records; a gateway that does not answer is only logged.

        The batch then ends with its lease. Does nothing in a forked child.
        """
        if self._fork_guard.forked:
            return
        self.release()
        if self._batch is None or self._batch.is_committed or self.result is not None:
            return
        try:
            self._abort(cause if isinstance(cause, str) else cause_of(cause), _ABORT_TIMEOUT_S)
        except GatewayError as failure:
            LOGGER.warning("the batch %r was not aborted: %s", self.key, failure)

    def release(self) -> None:
        """Renew the lease no more."""
        if self._release is not None:
            self._release()
            self._release = None

    def _abort(self, cause: str, timeout_s: float | None) -> None:
        request = self.request
        self._calls.abort(
            request.channel,
            self.opened.id,
            uid=request.uid,
            instance=request.instance,
            cause=cause[:_MAX_CAUSE_CHARACTERS],
            timeout_s=timeout_s,
        )
