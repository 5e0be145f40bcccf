"""A channel's log, which goes the way of its port's."""

import difflib
import logging
import traceback
from typing import Any

from sluiceway.errors import OptionError

__all__ = ["ChannelLogger", "level_of"]


class ChannelLogger:
    """Logs for a channel by the logger of its port, with the stack of names that pypz's take.

    A port whose logger is one of Python's own gets the names in front of the message.
    """

    def __init__(self, logger: Any, *context_stack: str) -> None:
        self._logger = logger
        self._context_stack = list(context_stack)

    def get_context_stack(self) -> list[str]:
        """Return the names of what it logs for, the outermost first."""
        return self._context_stack

    def set_log_level(self, log_level: str | int) -> None:
        """Set the level of the logger below."""
        setter = getattr(self._logger, "set_log_level", None) or self._logger.setLevel
        setter(log_level)

    def debug(self, event: str, *args: Any) -> None:
        """Log at the level DEBUG."""
        self._log("debug", event, args)

    def info(self, event: str, *args: Any) -> None:
        """Log at the level INFO."""
        self._log("info", event, args)

    def warning(self, event: str, *args: Any) -> None:
        """Log at the level WARNING."""
        self._log("warning", event, args)

    def error(self, event: str, *args: Any) -> None:
        """Log at the level ERROR."""
        self._log("error", event, args)

    def exception(self, event: str, *args: Any) -> None:
        """Log at the level ERROR, with the exception that is being handled."""
        text = event % args if args else event
        self._log("error", f"{text}: {traceback.format_exc()}", ())

    def _log(self, level: str, event: str, args: tuple[Any, ...]) -> None:
        # pypz's loggers do not agree on how arguments reach them: they are put in here.
        text = event % args if args else event
        taking = getattr(self._logger, f"_{level}", None)
        if callable(taking):
            taking(text, self._context_stack)
        else:
            getattr(self._logger, level)("%s: %s", " | ".join(self._context_stack), text)


def level_of(name: object) -> int:
    """Return the level that a configuration names. Raises OptionError."""
    levels = logging.getLevelNamesMapping()
    if isinstance(name, str) and name.upper() in levels:
        return levels[name.upper()]
    if type(name) is int:
        return name
    close = difflib.get_close_matches(str(name).upper(), levels, n=1)
    raise OptionError(
        f"logLevel is {name!r}; it takes {', '.join(levels)}"
        + (f": did you mean {close[0]!r}?" if close else "")
    )
