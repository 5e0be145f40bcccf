"""Root of the client's exceptions, and their public causes; `sluiceway.errors` has the tree."""

import copyreg
from typing import Any

__all__ = ["SluicewayError", "cause_of"]


class SluicewayError(Exception):
    """Base class of the client's exceptions."""

    code: str = "error"
    retriable: bool = False
    message_is_public: bool = False
    """Whether the message contains no values of records."""

    @property
    def summary(self) -> str | None:
        """The message without values of records, or None if only the type is public."""
        return str(self) if self.message_is_public else None

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark pickles exceptions, and subclasses have keyword-only arguments.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


def cause_of(error: BaseException) -> str:
    """Return the public cause of an error: its type and, for the client's own, the summary.

    It is visible to everyone with access to the channel. Messages of other exceptions may contain
    anything, so they are left out.
    """
    kind = type(error)
    known = kind.__module__ == "builtins" or kind.__module__.partition(".")[0] == "sluiceway"
    name = kind.__qualname__ if known else f"{kind.__module__}.{kind.__qualname__}"
    summary = error.summary if isinstance(error, SluicewayError) else None
    return name if summary is None else f"{name}: {summary}"
