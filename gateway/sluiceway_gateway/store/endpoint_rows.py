"""How an endpoint lies in its row."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row, and_

from sluiceway_gateway.db.schema import endpoints
from sluiceway_gateway.endpoints.model import (
    ANONYMOUS,
    Endpoint,
    Health,
    Mode,
    Place,
    Role,
    Share,
    State,
)

# By their words, as thousands are read for a status, and calling an enum takes ten times as long.
_ROLES = {str(each): each for each in Role}
_MODES = {str(each): each for each in Mode}
_STATES = {str(each): each for each in State}
_HEALTHS = {str(each): each for each in Health}


#: `Endpoint.may_return`, in SQL.
MAY_RETURN = and_(
    endpoints.c.superseded,
    endpoints.c.health == str(Health.LOST),
    endpoints.c.group_name != ANONYMOUS,
    endpoints.c.size.is_(None),
    endpoints.c.fenced_by.is_(None),
)


def endpoint_of(row: Row[Any]) -> Endpoint:
    """Return the endpoint of a row that has all columns of `endpoints`."""
    return Endpoint(
        id=row.id,
        channel_uid=row.channel_uid,
        session=row.session_id,
        place=Place(role=_ROLES[row.role], group=row.group_name, index=row.member_index),
        size=row.size,
        mode=_MODES[row.mode],
        epoch=row.epoch,
        generation=row.generation,
        state=_STATES[row.state],
        health=_HEALTHS[row.health],
        superseded=row.superseded,
        cause=row.cause,
        attached_at=row.attached_at,
        changed_at=row.changed_at,
        counters=row.counters,
        payload=row.payload,
        ends=_offsets(row.ends),
        lost_at=_offsets(row.lost_at),
        commits=row.commits,
        title=row.title,
        share=share_of(row),
        fenced_by=row.fenced_by,
    )


def share_of(row: Row[Any]) -> Share | None:
    """Return which share of a dynamic group's partitions the endpoint of a row took."""
    if row.share_index is None:
        return None
    return Share(index=row.share_index, size=row.share_size)


def values_of(endpoint: Endpoint) -> dict[str, Any]:
    """Return all columns of a new endpoint."""
    return {
        "id": endpoint.id,
        "channel_uid": endpoint.channel_uid,
        "session_id": endpoint.session,
        "role": str(endpoint.place.role),
        "group_name": endpoint.place.group,
        "member_index": endpoint.place.index,
        "size": endpoint.size,
        "mode": str(endpoint.mode),
        "epoch": endpoint.epoch,
        "attached_at": endpoint.attached_at,
        "commits": endpoint.commits,
        "title": endpoint.title,
        **changing_values_of(endpoint),
    }


def changing_values_of(endpoint: Endpoint) -> dict[str, Any]:
    """Return the columns that change in an endpoint's life; commits have a way of their own."""
    return {
        "state": str(endpoint.state),
        "health": str(endpoint.health),
        "superseded": endpoint.superseded,
        "fenced_by": endpoint.fenced_by,
        "generation": endpoint.generation,
        "share_index": endpoint.share and endpoint.share.index,
        "share_size": endpoint.share and endpoint.share.size,
        "cause": endpoint.cause,
        "changed_at": endpoint.changed_at,
        "counters": dict(endpoint.counters),
        "payload": None if endpoint.payload is None else dict(endpoint.payload),
        "ends": _texts(endpoint.ends),
        "lost_at": _texts(endpoint.lost_at),
    }


def _offsets(value: Mapping[str, int] | None) -> dict[int, int] | None:
    return None if value is None else {int(each): offset for each, offset in value.items()}


def _texts(value: Mapping[int, int] | None) -> dict[str, int] | None:
    # The keys of JSON are text.
    return None if value is None else {str(each): offset for each, offset in value.items()}
