"""Sessions: one a client process, with the number of its last heartbeat that counted."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.dialects import postgresql, sqlite

from sluiceway_gateway.store.engine import WriteTransaction
from sluiceway_gateway.store.tables import sessions

_BEAT = (
    update(sessions)
    .where(sessions.c.id == bindparam("session"), sessions.c.beat < bindparam("number"))
    .values(beat=bindparam("number"))
)


def begin(tx: WriteTransaction, session: str, *, client: str, now: datetime) -> None:
    """Note the session, if it is new, and hold it: one without endpoints could be pruned."""
    make: Any = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[tx.dialect]
    statement = make(sessions).values(id=session, beat=0, started_at=now, client=client)
    tx.execute(
        statement.on_conflict_do_update(
            index_elements=["id"], set_={"client": statement.excluded.client}
        )
    )


def beat(tx: WriteTransaction, session: str, number: int) -> bool:
    """Count the beat and hold the session; False for an unknown one, and for a beat that is old."""
    counted = tx.execute(_BEAT, {"session": session, "number": number})
    return counted.rowcount == 1


def hold(tx: WriteTransaction, ids: Collection[str]) -> dict[str, int]:
    """Return the last beats of these sessions and keep them from beating."""
    statement = select(sessions.c.id, sessions.c.beat).where(sessions.c.id.in_(ids))
    rows = tx.execute(statement.order_by(sessions.c.id).with_for_update(key_share=True))
    return {row.id: row.beat for row in rows}
