"""Storage of usage: endpoints, positions and last use of a channel."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, bindparam, exists, func, or_, select, update

from sluiceway_gateway.channels.model import Channel, Phase
from sluiceway_gateway.channels.store import channel_of, in_phases, replace_row, selection
from sluiceway_gateway.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.db.schema import channels, endpoint_groups, endpoints, positions
from sluiceway_gateway.endpoints import history
from sluiceway_gateway.endpoints.model import ANONYMOUS, OPEN, Event, Health, Mode, Role
from sluiceway_gateway.lifecycle.model import PHASES, SHARED, Attendance, GroupUsage

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


def usage_of_channel(tx: ReadTransaction, channel: Channel) -> Attendance:
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
    return replace_row(tx, channel, was=was)


def _followers(
    tx: ReadTransaction, channel: Channel, readers: Sequence[Row[Any]]
) -> tuple[GroupUsage, ...]:
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
        GroupUsage(
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


#: Uses that come one after the other are written down once in this time.
SPARE = timedelta(minutes=1)

_OWN = endpoints.c.channel_uid == channels.c.uid
_LIVING = exists().where(
    _OWN,
    ~endpoints.c.superseded,
    endpoints.c.state.in_([str(each) for each in sorted(OPEN)]),
    endpoints.c.health != str(Health.LOST),
)
_CHANGED = select(func.max(endpoints.c.changed_at)).where(_OWN).scalar_subquery()
_LAST_COMMITTED = (
    select(func.max(positions.c.committed_at))
    .where(positions.c.channel_uid == channels.c.uid)
    .scalar_subquery()
)
# The leading replica asks all the time, so they are put together once.
_ALL = (
    selection()
    .add_columns(
        _LIVING.label("lives"),
        _CHANGED.label("changed_at"),
        _LAST_COMMITTED.label("committed_at"),
    )
    .where(channels.c.idle_ms.is_not(None), in_phases(PHASES))
    .order_by(channels.c.uid)
)
_ONE = _ALL.where(channels.c.uid == bindparam("uid"))


@dataclass(frozen=True, kw_only=True)
class Usage:
    """A channel, and how it is used."""

    channel: Channel
    used_at: datetime
    """The last use that the database knows of."""
    lives: bool
    """Somebody writes or reads it."""


def usages(tx: ReadTransaction) -> list[Usage]:
    """Return the channels that come to their end by being idle."""
    return [_usage_of(row) for row in tx.execute(_ALL)]


def usage(tx: ReadTransaction, uid: str) -> Usage | None:
    """Return one of them; None if it is gone, or is none of them any more."""
    row = tx.execute(_ONE, {"uid": uid}).one_or_none()
    return None if row is None else _usage_of(row)


def touch(tx: WriteTransaction, uid: str, at: datetime, *, spare: timedelta = SPARE) -> None:
    """Note a use, unless a later one, or one that is hardly older, was noted."""
    tx.execute(
        update(channels)
        .where(
            channels.c.uid == uid,
            or_(channels.c.used_at.is_(None), channels.c.used_at < at - spare),
        )
        .values(used_at=at)
    )


def write_down(tx: WriteTransaction, channel: Channel, what: str, *, at: datetime) -> None:
    """Add to the channel's history what became of it."""
    line = Event(at=at, endpoint=None, group="", state=None, health=None, cause=what, by="gateway")
    history.add(tx, [(channel.uid, line)])


def _usage_of(row: Any) -> Usage:
    known: Sequence[datetime | None] = (row.used_at, row.changed_at, row.committed_at)
    return Usage(
        channel=channel_of(row),
        used_at=max([row.created_at, *(each for each in known if each is not None)]),
        lives=bool(row.lives),
    )
