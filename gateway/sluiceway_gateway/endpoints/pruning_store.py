"""Deletion of old rows, a bounded number per pass."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Table, delete, exists, or_, select

from sluiceway_gateway.db.engine import WriteTransaction
from sluiceway_gateway.db.schema import endpoint_events, endpoints, sessions
from sluiceway_gateway.endpoints.model import ANONYMOUS, Health, Role, State


def events(tx: WriteTransaction, *, before: datetime, limit: int) -> int:
    """Delete lines of the history, the oldest first; return how many."""
    # No more is looked at than may be deleted: a line is about as old as its number says.
    oldest = select(endpoint_events.c.seq).order_by(endpoint_events.c.seq).limit(limit)
    where = [endpoint_events.c.seq.in_(oldest), endpoint_events.c.at < before]
    return tx.execute(delete(endpoint_events).where(*where)).rowcount


def superseded(tx: WriteTransaction, *, before: datetime, limit: int) -> int:
    """Delete endpoints whose place another has; return how many.

    A writer in a group stays until one after it has come to its end: what it wrote, and that it
    did not finish, counts until then.
    """
    after = endpoints.alias("after")
    finished = exists().where(
        after.c.channel_uid == endpoints.c.channel_uid,
        after.c.role == endpoints.c.role,
        after.c.group_name == endpoints.c.group_name,
        after.c.member_index == endpoints.c.member_index,
        after.c.epoch > endpoints.c.epoch,
        after.c.state == str(State.CLOSED),
        ~after.c.superseded,
    )
    needless = or_(
        endpoints.c.role == str(Role.READER), endpoints.c.group_name == ANONYMOUS, finished
    )
    where = [endpoints.c.superseded, endpoints.c.changed_at < before, needless]
    return _delete(tx, endpoints, endpoints.c.id, where, limit)


def departed_readers(tx: WriteTransaction, *, before: datetime, limit: int) -> int:
    """Delete readers without a group that have closed, failed or been lost; return how many.

    They hold no place that another could take, and no positions.
    """
    departed = or_(
        endpoints.c.state.in_([str(State.CLOSED), str(State.ERROR)]),
        endpoints.c.health == str(Health.LOST),
    )
    where = [
        endpoints.c.role == str(Role.READER),
        endpoints.c.group_name == ANONYMOUS,
        departed,
        endpoints.c.changed_at < before,
    ]
    return _delete(tx, endpoints, endpoints.c.id, where, limit)


def idle_sessions(tx: WriteTransaction, *, before: datetime, limit: int) -> int:
    """Delete sessions that began before, and have no endpoint; return how many."""
    has_endpoint = exists().where(endpoints.c.session_id == sessions.c.id)
    where = [sessions.c.started_at < before, ~has_endpoint]
    return _delete(tx, sessions, sessions.c.id, where, limit)


def _delete(
    tx: WriteTransaction,
    table: Table,
    key: ColumnElement[Any],
    where: Sequence[ColumnElement[bool]],
    limit: int,
) -> int:
    # Held ones are somebody's just now, and go another time.
    chosen = select(key).where(*where).order_by(key).limit(limit)
    found = tx.execute(chosen.with_for_update(skip_locked=True)).scalars().all()
    if not found:
        return 0
    # Once more, as what was chosen may have changed before it was held.
    return tx.execute(delete(table).where(key.in_(found), *where)).rowcount
