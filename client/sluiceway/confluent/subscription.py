"""Subscription of a consumer: names of channels and regexes, and when to look them up again."""

import math
import re
import time
from collections.abc import Collection, Sequence

from sluiceway.confluent.errors import INVALID_ARG, refused
from sluiceway.errors import SluicewayError
from sluiceway.rest.channels import Control

__all__ = ["Subscription"]

_RETRY_S = 2.0
"""Time between attempts to find or to join a channel."""
_LOOKUP_TIMEOUT_S = 5.0


class Subscription:
    """Names of channels, and regexes of names, which begin with `^`."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._names: tuple[str, ...] = ()
        self._regexes: dict[str, re.Pattern[str]] = {}
        self._retry_s: dict[str, float] = {}
        self._reported: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._names)

    def replace(self, names: Sequence[str]) -> None:
        """Subscribe to these names only. Raises KafkaException _INVALID_ARG."""
        try:
            regexes = {name: re.compile(name) for name in names if name.startswith("^")}
        except re.error as error:
            raise refused(INVALID_ARG, f"{error.pattern!r} is not a regex: {error}") from error
        self._names, self._regexes = tuple(names), regexes
        self._retry_s, self._reported = {}, {}

    def includes(self, channel: str) -> bool:
        """Return whether the subscription names or matches a channel."""
        found = (each.match(channel) for each in self._regexes.values())
        return channel in self._names or any(found)

    def exclude(self, channel: str) -> None:
        """Do not join a channel again before the next `replace`."""
        self._retry_s[channel] = math.inf

    def due(self, joined: Collection[str]) -> list[str]:
        """Return the names and regexes to look up now, and schedule their next lookup."""
        now_s = time.monotonic()
        found = [n for n in self._names if n not in joined and now_s >= self._retry_s.get(n, 0.0)]
        self._retry_s |= dict.fromkeys(found, now_s + _RETRY_S)
        return found

    def look_up(self, name: str) -> list[str]:
        """Request the channel of this name, or those of this regex. Raises GatewayError."""
        regex = self._regexes.get(name)
        if regex is None:
            self._control.channel(name, timeout_s=_LOOKUP_TIMEOUT_S)
            return [name]
        found = list(self._control.channels(timeout_s=_LOOKUP_TIMEOUT_S))
        return [each.name for each in found if regex.match(each.name)]

    def excludes(self, channel: str) -> bool:
        """Return whether a channel was excluded."""
        return self._retry_s.get(channel) == math.inf

    def is_new(self, name: str, error: SluicewayError | None) -> bool:
        """Record the outcome for a name; return whether it is a new error."""
        if error is None:
            self._reported.pop(name, None)
            return False
        known, self._reported[name] = self._reported.get(name), error.code
        return known != error.code
