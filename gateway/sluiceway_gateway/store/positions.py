"""Positions of groups, and the one place where commits are judged and written."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, and_, bindparam, delete, false, or_, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite

from sluiceway_gateway.domain.endpoint import Endpoint
from sluiceway_gateway.domain.errors import EndpointNotFound, SluicewayGatewayError
from sluiceway_gateway.domain.group import Group, member_of_positions
from sluiceway_gateway.domain.position import Commit, Committed, Position, Standing, counts
from sluiceway_gateway.store import endpoints as endpoint_store
from sluiceway_gateway.store.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.store.groups import group_of
from sluiceway_gateway.store.tables import channels, endpoint_groups, endpoints, positions

_WHOSE = ("channel_uid", "group_name", "member_index")
Whose = tuple[str, str, int]
"""A channel's uid, a group's name, and the member's index, -1 where members share."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a commit: how its partitions stand now, or what stands against it."""

    group: Group | None = None
    member: int = -1
    """Whose positions they are, -1 where members share them."""
    number: int = 0
    positions: tuple[Committed, ...] = ()
    error: SluicewayGatewayError | None = None


def of(
    tx: ReadTransaction, channel_uid: str, group: str, *, member: int | None = None
) -> list[tuple[int, Committed]]:
    """Return, with whose they are, the positions of a group, or those of one member."""
    table = positions.c
    statement = select(positions).where(table.channel_uid == channel_uid, table.group_name == group)
    if member is not None:
        statement = statement.where(table.member_index == member)
    rows = tx.execute(statement.order_by(table.member_index, table.partition))
    return [(row.member_index, _committed_of(row)) for row in rows]


def commit(tx: WriteTransaction, asked: Sequence[Commit], *, now: datetime) -> list[Outcome]:
    """Commit what is right of `asked`, each all or nothing; return what came of each, in order.

    No two may be of the same endpoint: the second would be judged by what was before the first.
    """
    # From here on none of them can be superseded, and no group of theirs resized or reset, before
    # this transaction ends; so what is read next stays true.
    held = endpoint_store.hold(tx, {each.endpoint for each in asked})
    surroundings = _surroundings(tx, held)
    stored = _stored(tx, [(each, held[each.endpoint]) for each in asked if each.endpoint in held])
    outcomes, new = [], []
    for each in asked:
        try:
            standing = _standing(each, held, surroundings, stored)
            if counts(each, standing):
                new.append((each, standing))
        except SluicewayGatewayError as error:
            outcomes.append(Outcome(error=error))
            continue
        outcomes.append(_outcome(each, standing, now))
    _count(tx, [each for each, _ in new])
    _put(
        tx,
        [
            (_whose(standing.endpoint), position, each.topic_id, each.epoch, each.number)
            for each, standing in new
            for position in each.positions
        ],
        now,
    )
    return outcomes


def set_back(
    tx: WriteTransaction, whose: Whose, asked: Collection[Position], *, topic_id: str, now: datetime
) -> None:
    """Put positions wherever they are asked to be."""
    _put(tx, [(whose, each, topic_id, 0, 0) for each in asked], now)


def forget(tx: WriteTransaction, channel_uid: str, group: str, *, member: int | None) -> None:
    """Forget the positions of a group, or those of one member."""
    table = positions.c
    statement = delete(positions).where(table.channel_uid == channel_uid, table.group_name == group)
    if member is not None:
        statement = statement.where(table.member_index == member)
    tx.execute(statement)


@dataclass(frozen=True, kw_only=True)
class _Surroundings:
    channel: str
    group: Group
    topic_id: str | None
    partitions: int


def _surroundings(tx: ReadTransaction, held: Mapping[str, Endpoint]) -> dict[str, _Surroundings]:
    """Return, by endpoint, its group, and its channel with its topic."""
    rows = tx.execute(
        select(
            endpoints.c.id.label("endpoint_id"),
            endpoint_groups,
            channels.c.name.label("channel_name"),
            channels.c.topic_id,
            channels.c.topic_partitions,
            channels.c.partitions,
        )
        .join(
            endpoint_groups,
            and_(
                endpoint_groups.c.channel_uid == endpoints.c.channel_uid,
                endpoint_groups.c.role == endpoints.c.role,
                endpoint_groups.c.name == endpoints.c.group_name,
            ),
        )
        .join(channels, channels.c.uid == endpoints.c.channel_uid)
        .where(endpoints.c.id.in_(held))
    )
    return {
        row.endpoint_id: _Surroundings(
            channel=row.channel_name,
            group=group_of(row),
            topic_id=row.topic_id,
            partitions=max(row.partitions, row.topic_partitions or 0),
        )
        for row in rows
    }


def _stored(
    tx: ReadTransaction, asked: Sequence[tuple[Commit, Endpoint]]
) -> dict[Whose, dict[int, Committed]]:
    wanted = [
        and_(
            tuple_(*(positions.c[name] for name in _WHOSE)) == tuple_(*_whose(endpoint)),
            positions.c.partition.in_([position.partition for position in each.positions]),
        )
        for each, endpoint in asked
    ]
    found: dict[Whose, dict[int, Committed]] = {}
    for row in tx.execute(select(positions).where(or_(false(), *wanted))):
        whose = (row.channel_uid, row.group_name, row.member_index)
        found.setdefault(whose, {})[row.partition] = _committed_of(row)
    return found


def _standing(
    asked: Commit,
    held: Mapping[str, Endpoint],
    surroundings: Mapping[str, _Surroundings],
    stored: Mapping[Whose, Mapping[int, Committed]],
) -> Standing:
    endpoint, around = held.get(asked.endpoint), surroundings.get(asked.endpoint)
    where = around and endpoint and (around.channel, endpoint.channel_uid)
    if endpoint is None or around is None or where != (asked.channel, asked.channel_uid):
        raise EndpointNotFound(f"The channel {asked.channel!r} has no endpoint {asked.endpoint}.")
    return Standing(
        endpoint=endpoint,
        group=around.group,
        topic_id=around.topic_id,
        partitions=around.partitions,
        stored=stored.get(_whose(endpoint), {}),
    )


def _outcome(asked: Commit, standing: Standing, now: datetime) -> Outcome:
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
        member=_whose(standing.endpoint)[2],
        number=max(asked.number, standing.endpoint.commits),
        positions=tuple(each for each in found if each is not None),
    )


def _count(tx: WriteTransaction, new: Sequence[Commit]) -> None:
    if not new:
        return
    statement = (
        update(endpoints)
        .where(
            endpoints.c.id == bindparam("the_id"),
            endpoints.c.epoch == bindparam("the_epoch"),
            endpoints.c.commits < bindparam("number"),
            ~endpoints.c.superseded,
        )
        .values(commits=bindparam("number"))
    )
    rows = [
        {"the_id": each.endpoint, "the_epoch": each.epoch, "number": each.number} for each in new
    ]
    counted = tx.execute(statement, rows).rowcount
    assert counted == len(rows), "held endpoints do not change"  # noqa: S101


def _put(
    tx: WriteTransaction,
    rows: Sequence[tuple[Whose, Position, str, int, int]],
    now: datetime,
) -> None:
    if not rows:
        return
    make: Any = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[tx.dialect]
    statement = make(positions)
    changing = ("next_offset", "record", "topic_id", "epoch", "number", "committed_at")
    statement = statement.on_conflict_do_update(
        index_elements=[*_WHOSE, "partition"],
        set_={name: statement.excluded[name] for name in changing},
    )
    tx.execute(
        statement,
        [
            dict(zip(_WHOSE, whose, strict=True))
            | {
                "partition": position.partition,
                "next_offset": position.offset,
                "record": position.record,
                "topic_id": topic_id,
                "epoch": epoch,
                "number": number,
                "committed_at": now,
            }
            for whose, position, topic_id, epoch, number in rows
        ],
    )


def _whose(endpoint: Endpoint) -> Whose:
    member = member_of_positions(endpoint.place, endpoint.mode)
    return endpoint.channel_uid, endpoint.place.group, member


def _committed_of(row: Row[Any]) -> Committed:
    return Committed(
        position=Position(partition=row.partition, offset=row.next_offset, record=row.record),
        topic_id=row.topic_id,
        epoch=row.epoch,
        number=row.number,
        committed_at=row.committed_at,
    )
