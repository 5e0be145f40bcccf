"""Leases: one replica at a time may run the background loops."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, RowMapping, bindparam, or_, select, update

from sluiceway_gateway.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.db.schema import leases
from sluiceway_gateway.db.statements import by_dialect


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
