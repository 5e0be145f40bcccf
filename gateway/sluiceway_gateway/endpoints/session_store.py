"""Storage of sessions, their heartbeats and attempts, and of endpoints as heartbeats read them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    bindparam,
    delete,
    func,
    null,
    or_,
    select,
    tuple_,
    update,
)

from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.channels.tables import channels
from sluiceway_gateway.core.auth.model import Principal
from sluiceway_gateway.core.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.core.db.statements import PreparedDml, PreparedSelect, by_dialect, upsert
from sluiceway_gateway.core.errors import InvalidRequest
from sluiceway_gateway.endpoints.groups.store import of_its_group
from sluiceway_gateway.endpoints.model import OPEN, Attempt, Endpoint, reached_of
from sluiceway_gateway.endpoints.store import INTERVAL_MS, MAY_RETURN, TIMEOUT_MS, endpoint_of
from sluiceway_gateway.endpoints.tables import endpoint_groups, endpoint_tasks, endpoints, sessions

MAX_BEATS_AHEAD = 1_000_000_000
"""Maximum gap between the numbers of two heartbeats: years of heartbeats."""

_BEAT = PreparedDml(
    update(sessions)
    .where(
        sessions.c.id == bindparam("session"),
        sessions.c.beat < bindparam("number"),
        sessions.c.beat >= bindparam("least"),
        or_(sessions.c.owner.is_(None), sessions.c.owner == bindparam("by")),
    )
    .values(
        beat=bindparam("number"),
        beat_at=bindparam("now"),
        owner=func.coalesce(sessions.c.owner, bindparam("by")),
    )
)
_SESSIONS = select(sessions.c.id, sessions.c.beat, sessions.c.owner).where(
    sessions.c.id.in_(bindparam("ids", expanding=True))
)
_HOLD = (
    select(sessions.c.id, sessions.c.beat)
    .where(sessions.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(sessions.c.id)
    .with_for_update(key_share=True)
)


def _begin(insert: Any) -> Any:
    statement = insert(sessions)
    new = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=["id"],
        set_={"client": new.client, "owner": func.coalesce(sessions.c.owner, new.owner)},
        where=or_(sessions.c.owner.is_(None), sessions.c.owner == new.owner),
    )


_BEGIN = by_dialect(_begin)


def begin(
    tx: WriteTransaction, sessions: Mapping[str, tuple[str, str | None]], *, now: datetime
) -> None:
    """Insert new sessions, by client and owner, and lock all of them against pruning.

    A session of another owner is not changed.
    """
    rows = [
        {
            "id": session,
            "beat": 0,
            "started_at": now,
            "client": client,
            "owner": owner,
            "beat_at": None,
        }
        for session, (client, owner) in sorted(sessions.items())
    ]
    if rows:
        tx.execute(_BEGIN[tx.dialect], rows)


def owners(tx: ReadTransaction, ids: Collection[str]) -> dict[str, str | None]:
    """Return the owners of existing sessions; None if anybody may use the session."""
    return {row.id: row.owner for row in tx.in_parts(_SESSIONS, ids=list(ids))}


def require_own(tx: ReadTransaction, session: str, principal: Principal) -> None:
    """Raise Forbidden for a session of another owner."""
    principal.require_own(owners(tx, [session]).get(session), f"The session {session}")


def beat(
    tx: WriteTransaction, session: str, number: int, *, principal: Principal, now: datetime
) -> tuple[bool, int]:
    """Lock the session and save the heartbeat's number, if it is above the last one.

    Returns whether the number was saved, and the highest number; a heartbeat of an unknown session
    does not count. Raises Forbidden for a session of another owner, and InvalidRequest for a number
    far ahead.
    """
    row = {
        "session": session,
        "number": number,
        "least": number - MAX_BEATS_AHEAD,
        "by": principal.subject,
        "now": now,
    }
    if tx.run_each(_BEAT, [row]) == 1:
        return True, number
    stored = tx.execute(_SESSIONS, {"ids": [session]}).one_or_none()
    if stored is None:
        return False, 0
    principal.require_own(stored.owner, f"The session {session}")
    if number > stored.beat + MAX_BEATS_AHEAD:
        message = f"too far ahead; the newest heartbeat of the session is {stored.beat}"
        raise InvalidRequest.at("/beat", message)
    return False, stored.beat


def hold(tx: WriteTransaction, ids: Collection[str]) -> dict[str, int]:
    """Lock sessions and return the numbers of their last heartbeats."""
    return {row.id: row.beat for row in tx.in_parts(_HOLD, ids=sorted(ids))}


_BEATS_OF_SESSIONS = select(sessions.c.id, sessions.c.beat_at).where(
    sessions.c.id.in_(bindparam("ids", expanding=True)), sessions.c.beat_at.is_not(None)
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
    return {row.id: row.beat_at for row in tx.in_parts(_BEATS_OF_SESSIONS, ids=sorted(ids))}


def beats_of_channel(tx: ReadTransaction, channel_uid: str) -> dict[str, datetime]:
    """Return the last heartbeat of each endpoint that has a place and has sent one, by its id."""
    return {row.id: row.beat_at for row in tx.execute(_BEATS_OF_CHANNEL, {"uid": channel_uid})}


def latest_beats(tx: ReadTransaction, channel_uids: Sequence[str]) -> dict[str, datetime | None]:
    """Return the last heartbeat of any endpoint that has a place, by channel."""
    return {row.channel_uid: row.beat_at for row in tx.in_parts(_LATEST_BEATS, uids=channel_uids)}


@dataclass(frozen=True, kw_only=True)
class EndpointContext:
    """An endpoint, with the state of its channel and group for the reply to a heartbeat."""

    endpoint: Endpoint
    channel: str
    """The name of the channel."""
    phase: Phase
    revision: int
    """The revision of the channel's endpoints."""
    generation: int
    """The generation of the group."""
    partitions: int
    """The number of partitions of the channel's topic."""
    interval_ms: int
    """The heartbeat interval that applies to the endpoint."""
    timeout_ms: int
    reported_at: datetime | None
    """The time of the last report of its tasks; read only for kept endpoints."""


_REPORTED_AT = (
    select(func.max(endpoint_tasks.c.changed_at))
    .where(endpoint_tasks.c.endpoint_id == endpoints.c.id)
    .scalar_subquery()
)


def _context(reported_at: ColumnElement[Any]) -> Select[Any]:
    return (
        select(
            # `reached` is large and not needed.
            *(column for column in endpoints.c if column is not endpoints.c.reached),
            channels.c.name.label("channel_name"),
            channels.c.phase.label("channel_phase"),
            channels.c.endpoints_revision,
            channels.c.topic_partitions,
            INTERVAL_MS,
            TIMEOUT_MS,
            endpoint_groups.c.generation.label("group_generation"),
            reported_at.label("reported_at"),
        )
        .join(channels, channels.c.uid == endpoints.c.channel_uid)
        .join(endpoint_groups, of_its_group())
    )


# Prepared: it runs with every heartbeat.
_CONTEXT_OF_IDS = PreparedSelect(
    _context(null()).where(endpoints.c.id.in_(bindparam("ids", expanding=True))), keys="ids"
)
_CONTEXT_OF_SESSION = (
    _context(_REPORTED_AT)
    .where(
        endpoints.c.session_id == bindparam("session"),
        or_(~endpoints.c.superseded, MAY_RETURN),
        endpoints.c.state.in_(sorted(OPEN)),
    )
    .order_by(endpoints.c.id)
)


def endpoint_context(tx: ReadTransaction, ids: Sequence[str]) -> dict[str, EndpointContext]:
    """Return the endpoints of these ids."""
    return {row.id: _context_of(row) for row in tx.look_up(_CONTEXT_OF_IDS, ids)}


def kept_endpoints(tx: ReadTransaction, session: str) -> list[EndpointContext]:
    """Return the open endpoints of a session, by id."""
    return [_context_of(row) for row in tx.execute(_CONTEXT_OF_SESSION, {"session": session})]


def _context_of(row: Any) -> EndpointContext:
    return EndpointContext(
        endpoint=endpoint_of(row),
        channel=row.channel_name,
        phase=row.channel_phase,
        revision=row.endpoints_revision,
        generation=row.group_generation,
        partitions=row.topic_partitions or 0,
        interval_ms=row.interval_ms,
        timeout_ms=row.timeout_ms,
        reported_at=row.reported_at,
    )


_ATTEMPTS = select(endpoint_tasks).where(
    tuple_(endpoint_tasks.c.endpoint_id, endpoint_tasks.c.task).in_(
        bindparam("tasks", expanding=True)
    )
)
_SAVE_ATTEMPT = upsert(endpoint_tasks, ("endpoint_id", "task", "attempt"))


def attempts(
    tx: ReadTransaction, tasks: Collection[tuple[str, str]]
) -> dict[tuple[str, str], list[Attempt]]:
    """Return the attempts at these tasks, each an endpoint's id and a task."""
    by_task: dict[tuple[str, str], list[Attempt]] = {task: [] for task in tasks}
    for row in tx.in_parts(_ATTEMPTS, tasks=list(by_task)):
        attempt = Attempt(
            endpoint=row.endpoint_id,
            task=row.task,
            number=row.attempt,
            state=row.state,
            counters=row.counters,
            reached=reached_of(row.reached),
        )
        by_task[row.endpoint_id, row.task].append(attempt)
    return by_task


def save_attempts(tx: WriteTransaction, changed: Sequence[Attempt], *, now: datetime) -> None:
    """Insert attempts, or update them."""
    rows = [
        {
            "endpoint_id": attempt.endpoint,
            "task": attempt.task,
            "attempt": attempt.number,
            "state": attempt.state,
            "counters": attempt.counters,
            "reached": attempt.reached,
            "changed_at": now,
        }
        for attempt in changed
    ]
    tx.execute(_SAVE_ATTEMPT[tx.dialect], rows)


def delete_attempts(tx: WriteTransaction, endpoint_id: str) -> None:
    """Delete the attempts of an endpoint's tasks; their sums stay in its counters."""
    tx.execute(delete(endpoint_tasks).where(endpoint_tasks.c.endpoint_id == endpoint_id))
