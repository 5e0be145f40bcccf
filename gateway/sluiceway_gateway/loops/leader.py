"""Which replica runs the loops: the one that holds a lease in the database."""

import math
import threading
from collections.abc import Callable

import structlog

from sluiceway_gateway.domain.errors import DatabaseUnavailable
from sluiceway_gateway.domain.lease import Lease
from sluiceway_gateway.store.engine import Database
from sluiceway_gateway.store.leases import acquire, release

_log = structlog.get_logger(__name__)


class Leader:
    """One replica's claim to a lease, for all of its loops.

    It says who works, not who may write: what the loops write is guarded by itself, for a lease
    may end while its holder is at work.
    """

    def __init__(
        self,
        *,
        database: Database,
        name: str,
        holder: str,
        lease_ms: int,
        monotonic: Callable[[], float],
    ) -> None:
        self._database = database
        self._name = name
        self._holder = holder
        self._lease_ms = lease_ms
        self._monotonic = monotonic
        self._lease: Lease | None = None
        self._asked_s = -math.inf
        self._turn = threading.Lock()

    @property
    def renewal_s(self) -> float:
        """How often to renew."""
        return self._lease_ms / 3000

    @property
    def patience_s(self) -> float:
        """How often to ask for the lease while another replica has it."""
        return min(self.renewal_s, 1.0)

    def leads(self) -> bool:
        """Tell whether this replica leads, after asking the database if it is time to.

        Raises DatabaseUnavailable; then nobody should work.
        """
        with self._turn:
            return self._leads()

    def resign(self) -> None:
        """Give the lease back, so that another replica takes over at once."""
        with self._turn:
            lease, self._lease = self._lease, None
        if lease is None:
            return
        try:
            with self._database.write() as tx:
                release(tx, lease)
        except DatabaseUnavailable as error:
            _log.warning("the lease ends by itself", lease=self._name, reason=str(error))

    def _leads(self) -> bool:
        now_s = self._monotonic()
        # Without the lease each of the loops asks once in its patience, and one answer is for all.
        lasting_s = self.patience_s / 2 if self._lease is None else self.renewal_s
        if now_s - self._asked_s < lasting_s:
            return self._lease is not None
        before, self._lease = self._lease, None
        with self._database.write() as tx:
            lease = acquire(tx, self._name, self._holder, self._lease_ms)
        self._lease, self._asked_s = lease, now_s
        if (lease and lease.epoch) != (before and before.epoch):
            _log.info("leadership changed", lease=self._name, leads=lease is not None)
        return lease is not None
