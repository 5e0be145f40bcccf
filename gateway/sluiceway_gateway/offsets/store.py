"""Storage of positions, and the validation of commits."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, delete, select, tuple_, update

from sluiceway_gateway.auth.model import Principal
from sluiceway_gateway.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.db.schema import channels, endpoint_groups, endpoints, positions, sessions
from sluiceway_gateway.db.statements import CachedSelect, PreparedDml, PreparedSelect, by_dialect
from sluiceway_gateway.endpoints import store as endpoint_store
from sluiceway_gateway.endpoints.model import Endpoint
from sluiceway_gateway.errors import EndpointNotFound, SluicewayGatewayError
from sluiceway_gateway.groups.model import Group, Member, position_member
from sluiceway_gateway.groups.store import group_of, living, of_its_group
from sluiceway_gateway.offsets.model import (
    Commit,
    CommitContext,
    Committed,
    Position,
    validate_commit,
)

_WHOSE = ("channel_uid", "group_name", "member_index")
#: A statement has only so many parameters.
_KEYS_AT_ONCE = 500
Whose = tuple[str, str, int]
"""A channel's uid, a group's name, and the member's index, -1 where members share."""

_OF_GROUP = (
    select(positions)
    .where(
        positions.c.channel_uid == bindparam("channel_uid"),
        positions.c.group_name == bindparam("group"),
    )
    .order_by(positions.c.member_index, positions.c.partition)
)
_OF_MEMBER = _OF_GROUP.where(positions.c.member_index == bindparam("member"))
_STORED = PreparedSelect(
    select(positions).where(
        tuple_(*(positions.c[name] for name in (*_WHOSE, "partition"))).in_(
            bindparam("keys", expanding=True)
        )
    ),
    keys="keys",
)


def _upsert(insert: Any) -> PreparedDml:
    statement = insert(positions)
    changing = ("next_offset", "record", "topic_id", "epoch", "number", "committed_at")
    upsert = statement.on_conflict_do_update(
        index_elements=[*_WHOSE, "partition"],
        set_={name: statement.excluded[name] for name in changing},
    )
    return PreparedDml(upsert, columns=[each.name for each in positions.columns])


_PUT = by_dialect(_upsert)


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A position to put down, and what puts it there."""

    whose: Whose
    position: Position
    topic_id: str
    epoch: int = 0
    number: int = 0


def whose(endpoint: Endpoint) -> Whose:
    """Return whose positions the endpoint commits."""
    member = position_member(endpoint.place, endpoint.mode)
    return endpoint.channel_uid, endpoint.place.group, member


def of(
    tx: ReadTransaction, channel_uid: str, group: str, *, member: int | None = None
) -> list[tuple[int, Committed]]:
    """Return, with whose they are, the positions of a group, or those of one member."""
    whose = {"channel_uid": channel_uid, "group": group}
    rows = (
        tx.execute(_OF_GROUP, whose)
        if member is None
        else tx.execute(_OF_MEMBER, {**whose, "member": member})
    )
    return [(row.member_index, _committed_of(row)) for row in rows]


def at(tx: ReadTransaction, whose: Whose, partitions: Collection[int]) -> Mapping[int, Committed]:
    """Return what is committed of these partitions, by partition."""
    if len(partitions) <= _KEYS_AT_ONCE:
        return stored_at(tx, [(*whose, each) for each in partitions]).get(whose, {})
    channel_uid, group, member = whose
    found = {each.position.partition: each for _, each in of(tx, channel_uid, group, member=member)}
    return {partition: each for partition, each in found.items() if partition in partitions}


def stored_at(
    tx: ReadTransaction, keys: Sequence[tuple[str, str, int, int]]
) -> dict[Whose, dict[int, Committed]]:
    """Return what is committed, by whose it is and by partition; each key is both."""
    found: dict[Whose, dict[int, Committed]] = {}
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        for row in tx.look_up(_STORED, keys[start : start + _KEYS_AT_ONCE]):
            own = found.setdefault((row.channel_uid, row.group_name, row.member_index), {})
            own[row.partition] = _committed_of(row)
    return found


def put(tx: WriteTransaction, placed: Sequence[Placed], *, now: datetime) -> None:
    """Put positions down, wherever they were before."""
    rows = [
        dict(zip(_WHOSE, each.whose, strict=True))
        | {
            "partition": each.position.partition,
            "next_offset": each.position.offset,
            "record": each.position.record,
            "topic_id": each.topic_id,
            "epoch": each.epoch,
            "number": each.number,
            "committed_at": now,
        }
        for each in placed
    ]
    tx.run_each(_PUT[tx.dialect], rows)


def forget(tx: WriteTransaction, channel_uid: str, group: str, *, member: int | None) -> None:
    """Forget the positions of a group, or those of one member."""
    table = positions.c
    statement = delete(positions).where(table.channel_uid == channel_uid, table.group_name == group)
    if member is not None:
        statement = statement.where(table.member_index == member)
    tx.execute(statement)


def _committed_of(row: Row[Any]) -> Committed:
    return Committed(
        position=Position(partition=row.partition, offset=row.next_offset, record=row.record),
        topic_id=row.topic_id,
        epoch=row.epoch,
        number=row.number,
        committed_at=row.committed_at,
    )


_MOST_KEPT = 10_000
# Commits come so often that their statements are put together once.
_COUNT = PreparedDml(
    update(endpoints)
    .where(
        endpoints.c.id == bindparam("the_id"),
        endpoints.c.epoch == bindparam("the_epoch"),
        endpoints.c.commits < bindparam("number"),
        ~endpoints.c.superseded,
    )
    .values(commits=bindparam("number"))
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a commit: how its partitions stand now, or what stands against it."""

    group: Group | None = None
    member: int = -1
    """Whose positions they are, -1 where members share them."""
    number: int = 0
    positions: tuple[Committed, ...] = ()
    error: SluicewayGatewayError | None = None


def commit(
    tx: WriteTransaction,
    asked: Sequence[tuple[Commit, Principal]],
    *,
    now: datetime,
    wait: bool = True,
) -> list[Outcome]:
    """Commit what is right of `asked`, each all or nothing; return what came of each, in order.

    No two may be of the same endpoint: the second would be judged by what was before the first.
    Without `wait`, an endpoint that another transaction holds is EndpointNotFound as well.
    """
    # From here on none of them can be superseded, and no group of theirs resized or reset, before
    # this transaction ends; so what is read next stays true.
    held = endpoint_store.hold(tx, {each.endpoint for each, _ in asked}, wait=wait)
    surroundings = _surroundings(tx, held)
    others = _others(tx, held)
    stored = stored_at(
        tx,
        [
            (*whose(held[each.endpoint]), position.partition)
            for each, _ in asked
            if each.endpoint in held
            for position in each.positions
        ],
    )
    outcomes, new = [], []
    for each, by in asked:
        try:
            standing = _standing(each, held, surroundings, stored)
            owner = surroundings[each.endpoint].owner
            by.require_own(owner, f"The session of {standing.endpoint.where}")
            standing = replace(standing, others=others.get(each.endpoint, ()))
            if validate_commit(each, standing):
                new.append((each, standing))
        except SluicewayGatewayError as error:
            outcomes.append(Outcome(error=error))
            continue
        outcomes.append(_outcome(each, standing, now))
    _count(tx, [each for each, _ in new])
    put(
        tx,
        [
            Placed(
                whose=whose(standing.endpoint),
                position=position,
                topic_id=each.topic_id,
                epoch=each.epoch,
                number=each.number,
            )
            for each, standing in new
            for position in each.positions
        ],
        now=now,
    )
    return outcomes


@dataclass(frozen=True, kw_only=True)
class _Surroundings:
    endpoint: str
    """Its id."""
    channel: str
    group: Group
    topic_id: str | None
    partitions: int
    owner: str | None
    """Of the session that attached it."""


def _surroundings_of(row: Row[Any]) -> _Surroundings:
    return _Surroundings(
        endpoint=row.endpoint_id,
        channel=row.channel_name,
        group=group_of(row),
        topic_id=row.topic_id,
        partitions=max(row.partitions, row.topic_partitions or 0),
        owner=row.owner,
    )


# Read each time, but mostly the same from one commit of an endpoint to the next.
_AROUND = CachedSelect(
    select(
        endpoints.c.id.label("endpoint_id"),
        endpoint_groups,
        channels.c.name.label("channel_name"),
        channels.c.topic_id,
        channels.c.topic_partitions,
        channels.c.partitions,
        sessions.c.owner,
    )
    .join(endpoint_groups, of_its_group())
    .join(channels, channels.c.uid == endpoints.c.channel_uid)
    .join(sessions, sessions.c.id == endpoints.c.session_id)
    .where(endpoints.c.id.in_(bindparam("ids", expanding=True))),
    keys="ids",
    make=_surroundings_of,
    most=_MOST_KEPT,
)


def _surroundings(tx: ReadTransaction, held: Mapping[str, Endpoint]) -> dict[str, _Surroundings]:
    """Return, by endpoint, its group, and its channel with its topic."""
    return {each.endpoint: each for each in tx.look_up(_AROUND, list(held))}


def _others(tx: ReadTransaction, held: Mapping[str, Endpoint]) -> dict[str, tuple[Member, ...]]:
    """Return, by member of a dynamic group, the others that live.

    They are not held: a partition that one of them has let go of it never takes back from a
    member whose share is of a later generation.
    """
    dynamic = {
        each.id: (each.channel_uid, each.place.group) for each in held.values() if each.is_dynamic
    }
    found = living(tx, sorted(set(dynamic.values()))) if dynamic else {}
    return {
        id_: tuple(each for each in found[key] if each.endpoint != id_)
        for id_, key in dynamic.items()
    }


def _standing(
    asked: Commit,
    held: Mapping[str, Endpoint],
    surroundings: Mapping[str, _Surroundings],
    stored: Mapping[Whose, Mapping[int, Committed]],
) -> CommitContext:
    endpoint, around = held.get(asked.endpoint), surroundings.get(asked.endpoint)
    where = around and endpoint and (around.channel, endpoint.channel_uid)
    if endpoint is None or around is None or where != (asked.channel, asked.channel_uid):
        raise EndpointNotFound(f"The channel {asked.channel!r} has no endpoint {asked.endpoint}.")
    return CommitContext(
        endpoint=endpoint,
        group=around.group,
        topic_id=around.topic_id,
        partitions=around.partitions,
        stored=stored.get(whose(endpoint), {}),
    )


def _outcome(asked: Commit, standing: CommitContext, now: datetime) -> Outcome:
    """Return how the partitions that a commit names stand after it, be it new or a repeat."""
    is_new = asked.number > standing.endpoint.commits
    found = [
        Committed(
            position=each,
            topic_id=asked.topic_id,
            epoch=asked.epoch,
            number=asked.number,
            committed_at=now,
        )
        if is_new
        else standing.stored.get(each.partition)
        for each in asked.positions
    ]
    return Outcome(
        group=standing.group,
        member=whose(standing.endpoint)[2],
        number=max(asked.number, standing.endpoint.commits),
        positions=tuple(each for each in found if each is not None),
    )


def _count(tx: WriteTransaction, new: Sequence[Commit]) -> None:
    rows = [
        {"the_id": each.endpoint, "the_epoch": each.epoch, "number": each.number} for each in new
    ]
    counted = tx.run_each(_COUNT, rows)
    assert counted == len(rows), "held endpoints do not change"  # noqa: S101
