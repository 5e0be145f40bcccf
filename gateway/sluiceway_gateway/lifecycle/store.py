"""Storage of usage: endpoints, positions and last use of a channel."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, exists, func, select

from sluiceway_gateway.channels.model import Channel, Phase
from sluiceway_gateway.channels.store import channel_of, in_phases, selection
from sluiceway_gateway.channels.tables import channels
from sluiceway_gateway.core.db.engine import ReadTransaction
from sluiceway_gateway.endpoints.groups import store as groups_store
from sluiceway_gateway.endpoints.groups.model import Group
from sluiceway_gateway.endpoints.model import ANONYMOUS, Mode, Role, outcome
from sluiceway_gateway.endpoints.store import LIVES
from sluiceway_gateway.endpoints.tables import endpoints, positions
from sluiceway_gateway.ledger.model import BatchState
from sluiceway_gateway.ledger.tables import batches, visible_runs
from sluiceway_gateway.lifecycle.model import SHARED, ChannelUsage, GroupUsage

# In other phases, the channel's owner has to act.
_IDLE_PHASES = frozenset({Phase.READY, Phase.CLOSING, Phase.CLOSED})
# Built once: the leading replica runs them all the time.
_CLOSING = selection().where(in_phases([Phase.CLOSING])).order_by(channels.c.uid)
_PRESENT = (
    select(
        endpoints.c.id,
        endpoints.c.role,
        endpoints.c.group_name,
        endpoints.c.member_index,
        endpoints.c.mode,
        endpoints.c.state,
        endpoints.c.health,
        endpoints.c.reached,
        endpoints.c.title,
        endpoints.c.number,
    )
    .where(endpoints.c.channel_uid == bindparam("channel_uid"), ~endpoints.c.superseded)
    .order_by(endpoints.c.group_name, endpoints.c.member_index)
)
_COMMITTED = select(
    positions.c.group_name, positions.c.member_index, positions.c.partition, positions.c.next_offset
).where(
    positions.c.channel_uid == bindparam("channel_uid"),
    positions.c.topic_id == bindparam("topic_id"),
)


def usage_of_channel(tx: ReadTransaction, channel: Channel) -> ChannelUsage:
    """Return the endpoints and groups of a channel, without positions in other topics."""
    rows = tx.execute(_PRESENT, {"channel_uid": channel.uid}).all()
    live = [row for row in rows if outcome(row.state, row.health) == "live"]
    return ChannelUsage(
        writers=tuple(_place(row) for row in live if row.role == Role.WRITER),
        ungrouped=tuple(
            _place(row) for row in live if row.role == Role.READER and row.group_name == ANONYMOUS
        ),
        groups=_groups(tx, channel, [row for row in rows if row.role == Role.READER]),
        last_writer=max((row.number or 0 for row in rows if row.role == Role.WRITER), default=0),
    )


def closing_channels(tx: ReadTransaction) -> list[Channel]:
    """Return the channels that are closing."""
    return [channel_of(row) for row in tx.execute(_CLOSING)]


_OPEN_BATCH = (
    select(batches.c.id)
    .where(batches.c.channel_uid == bindparam("channel_uid"), batches.c.state == BatchState.OPEN)
    .limit(1)
)
_VISIBLE_ENDS = (
    select(visible_runs.c.partition, func.max(visible_runs.c.end_offset).label("end_offset"))
    .where(visible_runs.c.channel_uid == bindparam("channel_uid"))
    .group_by(visible_runs.c.partition)
)


def visible_ends(tx: ReadTransaction, channel_uid: str) -> dict[int, int] | None:
    """Return the end of the committed messages by partition; None while a batch is open."""
    own = {"channel_uid": channel_uid}
    if tx.execute(_OPEN_BATCH, own).first() is not None:
        return None
    return {row.partition: row.end_offset for row in tx.execute(_VISIBLE_ENDS, own)}


def _groups(
    tx: ReadTransaction, channel: Channel, readers: Sequence[Row[Any]]
) -> tuple[GroupUsage, ...]:
    committed: dict[str, dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    own = {"channel_uid": channel.uid, "topic_id": channel.topic.id}
    for row in tx.execute(_COMMITTED, own):
        committed[row.group_name][row.member_index][row.partition] = row.next_offset
    members: dict[str, list[Row[Any]]] = defaultdict(list)
    for row in readers:
        members[row.group_name].append(row)
    groups = groups_store.of_readers(tx, [channel.uid]).values()
    return tuple(
        _group(group, members[group.name], committed.get(group.name, {}))
        for group in sorted(groups, key=lambda group: group.name)
        if group.name != ANONYMOUS
    )


def _group(
    group: Group, readers: Sequence[Row[Any]], committed: Mapping[int, Mapping[int, int]]
) -> GroupUsage:
    members = [row for row in readers if group.has_place(row.member_index, row.mode)]
    shared = group.mode is Mode.SHARED
    return GroupUsage(
        group=group.name,
        shared=shared,
        members=frozenset(row.member_index for row in members),
        live=frozenset(
            row.member_index for row in members if outcome(row.state, row.health) == "live"
        ),
        positions={
            index: offsets for index, offsets in committed.items() if group.has_positions(index)
        },
        reached=_reached(members, shared=shared),
    )


def _reached(members: Sequence[Row[Any]], *, shared: bool) -> dict[int, dict[int, int]]:
    reached: dict[int, dict[int, int]] = defaultdict(dict)
    for row in members:
        if row.title is None:
            # Only jobs with a title store positions themselves; others commit.
            continue
        own = reached[SHARED if shared else row.member_index]
        for partition, (offset, _record) in (row.reached or {}).items():
            own[int(partition)] = max(offset, own.get(int(partition), 0))
    return reached


def _place(row: Row[Any]) -> str:
    return f"{row.group_name}[{row.member_index}]" if row.group_name else f"{row.role} {row.id[:8]}"


_OWN = endpoints.c.channel_uid == channels.c.uid
_LIVING = exists().where(_OWN, LIVES)
_CHANGED = select(func.max(endpoints.c.changed_at)).where(_OWN).scalar_subquery()
_LAST_COMMITTED = (
    select(func.max(positions.c.committed_at))
    .where(positions.c.channel_uid == channels.c.uid)
    .scalar_subquery()
)
# Built once: the leading replica runs them all the time.
_ALL = (
    selection()
    .add_columns(
        _LIVING.label("lives"), _CHANGED.label("changed_at"), _LAST_COMMITTED.label("committed_at")
    )
    .where(channels.c.idle_ms.is_not(None), in_phases(_IDLE_PHASES))
    .order_by(channels.c.uid)
)
_ONE = _ALL.where(channels.c.uid == bindparam("uid"))


@dataclass(frozen=True, kw_only=True)
class LastUse:
    """A channel with an idle TTL, and its last use."""

    channel: Channel
    used_at: datetime
    """The last use in the database."""
    lives: bool
    """Whether an endpoint is open."""


def last_uses(tx: ReadTransaction) -> list[LastUse]:
    """Return the channels with an idle TTL."""
    return [_last_use_of(row) for row in tx.execute(_ALL)]


def last_use(tx: ReadTransaction, uid: str) -> LastUse | None:
    """Return a channel with an idle TTL; None if it has none, or is gone."""
    row = tx.execute(_ONE, {"uid": uid}).one_or_none()
    return None if row is None else _last_use_of(row)


def _last_use_of(row: Any) -> LastUse:
    times: Sequence[datetime | None] = (row.used_at, row.changed_at, row.committed_at)
    return LastUse(
        channel=channel_of(row),
        used_at=max([row.created_at, *(time for time in times if time is not None)]),
        lives=bool(row.lives),
    )
