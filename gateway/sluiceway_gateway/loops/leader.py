"""Which replica runs the loops: the one that holds a lease in the database."""

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
    """Return a name for a new holder of leases: its host, its process and a number of its own."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


class Leader:
    """One replica's claim to a lease, for all of its loops.

    Every replica judges by its own monotonic clock: the holder by when it last asked for a renewal,
    the others by when they first saw that renewal. So a wall clock that is set ends no lease and
    makes none last longer.

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
        self._seen: Lease | None = None
        """Another's lease, as it was seen last."""
        self._seen_s = math.inf
        """When it was first seen like that."""
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
        ended = self._seen if self._has_ended(now_s) else None
        with self._database.write() as tx:
            lease = acquire(tx, self._name, self._holder, self._lease_ms, ended=ended)
            other = current(tx, self._name) if lease is None else None
            if other is not None and self._has_died(other):
                lease = acquire(tx, self._name, self._holder, self._lease_ms, ended=other)
        # Its holder counts from before it asked, so what is counted from here on is the longer.
        if other != self._seen:
            self._seen, self._seen_s = other, self._monotonic()
        self._lease, self._asked_s = lease, now_s
        if (lease and lease.epoch) != (before and before.epoch):
            _log.info("leadership changed", lease=self._name, leads=lease is not None)
        return lease is not None

    def _has_ended(self, now_s: float) -> bool:
        """Tell whether the other's lease was not renewed for as long as it lasts."""
        return self._seen is not None and now_s - self._seen_s >= self._seen.lease_ms / 1000

    def _has_died(self, other: Lease) -> bool:
        """Tell whether the other is a process that is gone; False if in doubt.

        SQLite's gateways are processes of one machine, one at a time; of PostgreSQL's nobody knows.
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
    """Tell whether this machine has such a process; True if in doubt."""
    if os.name != "posix":
        # Elsewhere the signal 0 is a signal.
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
