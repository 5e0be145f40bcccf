"""Storage of task attempts."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, func, or_, select, tuple_

from sluiceway_gateway.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.db.schema import channels, endpoint_tasks, endpoints
from sluiceway_gateway.db.statements import by_dialect, chunks
from sluiceway_gateway.endpoints.model import OPEN, Attempt, Endpoint, TaskState
from sluiceway_gateway.endpoints.store import MAY_RETURN, endpoint_of

_REPORTED_AT = (
    select(func.max(endpoint_tasks.c.changed_at))
    .where(endpoint_tasks.c.endpoint_id == endpoints.c.id)
    .scalar_subquery()
    .label("reported_at")
)


def _upsert(insert: Any) -> Any:
    statement = insert(endpoint_tasks)
    changing = ("state", "counters", "reached", "changed_at")
    return statement.on_conflict_do_update(
        index_elements=["endpoint_id", "task", "attempt"],
        set_={name: statement.excluded[name] for name in changing},
    )


_SAVE = by_dialect(_upsert)


@dataclass(frozen=True, kw_only=True)
class Kept:
    """An endpoint that a session keeps alive."""

    endpoint: Endpoint
    channel: str
    """Its name."""
    interval_ms: int
    timeout_ms: int
    reported_at: datetime | None
    """When a task of it was last heard of."""


def attempts(
    tx: ReadTransaction, parts: Collection[tuple[str, str]]
) -> dict[tuple[str, str], list[Attempt]]:
    """Return what is known of these parts, each an endpoint's id and a task."""
    found: dict[tuple[str, str], list[Attempt]] = {part: [] for part in parts}
    key = tuple_(endpoint_tasks.c.endpoint_id, endpoint_tasks.c.task)
    for part in chunks(list(found)):
        for row in tx.execute(select(endpoint_tasks).where(key.in_(part))):
            found[row.endpoint_id, row.task].append(_attempt_of(row))
    return found


def save(tx: WriteTransaction, changed: Sequence[Attempt], *, now: datetime) -> None:
    """Write down attempts, those that are new and those that are not."""
    if not changed:
        return
    tx.execute(
        _SAVE[tx.dialect],
        [
            {
                "endpoint_id": each.endpoint,
                "task": each.task,
                "attempt": each.number,
                "state": str(each.state),
                "counters": dict(each.counters),
                "reached": None
                if each.reached is None
                else {str(p): list(at) for p, at in each.reached.items()},
                "changed_at": now,
            }
            for each in changed
        ],
    )


def forget(tx: WriteTransaction, endpoint_id: str) -> None:
    """Keep an endpoint's sums alone."""
    tx.execute(delete(endpoint_tasks).where(endpoint_tasks.c.endpoint_id == endpoint_id))


def kept_by(tx: ReadTransaction, session: str) -> list[Kept]:
    """Return the endpoints of a session that are at work, in the order of their ids."""
    rows = tx.execute(
        select(
            endpoints,
            channels.c.name.label("channel_name"),
            channels.c.heartbeat_interval_ms,
            channels.c.heartbeat_timeout_ms,
            _REPORTED_AT,
        )
        .join(channels, channels.c.uid == endpoints.c.channel_uid)
        .where(
            endpoints.c.session_id == session,
            or_(~endpoints.c.superseded, MAY_RETURN),
            endpoints.c.state.in_([str(each) for each in sorted(OPEN)]),
        )
        .order_by(endpoints.c.id)
    )
    return [
        Kept(
            endpoint=endpoint_of(row),
            channel=row.channel_name,
            interval_ms=row.heartbeat_interval_ms,
            timeout_ms=row.heartbeat_timeout_ms,
            reported_at=row.reported_at,
        )
        for row in rows
    ]


def _attempt_of(row: Row[Any]) -> Attempt:
    reached = row.reached
    return Attempt(
        endpoint=row.endpoint_id,
        task=row.task,
        number=row.attempt,
        state=TaskState(row.state),
        counters=row.counters,
        reached=None
        if reached is None
        else {int(p): (offset, records) for p, (offset, records) in reached.items()},
    )
