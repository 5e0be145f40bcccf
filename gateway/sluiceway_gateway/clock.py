"""The wall clock, passed in so that tests can replace it."""

from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]
"""Returns the current time in UTC, with its time zone."""


def system_clock() -> datetime:
    """Return the current time of this machine."""
    return datetime.now(UTC)
