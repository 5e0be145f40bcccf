"""The root of the tree, and what others are told of an error."""

from collections.abc import Mapping
from typing import Any


class SluicewayError(Exception):
    """The root of everything that Sluiceway's client raises on purpose."""

    code: str = "error"
    retriable: bool = False
    tells_no_values: bool = False
    """Whether the message holds no value of any record, so that others may read it."""

    @property
    def summary(self) -> str | None:
        """What went wrong, without any value of a record; None where only the type may be told."""
        return str(self) if self.tells_no_values else None

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


def cause_of(error: BaseException) -> str:
    """Return the type of an error and, of ours, the summary: an endpoint's cause, which is public.

    All who may see the channel read it. The messages of other exceptions may hold anything, so
    they stay with the job.
    """
    kind = type(error)
    known = kind.__module__ == "builtins" or kind.__module__.partition(".")[0] == "sluiceway"
    name = kind.__qualname__ if known else f"{kind.__module__}.{kind.__qualname__}"
    summary = error.summary if isinstance(error, SluicewayError) else None
    return name if summary is None else f"{name}: {summary}"
