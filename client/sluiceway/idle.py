"""How long a channel may be idle, as requests say it."""

from datetime import timedelta

from sluiceway.errors import OptionError

__all__ = ["checked_idle", "idle_ms"]

_SHORTEST, _LONGEST = timedelta(minutes=1), timedelta(days=3650)


def checked_idle(idle: timedelta) -> timedelta | None:
    """Return what a channel has that may be idle for so long: None for 0. Raises OptionError."""
    if not isinstance(idle, timedelta) or not (
        idle == timedelta(0) or _SHORTEST <= idle <= _LONGEST
    ):
        raise OptionError(
            f"idle is {idle!r}; it takes a timedelta from a minute to ten years, or 0 for never"
        )
    return idle or None


def idle_ms(idle: timedelta | None) -> int | None:
    """Return it in milliseconds, None for never. Raises OptionError."""
    checked = None if idle is None else checked_idle(idle)
    return None if checked is None else checked // timedelta(milliseconds=1)
