"""When channels that are removed when nobody uses them were used last."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import bindparam, exists, func, or_, select, update

from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.channels.rows import channel_of, in_phases, selection
from sluiceway_gateway.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.db.schema import channels, endpoints, positions
from sluiceway_gateway.domain.idling import PHASES
from sluiceway_gateway.endpoints import history
from sluiceway_gateway.endpoints.model import OPEN, Event, Health

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
_COMMITTED = (
    select(func.max(positions.c.committed_at))
    .where(positions.c.channel_uid == channels.c.uid)
    .scalar_subquery()
)
# The leading replica asks all the time, so they are put together once.
_ALL = (
    selection()
    .add_columns(
        _LIVING.label("lives"), _CHANGED.label("changed_at"), _COMMITTED.label("committed_at")
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
