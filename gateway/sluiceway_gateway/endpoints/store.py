"""Storage of endpoints. Lock order: sessions, channels, endpoints, each sorted by id."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Row, and_, bindparam, case, exists, null, or_, select, tuple_, update

from sluiceway_gateway.channels.model import Heartbeat
from sluiceway_gateway.channels.tables import channels
from sluiceway_gateway.core.db.engine import ChangeKind, ReadTransaction, WriteTransaction
from sluiceway_gateway.core.db.statements import PreparedDml, PreparedSelect, chunks
from sluiceway_gateway.core.db.types import Document, OptionalDocument
from sluiceway_gateway.core.errors import ConcurrentChange
from sluiceway_gateway.endpoints.groups.assignment import Member
from sluiceway_gateway.endpoints.model import (
    ANONYMOUS,
    OPEN,
    Endpoint,
    GroupKey,
    Health,
    Place,
    Reached,
    Role,
    Share,
    SparkJob,
    State,
    merged_ends,
    offsets_of,
)
from sluiceway_gateway.endpoints.tables import UNCLOSED, endpoints

#: `Endpoint.may_return` in SQL.
MAY_RETURN = and_(
    endpoints.c.superseded,
    endpoints.c.health == Health.LOST,
    endpoints.c.group_name != ANONYMOUS,
    endpoints.c.size.is_(None),
    endpoints.c.fenced_by.is_(None),
)


#: `Endpoint.lives` in SQL.
LIVES = and_(
    UNCLOSED,
    endpoints.c.state.in_(sorted(OPEN)),
    endpoints.c.health != Health.LOST,
)

#: `has_failed` in SQL.
HAS_FAILED = or_(
    endpoints.c.state == State.ERROR,
    and_(
        endpoints.c.group_name == ANONYMOUS,
        endpoints.c.state != State.CLOSED,
        endpoints.c.health == Health.LOST,
    ),
)

# `Endpoint.heartbeat_in` in SQL; the comparison with NULL is not true.
_HAS_OWN = endpoints.c.own_timeout_ms <= channels.c.heartbeat_timeout_ms
#: The heartbeat interval and timeout of an endpoint, joined with its channel.
INTERVAL_MS = case(
    (_HAS_OWN, endpoints.c.own_interval_ms), else_=channels.c.heartbeat_interval_ms
).label("interval_ms")
TIMEOUT_MS = case(
    (_HAS_OWN, endpoints.c.own_timeout_ms), else_=channels.c.heartbeat_timeout_ms
).label("timeout_ms")


def endpoint_of(row: Row[Any]) -> Endpoint:
    """Return the endpoint of a row with the columns of `endpoints`."""
    return Endpoint(
        id=row.id,
        channel_uid=row.channel_uid,
        session=row.session_id,
        place=Place(role=row.role, group=row.group_name, index=row.member_index),
        size=row.size,
        mode=row.mode,
        epoch=row.epoch,
        generation=row.generation,
        state=row.state,
        health=row.health,
        superseded=row.superseded,
        cause=row.cause,
        attached_at=row.attached_at,
        changed_at=row.changed_at,
        counters=row.counters,
        payload=row.payload,
        ends=offsets_of(row.ends),
        lost_at=offsets_of(row.lost_at),
        commits=row.commits,
        title=row.title,
        share=share_of(row),
        fenced_by=row.fenced_by,
        heartbeat=_heartbeat_of(row),
        static_id=row.static_id,
        spark=None if row.spark is None else SparkJob(**row.spark),
        number=row.number,
    )


def _heartbeat_of(row: Row[Any]) -> Heartbeat | None:
    if row.own_timeout_ms is None:
        return None
    return Heartbeat(interval_ms=row.own_interval_ms, timeout_ms=row.own_timeout_ms)


def share_of(row: Row[Any]) -> Share | None:
    """Return the share of a row's endpoint in its dynamic group."""
    if row.share_index is None:
        return None
    return Share(index=row.share_index, size=row.share_size)


#: Columns with the name and the value of a field of `Endpoint`: fixed ones, and changing ones.
_FIXED = (
    *("id", "channel_uid", "size", "mode", "epoch", "attached_at", "commits", "title"),
    "static_id",
)
_CHANGING = (
    *("state", "health", "superseded", "fenced_by", "generation", "cause", "changed_at"),
    *("counters", "payload", "ends", "lost_at", "number"),
)


def values_of(endpoint: Endpoint) -> dict[str, Any]:
    """Return all columns of a new endpoint."""
    return {
        **{name: getattr(endpoint, name) for name in _FIXED},
        "session_id": endpoint.session,
        "role": endpoint.place.role,
        "group_name": endpoint.place.group,
        "member_index": endpoint.place.index,
        "own_interval_ms": endpoint.heartbeat and endpoint.heartbeat.interval_ms,
        "own_timeout_ms": endpoint.heartbeat and endpoint.heartbeat.timeout_ms,
        "spark": endpoint.spark and vars(endpoint.spark),
        **changing_values_of(endpoint),
    }


def changing_values_of(endpoint: Endpoint) -> dict[str, Any]:
    """Return the columns that change, except `commits`, which only commits write."""
    return {
        "share_index": endpoint.share and endpoint.share.index,
        "share_size": endpoint.share and endpoint.share.size,
        **{name: getattr(endpoint, name) for name in _CHANGING},
    }


_HERE = ~endpoints.c.superseded
_PLACE = (endpoints.c.role, endpoints.c.group_name, endpoints.c.member_index)
_OF_IDS = (
    select(endpoints)
    .where(endpoints.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(endpoints.c.id)
)
# Prepared: commits and heartbeats run them.
_HOLD = PreparedSelect(_OF_IDS.with_for_update(key_share=True), keys="ids")
_HOLD_FREE = PreparedSelect(_OF_IDS.with_for_update(key_share=True, skip_locked=True), keys="ids")
_OF_GROUP = (
    select(endpoints)
    .where(
        endpoints.c.channel_uid == bindparam("channel_uid"),
        *(endpoints.c[key] == bindparam(key) for key in ("role", "group_name")),
        or_(_HERE, MAY_RETURN & bindparam("lost")),
    )
    .order_by(endpoints.c.member_index)
)
_OF_PLACE = [
    endpoints.c[key] == bindparam(key)
    for key in ("channel_uid", "role", "group_name", "member_index")
]
_PREDECESSOR = (
    select(endpoints.c.state, endpoints.c.ends, endpoints.c.number)
    .where(*_OF_PLACE, endpoints.c.epoch < bindparam("before"))
    .order_by(endpoints.c.epoch.desc())
    .limit(1)
)
_ENDED = select(endpoints).where(
    *_OF_PLACE, endpoints.c.epoch < bindparam("before"), endpoints.c.ends.is_not(None)
)
_SAVE = update(endpoints).where(
    endpoints.c.id == bindparam("the_id"),
    endpoints.c.state == bindparam("was_state"),
    endpoints.c.superseded == bindparam("was_superseded"),
    endpoints.c.health == bindparam("was_health"),
)
_REVISE = (
    update(channels)
    .where(channels.c.uid.in_(bindparam("uids", expanding=True)))
    .values(endpoints_revision=channels.c.endpoints_revision + 1)
)
_REVISIONS = select(channels.c.uid, channels.c.endpoints_revision).where(
    channels.c.uid.in_(bindparam("uids", expanding=True))
)
_LIVE_WRITERS = select(endpoints.c.channel_uid, endpoints.c.id).where(
    endpoints.c.channel_uid.in_(bindparam("uids", expanding=True)),
    endpoints.c.role == Role.WRITER,
    LIVES,
)
_AT_PLACES = select(endpoints).where(
    tuple_(endpoints.c.channel_uid, *_PLACE).in_(bindparam("places", expanding=True)), _HERE
)
_ON_SIDES = (
    select(endpoints)
    .where(
        _HERE,
        tuple_(endpoints.c.channel_uid, endpoints.c.role).in_(bindparam("sides", expanding=True)),
    )
    .order_by(*_PLACE)
)
# The latest one last, which stays.
_OF_STATIC_IDS = (
    select(endpoints)
    .where(
        endpoints.c.role == Role.READER,
        endpoints.c.size.is_(None),
        tuple_(endpoints.c.channel_uid, endpoints.c.group_name, endpoints.c.static_id).in_(
            bindparam("keys", expanding=True)
        ),
    )
    .order_by(endpoints.c.epoch)
)
_WITH_COUNTERS = (
    update(endpoints)
    .where(
        endpoints.c.id == bindparam("the_id"), endpoints.c.state == bindparam("the_state"), _HERE
    )
    .values(counters=bindparam("counters", type_=Document))
)
_SAVE_COUNTERS = PreparedDml(_WITH_COUNTERS)
_SAVE_REACHED = PreparedDml(
    _WITH_COUNTERS.values(reached=bindparam("reached", type_=OptionalDocument))
)


def find(tx: ReadTransaction, endpoint_id: str) -> Endpoint | None:
    """Return the endpoint of this id, superseded or not."""
    return find_all(tx, [endpoint_id]).get(endpoint_id)


def find_all(tx: ReadTransaction, ids: Sequence[str]) -> dict[str, Endpoint]:
    """Return the endpoints of these ids, superseded or not."""
    return {row.id: endpoint_of(row) for row in tx.in_parts(_OF_IDS, ids=ids)}


def hold(tx: WriteTransaction, ids: Collection[str], *, wait: bool = True) -> dict[str, Endpoint]:
    """Lock endpoints and return them by id; without `wait`, skip those that are locked."""
    rows = tx.look_up(_HOLD if wait else _HOLD_FREE, sorted(ids))
    return {row.id: endpoint_of(row) for row in rows}


def members(
    tx: ReadTransaction, channel_uid: str, role: Role, group: str, *, lost: bool = False
) -> list[Endpoint]:
    """Return the members of a group by index; with `lost`, also those that may return."""
    key = {"channel_uid": channel_uid, "role": role, "group_name": group, "lost": lost}
    return [endpoint_of(row) for row in tx.execute(_OF_GROUP, key)]


def at_places(
    tx: ReadTransaction, places: Sequence[tuple[str, Place]]
) -> dict[tuple[str, Place], Endpoint]:
    """Return the endpoints in these places, each with its channel's uid."""
    keys = [(uid, place.role, place.group, place.index) for uid, place in places]
    occupants = map(endpoint_of, tx.in_parts(_AT_PLACES, places=keys))
    return {(endpoint.channel_uid, endpoint.place): endpoint for endpoint in occupants}


def latest_of_static_ids(
    tx: ReadTransaction, keys: Collection[tuple[str, str, str]]
) -> dict[tuple[str, str, str], Endpoint]:
    """Return the latest members with these static ids; a key is a channel's uid, a group, an id."""
    return {
        (row.channel_uid, row.group_name, row.static_id): endpoint_of(row)
        for row in tx.in_parts(_OF_STATIC_IDS, keys=sorted(keys))
    }


def was_left_unfinished(tx: ReadTransaction, endpoint: Endpoint) -> bool:
    """Whether earlier instances in the place left records whose ends are unknown.

    The predecessor decides: if it closed, or failed and reported ends, these cover all earlier
    instances.
    """
    before = tx.execute(_PREDECESSOR, _before(endpoint)).one_or_none()
    if before is None or before.state == State.CLOSED:
        return False
    return before.state != State.ERROR or before.ends is None


def number_before(tx: ReadTransaction, endpoint: Endpoint) -> int | None:
    """Return the number of the predecessor in its place."""
    before = tx.execute(_PREDECESSOR, _before(endpoint)).one_or_none()
    return None if before is None else before.number


def ends_before(tx: ReadTransaction, endpoint: Endpoint) -> Mapping[int, int] | None:
    """Return the ends that earlier instances in its place reported."""
    ends: Mapping[int, int] | None = None
    for row in tx.execute(_ENDED, _before(endpoint)):
        ends = merged_ends(ends, endpoint_of(row).ends)
    return ends


def page(
    tx: ReadTransaction,
    channel_uid: str,
    *,
    role: Role | None,
    group: str | None,
    after: Place | None,
    limit: int,
) -> list[Endpoint]:
    """Return endpoints in the order of their places, after `after`."""
    statement = select(endpoints).where(endpoints.c.channel_uid == channel_uid, _HERE)
    if role is not None:
        statement = statement.where(endpoints.c.role == role)
    if group is not None:
        statement = statement.where(endpoints.c.group_name == group)
    if after is not None:
        statement = statement.where(
            tuple_(*_PLACE) > tuple_(str(after.role), after.group, after.index)
        )
    return [endpoint_of(row) for row in tx.execute(statement.order_by(*_PLACE).limit(limit))]


def on_sides(
    tx: ReadTransaction, sides: Collection[tuple[str, Role]]
) -> dict[tuple[str, Role], list[Endpoint]]:
    """Return the endpoints of each pair of a channel's uid and a role, in the order of places."""
    by_side: dict[tuple[str, Role], list[Endpoint]] = {side: [] for side in sides}
    for row in tx.in_parts(_ON_SIDES, sides=list(by_side)):
        by_side[row.channel_uid, row.role].append(endpoint_of(row))
    return by_side


def insert(tx: WriteTransaction, new: Sequence[Endpoint]) -> None:
    """Insert endpoints; their places are free."""
    tx.execute(endpoints.insert(), [values_of(endpoint) for endpoint in new])


def save(tx: WriteTransaction, changes: Sequence[tuple[Endpoint, Endpoint]]) -> None:
    """Update endpoints, given as pairs of before and after.

    Raises ConcurrentChange if the state, health or place of one changed meanwhile.
    """
    if not changes:
        return
    rows = [
        changing_values_of(now)
        | {
            "the_id": was.id,
            "was_state": was.state,
            "was_superseded": was.superseded,
            "was_health": was.health,
        }
        for was, now in sorted(changes, key=lambda pair: pair[0].id)
    ]
    if tx.execute(_SAVE, rows).rowcount != len(rows):
        raise ConcurrentChange("An endpoint was changed at the same time; send the request again.")


def save_counters(
    tx: WriteTransaction, reports: Sequence[tuple[Endpoint, Mapping[str, float], Reached | None]]
) -> None:
    """Save the counters of endpoints and, unless None, the offsets that they reached.

    An endpoint in another state by now has a later report, and keeps it.
    """
    rows = [
        {
            "the_id": endpoint.id,
            "the_state": endpoint.state,
            "counters": counters,
            "reached": reached,
        }
        for endpoint, counters, reached in sorted(reports, key=lambda report: report[0].id)
    ]
    tx.run_each(_SAVE_COUNTERS, [row for row in rows if row["reached"] is None])
    tx.run_each(_SAVE_REACHED, [row for row in rows if row["reached"] is not None])


def revise(tx: WriteTransaction, channel_uids: Collection[str]) -> None:
    """Raise the revision of these channels' endpoints, which watchers compare."""
    tx.publish(ChangeKind.ENDPOINTS, channel_uids)
    for part in chunks(sorted(channel_uids)):
        tx.execute(_REVISE, {"uids": part})


def revision(tx: ReadTransaction, channel_uid: str) -> int:
    """Return the revision of the channel's endpoints."""
    return revisions(tx, [channel_uid])[channel_uid]


def revisions(tx: ReadTransaction, channel_uids: Collection[str]) -> dict[str, int]:
    """Return the revision of the endpoints of each channel."""
    rows = tx.in_parts(_REVISIONS, uids=sorted(channel_uids))
    return {row.uid: row.endpoints_revision for row in rows}


def next_numbers(tx: ReadTransaction, channel_uids: Collection[str]) -> dict[str, int]:
    """Return the number of the next endpoints of each channel, which the caller has locked.

    It is the revision that shows them.
    """
    return {uid: revision + 1 for uid, revision in revisions(tx, channel_uids).items()}


def live_writers(tx: ReadTransaction, channel_uids: Collection[str]) -> dict[str, list[str]]:
    """Return the ids of the live writers of each channel."""
    ids: dict[str, list[str]] = {uid: [] for uid in channel_uids}
    for row in tx.in_parts(_LIVE_WRITERS, uids=sorted(ids)):
        ids[row.channel_uid].append(row.id)
    return ids


def _before(endpoint: Endpoint) -> dict[str, Any]:
    place = endpoint.place
    return {
        "channel_uid": endpoint.channel_uid,
        "role": place.role,
        "group_name": place.group,
        "member_index": place.index,
        "before": endpoint.epoch,
    }


_ASSIGNMENT_KEY = (endpoints.c.channel_uid, endpoints.c.group_name)
# Built once: it runs with every commit of a dynamic group.
_MEMBERS = (
    select(
        endpoints.c.id,
        *_ASSIGNMENT_KEY,
        endpoints.c.member_index,
        endpoints.c.generation,
        endpoints.c.share_index,
        endpoints.c.share_size,
    )
    .where(
        endpoints.c.role == Role.READER,
        tuple_(*_ASSIGNMENT_KEY).in_(bindparam("keys", expanding=True)),
        LIVES,
    )
    .order_by(endpoints.c.member_index)
)


def live_members(tx: ReadTransaction, keys: Collection[GroupKey]) -> dict[GroupKey, list[Member]]:
    """Return the live members of each of these groups, by index."""
    by_group: dict[GroupKey, list[Member]] = {key: [] for key in keys}
    for row in tx.in_parts(_MEMBERS, keys=list(by_group)):
        member = Member(
            endpoint=row.id, index=row.member_index, generation=row.generation, share=share_of(row)
        )
        by_group[row.channel_uid, row.group_name].append(member)
    return by_group


def forget_positions(tx: WriteTransaction, ids: Collection[str]) -> None:
    """Clear the positions that these endpoints, which the caller has locked, reported."""
    for part in chunks(sorted(ids)):
        tx.execute(update(endpoints).where(endpoints.c.id.in_(part)).values(reached=null()))


def release_shares(
    tx: WriteTransaction, ids: Collection[str], *, generation: int | None = None
) -> None:
    """Clear the shares of these endpoints; `generation` began with their leaving."""
    columns: dict[str, int | None] = {"share_index": None, "share_size": None}
    if generation is not None:
        columns["generation"] = generation
    for part in chunks(sorted(ids)):
        tx.execute(update(endpoints).where(endpoints.c.id.in_(part)).values(columns))


def set_generation(tx: WriteTransaction, ids: Collection[str], generation: int) -> None:
    """Set the generation of these endpoints, which the caller has locked."""
    for part in chunks(sorted(ids)):
        tx.execute(update(endpoints).where(endpoints.c.id.in_(part)).values(generation=generation))


_LEFT_UNFINISHED = select(
    exists().where(
        endpoints.c.channel_uid == bindparam("channel_uid"),
        endpoints.c.role == Role.READER,
        endpoints.c.group_name == bindparam("group_name"),
        endpoints.c.generation > bindparam("generation"),
        endpoints.c.state != State.CLOSED,
    )
)


def left_unfinished(tx: ReadTransaction, member: Endpoint) -> bool:
    """Whether another member of a dynamic group failed or was lost after this one's last share.

    Then nobody has taken over its partitions.
    """
    key = {"channel_uid": member.channel_uid, "group_name": member.place.group}
    unfinished: bool = tx.execute(
        _LEFT_UNFINISHED, key | {"generation": member.generation}
    ).scalar_one()
    return unfinished
