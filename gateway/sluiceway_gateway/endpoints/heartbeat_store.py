"""Times of the last heartbeats, of sessions and of channels."""

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import bindparam, func, select

from sluiceway_gateway.db.engine import ReadTransaction
from sluiceway_gateway.db.schema import endpoints, sessions
from sluiceway_gateway.db.statements import PreparedSelect

_BEATS_OF_SESSIONS = PreparedSelect(
    select(sessions.c.id, sessions.c.beat_at).where(
        sessions.c.id.in_(bindparam("ids", expanding=True)), sessions.c.beat_at.is_not(None)
    ),
    keys="ids",
)
_LATEST_BEATS = (
    select(endpoints.c.channel_uid, func.max(sessions.c.beat_at).label("beat_at"))
    .join(sessions, sessions.c.id == endpoints.c.session_id)
    .where(~endpoints.c.superseded, endpoints.c.channel_uid.in_(bindparam("uids", expanding=True)))
    .group_by(endpoints.c.channel_uid)
)
_BEATS_OF_CHANNEL = (
    select(endpoints.c.id, sessions.c.beat_at)
    .join(sessions, sessions.c.id == endpoints.c.session_id)
    .where(
        endpoints.c.channel_uid == bindparam("uid"),
        ~endpoints.c.superseded,
        sessions.c.beat_at.is_not(None),
    )
)


def beats_of_sessions(tx: ReadTransaction, ids: Collection[str]) -> dict[str, datetime]:
    """Return the last heartbeat of each of these sessions that has sent one."""
    return {row.id: row.beat_at for row in tx.look_up(_BEATS_OF_SESSIONS, sorted(ids))}


def beats_of_channel(tx: ReadTransaction, channel_uid: str) -> dict[str, datetime]:
    """Return the last heartbeat of each endpoint that has a place and has sent one, by its id."""
    return {row.id: row.beat_at for row in tx.execute(_BEATS_OF_CHANNEL, {"uid": channel_uid})}


def latest_beats(tx: ReadTransaction, channel_uids: Sequence[str]) -> dict[str, datetime | None]:
    """Return the last heartbeat of any endpoint that has a place, by channel."""
    return {row.channel_uid: row.beat_at for row in tx.in_parts(_LATEST_BEATS, uids=channel_uids)}
