"""Append-only history of endpoints."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import CursorResult, bindparam, insert, select

from sluiceway_gateway.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.db.schema import endpoint_events
from sluiceway_gateway.endpoints.model import Event, Health, State

_LAST = select(endpoint_events).order_by(endpoint_events.c.seq.desc()).limit(bindparam("at_most"))
_OF_ENDPOINT = _LAST.where(endpoint_events.c.endpoint_id == bindparam("endpoint_id"))
_OF_GROUP = _LAST.where(
    endpoint_events.c.channel_uid == bindparam("channel_uid"),
    endpoint_events.c.group_name == bindparam("group_name"),
    endpoint_events.c.endpoint_id.is_(None),
)


def add(tx: WriteTransaction, events: Sequence[Event]) -> None:
    """Append events."""
    if events:
        tx.execute(
            insert(endpoint_events),
            [
                {
                    "channel_uid": each.channel_uid,
                    "endpoint_id": each.endpoint,
                    "group_name": each.group,
                    "at": each.at,
                    "state": None if each.state is None else str(each.state),
                    "health": None if each.health is None else str(each.health),
                    "cause": each.cause,
                    "by": each.by,
                }
                for each in events
            ],
        )


def of_endpoint(tx: ReadTransaction, endpoint_id: str, *, limit: int) -> list[Event]:
    """Return the last events of an endpoint, the oldest first."""
    return _events(tx.execute(_OF_ENDPOINT, {"endpoint_id": endpoint_id, "at_most": limit}))


def of_group(tx: ReadTransaction, channel_uid: str, group: str, *, limit: int) -> list[Event]:
    """Return the last events of a group that are about no single endpoint, the oldest first."""
    key = {"channel_uid": channel_uid, "group_name": group}
    return _events(tx.execute(_OF_GROUP, key | {"at_most": limit}))


def _events(latest_first: CursorResult[Any]) -> list[Event]:
    return [
        Event(
            channel_uid=row.channel_uid,
            at=row.at,
            endpoint=row.endpoint_id,
            group=row.group_name,
            state=None if row.state is None else State(row.state),
            health=None if row.health is None else Health(row.health),
            cause=row.cause,
            by=row.by,
        )
        for row in reversed(latest_first.all())
    ]
