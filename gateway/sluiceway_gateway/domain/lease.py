"""A lease: the right to run something, until it ends or somebody else takes it over."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Lease:
    """Held by `holder`; `epoch` goes up each time the holder changes.

    It holds for `lease_ms` after its last renewal, on the monotonic clock of whoever asks: a wall
    clock may be set. Who sees `renewals` unchanged for that long knows that it has ended.
    """

    name: str
    holder: str
    epoch: int
    renewals: int
    lease_ms: int
