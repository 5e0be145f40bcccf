"""Leases: renewal while batches are open, and detection of batches that have ended."""

import logging
from collections.abc import Callable

from sluiceway.api.ledger import DEFAULT_LEASE_MS, LedgerCalls
from sluiceway.concurrency import this_process
from sluiceway.errors import GatewayError
from sluiceway.runtime.timers import Timer

__all__ = ["LeaseKeeper"]

LOGGER = logging.getLogger("sluiceway.ledger.leases")

_RENEWALS_PER_LEASE = 3


class LeaseKeeper:
    """Renews the leases of a channel's open batches, by a timer that is set while there are any.

    The batch of a garbage-collected writer is not renewed. With `renews` false, another process
    renews them, and this one only detects their end. Thread-safe.
    """

    def __init__(
        self,
        calls: LedgerCalls,
        channel: str,
        uid: str,
        *,
        lease_ms: int = DEFAULT_LEASE_MS,
        renewals_per_lease: int = _RENEWALS_PER_LEASE,
        renews: bool = True,
    ) -> None:
        self._calls, self._channel, self._uid = calls, channel, uid
        self.lease_ms = lease_ms
        self._renews = renews
        self._interval_s = lease_ms / 1000 / renewals_per_lease
        # Instances by batch id. Changed by atomic operations, also in garbage collection.
        self._held: dict[str, str] = {}
        self._lost: dict[str, str] = {}
        self._timer = Timer(self._renew)
        self._process = this_process()

    def hold(self, owner: object, batch_id: str, instance: str) -> Callable[[], object]:
        """Renew a batch's lease until the result is called or `owner` is garbage-collected."""
        self._held[batch_id] = instance
        finalizer = self._process.finalize(owner, self._release, batch_id)
        finalizer.atexit = False
        self._renew_later()
        return finalizer

    def lost(self, batch_id: str) -> str | None:
        """Return the state of a batch that is known to have ended, else None."""
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
        except GatewayError as error:
            if error.is_final:
                LOGGER.warning("the batches of the channel %r ended: %s", self._channel, error)
                self._lost |= {batch_id: error.code for batch_id in held if batch_id in self._held}
            else:
                # The next renewal may still be in time.
                LOGGER.warning("leases in the channel %r are not renewed: %s", self._channel, error)
            return 0
        for batch_id in held:
            lease = leases.get(batch_id)
            if (lease is None or not lease.is_open) and batch_id in self._held:
                self._lost[batch_id] = "gone" if lease is None else lease.state
        return len(held) - len(self._lost)

    def close(self) -> None:
        """Renew no more, except a batch that is added later."""
        self._held.clear()
        self._timer.cancel()

    def _release(self, batch_id: str) -> None:
        self._held.pop(batch_id, None)
        self._lost.pop(batch_id, None)

    def _renew_later(self) -> None:
        if not self._timer.is_set:
            self._timer.set(self._interval_s)

    def _renew(self) -> None:
        try:
            self.run_once()
        except Exception:
            # Without the next renewal, all batches would lose their leases.
            LOGGER.exception("a renewal of leases failed; the next one is in time")
        if self._held:
            self._renew_later()
