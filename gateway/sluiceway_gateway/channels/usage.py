"""Uses of channels with an idle time, as they are saved."""

from datetime import datetime, timedelta

import structlog

from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.channels.store import record_use
from sluiceway_gateway.core.clock import Clock
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.db.failures import reason_of
from sluiceway_gateway.core.errors import DatabaseUnavailable

_log = structlog.get_logger(__name__)

_LONGEST_USE_INTERVAL = timedelta(minutes=1)


class UsageRecorder:
    """Saves requests for a channel's connection as uses, several within a short time once."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._saved_until: dict[str, datetime] = {}
        """By channel, the time until which further uses are not saved."""

    def record(self, channel: Channel) -> None:
        """Save a use of a channel with an idle TTL."""
        if channel.spec.idle_ms is None:
            return
        now, interval = self._clock(), use_interval(channel)
        until = self._saved_until.get(channel.uid)
        # A later end means that the clock was set back.
        if until is not None and now < until <= now + interval:
            return
        try:
            with self._database.write() as tx:
                record_use(tx, channel.uid, now, interval=interval)
        except DatabaseUnavailable as error:
            # The request succeeds anyway: later uses of its client are recorded.
            _log.warning("a use is not saved", channel=channel.name, **reason_of(error))
            return
        recent = {uid: until for uid, until in self._saved_until.items() if until > now}
        self._saved_until = recent | {channel.uid: now + interval}


def idle_ttl(channel: Channel) -> timedelta:
    """Return the time without use after which the channel is closed."""
    assert channel.spec.idle_ms is not None  # noqa: S101 - the callers check it
    return timedelta(milliseconds=channel.spec.idle_ms)


def use_interval(channel: Channel) -> timedelta:
    """Return the time in which several uses are saved once."""
    return min(idle_ttl(channel) / 10, _LONGEST_USE_INTERVAL)
