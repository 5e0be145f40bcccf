"""Leases of batches: those whose leases have ended are aborted."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import structlog

from sluiceway_gateway.core.clock import Clock, clocks_apart
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.passes import run_steps
from sluiceway_gateway.ledger import batch_store, store
from sluiceway_gateway.ledger.model import reap
from sluiceway_gateway.ledger.service import save_aborted

_log = structlog.get_logger(__name__)

_PAUSE_S = 1.0
#: Maximum time between two passes; after a longer one, writers get time to renew.
_LATE_S = 10.0
#: Larger jumps of the wall clock mean that it was set.
_CLOCK_JUMP = timedelta(seconds=2)
#: Time for writers to renew after that, by the monotonic clock.
_GRACE_S = 15.0


@dataclass(frozen=True, kw_only=True)
class LeaseCounts:
    """Batches that one pass aborted; `pause_s` is the time until the next pass."""

    reaped: int = 0
    pause_s: float = _PAUSE_S


class LeaseReaper:
    """Aborts open batches whose leases have ended, so that they do not hold readers back for ever.

    Leases are times of the wall clock. After the clock was set, or after a pause of this process or
    of its leadership, in which writers may have found no gateway, no batch is aborted until writers
    had time to renew. A batch that is aborted too early costs its writer a new attempt, but never a
    record.
    """

    def __init__(self, *, database: Database, clock: Clock, monotonic: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock
        self._monotonic = monotonic
        self._passed_s = -math.inf
        self._apart = clocks_apart(self._clock, self._monotonic)
        self._quiet_until_s = -math.inf

    def run_once(self) -> LeaseCounts:
        """Abort the batches whose leases have ended. Raises DatabaseUnavailable."""
        now_s, apart = self._monotonic(), clocks_apart(self._clock, self._monotonic)
        late = now_s - self._passed_s > _LATE_S
        if late or abs(apart - self._apart) > _CLOCK_JUMP:
            self._quiet_until_s = now_s + _GRACE_S
        self._passed_s, self._apart = now_s, apart
        if now_s < self._quiet_until_s:
            return LeaseCounts()
        with self._database.read() as tx:
            uids = batch_store.with_expired(tx, self._clock())
        return LeaseCounts(reaped=sum(run_steps(partial(self._reap, uid) for uid in uids)))

    def _reap(self, uid: str) -> int:
        with self._database.write() as tx:
            was = store.hold_existing(tx, uid)
            if was is None:
                return 0
            now = self._clock()
            decision = reap(was, batch_store.open_batches(tx, uid), now)
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
