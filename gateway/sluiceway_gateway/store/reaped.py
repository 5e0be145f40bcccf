"""What the reaper looks at: those that may fall silent, are lost, or hold what is not theirs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import and_, or_, select, update

from sluiceway_gateway.domain.endpoint import Health, Role, State
from sluiceway_gateway.store.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.store.groups import of_its_group
from sluiceway_gateway.store.tables import channels, endpoint_groups, endpoints, sessions


@dataclass(frozen=True, kw_only=True)
class Pulse:
    """An endpoint that may fall silent."""

    endpoint: str
    channel_uid: str
    session: str
    beat: int
    """The last of its session that counted."""
    health: Health
    interval_ms: int
    patience_ms: int


@dataclass(frozen=True, kw_only=True)
class LostWriter:
    """A writer whose topic's ends are yet to be written down."""

    endpoint: str
    channel_uid: str
    topic: str
    partitions: int


@dataclass(frozen=True, kw_only=True)
class Behind:
    """A member whose share is of an earlier generation than its group."""

    endpoint: str
    channel_uid: str
    generation: int
    """Of its share."""
    interval_ms: int
    patience_ms: int


@dataclass(frozen=True, kw_only=True)
class Sight:
    """All that one look finds."""

    pulses: list[Pulse] = field(default_factory=list)
    """Endpoints that could get worse."""
    lost_writers: list[LostWriter] = field(default_factory=list)
    """Those of topics whose ends were not looked at since."""
    behind: list[Behind] = field(default_factory=list)
    """Living members of dynamic groups."""


_LOST_AND_UNSEEN = (
    ~endpoints.c.superseded,
    endpoints.c.role == str(Role.WRITER),
    endpoints.c.health == str(Health.LOST),
    endpoints.c.state != str(State.CLOSED),
    endpoints.c.lost_at.is_(None),
)
# One statement, as it is asked again and again, mostly for nothing.
_SIGHT = (
    select(
        endpoints.c.id,
        endpoints.c.channel_uid,
        endpoints.c.session_id,
        endpoints.c.health,
        endpoints.c.generation,
        sessions.c.beat,
        channels.c.beat_ms,
        channels.c.patience_ms,
        channels.c.topic_name,
        channels.c.topic_partitions,
        # Who has a share is a member of a dynamic group.
        and_(
            endpoint_groups.c.generation > endpoints.c.generation,
            endpoints.c.share_index.is_not(None),
        ).label("is_behind"),
    )
    .join(sessions, sessions.c.id == endpoints.c.session_id)
    .join(channels, channels.c.uid == endpoints.c.channel_uid)
    .outerjoin(endpoint_groups, of_its_group())
    .where(
        ~endpoints.c.superseded,
        endpoints.c.state != str(State.CLOSED),
        # A channel that somebody came to has, or had, a topic: its partitions are known.
        or_(endpoints.c.health != str(Health.LOST), and_(*_LOST_AND_UNSEEN)),
    )
)


def sight(tx: ReadTransaction) -> Sight:
    """Look at everybody once."""
    seen = Sight()
    for row in tx.execute(_SIGHT):
        if row.health == Health.LOST:
            lost = LostWriter(
                endpoint=row.id,
                channel_uid=row.channel_uid,
                topic=row.topic_name,
                partitions=row.topic_partitions,
            )
            seen.lost_writers.append(lost)
            continue
        pulse = Pulse(
            endpoint=row.id,
            channel_uid=row.channel_uid,
            session=row.session_id,
            beat=row.beat,
            health=Health(row.health),
            interval_ms=row.beat_ms,
            patience_ms=row.patience_ms,
        )
        seen.pulses.append(pulse)
        if row.is_behind:
            behind = Behind(
                endpoint=row.id,
                channel_uid=row.channel_uid,
                generation=row.generation,
                interval_ms=row.beat_ms,
                patience_ms=row.patience_ms,
            )
            seen.behind.append(behind)
    return seen


def note_ends(tx: WriteTransaction, endpoint_id: str, ends: Mapping[int, int]) -> bool:
    """Write down where the topic ended when the writer was lost; False if it is back meanwhile."""
    noted = tx.execute(
        update(endpoints)
        .where(endpoints.c.id == endpoint_id, *_LOST_AND_UNSEEN)
        .values(lost_at={str(each): offset for each, offset in ends.items()})
    )
    return noted.rowcount == 1
