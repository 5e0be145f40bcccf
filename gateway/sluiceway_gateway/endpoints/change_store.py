"""Changes of endpoints: saved with their groups, their history and the channel's revision."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import CursorResult, bindparam, select

from sluiceway_gateway.core.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.core.db.statements import columns_of
from sluiceway_gateway.endpoints.groups import store as groups_store
from sluiceway_gateway.endpoints.model import Endpoint, Event, Role, event
from sluiceway_gateway.endpoints.store import (
    live_members,
    next_numbers,
    release_shares,
    revise,
    save,
)
from sluiceway_gateway.endpoints.tables import endpoint_events

#: Fields that counterparts and lists of endpoints show.
_VISIBLE = ("state", "health", "payload", "lost_at", "superseded")
#: Fields whose changes are lines of the history.
_RECORDED = ("state", "health", "superseded", "fenced_by")
EndpointChange = tuple[Endpoint, Endpoint]
"""An endpoint before and after."""


def is_visible(before: Endpoint, after: Endpoint) -> bool:
    """Whether the difference is visible to others."""
    return _differ(before, after, _VISIBLE)


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
    changes = _renumbered(tx, changes)
    save(tx, changes)
    rebalance(tx, changes, now=now)
    events = []
    for before, after in changes:
        if _differ(before, after, _RECORDED):
            recovers = health_cause is not None and before.health is not after.health
            why = health_cause if recovers else cause
            events.append(event(after, by=by, at=now, cause=why))
    add_events(tx, events)
    revise(tx, {after.channel_uid for before, after in changes if is_visible(before, after)})


def _renumbered(
    tx: WriteTransaction, changes: Sequence[EndpointChange]
) -> Sequence[EndpointChange]:
    """Give new numbers to writers that return, because readers may have ended without them."""
    uids = {
        after.channel_uid
        for before, after in changes
        if after.place.role is Role.WRITER and after.lives and not before.lives
    }
    if not uids:
        return changes
    numbers = next_numbers(tx, uids)
    return [
        (before, replace(after, number=numbers[after.channel_uid]))
        if after.place.role is Role.WRITER and after.lives and not before.lives
        else (before, after)
        for before, after in changes
    ]


def rebalance(
    tx: WriteTransaction, changes: Iterable[tuple[Endpoint | None, Endpoint]], *, now: datetime
) -> None:
    """Start a new generation of each dynamic group whose live members changed.

    The changes are saved already; a new endpoint has None before it. Endpoints that are no
    longer alive lose their shares.
    """
    gone: dict[groups_store.GroupKey, list[str]] = {}
    for before, after in changes:
        was_alive = before is not None and before.lives
        if not after.is_dynamic or was_alive == after.lives:
            continue
        leaving = gone.setdefault((after.channel_uid, after.place.group), [])
        if was_alive:
            leaving.append(after.id)
    members = live_members(tx, sorted(gone))
    groups = groups_store.find_all(tx, [(uid, Role.READER, name) for uid, name in members])
    rebalanced = [
        group.rebalanced(live=len(members[group.channel_uid, group.name]), now=now)
        for group in groups.values()
    ]
    groups_store.save(tx, *rebalanced)
    for group in rebalanced:
        leaving = gone[group.channel_uid, group.name]
        release_shares(tx, leaving, generation=group.generation)


def rebalance_after_growth(tx: WriteTransaction, channel_uid: str, *, now: datetime) -> None:
    """Start a new generation of each dynamic group with live members, for added partitions.

    The channel is locked. The members then sync, and each takes its share of the new partitions.
    """
    dynamic = {
        key: group
        for key, group in groups_store.of_readers(tx, [channel_uid]).items()
        if group.dynamic
    }
    groups_store.save(
        tx,
        *(
            dynamic[key].rebalanced(live=len(members), now=now)
            for key, members in live_members(tx, sorted(dynamic)).items()
            if members
        ),
    )


def _differ(before: Endpoint, after: Endpoint, fields: Iterable[str]) -> bool:
    return any(getattr(before, field) != getattr(after, field) for field in fields)


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
