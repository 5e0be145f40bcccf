"""Changes of endpoints: saved with their groups, their history and the channel's revision."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

from sqlalchemy import CursorResult, bindparam, select

from sluiceway_gateway.core.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.core.db.statements import columns_of
from sluiceway_gateway.endpoints.groups import store as groups_store
from sluiceway_gateway.endpoints.groups.model import departures
from sluiceway_gateway.endpoints.model import (
    Endpoint,
    EndpointChange,
    Event,
    GroupKey,
    Role,
    event,
    renumbered,
    writer_returns,
)
from sluiceway_gateway.endpoints.store import (
    live_members,
    next_numbers,
    release_shares,
    revise,
    save,
)
from sluiceway_gateway.endpoints.tables import endpoint_events

#: What counterparts and lists of endpoints show.
_VISIBLE = attrgetter("state", "health", "payload", "lost_at", "superseded")
#: What the history shows.
_RECORDED = attrgetter("state", "health", "superseded", "fenced_by")


def is_visible(before: Endpoint, after: Endpoint) -> bool:
    """Whether the difference is visible to others."""
    return bool(_VISIBLE(before) != _VISIBLE(after))


def save_changes(
    tx: WriteTransaction,
    changes: Sequence[EndpointChange],
    *,
    by: str,
    now: datetime,
    cause: str | None = None,
    health_cause: str | None = None,
) -> None:
    """Save endpoints, their groups, history and revisions.

    Channels and endpoints are locked. The cause in the history is `health_cause` for changes of
    health, and `cause` for all others.
    """
    returning = {after.channel_uid for before, after in changes if writer_returns(before, after)}
    changes = renumbered(changes, next_numbers(tx, returning))
    save(tx, changes)
    rebalance(tx, departures(changes), now=now)
    lines = []
    for before, after in changes:
        if _RECORDED(before) != _RECORDED(after):
            recovers = health_cause is not None and before.health is not after.health
            lines.append(event(after, by=by, at=now, cause=health_cause if recovers else cause))
    add_events(tx, lines)
    revise(tx, {after.channel_uid for before, after in changes if is_visible(before, after)})


def rebalance(
    tx: WriteTransaction, departed: Mapping[GroupKey, Sequence[str]], *, now: datetime
) -> None:
    """Start a new generation of these dynamic groups, for their live members.

    The members that have left a group, by id, lose their shares.
    """
    members = live_members(tx, sorted(departed))
    groups = groups_store.find_all(tx, [(uid, Role.READER, name) for uid, name in members])
    rebalanced = [
        group.rebalanced(live=len(members[group.channel_uid, group.name]), now=now)
        for group in groups.values()
    ]
    groups_store.save(tx, *rebalanced)
    for group in rebalanced:
        leaving = departed[group.channel_uid, group.name]
        release_shares(tx, leaving, generation=group.generation)


def rebalance_after_growth(tx: WriteTransaction, channel_uid: str, *, now: datetime) -> None:
    """Start a new generation of each dynamic group with live members, for added partitions.

    The channel is locked. The members then sync, and each takes its share of the new partitions.
    """
    groups = groups_store.of_readers(tx, [channel_uid])
    members = live_members(tx, sorted(key for key, group in groups.items() if group.dynamic))
    rebalance(tx, {key: () for key, live in members.items() if live}, now=now)


_LAST_EVENTS = (
    select(endpoint_events).order_by(endpoint_events.c.seq.desc()).limit(bindparam("at_most"))
)
_EVENTS_OF_ENDPOINT = _LAST_EVENTS.where(endpoint_events.c.endpoint_id == bindparam("endpoint_id"))
_EVENTS_OF_GROUP = _LAST_EVENTS.where(
    endpoint_events.c.channel_uid == bindparam("channel_uid"),
    endpoint_events.c.group_name == bindparam("group_name"),
    endpoint_events.c.endpoint_id.is_(None),
)


def add_events(tx: WriteTransaction, events: Sequence[Event]) -> None:
    """Append events to the history."""
    if events:
        tx.execute(endpoint_events.insert(), [vars(line) for line in events])


def events_of_endpoint(tx: ReadTransaction, endpoint_id: str, *, limit: int) -> list[Event]:
    """Return the last events of an endpoint, the oldest first."""
    return _events(tx.execute(_EVENTS_OF_ENDPOINT, {"endpoint_id": endpoint_id, "at_most": limit}))


def events_of_group(
    tx: ReadTransaction, channel_uid: str, group: str, *, limit: int
) -> list[Event]:
    """Return the last events of the group itself, not of its endpoints, oldest first."""
    key = {"channel_uid": channel_uid, "group_name": group}
    return _events(tx.execute(_EVENTS_OF_GROUP, key | {"at_most": limit}))


def _events(latest_first: CursorResult[Any]) -> list[Event]:
    return [Event(**columns_of(row, Event)) for row in reversed(latest_first.all())]
