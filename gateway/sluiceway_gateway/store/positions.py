"""Positions of groups, wherever they are put; commits are judged in `commits`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, delete, select, tuple_

from sluiceway_gateway.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.db.schema import positions
from sluiceway_gateway.db.statements import Each, Lookup
from sluiceway_gateway.endpoints.model import Endpoint
from sluiceway_gateway.groups.model import member_of_positions
from sluiceway_gateway.offsets.model import Committed, Position
from sluiceway_gateway.store.inserts import by_dialect

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
_STORED = Lookup(
    select(positions).where(
        tuple_(*(positions.c[name] for name in (*_WHOSE, "partition"))).in_(
            bindparam("keys", expanding=True)
        )
    ),
    keys="keys",
)


def _upsert(insert: Any) -> Each:
    statement = insert(positions)
    changing = ("next_offset", "record", "topic_id", "epoch", "number", "committed_at")
    upsert = statement.on_conflict_do_update(
        index_elements=[*_WHOSE, "partition"],
        set_={name: statement.excluded[name] for name in changing},
    )
    return Each(upsert, columns=[each.name for each in positions.columns])


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
    member = member_of_positions(endpoint.place, endpoint.mode)
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
