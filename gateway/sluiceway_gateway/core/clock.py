"""The wall clock, passed in so that tests can replace it."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Clock = Callable[[], datetime]
"""Returns the current time in UTC, with its time zone."""


def system_clock() -> datetime:
    """Return the current time of this machine."""
    return datetime.now(UTC)


def clocks_apart(clock: Clock, monotonic: Callable[[], float]) -> timedelta:
    """Return the difference of the wall clock and a monotonic clock, which is in seconds."""
    return clock() - datetime.fromtimestamp(0, UTC) - timedelta(seconds=monotonic())
