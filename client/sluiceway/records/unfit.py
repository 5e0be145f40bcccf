"""How the parts of a write say which value of a column does not fit."""

from __future__ import annotations

from typing import Final

_SHOWN: Final = 60


class Unfit(Exception):
    """The value at `position` of a column does not fit: `path` names the field, `reason` says why.

    Raised with positions within the column at hand; each level above turns them into its own.
    """

    def __init__(self, position: int, path: str, reason: str) -> None:
        super().__init__(position, path, reason)
        self.position = position
        self.path = path
        self.reason = reason


class TooMuch(Exception):
    """So much text or so many bytes that one Arrow array cannot hold them: halve the records."""


NULL: Final = "it is null, and the schema allows no null there"


def shown(value: object) -> str:
    """Write `value` for a message: its type and the beginning of what it looks like."""
    text = repr(value)
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return f"{type(value).__name__} {text}"
