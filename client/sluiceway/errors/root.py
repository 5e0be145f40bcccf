"""The root of the tree."""

from collections.abc import Mapping
from typing import Any


class SluicewayError(Exception):
    """The root of everything that Sluiceway's client raises on purpose."""

    code: str = "error"
    retriable: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        # Subclasses have keyword-only facts; Spark's tasks carry exceptions between processes.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(
    kind: type[SluicewayError], args: tuple[Any, ...], facts: Mapping[str, Any]
) -> SluicewayError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error
