"""Storage of liveness: sessions, endpoints, shares and lost writers as the reaper reads them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import bindparam, exists, func, select, update

from sluiceway_gateway.channels.tables import channels
from sluiceway_gateway.core.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.endpoints.groups.store import of_its_group
from sluiceway_gateway.endpoints.model import Health, Role
from sluiceway_gateway.endpoints.store import INTERVAL_MS, TIMEOUT_MS
from sluiceway_gateway.endpoints.tables import UNCLOSED, endpoint_groups, endpoints, sessions


class SessionBeat(NamedTuple):
    """A session with endpoints whose health may get worse."""

    session: str
    beat: int
    """The number of its last heartbeat."""
    endpoints: int
    """The number of endpoints that the session attached."""
    interval_ms: int
    """The shortest interval of the endpoints whose health may get worse."""
    timeout_ms: int
    """The shortest timeout of these endpoints."""


class EndpointBeat(NamedTuple):
    """An endpoint whose health may get worse."""

    endpoint: str
    channel_uid: str
    session: str
    beat: int
    """The number of its session's last heartbeat."""
    interval_ms: int
    timeout_ms: int
    health: Health


class LostWriter(NamedTuple):
    """A lost writer whose topic's ends are not saved yet."""

    endpoint: str
    channel_uid: str
    topic: str
    partitions: int
    beat: int
    """The number of its session's last heartbeat."""


class StaleShare(NamedTuple):
    """A member of a dynamic group with a share of an earlier generation.

    It has the channel's timeout to release it, even if its own is shorter: it may be busy.
    """

    endpoint: str
    channel_uid: str
    generation: int
    """The generation of its share."""
    interval_ms: int
    timeout_ms: int


_MAY_GET_WORSE = (UNCLOSED, endpoints.c.health != Health.LOST)
_LOST_WITHOUT_ENDS = (
    UNCLOSED,
    endpoints.c.role == Role.WRITER,
    endpoints.c.health == Health.LOST,
    endpoints.c.lost_at.is_(None),
)
_OF_SESSION = endpoints.alias("of_session")
_ATTACHED = select(func.count()).where(_OF_SESSION.c.session_id == sessions.c.id).scalar_subquery()
# Built once: the leading replica runs them all the time.
_SESSION_BEATS = (
    select(
        *(sessions.c.id, sessions.c.beat, _ATTACHED),
        *(func.min(INTERVAL_MS.element), func.min(TIMEOUT_MS.element)),
    )
    .join(endpoints, endpoints.c.session_id == sessions.c.id)
    .join(channels, channels.c.uid == endpoints.c.channel_uid)
    .where(*_MAY_GET_WORSE)
    .group_by(sessions.c.id, sessions.c.beat)
)
_ENDPOINT_BEATS = (
    select(
        endpoints.c.id,
        endpoints.c.channel_uid,
        endpoints.c.session_id,
        sessions.c.beat,
        INTERVAL_MS,
        TIMEOUT_MS,
        endpoints.c.health,
    )
    .join(sessions, sessions.c.id == endpoints.c.session_id)
    .join(channels, channels.c.uid == endpoints.c.channel_uid)
    .where(endpoints.c.session_id.in_(bindparam("sessions", expanding=True)), *_MAY_GET_WORSE)
)
_STALE_SHARES = (
    select(
        endpoints.c.id,
        endpoints.c.channel_uid,
        endpoints.c.generation,
        channels.c.heartbeat_interval_ms,
        channels.c.heartbeat_timeout_ms,
    )
    .join(channels, channels.c.uid == endpoints.c.channel_uid)
    .join(endpoint_groups, of_its_group())
    .where(
        endpoint_groups.c.generation > endpoints.c.generation,
        # Only members of dynamic groups have shares.
        endpoints.c.share_index.is_not(None),
        *_MAY_GET_WORSE,
    )
)
# A channel with endpoints has, or had, a topic, so its partitions are known.
_LOST_WRITERS = (
    select(
        *(endpoints.c.id, endpoints.c.channel_uid),
        *(channels.c.topic_name, channels.c.topic_partitions, sessions.c.beat),
    )
    .join(channels, channels.c.uid == endpoints.c.channel_uid)
    .join(sessions, sessions.c.id == endpoints.c.session_id)
    .where(*_LOST_WITHOUT_ENDS)
)
_SAVE_LOST_ENDS = (
    update(endpoints)
    .where(
        endpoints.c.id == bindparam("the_id"),
        *_LOST_WITHOUT_ENDS,
        # After a heartbeat it may have written more records, and be lost again.
        exists().where(
            sessions.c.id == endpoints.c.session_id, sessions.c.beat == bindparam("the_beat")
        ),
    )
    .values(lost_at=bindparam("the_ends", type_=endpoints.c.lost_at.type))
)


def session_beats(tx: ReadTransaction) -> list[SessionBeat]:
    """Return the sessions with endpoints whose health may get worse."""
    return list(map(SessionBeat._make, tx.execute(_SESSION_BEATS)))


def endpoint_beats(tx: ReadTransaction, sessions: Sequence[str]) -> list[EndpointBeat]:
    """Return the endpoints of these sessions whose health may get worse."""
    return list(map(EndpointBeat._make, tx.in_parts(_ENDPOINT_BEATS, sessions=sessions)))


def stale_shares(tx: ReadTransaction) -> list[StaleShare]:
    """Return the live members of dynamic groups that hold partitions of other members' shares."""
    return list(map(StaleShare._make, tx.execute(_STALE_SHARES)))


def lost_writers(tx: ReadTransaction) -> list[LostWriter]:
    """Return the lost writers whose topics' ends are not saved yet."""
    return list(map(LostWriter._make, tx.execute(_LOST_WRITERS)))


def save_lost_ends(tx: WriteTransaction, writer: LostWriter, ends: Mapping[int, int]) -> bool:
    """Save the ends of a lost writer's topic; False if it returned, even if it is lost again."""
    values = {"the_id": writer.endpoint, "the_beat": writer.beat, "the_ends": ends}
    return tx.execute(_SAVE_LOST_ENDS, values).rowcount == 1
