"""Endpoints that become lost."""

import itertools
from collections.abc import Callable
from dataclasses import replace

from sluiceway import Channel
from waiting import until

__all__ = ["lose"]

# The gateway notices changes of the shortest timeout of a session only, and tests share sessions.
_DIFFERENCES_MS = itertools.count()


def lose(channel: Channel, id_: str, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Shorten the channel's heartbeat timeout until a silent endpoint is lost.

    Before and after, it is long enough for endpoints that only a busy machine delays. `meanwhile`
    is called again and again.
    """
    usual = channel.heartbeat
    timeout_ms = 4 * usual.interval_ms + next(_DIFFERENCES_MS)
    channel.update(heartbeat=replace(usual, timeout_ms=timeout_ms))

    def lost() -> bool:
        meanwhile()
        health = {each.id: each.health for each in channel.endpoints()}
        # A dynamic one has no place any more.
        return health.get(id_, "lost") == "lost"

    until(lost)
    channel.update(heartbeat=usual)
