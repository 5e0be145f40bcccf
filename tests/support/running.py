"""The result of a command."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Run:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str

    def failed(self, *words: str, status: int = 1) -> None:
        """Assert that it failed with one line on standard error that has these texts."""
        assert self.status == status, self
        assert self.out == ""
        assert self.err.startswith("sluiceway: ")
        assert self.err.count("\n") == 1, self.err
        for each in words:
            assert each in self.err


Sluiceway = Callable[..., Run]
