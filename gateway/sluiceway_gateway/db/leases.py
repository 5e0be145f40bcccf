"""Leases: the right of one replica to run the loops."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Row, bindparam, or_, select, update

from sluiceway_gateway.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.db.schema import leases
from sluiceway_gateway.db.statements import by_dialect


@dataclass(frozen=True, kw_only=True)
class Lease:
    """Held by `holder`; `epoch` goes up each time the holder changes.

    It holds for `lease_ms` after its last renewal, on the monotonic clock of whoever asks: a wall
    clock may be set. Who sees `renewals` unchanged for that long knows that it has ended.
    """

    name: str
    holder: str
    epoch: int
    renewals: int
    lease_ms: int


_COLUMNS = (
    leases.c.name,
    leases.c.holder,
    leases.c.epoch,
    leases.c.renewals,
    leases.c.lease_ms,
)
_NAMED = leases.c.name == bindparam("lease")
_DURATION = bindparam("duration_ms", type_=BigInteger)
#: A lease of no duration was given back.
_FREE_MS = 0
# Every gateway renews or asks all the time, so these are put together once.
_CURRENT = select(*_COLUMNS).where(_NAMED, leases.c.lease_ms > _FREE_MS)
_KEEP = (
    update(leases)
    .where(_NAMED, leases.c.holder == bindparam("by"), leases.c.lease_ms > _FREE_MS)
    .values(renewals=leases.c.renewals + 1, lease_ms=_DURATION)
    .returning(*_COLUMNS)
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
                leases.c.lease_ms <= _FREE_MS,
                (leases.c.epoch == bindparam("ended_epoch", type_=BigInteger))
                & (leases.c.renewals == bindparam("ended_renewals", type_=BigInteger)),
            ),
        )
        .returning(*_COLUMNS)
    )


_TAKE = by_dialect(_take)


def acquire(
    tx: WriteTransaction, name: str, holder: str, lease_ms: int, *, ended: Lease | None = None
) -> Lease | None:
    """Take the lease for `lease_ms`, or renew it; None while another holds it.

    `ended` is a term of another's that has ended, as the caller knows: it is taken over, unless it
    was renewed meanwhile. The epoch goes up with each new term.
    """
    asked = {"lease": name, "by": holder, "duration_ms": lease_ms}
    kept = tx.execute(_KEEP, asked).one_or_none()
    if kept is not None:
        return _lease(kept)
    # To try to take it locks the row, which its holder would have to wait for.
    held = current(tx, name)
    if held is not None and held != ended:
        return None
    term = {
        "ended_epoch": None if ended is None else ended.epoch,
        "ended_renewals": None if ended is None else ended.renewals,
    }
    return _lease(tx.execute(_TAKE[tx.dialect], asked | term).one_or_none())


def current(tx: ReadTransaction, name: str) -> Lease | None:
    """Return the lease as it stands, unless it was given back; its term may have ended."""
    return _lease(tx.execute(_CURRENT, {"lease": name}).one_or_none())


def release(tx: WriteTransaction, lease: Lease) -> bool:
    """Give the lease back; False if it is somebody else's by now."""
    freed = tx.execute(
        update(leases)
        .where(
            leases.c.name == lease.name,
            leases.c.holder == lease.holder,
            leases.c.epoch == lease.epoch,
        )
        .values(lease_ms=_FREE_MS)
    )
    return freed.rowcount == 1


def _lease(row: Row[Any] | None) -> Lease | None:
    if row is None:
        return None
    return Lease(
        name=row.name,
        holder=row.holder,
        epoch=row.epoch,
        renewals=row.renewals,
        lease_ms=row.lease_ms,
    )
