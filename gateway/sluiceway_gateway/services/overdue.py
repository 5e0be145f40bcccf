"""Members of dynamic groups that are slow to let go: how long the others wait for them.

As with silence, what counts is this replica's own monotonic time since it first saw a member
behind; after a gap of its own it counts anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from sluiceway_gateway.channels.store import hold_channels
from sluiceway_gateway.clock import Clock
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.endpoints import history
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.liveness_store import Behind
from sluiceway_gateway.endpoints.model import Endpoint, event
from sluiceway_gateway.store import sharing
from sluiceway_gateway.store.selection import chunks

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Seen:
    generation: int
    since_s: float


class Overdue:
    """Takes their shares from members that keep the others waiting for the channel's patience."""

    def __init__(self, *, database: Database, clock: Clock) -> None:
        """`clock` dates events and judges nothing."""
        self._database = database
        self._clock = clock
        self._seen: dict[str, _Seen] = {}

    def judge(self, found: Sequence[Behind], now_s: float, *, late_ms: float) -> int:
        """Judge who was found behind, `late_ms` after it was due; return who is waited for no more.

        Raises DatabaseUnavailable.
        """
        self._seen = {each.endpoint: self._sight(each, now_s, late_ms) for each in found}
        over = {
            each.endpoint: each
            for each in found
            if (now_s - self._seen[each.endpoint].since_s) * 1000 >= each.patience_ms
        }
        parts = chunks(list(over.items()))
        return sum(len(self._write(dict(each))) for each in parts)

    def _sight(self, behind: Behind, now_s: float, late_ms: float) -> _Seen:
        before = self._seen.get(behind.endpoint)
        moved = before is None or before.generation != behind.generation
        if before is None or moved or late_ms > behind.interval_ms:
            return _Seen(generation=behind.generation, since_s=now_s)
        return before

    def _write(self, over: Mapping[str, Behind]) -> list[Endpoint]:
        """Take the shares of those that have not taken another since the look."""
        now = self._clock()
        with self._database.write() as tx:
            channels = {each.channel_uid for each in over.values()}
            hold_channels(tx, channels)
            slow = [
                each
                for each in endpoints_store.hold(tx, over).values()
                if each.lives and each.share and each.generation == over[each.id].generation
            ]
            sharing.let_go(tx, [each.id for each in slow])
            cause = "its partitions were given to others: it did not let go of them in time"
            lines = [(e.channel_uid, event(e, by="gateway", at=now, cause=cause)) for e in slow]
            history.add(tx, lines)
            endpoints_store.revise(tx, {each.channel_uid for each in slow})
        for each in slow:
            _log.info("a member did not let go of its partitions", endpoint=each.id)
        return slow
