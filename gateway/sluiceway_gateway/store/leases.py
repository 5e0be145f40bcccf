"""Leases, judged by the database's own clock: replicas need not agree on the time."""

from typing import Any

from sqlalchemy import BigInteger, Row, bindparam, select, update
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import GenericFunction

from sluiceway_gateway.domain.lease import Lease
from sluiceway_gateway.store.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.store.inserts import by_dialect
from sluiceway_gateway.store.tables import leases


class database_now_ms(GenericFunction[int]):  # noqa: N801 - an SQL function's name
    """Milliseconds since 1970 by the database's clock, also inside a long transaction."""

    type = BigInteger()
    inherit_cache = True


@compiles(database_now_ms, "sqlite")
def _sqlite_now(_element: database_now_ms, _compiler: Any, **_options: Any) -> str:
    return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"


@compiles(database_now_ms, "postgresql")
def _postgresql_now(_element: database_now_ms, _compiler: Any, **_options: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"


_NOW = database_now_ms()
_NAMED = leases.c.name == bindparam("lease")
_UNTIL = _NOW + bindparam("lease_ms", type_=BigInteger)
# Every gateway renews or asks all the time, so these are put together once.
_CURRENT = select(leases).where(_NAMED, leases.c.expires_ms > _NOW)
_KEEP = (
    update(leases)
    .where(_NAMED, leases.c.holder == bindparam("by"), leases.c.expires_ms > _NOW)
    .values(expires_ms=_UNTIL)
    .returning(leases)
)


def _take(insert: Any) -> Any:
    return (
        insert(leases)
        .values(name=bindparam("lease"), holder=bindparam("by"), epoch=1, expires_ms=_UNTIL)
        .on_conflict_do_update(
            index_elements=["name"],
            set_={"holder": bindparam("by"), "epoch": leases.c.epoch + 1, "expires_ms": _UNTIL},
            where=leases.c.expires_ms <= _NOW,
        )
        .returning(leases)
    )


_TAKE = by_dialect(_take)


def acquire(tx: WriteTransaction, name: str, holder: str, lease_ms: int) -> Lease | None:
    """Take the lease or keep it, for `lease_ms` from now; None while another holds it.

    Keeping it keeps the epoch, unless it had ended: then it might have been
    somebody else's in between, and the epoch goes up.
    """
    asked = {"lease": name, "by": holder, "lease_ms": lease_ms}
    kept = tx.execute(_KEEP, asked).one_or_none()
    if kept is not None:
        return _lease(kept)
    # To try to take it locks the row, which its holder would have to wait for.
    if current(tx, name) is not None:
        return None
    return _lease(tx.execute(_TAKE[tx.dialect], asked).one_or_none())


def current(tx: ReadTransaction, name: str) -> Lease | None:
    """Return the lease as it stands, if it has not ended."""
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
        .values(expires_ms=0)
    )
    return freed.rowcount == 1


def _lease(row: Row[Any] | None) -> Lease | None:
    return None if row is None else Lease(name=row.name, holder=row.holder, epoch=row.epoch)
