"""The history of endpoints: lines are added, and never changed."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, insert, select

from sluiceway_gateway.domain.endpoint import Event, Health, State
from sluiceway_gateway.store.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.store.tables import endpoint_events


def add(tx: WriteTransaction, events: Sequence[tuple[str, Event]]) -> None:
    """Add events, each with the uid of its channel."""
    if events:
        tx.execute(
            insert(endpoint_events),
            [
                {
                    "channel_uid": channel_uid,
                    "endpoint_id": each.endpoint,
                    "group_name": each.group,
                    "at": each.at,
                    "state": None if each.state is None else str(each.state),
                    "health": None if each.health is None else str(each.health),
                    "cause": each.cause,
                    "by": each.by,
                }
                for channel_uid, each in events
            ],
        )


def of_endpoint(tx: ReadTransaction, endpoint_id: str, *, limit: int) -> list[Event]:
    """Return the last events of an endpoint, the oldest first."""
    return _last(tx, endpoint_events.c.endpoint_id == endpoint_id, limit=limit)


def of_group(tx: ReadTransaction, channel_uid: str, group: str, *, limit: int) -> list[Event]:
    """Return the last events that concern a group as such, the oldest first."""
    table = endpoint_events.c
    return _last(
        tx,
        table.channel_uid == channel_uid,
        table.group_name == group,
        table.endpoint_id.is_(None),
        limit=limit,
    )


def _last(tx: ReadTransaction, *conditions: ColumnElement[bool], limit: int) -> list[Event]:
    statement = select(endpoint_events).where(*conditions)
    rows = tx.execute(statement.order_by(endpoint_events.c.seq.desc()).limit(limit)).all()
    return [
        Event(
            at=row.at,
            endpoint=row.endpoint_id,
            group=row.group_name,
            state=None if row.state is None else State(row.state),
            health=None if row.health is None else Health(row.health),
            cause=row.cause,
            by=row.by,
        )
        for row in reversed(rows)
    ]
