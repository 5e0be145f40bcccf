"""The system clock, passed in so that tests can replace it."""

from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]
"""Gives the present, aware and in UTC."""


def system_clock() -> datetime:
    """Return the present by this machine's clock."""
    return datetime.now(UTC)
