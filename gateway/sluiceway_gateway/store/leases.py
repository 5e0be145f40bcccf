"""Leases, judged by the database's own clock: replicas need not agree on the time."""

from typing import Any

from sqlalchemy import BigInteger, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import GenericFunction

from sluiceway_gateway.domain.lease import Lease
from sluiceway_gateway.store.engine import ReadTransaction, WriteTransaction
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


def acquire(tx: WriteTransaction, name: str, holder: str, lease_ms: int) -> Lease | None:
    """Take the lease or keep it, for `lease_ms` from now; None while another holds it.

    Keeping it keeps the epoch, unless it had ended: then it might have been
    somebody else's in between, and the epoch goes up.
    """
    now = database_now_ms()
    insert: Any = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[tx.dialect]
    tx.execute(
        insert(leases)
        .values(name=name, holder="", epoch=1, expires_ms=0)
        .on_conflict_do_nothing(index_elements=["name"])
    )
    kept = tx.execute(
        update(leases)
        .where(leases.c.name == name, leases.c.holder == holder, leases.c.expires_ms > now)
        .values(expires_ms=now + lease_ms)
    )
    if kept.rowcount != 1:
        taken = tx.execute(
            update(leases)
            .where(leases.c.name == name, or_(leases.c.expires_ms <= now, leases.c.holder == ""))
            .values(holder=holder, epoch=leases.c.epoch + 1, expires_ms=now + lease_ms)
        )
        if taken.rowcount != 1:
            return None
    return current(tx, name)


def current(tx: ReadTransaction, name: str) -> Lease | None:
    """Return the lease as it stands, if it has not ended."""
    row = tx.execute(
        select(leases).where(leases.c.name == name, leases.c.expires_ms > database_now_ms())
    ).one_or_none()
    return row and Lease(name=row.name, holder=row.holder, epoch=row.epoch)


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
