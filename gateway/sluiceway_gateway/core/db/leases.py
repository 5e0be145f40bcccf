"""Leases: the election of the replica that runs the background loops."""

import math
import os
import socket
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import BigInteger, RowMapping, bindparam, or_, select, update

from sluiceway_gateway.core.db.engine import Database, ReadTransaction, WriteTransaction
from sluiceway_gateway.core.db.failures import reason_of
from sluiceway_gateway.core.db.statements import by_dialect
from sluiceway_gateway.core.db.tables import leases
from sluiceway_gateway.core.errors import DatabaseUnavailable

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Lease:
    """A term of one holder; `epoch` increases with each new term, `renewals` with each renewal.

    Wall clocks may be set, so expiry is measured on the observer's monotonic clock: a lease has
    expired once `renewals` has not changed for `lease_ms`.
    """

    name: str
    holder: str
    epoch: int
    renewals: int
    lease_ms: int


#: The `lease_ms` of a released lease.
_RELEASED_MS = 0
_NAMED = leases.c.name == bindparam("lease")
_DURATION = bindparam("duration_ms", type_=BigInteger)
_CURRENT = select(leases).where(_NAMED, leases.c.lease_ms > _RELEASED_MS)
_RENEW = (
    update(leases)
    .where(_NAMED, leases.c.holder == bindparam("by"), leases.c.lease_ms > _RELEASED_MS)
    .values(renewals=leases.c.renewals + 1, lease_ms=_DURATION)
    .returning(leases)
)


def _take(insert: Any) -> Any:
    held = {"holder": bindparam("by"), "lease_ms": _DURATION}
    return (
        insert(leases)
        .values(name=bindparam("lease"), epoch=1, renewals=0, **held)
        .on_conflict_do_update(
            index_elements=["name"],
            set_={**held, "epoch": leases.c.epoch + 1, "renewals": leases.c.renewals + 1},
            where=or_(
                leases.c.lease_ms <= _RELEASED_MS,
                (leases.c.epoch == bindparam("ended_epoch", type_=BigInteger))
                & (leases.c.renewals == bindparam("ended_renewals", type_=BigInteger)),
            ),
        )
        .returning(leases)
    )


_TAKE = by_dialect(_take)


def acquire(
    tx: WriteTransaction, name: str, holder: str, lease_ms: int, *, ended: Lease | None = None
) -> Lease | None:
    """Acquire or renew the lease for `lease_ms`; return None while another holder has it.

    `ended` is another holder's lease that the caller knows has expired. It is taken over unless it
    was renewed meanwhile.
    """
    parameters = {"lease": name, "by": holder, "duration_ms": lease_ms}
    renewed = tx.execute(_RENEW, parameters).mappings().one_or_none()
    if renewed is not None:
        return _lease(renewed)
    # Reading first avoids locking the row, which would delay its holder.
    held = current(tx, name)
    if held is not None and held != ended:
        return None
    term = {
        "ended_epoch": None if ended is None else ended.epoch,
        "ended_renewals": None if ended is None else ended.renewals,
    }
    return _lease(tx.execute(_TAKE[tx.dialect], parameters | term).mappings().one_or_none())


def current(tx: ReadTransaction, name: str) -> Lease | None:
    """Return the stored lease, which may have expired; None after a release."""
    return _lease(tx.execute(_CURRENT, {"lease": name}).mappings().one_or_none())


def release(tx: WriteTransaction, lease: Lease) -> bool:
    """Release the lease; return False if another holder has it."""
    statement = update(leases).where(
        leases.c.name == lease.name, leases.c.holder == lease.holder, leases.c.epoch == lease.epoch
    )
    return tx.execute(statement.values(lease_ms=_RELEASED_MS)).rowcount == 1


def _lease(row: RowMapping | None) -> Lease | None:
    return None if row is None else Lease(**row)


def holder_name() -> str:
    """Return the name of a new lease holder: host, process id and a random part."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


class Leader:
    """One replica's claim to the lease, shared by its loops.

    Every replica measures by its own monotonic clock: the holder from its request of the last
    renewal, the others from the time they first saw that renewal. Wall clocks do not matter.

    The lease avoids duplicate work but is not a lock: it may end while its holder still runs a
    pass, so conditions in SQL guard each write of a loop.
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
        self._leads_until_s = -math.inf
        """End of this replica's lease, unless it is renewed."""
        self._seen: Lease | None = None
        """The lease of another replica, as last seen."""
        self._seen_s = math.inf
        """Time at which this replica first read that renewal."""
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
        """Return whether this replica leads, after acquiring or renewing the lease if that is due.

        Raises DatabaseUnavailable, after which no loop should run.
        """
        with self._lock:
            return self._leads()

    @property
    def has_lease(self) -> bool:
        """True until this replica's lease expires, by its last renewal; reads no database."""
        return self._monotonic() < self._leads_until_s

    def resign(self) -> None:
        """Release the lease, so that another replica takes over at once."""
        with self._lock:
            lease, self._lease = self._lease, None
            self._leads_until_s = -math.inf
        if lease is None:
            return
        try:
            with self._database.write() as tx:
                release(tx, lease)
        except DatabaseUnavailable as error:
            _log.warning("lease not released, it will expire", lease=self._name, **reason_of(error))

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
        self._leads_until_s = -math.inf if lease is None else now_s + self._lease_ms / 1000
        if (lease and lease.epoch) != (before and before.epoch):
            _log.info("leadership changed", lease=self._name, leads=lease is not None)
        return lease is not None

    def _has_ended(self, now_s: float) -> bool:
        """Return whether the other replica's lease has expired."""
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
