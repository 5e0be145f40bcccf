"""Where a reader stands in a partition."""

from dataclasses import dataclass

from sluiceway.errors import OptionError

__all__ = ["Position"]


@dataclass(frozen=True, kw_only=True, order=True)
class Position:
    """The next record to read: message `offset`, of which `records` records are done already.

    An `arrow` message holds many records, so an offset alone would not be exact. A message that
    is done as a whole is `Position(offset=its offset + 1)`. Positions of one partition are
    ordered.
    """

    offset: int
    records: int = 0

    def __post_init__(self) -> None:
        for name in ("offset", "records"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise OptionError(f"{name} of a position is {value!r}; it takes a number from 0")
