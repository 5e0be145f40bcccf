"""Storage of sessions, and the rows that a heartbeat reads."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, func, or_, select, update

from sluiceway_gateway.auth.model import Principal
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.db.schema import channels, endpoint_groups, endpoints, sessions
from sluiceway_gateway.db.statements import PreparedDml, PreparedSelect, by_dialect, chunks
from sluiceway_gateway.endpoints.model import Endpoint
from sluiceway_gateway.endpoints.store import endpoint_of
from sluiceway_gateway.errors import InvalidRequest, Violation
from sluiceway_gateway.groups.store import of_its_group

MAX_BEATS_AHEAD = 1_000_000_000
"""How far a heartbeat's number may be ahead of the last one: years of heartbeats."""

_BEAT = PreparedDml(
    update(sessions)
    .where(
        sessions.c.id == bindparam("session"),
        sessions.c.beat < bindparam("number"),
        sessions.c.beat >= bindparam("least"),
        or_(sessions.c.owner.is_(None), sessions.c.owner == bindparam("by")),
    )
    .values(beat=bindparam("number"), owner=func.coalesce(sessions.c.owner, bindparam("by")))
)
_FOUND = PreparedSelect(
    select(sessions.c.id, sessions.c.beat, sessions.c.owner).where(
        sessions.c.id.in_(bindparam("ids", expanding=True))
    ),
    keys="ids",
)


@dataclass(frozen=True, kw_only=True)
class Opening:
    """A session that may be new, with the client's name and the owner."""

    session: str
    client: str
    owner: str | None


def _upsert(insert: Any) -> PreparedDml:
    statement = insert(sessions)
    new = statement.excluded
    upsert = statement.on_conflict_do_update(
        index_elements=["id"],
        set_={"client": new.client, "owner": func.coalesce(sessions.c.owner, new.owner)},
        where=or_(sessions.c.owner.is_(None), sessions.c.owner == new.owner),
    )
    return PreparedDml(upsert, columns=[each.name for each in sessions.columns])


_BEGIN = by_dialect(_upsert)


def begin(tx: WriteTransaction, openings: Iterable[Opening], *, now: datetime) -> None:
    """Note these sessions if they are new, and hold them.

    One without endpoints could be pruned. One of another owner stays as it is.
    """
    by_id = {each.session: each for each in openings}
    rows = [
        {
            "id": id_,
            "beat": 0,
            "started_at": now,
            "client": by_id[id_].client,
            "owner": by_id[id_].owner,
        }
        for id_ in sorted(by_id)
    ]
    tx.run_each(_BEGIN[tx.dialect], rows)


def owners(tx: ReadTransaction, ids: Collection[str]) -> dict[str, str | None]:
    """Return the owners of those of these sessions that there are; None: nobody in particular."""
    return {row.id: row.owner for row in tx.look_up(_FOUND, list(ids))} if ids else {}


def require_own(tx: ReadTransaction, session: str, principal: Principal) -> None:
    """Raise Forbidden for a session of another owner."""
    principal.require_own(owners(tx, [session]).get(session), f"The session {session}")


def beat(
    tx: WriteTransaction, session: str, number: int, *, principal: Principal
) -> tuple[bool, int]:
    """Count the heartbeat and hold the session; return whether it counts, and the newest one.

    An old one and one of an unknown session do not count. Raises Forbidden for a session of
    another owner, and InvalidRequest for a number far ahead.
    """
    row = {
        "session": session,
        "number": number,
        "least": number - MAX_BEATS_AHEAD,
        "by": principal.subject,
    }
    if tx.run_each(_BEAT, [row]) == 1:
        return True, number
    found = next(iter(tx.look_up(_FOUND, [session])), None)
    if found is None:
        return False, 0
    principal.require_own(found.owner, f"The session {session}")
    if number > found.beat + MAX_BEATS_AHEAD:
        message = f"too far ahead; the newest heartbeat of the session is {found.beat}"
        raise InvalidRequest.malformed([Violation(pointer="/beat", message=message)])
    return False, found.beat


def hold(tx: WriteTransaction, ids: Collection[str]) -> dict[str, int]:
    """Return the last beats of these sessions and keep them from beating."""
    found: dict[str, int] = {}
    for part in chunks(sorted(ids)):
        statement = select(sessions.c.id, sessions.c.beat).where(sessions.c.id.in_(part))
        rows = tx.execute(statement.order_by(sessions.c.id).with_for_update(key_share=True))
        found |= {row.id: row.beat for row in rows}
    return found


@dataclass(frozen=True, kw_only=True)
class EndpointContext:
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
_SURROUNDINGS = PreparedSelect(
    select(
        # How far they were is of no use, and would be read for every beat.
        *(each for each in endpoints.c if each is not endpoints.c.reached),
        channels.c.name.label("channel_name"),
        channels.c.phase.label("channel_phase"),
        channels.c.endpoints_revision,
        channels.c.heartbeat_interval_ms,
        endpoint_groups.c.generation.label("group_generation"),
    )
    .join(channels, channels.c.uid == endpoints.c.channel_uid)
    .join(endpoint_groups, of_its_group())
    .where(endpoints.c.id.in_(bindparam("ids", expanding=True))),
    keys="ids",
)


def endpoint_context(tx: ReadTransaction, ids: Collection[str]) -> dict[str, EndpointContext]:
    """Return those of these endpoints that there are, by id."""
    rows = tx.look_up(_SURROUNDINGS, list(ids))
    return {
        row.id: EndpointContext(
            endpoint=endpoint_of(row),
            channel=row.channel_name,
            phase=Phase(row.channel_phase),
            revision=row.endpoints_revision,
            generation=row.group_generation,
            interval_ms=row.heartbeat_interval_ms,
        )
        for row in rows
    }
