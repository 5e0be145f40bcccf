"""Lengths of time as people write them: 90s, 45m, 12h, 30d."""

import re
from datetime import timedelta

import click

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_DURATION = re.compile(r"([0-9]{1,9})([smhd])\Z")


def duration(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> timedelta | None:
    """Read an option's value; the callback of options that take a length of time."""
    if text is None:
        return None
    found = _DURATION.match(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is no length of time; write 90s, 45m, 12h or 30d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
