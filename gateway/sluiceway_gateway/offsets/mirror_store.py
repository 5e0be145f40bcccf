"""Positions to mirror."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, select

from sluiceway_gateway.channels.model import READABLE
from sluiceway_gateway.channels.rows import in_phases
from sluiceway_gateway.db.engine import ReadTransaction
from sluiceway_gateway.db.schema import channels, positions

# The leading replica asks all the time, so they are put together once.
_ALL = (
    select(positions, channels.c.topic_name)
    .join(channels, channels.c.uid == positions.c.channel_uid)
    .where(
        channels.c.mirrored,
        in_phases(READABLE),
        channels.c.topic_id == positions.c.topic_id,
    )
)
_SINCE = _ALL.where(positions.c.committed_at >= bindparam("since"))


@dataclass(frozen=True, kw_only=True)
class MirroredPosition:
    """Where a group, or one member of a broadcast group, is to go on in a partition."""

    topic: str
    partition: int
    group: str
    member: int
    """-1 where members share."""
    offset: int
    """Of the message to read next, or of the one that is done in part."""
    committed_at: datetime


def committed_since(tx: ReadTransaction, since: datetime | None) -> list[MirroredPosition]:
    """Return the positions of mirrored channels' present topics; None: whenever they were put."""
    found = tx.execute(_ALL) if since is None else tx.execute(_SINCE, {"since": since})
    return [
        MirroredPosition(
            topic=row.topic_name,
            partition=row.partition,
            group=row.group_name,
            member=row.member_index,
            offset=row.next_offset,
            committed_at=row.committed_at,
        )
        for row in found
    ]
