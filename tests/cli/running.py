"""What came of a command."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a command left: its exit status and what it wrote."""

    status: int
    out: str
    err: str

    def failed(self, *words: str, status: int = 1) -> None:
        """Assert that it failed with one line on standard error that has these words."""
        assert self.status == status, self
        assert self.out == ""
        assert self.err.startswith("sluiceway: ")
        assert self.err.count("\n") == 1, self.err
        for each in words:
            assert each in self.err


Sluiceway = Callable[..., Run]
