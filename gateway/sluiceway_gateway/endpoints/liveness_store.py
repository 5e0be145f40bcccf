"""Liveness scan: rows that the reaper reads and writes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import and_, bindparam, case, func, select, update

from sluiceway_gateway.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.db.schema import channels, endpoint_groups, endpoints, sessions
from sluiceway_gateway.db.statements import chunks
from sluiceway_gateway.endpoints.model import Health, Role, State
from sluiceway_gateway.groups.store import of_its_group


class SessionBeat(NamedTuple):
    """A session with endpoints that may fall silent. There may be very many."""

    session: str
    beat: int
    """The last one that counted."""
    endpoints: int
    """How many the session has attached; it goes up with each that comes."""
    interval_ms: int
    """The shortest of the endpoints that may fall silent."""
    timeout_ms: int
    """The shortest of theirs."""


@dataclass(frozen=True, kw_only=True)
class EndpointBeat:
    """An endpoint that may fall silent."""

    endpoint: str
    channel_uid: str
    session: str
    beat: int
    """The last of its session that counted."""
    health: Health
    interval_ms: int
    timeout_ms: int


@dataclass(frozen=True, kw_only=True)
class LostWriter:
    """A writer whose topic's ends are yet to be written down."""

    endpoint: str
    channel_uid: str
    topic: str
    partitions: int


@dataclass(frozen=True, kw_only=True)
class StaleShare:
    """A member whose share is of an earlier generation than its group."""

    endpoint: str
    channel_uid: str
    generation: int
    """Of its share."""
    interval_ms: int
    timeout_ms: int


_MAY_FALL_SILENT = (
    ~endpoints.c.superseded,
    endpoints.c.state != str(State.CLOSED),
    endpoints.c.health != str(Health.LOST),
)
_LOST_AND_UNSEEN = (
    ~endpoints.c.superseded,
    endpoints.c.role == str(Role.WRITER),
    endpoints.c.health == str(Health.LOST),
    endpoints.c.state != str(State.CLOSED),
    endpoints.c.lost_at.is_(None),
)
_INTERVAL = func.min(case((and_(*_MAY_FALL_SILENT), channels.c.heartbeat_interval_ms)))
_TIMEOUT = func.min(case((and_(*_MAY_FALL_SILENT), channels.c.heartbeat_timeout_ms)))
# The leading replica asks all the time, so they are put together once.
_BEATS = (
    select(sessions.c.id, sessions.c.beat, func.count(), _INTERVAL, _TIMEOUT)
    .join(endpoints, endpoints.c.session_id == sessions.c.id)
    .join(channels, channels.c.uid == endpoints.c.channel_uid)
    .group_by(sessions.c.id, sessions.c.beat)
    .having(_INTERVAL.is_not(None))
)
_PULSES = (
    select(
        endpoints.c.id,
        endpoints.c.channel_uid,
        endpoints.c.session_id,
        endpoints.c.health,
        sessions.c.beat,
        channels.c.heartbeat_interval_ms,
        channels.c.heartbeat_timeout_ms,
    )
    .join(sessions, sessions.c.id == endpoints.c.session_id)
    .join(channels, channels.c.uid == endpoints.c.channel_uid)
    .where(endpoints.c.session_id.in_(bindparam("sessions", expanding=True)), *_MAY_FALL_SILENT)
)
_BEHIND = (
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
        # Who has a share is a member of a dynamic group.
        endpoints.c.share_index.is_not(None),
        *_MAY_FALL_SILENT,
    )
)
# A channel that somebody came to has, or had, a topic: its partitions are known.
_LOST_WRITERS = (
    select(
        endpoints.c.id,
        endpoints.c.channel_uid,
        channels.c.topic_name,
        channels.c.topic_partitions,
    )
    .join(channels, channels.c.uid == endpoints.c.channel_uid)
    .where(*_LOST_AND_UNSEEN)
)
_NOTE_ENDS = (
    update(endpoints)
    .where(endpoints.c.id == bindparam("the_id"), *_LOST_AND_UNSEEN)
    .values(lost_at=bindparam("the_ends", type_=endpoints.c.lost_at.type))
)


def beats(tx: ReadTransaction) -> list[SessionBeat]:
    """Return all sessions that have endpoints which may get worse."""
    return list(map(SessionBeat._make, tx.execute(_BEATS)))


def pulses(tx: ReadTransaction, sessions: Sequence[str]) -> list[EndpointBeat]:
    """Return the endpoints of these sessions that may get worse."""
    return [
        EndpointBeat(
            endpoint=row.id,
            channel_uid=row.channel_uid,
            session=row.session_id,
            beat=row.beat,
            health=Health(row.health),
            interval_ms=row.heartbeat_interval_ms,
            timeout_ms=row.heartbeat_timeout_ms,
        )
        for part in chunks(sessions)
        for row in tx.execute(_PULSES, {"sessions": part})
    ]


def behind(tx: ReadTransaction) -> list[StaleShare]:
    """Return the living members of dynamic groups that hold what others wait for."""
    return [
        StaleShare(
            endpoint=row.id,
            channel_uid=row.channel_uid,
            generation=row.generation,
            interval_ms=row.heartbeat_interval_ms,
            timeout_ms=row.heartbeat_timeout_ms,
        )
        for row in tx.execute(_BEHIND)
    ]


def lost_writers(tx: ReadTransaction) -> list[LostWriter]:
    """Return the writers of topics whose ends were not looked at since they were lost."""
    return [
        LostWriter(
            endpoint=row.id,
            channel_uid=row.channel_uid,
            topic=row.topic_name,
            partitions=row.topic_partitions,
        )
        for row in tx.execute(_LOST_WRITERS)
    ]


def note_ends(tx: WriteTransaction, endpoint_id: str, ends: Mapping[int, int]) -> bool:
    """Write down where the topic ended when the writer was lost; False if it is back meanwhile."""
    values = {str(each): offset for each, offset in ends.items()}
    return tx.execute(_NOTE_ENDS, {"the_id": endpoint_id, "the_ends": values}).rowcount == 1
