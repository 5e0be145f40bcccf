"""Sessions: one a client process, with the number of its last heartbeat that counted."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, select, update

from sluiceway_gateway.store.engine import WriteTransaction
from sluiceway_gateway.store.inserts import by_dialect
from sluiceway_gateway.store.prepared import Each
from sluiceway_gateway.store.selection import chunks
from sluiceway_gateway.store.tables import sessions

_BEAT = Each(
    update(sessions)
    .where(sessions.c.id == bindparam("session"), sessions.c.beat < bindparam("number"))
    .values(beat=bindparam("number"))
)


def _upsert(insert: Any) -> Each:
    statement = insert(sessions)
    upsert = statement.on_conflict_do_update(
        index_elements=["id"], set_={"client": statement.excluded.client}
    )
    return Each(upsert, columns=[each.name for each in sessions.columns])


_BEGIN = by_dialect(_upsert)


def begin(tx: WriteTransaction, clients: Mapping[str, str], *, now: datetime) -> None:
    """Note these sessions, each with its client, if they are new, and hold them.

    One without endpoints could be pruned.
    """
    rows = [
        {"id": session, "beat": 0, "started_at": now, "client": client}
        for session, client in sorted(clients.items())
    ]
    tx.run_each(_BEGIN[tx.dialect], rows)


def beat(tx: WriteTransaction, session: str, number: int) -> bool:
    """Count the beat and hold the session; False for an unknown one, and for a beat that is old."""
    return tx.run_each(_BEAT, [{"session": session, "number": number}]) == 1


def hold(tx: WriteTransaction, ids: Collection[str]) -> dict[str, int]:
    """Return the last beats of these sessions and keep them from beating."""
    found: dict[str, int] = {}
    for part in chunks(sorted(ids)):
        statement = select(sessions.c.id, sessions.c.beat).where(sessions.c.id.in_(part))
        rows = tx.execute(statement.order_by(sessions.c.id).with_for_update(key_share=True))
        found |= {row.id: row.beat for row in rows}
    return found
