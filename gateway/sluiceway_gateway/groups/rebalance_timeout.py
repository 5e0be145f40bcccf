"""Rebalance timeout: partitions that a member does not release in time are taken from it."""

from collections.abc import Mapping, Sequence

import structlog

from sluiceway_gateway.channels.store import hold_channels
from sluiceway_gateway.clock import Clock
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.db.statements import chunks
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.change_store import add_events
from sluiceway_gateway.endpoints.liveness_store import StaleShare
from sluiceway_gateway.endpoints.model import Endpoint, event

_log = structlog.get_logger(__name__)


class RebalanceTimeout:
    """Releases the shares of members that do not sync within the heartbeat timeout."""

    def __init__(self, *, database: Database, clock: Clock) -> None:
        """`clock` only dates events."""
        self._database = database
        self._clock = clock
        self._since_s: dict[tuple[str, int], float] = {}
        """By endpoint and generation of its share, when it was first seen behind its group."""

    def release(self, found: Sequence[StaleShare], now_s: float, *, late_ms: float) -> int:
        """Release overdue shares, and return their number; `late_ms` is the delay of the scan.

        Raises DatabaseUnavailable.
        """
        before_s = self._since_s
        self._since_s = {
            (each.endpoint, each.generation): now_s
            if late_ms > each.interval_ms
            else before_s.get((each.endpoint, each.generation), now_s)
            for each in found
        }
        overdue = {
            each.endpoint: each
            for each in found
            if (now_s - self._since_s[each.endpoint, each.generation]) * 1000 >= each.timeout_ms
        }
        parts = chunks(list(overdue.items()))
        return sum(len(self._write(dict(each))) for each in parts)

    def _write(self, overdue: Mapping[str, StaleShare]) -> list[Endpoint]:
        """Release the shares of members that have not synced since the scan."""
        now = self._clock()
        with self._database.write() as tx:
            hold_channels(tx, {each.channel_uid for each in overdue.values()})
            slow = [
                each
                for each in endpoints_store.hold(tx, overdue).values()
                if each.lives and each.share and each.generation == overdue[each.id].generation
            ]
            endpoints_store.release_shares(tx, [each.id for each in slow])
            cause = "its partitions were reassigned, because it did not release them in time"
            add_events(tx, [event(each, by="gateway", at=now, cause=cause) for each in slow])
            endpoints_store.revise(tx, {each.channel_uid for each in slow})
        for each in slow:
            _log.info("a member did not release its partitions", endpoint=each.id)
        return slow
