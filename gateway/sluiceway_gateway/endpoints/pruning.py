"""Pruning of history, superseded endpoints and idle sessions, a bounded number per pass."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Table, delete, exists, func, or_, select

from sluiceway_gateway.core.audit import store as audit_store
from sluiceway_gateway.core.clock import Clock
from sluiceway_gateway.core.db import idempotency
from sluiceway_gateway.core.db.engine import Database, WriteTransaction
from sluiceway_gateway.core.passes import run_steps
from sluiceway_gateway.endpoints.model import ANONYMOUS, Health, Role, State
from sluiceway_gateway.endpoints.tables import endpoint_events, endpoints, sessions

_PAUSE_S = 600.0


@dataclass(frozen=True, kw_only=True)
class PruneCounts:
    """Rows that one pass deleted; `pause_s` is 0 while there may be more."""

    events: int = 0
    audited: int = 0
    """Entries of the audit trail."""
    endpoints: int = 0
    sessions: int = 0
    requests: int = 0
    pause_s: float = _PAUSE_S


class Pruner:
    """Deletes rows older than `days` by the clock, at most `max_rows` in one transaction."""

    def __init__(self, *, database: Database, days: int, clock: Clock, max_rows: int = 500) -> None:
        self._database = database
        self._max_rows = max_rows
        self._retention = timedelta(days=days)
        self._clock = clock

    def run_once(self) -> PruneCounts:
        """Delete some rows of each kind. Raises DatabaseUnavailable."""
        now = self._clock()
        before = now - self._retention
        events, audited, superseded, readers, idle, responses = run_steps(
            [
                partial(self._deleted, _delete_events, before),
                partial(self._deleted, audit_store.delete_old, before),
                partial(self._deleted, _delete_superseded, before),
                partial(self._deleted, _delete_departed_readers, before),
                # After the endpoints that refer to them.
                partial(self._deleted, _delete_idle_sessions, before),
                partial(self._deleted, idempotency.forget, now - idempotency.REMEMBERED_FOR),
            ]
        )
        return PruneCounts(
            events=events,
            audited=audited,
            endpoints=superseded + readers,
            sessions=idle,
            requests=responses,
            pause_s=0.0
            if self._max_rows in (events, audited, superseded, readers, idle, responses)
            else _PAUSE_S,
        )

    def _deleted(self, delete_some: Callable[..., int], before: datetime) -> int:
        with self._database.write() as tx:
            return delete_some(tx, before=before, limit=self._max_rows)


def _delete_events(tx: WriteTransaction, *, before: datetime, limit: int) -> int:
    # Reads `limit` rows only, because times are roughly in the order of numbers.
    oldest = select(endpoint_events.c.seq).order_by(endpoint_events.c.seq).limit(limit)
    where = [endpoint_events.c.seq.in_(oldest), endpoint_events.c.at < before]
    return tx.execute(delete(endpoint_events).where(*where)).rowcount


def _delete_superseded(tx: WriteTransaction, *, before: datetime, limit: int) -> int:
    """Delete superseded endpoints.

    A writer of a group stays until a later instance in its place has closed, because its unknown
    ends count until then.
    """
    after = endpoints.alias("after")
    finished = exists().where(
        after.c.channel_uid == endpoints.c.channel_uid,
        after.c.role == endpoints.c.role,
        after.c.group_name == endpoints.c.group_name,
        after.c.member_index == endpoints.c.member_index,
        after.c.epoch > endpoints.c.epoch,
        after.c.state == State.CLOSED,
        ~after.c.superseded,
    )
    unneeded = or_(endpoints.c.role == Role.READER, endpoints.c.group_name == ANONYMOUS, finished)
    where = [endpoints.c.superseded, endpoints.c.changed_at < before, unneeded]
    return _delete(tx, endpoints, endpoints.c.id, where, limit)


def _delete_departed_readers(tx: WriteTransaction, *, before: datetime, limit: int) -> int:
    """Delete readers without a fixed place that closed, failed or were lost.

    They are readers without a group and members of dynamic groups: they have no positions of their
    own, and their places need no successor. The last member of a group stays, so that the channel
    counts as unread until the group has committed.
    """
    silent = exists().where(
        sessions.c.id == endpoints.c.session_id,
        func.coalesce(sessions.c.beat_at, sessions.c.started_at) < before,
    )
    departed = or_(
        endpoints.c.state.in_([State.CLOSED, State.ERROR]),
        (endpoints.c.health == Health.LOST) & silent,
    )
    later = endpoints.alias("later")
    has_later = exists().where(
        later.c.channel_uid == endpoints.c.channel_uid,
        later.c.role == endpoints.c.role,
        later.c.group_name == endpoints.c.group_name,
        later.c.epoch > endpoints.c.epoch,
        ~later.c.superseded,
    )
    where = [
        endpoints.c.role == Role.READER,
        # Without a group, or in a dynamic one.
        endpoints.c.size.is_(None),
        or_(endpoints.c.group_name == ANONYMOUS, has_later),
        departed,
        endpoints.c.changed_at < before,
    ]
    return _delete(tx, endpoints, endpoints.c.id, where, limit)


def _delete_idle_sessions(tx: WriteTransaction, *, before: datetime, limit: int) -> int:
    has_endpoint = exists().where(endpoints.c.session_id == sessions.c.id)
    where = [sessions.c.started_at < before, ~has_endpoint]
    return _delete(tx, sessions, sessions.c.id, where, limit)


def _delete(
    tx: WriteTransaction,
    table: Table,
    key: ColumnElement[Any],
    where: Sequence[ColumnElement[bool]],
    limit: int,
) -> int:
    # Skips rows in use; a later pass deletes them.
    chosen = select(key).where(*where).order_by(key).limit(limit)
    keys = tx.execute(chosen.with_for_update(skip_locked=True)).scalars().all()
    if not keys:
        return 0
    # Repeats the conditions, because a row may have changed before it was locked.
    return tx.execute(delete(table).where(key.in_(keys), *where)).rowcount
