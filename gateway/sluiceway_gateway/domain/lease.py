"""A lease: the right to run something, until it ends or somebody else takes it over."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Lease:
    """Held by `holder`; `epoch` goes up each time the holder changes."""

    name: str
    holder: str
    epoch: int
