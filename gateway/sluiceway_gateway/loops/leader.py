"""Leader election among replicas, by a lease in the database."""

import math
import os
import socket
import threading
import uuid
from collections.abc import Callable

import structlog

from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.db.leases import Lease, acquire, current, release
from sluiceway_gateway.errors import DatabaseUnavailable

_log = structlog.get_logger(__name__)


def holder_name() -> str:
    """Return the name of a new lease holder: host, process id and a random part."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


class Leader:
    """One replica's claim to the lease, shared by its loops.

    Every replica measures by its own monotonic clock: the holder since it requested the last
    renewal, the others since they first saw that renewal. Wall clocks do not matter.

    The lease avoids duplicate work but is no lock: it may end while its holder still runs a pass,
    so each write of a loop has its own guard.
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
        self._requested_s = -math.inf
        self._seen: Lease | None = None
        """The lease of another replica, as last seen."""
        self._seen_s = math.inf
        """When that renewal was first seen."""
        self._lock = threading.Lock()

    @property
    def renewal_s(self) -> float:
        """Interval of renewals."""
        return self._lease_ms / 3000

    @property
    def poll_s(self) -> float:
        """Interval of attempts to acquire the lease while another replica has it."""
        return min(self.renewal_s, 1.0)

    def leads(self) -> bool:
        """Whether this replica leads; acquires or renews the lease when that is due.

        Raises DatabaseUnavailable, after which no loop should run.
        """
        with self._lock:
            return self._leads()

    def resign(self) -> None:
        """Release the lease, so that another replica takes over at once."""
        with self._lock:
            lease, self._lease = self._lease, None
        if lease is None:
            return
        try:
            with self._database.write() as tx:
                release(tx, lease)
        except DatabaseUnavailable as error:
            _log.warning("lease not released, it will expire", lease=self._name, reason=str(error))

    def _leads(self) -> bool:
        now_s = self._monotonic()
        # One query per interval serves all loops.
        interval_s = self.poll_s / 2 if self._lease is None else self.renewal_s
        if now_s - self._requested_s < interval_s:
            return self._lease is not None
        before, self._lease = self._lease, None
        ended = self._seen if self._has_ended(now_s) else None
        with self._database.write() as tx:
            lease = acquire(tx, self._name, self._holder, self._lease_ms, ended=ended)
            other = current(tx, self._name) if lease is None else None
            if other is not None and self._has_died(other):
                lease = acquire(tx, self._name, self._holder, self._lease_ms, ended=other)
        # The holder measures from before its request, so it always gives up first.
        if other != self._seen:
            self._seen, self._seen_s = other, self._monotonic()
        self._lease, self._requested_s = lease, now_s
        if (lease and lease.epoch) != (before and before.epoch):
            _log.info("leadership changed", lease=self._name, leads=lease is not None)
        return lease is not None

    def _has_ended(self, now_s: float) -> bool:
        """Whether the other replica's lease has expired."""
        return self._seen is not None and now_s - self._seen_s >= self._seen.lease_ms / 1000

    def _has_died(self, other: Lease) -> bool:
        """Whether the other replica is a process of this machine that has ended.

        Only gateways on SQLite are known to run on one machine.
        """
        host, _, rest = other.holder.partition(":")
        process = rest.partition(":")[0]
        return (
            self._database.dialect == "sqlite"
            and host == socket.gethostname()
            and process.isdecimal()
            and not _runs(int(process))
        )


def _runs(process: int) -> bool:
    """Whether this machine has such a process; True if unknown."""
    if os.name != "posix":
        # On other systems, signal 0 would end the process.
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
