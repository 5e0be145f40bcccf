"""Leases of batches: those whose leases have ended are aborted."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

import structlog

from sluiceway_gateway.core.clock import Clock
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.passes import run_steps
from sluiceway_gateway.ledger import batch_store, store
from sluiceway_gateway.ledger.batch_store import OpenLease
from sluiceway_gateway.ledger.model import LEASE, reap
from sluiceway_gateway.ledger.service import save_aborted

_log = structlog.get_logger(__name__)

_PAUSE_S = 1.0
#: Maximum time between two passes; after a longer one, all leases are watched anew.
_LATE_S = 10.0
#: Time for writers to renew after that.
_GRACE_S = 15.0


@dataclass(frozen=True, kw_only=True)
class LeaseCounts:
    """Batches that one pass aborted; `pause_s` is the time until the next pass."""

    reaped: int = 0
    pause_s: float = _PAUSE_S


class LeaseReaper:
    """Aborts open batches whose leases have ended, so that they do not hold readers back for ever.

    Leases are times of the wall clock of the replica that a writer has reached. That clock may be
    behind this one, or either may have been set. So a batch is aborted only if, in addition, its
    lease was unchanged for as long, at most `LEASE`, by the monotonic clock. After a pause of this
    process or of its leadership, in which writers may have found no gateway, they get 15 s to
    renew. A batch that is aborted too early costs its writer a new attempt, but never a record.
    """

    def __init__(self, *, database: Database, clock: Clock, monotonic: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock
        self._monotonic = monotonic
        self._passed_s = -math.inf
        self._due_s: dict[OpenLease, float] = {}
        """By lease, the monotonic time at which it has been unchanged for long enough."""

    def run_once(self) -> LeaseCounts:
        """Abort the batches whose leases have ended. Raises DatabaseUnavailable."""
        now_s, now = self._monotonic(), self._clock()
        longest_s = LEASE.total_seconds()
        if now_s - self._passed_s > _LATE_S:
            self._due_s, longest_s = {}, _GRACE_S
        self._passed_s = now_s
        with self._database.read() as tx:
            leases = batch_store.open_leases(tx)
        self._due_s = {
            lease: self._due_s.get(lease, now_s + min(longest_s, lease.longest.total_seconds()))
            for lease in leases
        }
        ended = {
            lease for lease, due_s in self._due_s.items() if lease.until <= now and due_s <= now_s
        }
        uids = sorted({lease.channel_uid for lease in ended})
        return LeaseCounts(reaped=sum(run_steps(partial(self._reap, uid, ended) for uid in uids)))

    def _reap(self, uid: str, ended: Collection[OpenLease]) -> int:
        with self._database.write() as tx:
            was = store.hold_existing(tx, uid)
            if was is None:
                return 0
            now = self._clock()
            open_batches = batch_store.open_batches(tx, uid)
            renewed = [
                batch.id
                for batch in open_batches
                if OpenLease(uid, batch.id, batch.opened_at, batch.lease_until) not in ended
            ]
            decision = reap(was, open_batches, now, spared=renewed)
            save_aborted(tx, decision, was=was, now=now)
        for batch in decision.aborted:
            _log.warning(
                "the lease of a batch ended",
                channel=uid,
                batch=batch.id,
                key=batch.key,
                owner=batch.owner,
            )
        return len(decision.aborted)
