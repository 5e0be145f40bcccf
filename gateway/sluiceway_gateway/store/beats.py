"""What a heartbeat looks at: endpoints together with their channels and groups."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import bindparam, select

from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.channels.rows import phase_of
from sluiceway_gateway.db.engine import ReadTransaction
from sluiceway_gateway.db.schema import channels, endpoint_groups, endpoints
from sluiceway_gateway.db.statements import Lookup
from sluiceway_gateway.endpoints.model import Endpoint
from sluiceway_gateway.groups.store import of_its_group
from sluiceway_gateway.store.endpoint_rows import endpoint_of


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
