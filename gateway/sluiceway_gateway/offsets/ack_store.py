"""Progress of groups towards awaited offsets."""

from collections.abc import Collection
from dataclasses import dataclass, field

from sqlalchemy import select, tuple_

from sluiceway_gateway.db.engine import ReadTransaction
from sluiceway_gateway.db.schema import endpoint_groups, positions
from sluiceway_gateway.endpoints.model import Mode, Role

GroupKey = tuple[str, str]
"""A channel's uid and a group's name."""
#: A statement has only so many parameters.
_KEYS_AT_ONCE = 500


@dataclass(kw_only=True)
class Progress:
    """What a group has committed; `members` are whose positions there are, -1 the group's own."""

    members: tuple[int, ...]
    offsets: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    """By member and partition: the topic's id, and the offset of the next message."""


def progress(tx: ReadTransaction, keys: Collection[GroupKey]) -> dict[GroupKey, Progress]:
    """Return how far groups of readers have come; those that nobody was ever in are left out."""
    found: dict[GroupKey, Progress] = {}
    every = sorted(keys)
    for start in range(0, len(every), _KEYS_AT_ONCE):
        part = every[start : start + _KEYS_AT_ONCE]
        groups = endpoint_groups.c
        statement = select(groups.channel_uid, groups.name, groups.mode, groups.size).where(
            tuple_(groups.channel_uid, groups.name).in_(part), groups.role == str(Role.READER)
        )
        for row in tx.execute(statement):
            each = row.mode == str(Mode.BROADCAST)
            members = tuple(range(row.size or 0)) if each else (-1,)
            found[row.channel_uid, row.name] = Progress(members=members)
        table = positions.c
        committed = select(
            table.channel_uid,
            table.group_name,
            table.member_index,
            table.partition,
            table.topic_id,
            table.next_offset,
        ).where(tuple_(table.channel_uid, table.group_name).in_(part))
        for row in tx.execute(committed):
            group = found.get((row.channel_uid, row.group_name))
            if group is not None:
                place = (row.member_index, row.partition)
                group.offsets[place] = (row.topic_id, row.next_offset)
    return found
