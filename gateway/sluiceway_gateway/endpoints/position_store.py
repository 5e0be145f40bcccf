"""Storage of the positions of groups."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Row, bindparam, delete, select, tuple_

from sluiceway_gateway.core.db.engine import ChangeKind, ReadTransaction, WriteTransaction
from sluiceway_gateway.core.db.statements import KEYS_AT_ONCE, PreparedDml, PreparedSelect, upsert
from sluiceway_gateway.endpoints.groups.store import change_uid
from sluiceway_gateway.endpoints.model import PositionOwner
from sluiceway_gateway.endpoints.positions import Committed, Position
from sluiceway_gateway.endpoints.tables import positions

_WHOSE = ("channel_uid", "group_name", "member_index")
_OF_GROUP = (
    select(positions)
    .where(
        positions.c.channel_uid == bindparam("channel_uid"),
        positions.c.group_name == bindparam("group"),
    )
    .order_by(positions.c.member_index, positions.c.partition)
)
_OF_MEMBER = _OF_GROUP.where(positions.c.member_index == bindparam("member"))
# Prepared: commits run them.
_STORED = PreparedSelect(
    select(positions).where(
        tuple_(*(positions.c[name] for name in (*_WHOSE, "partition"))).in_(
            bindparam("keys", expanding=True)
        )
    ),
    keys="keys",
)
_PUT = PreparedDml(
    upsert(positions, (*_WHOSE, "partition")), columns=[column.name for column in positions.columns]
)


def of(
    tx: ReadTransaction, channel_uid: str, group: str, *, member: int | None
) -> list[tuple[int, Committed]]:
    """Return the positions of a group, or of one member, each with its member's index."""
    whose = {"channel_uid": channel_uid, "group": group}
    rows = (
        tx.execute(_OF_GROUP, whose)
        if member is None
        else tx.execute(_OF_MEMBER, {**whose, "member": member})
    )
    return [(row.member_index, _committed_of(row)) for row in rows]


def at(
    tx: ReadTransaction, whose: PositionOwner, partitions: Collection[int]
) -> Mapping[int, Committed]:
    """Return the committed positions of these partitions, by partition."""
    if len(partitions) <= KEYS_AT_ONCE:
        return stored_at(tx, [(*whose, partition) for partition in partitions]).get(whose, {})
    channel_uid, group, member = whose
    stored = {
        committed.position.partition: committed
        for _, committed in of(tx, channel_uid, group, member=member)
    }
    return {
        partition: committed for partition, committed in stored.items() if partition in partitions
    }


def stored_at(
    tx: ReadTransaction, keys: Sequence[tuple[str, str, int, int]]
) -> dict[PositionOwner, dict[int, Committed]]:
    """Return committed positions by owner and partition; each key is both."""
    by_owner: dict[PositionOwner, dict[int, Committed]] = {}
    for row in tx.look_up(_STORED, keys):
        own = by_owner.setdefault((row.channel_uid, row.group_name, row.member_index), {})
        own[row.partition] = _committed_of(row)
    return by_owner


def put(tx: WriteTransaction, updates: Collection[tuple[PositionOwner, Committed]]) -> None:
    """Store positions, whatever they were before."""
    tx.publish(ChangeKind.GROUP, {change_uid((uid, group)) for (uid, group, _), _ in updates})
    rows = [
        dict(zip(_WHOSE, owner, strict=True))
        | {
            "partition": committed.position.partition,
            "next_offset": committed.position.offset,
            "record": committed.position.record,
            "metadata": committed.position.metadata,
            "topic_id": committed.topic_id,
            "epoch": committed.epoch,
            "number": committed.number,
            "committed_at": committed.committed_at,
        }
        for owner, committed in updates
    ]
    tx.run_each(_PUT, rows)


def delete_positions(
    tx: WriteTransaction, channel_uid: str, group: str, *, member: int | None
) -> None:
    """Delete the positions of a group, or of one member."""
    table = positions.c
    statement = delete(positions).where(table.channel_uid == channel_uid, table.group_name == group)
    if member is not None:
        statement = statement.where(table.member_index == member)
    tx.execute(statement)


def _committed_of(row: Row[Any]) -> Committed:
    return Committed(
        position=Position(
            partition=row.partition,
            offset=row.next_offset,
            record=row.record,
            metadata=row.metadata,
        ),
        topic_id=row.topic_id,
        epoch=row.epoch,
        number=row.number,
        committed_at=row.committed_at,
    )
