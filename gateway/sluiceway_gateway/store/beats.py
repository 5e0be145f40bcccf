"""What heartbeats and the reaper look at: endpoints together with their channels and sessions."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import bindparam, select, update

from sluiceway_gateway.domain.channel import Phase
from sluiceway_gateway.domain.endpoint import Endpoint, Health, Role, State
from sluiceway_gateway.store.channel_rows import phase_of
from sluiceway_gateway.store.endpoint_rows import endpoint_of
from sluiceway_gateway.store.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.store.groups import of_its_group
from sluiceway_gateway.store.prepared import Lookup
from sluiceway_gateway.store.tables import channels, endpoint_groups, endpoints, sessions


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """An endpoint and what a beat's answer says of its channel."""

    endpoint: Endpoint
    channel: str
    """Its name."""
    phase: Phase
    revision: int
    """Of the channel's endpoints."""
    generation: int
    """Of its group."""
    interval_ms: int


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


# Run so often that they are put together once.
_SURROUNDINGS = Lookup(
    select(
        # How far they were is of no use, and would be read for every beat.
        *(each for each in endpoints.c if each is not endpoints.c.reached),
        channels.c.name.label("channel_name"),
        channels.c.phase.label("channel_phase"),
        channels.c.closing.label("channel_closing"),
        channels.c.endpoints_revision,
        channels.c.beat_ms,
        endpoint_groups.c.generation.label("group_generation"),
    )
    .join(channels, channels.c.uid == endpoints.c.channel_uid)
    .join(endpoint_groups, of_its_group())
    .where(endpoints.c.id.in_(bindparam("ids", expanding=True))),
    keys="ids",
)
_PULSES = (
    select(
        endpoints.c.id,
        endpoints.c.channel_uid,
        endpoints.c.session_id,
        endpoints.c.health,
        sessions.c.beat,
        channels.c.beat_ms,
        channels.c.patience_ms,
    )
    .join(sessions, sessions.c.id == endpoints.c.session_id)
    .join(channels, channels.c.uid == endpoints.c.channel_uid)
    .where(
        ~endpoints.c.superseded,
        endpoints.c.state != str(State.CLOSED),
        endpoints.c.health != str(Health.LOST),
    )
)
_LOST_AND_UNSEEN = (
    ~endpoints.c.superseded,
    endpoints.c.role == str(Role.WRITER),
    endpoints.c.health == str(Health.LOST),
    endpoints.c.state != str(State.CLOSED),
    endpoints.c.lost_at.is_(None),
)
_LOST_WRITERS = (
    select(
        endpoints.c.id,
        endpoints.c.channel_uid,
        channels.c.topic_name,
        channels.c.topic_partitions,
    )
    .join(channels, channels.c.uid == endpoints.c.channel_uid)
    .where(*_LOST_AND_UNSEEN, channels.c.topic_partitions.is_not(None))
)


def surroundings(tx: ReadTransaction, ids: Collection[str]) -> dict[str, Surroundings]:
    """Return those of these endpoints that there are, by id."""
    rows = tx.look_up(_SURROUNDINGS, list(ids))
    return {
        row.id: Surroundings(
            endpoint=endpoint_of(row),
            channel=row.channel_name,
            phase=phase_of(row.channel_phase, row.channel_closing),
            revision=row.endpoints_revision,
            generation=row.group_generation,
            interval_ms=row.beat_ms,
        )
        for row in rows
    }


def pulses(tx: ReadTransaction) -> list[Pulse]:
    """Return all endpoints that could get worse."""
    rows = tx.execute(_PULSES)
    return [
        Pulse(
            endpoint=row.id,
            channel_uid=row.channel_uid,
            session=row.session_id,
            beat=row.beat,
            health=Health(row.health),
            interval_ms=row.beat_ms,
            patience_ms=row.patience_ms,
        )
        for row in rows
    ]


def lost_writers(tx: ReadTransaction) -> list[LostWriter]:
    """Return the lost writers of topics whose ends were not looked at since."""
    rows = tx.execute(_LOST_WRITERS)
    return [
        LostWriter(
            endpoint=row.id,
            channel_uid=row.channel_uid,
            topic=row.topic_name,
            partitions=row.topic_partitions,
        )
        for row in rows
    ]


def note_ends(tx: WriteTransaction, endpoint_id: str, ends: Mapping[int, int]) -> bool:
    """Write down where the topic ended when the writer was lost; False if it is back meanwhile."""
    noted = tx.execute(
        update(endpoints)
        .where(endpoints.c.id == endpoint_id, *_LOST_AND_UNSEEN)
        .values(lost_at={str(each): offset for each, offset in ends.items()})
    )
    return noted.rowcount == 1
