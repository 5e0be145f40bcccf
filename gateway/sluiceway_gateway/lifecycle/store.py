"""Who is at a channel, read from its endpoints and positions."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, bindparam, select

from sluiceway_gateway.channels.model import Channel, Phase
from sluiceway_gateway.channels.rows import (
    CHANGE,
    as_it_was,
    channel_of,
    in_phases,
    selection,
    values_of,
)
from sluiceway_gateway.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.db.schema import channels, endpoint_groups, endpoints, positions
from sluiceway_gateway.domain.attendance import SHARED, Attendance, Follower
from sluiceway_gateway.endpoints.model import ANONYMOUS, OPEN, Health, Mode, Role

# The leading replica asks all the time, so they are put together once.
_CLOSING = selection().where(in_phases([Phase.CLOSING])).order_by(channels.c.uid)
_PRESENT = (
    select(
        endpoints.c.id,
        endpoints.c.role,
        endpoints.c.group_name,
        endpoints.c.member_index,
        endpoints.c.state,
        endpoints.c.health,
        endpoints.c.reached,
        endpoints.c.title,
    )
    .where(endpoints.c.channel_uid == bindparam("channel_uid"), ~endpoints.c.superseded)
    .order_by(endpoints.c.group_name, endpoints.c.member_index)
)
_COMMITTED = select(
    positions.c.group_name,
    positions.c.member_index,
    positions.c.partition,
    positions.c.next_offset,
).where(
    positions.c.channel_uid == bindparam("channel_uid"),
    positions.c.topic_id == bindparam("topic_id"),
)
_GROUPS = (
    select(endpoint_groups.c.name, endpoint_groups.c.mode)
    .where(
        endpoint_groups.c.channel_uid == bindparam("channel_uid"),
        endpoint_groups.c.role == str(Role.READER),
        endpoint_groups.c.name != ANONYMOUS,
    )
    .order_by(endpoint_groups.c.name)
)


def attendance(tx: ReadTransaction, channel: Channel) -> Attendance:
    """Return who is at the channel; positions of another topic than its own count for nothing."""
    rows = tx.execute(_PRESENT, {"channel_uid": channel.uid}).all()
    living = [row for row in rows if row.state in OPEN and row.health != str(Health.LOST)]
    return Attendance(
        writers=tuple(_place(row) for row in living if row.role == str(Role.WRITER)),
        loners=tuple(
            _place(row)
            for row in living
            if row.role == str(Role.READER) and row.group_name == ANONYMOUS
        ),
        followers=_followers(tx, channel, [row for row in rows if row.role == str(Role.READER)]),
    )


def closing(tx: ReadTransaction) -> list[Channel]:
    """Return the channels that are closing."""
    return [channel_of(row) for row in tx.execute(_CLOSING)]


def save_status(tx: WriteTransaction, channel: Channel, *, was: Channel) -> bool:
    """Put `channel`, of which the status is another, in the place of `was`; False if that is gone.

    Nothing of it concerns Kafka: when it is compared with Kafka next stays as it was.
    """
    return tx.execute(CHANGE, values_of(channel) | as_it_was(was)).rowcount == 1


def _followers(
    tx: ReadTransaction, channel: Channel, readers: Sequence[Row[Any]]
) -> tuple[Follower, ...]:
    committed: dict[str, dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    own = {"channel_uid": channel.uid, "topic_id": channel.topic.id}
    for row in tx.execute(_COMMITTED, own):
        committed[row.group_name][row.member_index][row.partition] = row.next_offset
    groups = tx.execute(_GROUPS, {"channel_uid": channel.uid})
    modes = {row.name: row.mode for row in groups}
    members: dict[str, list[Row[Any]]] = defaultdict(list)
    for row in readers:
        members[row.group_name].append(row)
    return tuple(
        Follower(
            group=name,
            shared=mode == str(Mode.SHARED),
            members=frozenset(row.member_index for row in members[name]),
            living=frozenset(
                row.member_index
                for row in members[name]
                if row.state in OPEN and row.health != str(Health.LOST)
            ),
            positions=committed.get(name, {}),
            reached=_reached(members[name], shared=mode == str(Mode.SHARED)),
        )
        for name, mode in modes.items()
    )


def _reached(members: Sequence[Row[Any]], *, shared: bool) -> dict[int, dict[int, int]]:
    found: dict[int, dict[int, int]] = defaultdict(dict)
    for row in members:
        if row.title is None:
            # It can commit, and until it has, it may begin again where it began.
            continue
        own = found[SHARED if shared else row.member_index]
        for partition, (offset, _record) in (row.reached or {}).items():
            own[int(partition)] = max(offset, own.get(int(partition), 0))
    return found


def _place(row: Row[Any]) -> str:
    return f"{row.group_name}[{row.member_index}]" if row.group_name else f"{row.role} {row.id[:8]}"
