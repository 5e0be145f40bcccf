"""Pruning of history, superseded endpoints and idle sessions."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from sluiceway_gateway.clock import Clock
from sluiceway_gateway.db import idempotency as requests
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.db.idempotency import REMEMBERED_FOR
from sluiceway_gateway.endpoints import pruning_store

#: Rows that go in one transaction.
_ROWS = 500
_PAUSE_S = 600.0


@dataclass(frozen=True, kw_only=True)
class PruneCounts:
    """What one pass deleted, in rows; `pause_s` is 0 while there may be more."""

    events: int = 0
    endpoints: int = 0
    sessions: int = 0
    requests: int = 0
    pause_s: float = _PAUSE_S


class Pruner:
    """Deletes what is older than `days` by the clock, in small transactions."""

    def __init__(self, *, database: Database, days: int, clock: Clock) -> None:
        self._database = database
        self._retention = timedelta(days=days)
        self._clock = clock

    def run_once(self) -> PruneCounts:
        """Delete some of each kind. Raises DatabaseUnavailable."""
        now = self._clock()
        before = now - self._retention
        events = self._deleted(partial(pruning_store.events, before=before))
        superseded = self._deleted(partial(pruning_store.superseded, before=before))
        departed = self._deleted(partial(pruning_store.departed_readers, before=before))
        # After their endpoints.
        sessions = self._deleted(partial(pruning_store.idle_sessions, before=before))
        answers = self._deleted(partial(requests.forget, before=now - REMEMBERED_FOR))
        return PruneCounts(
            events=events,
            endpoints=superseded + departed,
            sessions=sessions,
            requests=answers,
            pause_s=0.0 if _ROWS in (events, superseded, departed, sessions, answers) else _PAUSE_S,
        )

    def _deleted(self, delete: Callable[..., int]) -> int:
        with self._database.write() as tx:
            return delete(tx, limit=_ROWS)
