"""Rebalance timeout: partitions that a member does not release in time are taken from it."""

from collections.abc import Mapping, Sequence

import structlog

from sluiceway_gateway.channels.store import hold_channels
from sluiceway_gateway.core.clock import Clock
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.db.statements import chunks
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

    def release(self, stale: Sequence[StaleShare], now_s: float, *, late_ms: float) -> int:
        """Release overdue shares, and return their number; `late_ms` is the delay of the scan.

        Raises DatabaseUnavailable.
        """
        before_s = self._since_s
        self._since_s = {
            (share.endpoint, share.generation): now_s
            if late_ms > share.interval_ms
            else before_s.get((share.endpoint, share.generation), now_s)
            for share in stale
        }
        overdue = {
            share.endpoint: share
            for share in stale
            if (now_s - self._since_s[share.endpoint, share.generation]) * 1000 >= share.timeout_ms
        }
        parts = chunks(list(overdue.items()))
        return sum(len(self._write(dict(part))) for part in parts)

    def _write(self, overdue: Mapping[str, StaleShare]) -> list[Endpoint]:
        """Release the shares of members that have not synced since the scan."""
        now = self._clock()
        with self._database.write() as tx:
            hold_channels(tx, {share.channel_uid for share in overdue.values()})
            slow = [
                member
                for member in endpoints_store.hold(tx, overdue).values()
                if member.lives
                and member.share
                and member.generation == overdue[member.id].generation
            ]
            endpoints_store.release_shares(tx, [member.id for member in slow])
            cause = "its partitions were reassigned, because it did not release them in time"
            add_events(tx, [event(member, by="gateway", at=now, cause=cause) for member in slow])
            endpoints_store.revise(tx, {member.channel_uid for member in slow})
        for member in slow:
            _log.info("a member did not release its partitions", endpoint=member.id)
        return slow
