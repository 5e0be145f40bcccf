"""Subscription: the channels that a consumer wants to be a member of."""

import math
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence

from sluiceway.confluent.errors import INVALID_ARG, refused
from sluiceway.errors import GatewayUnavailable, SluicewayError
from sluiceway.rest.channels import Control

__all__ = ["Subscription"]

_RETRY_S = 2.0
_AWAY_RETRY_S = 20.0
"""Time between attempts while the gateway does not answer."""
_READING_TIMEOUT_S = 1.0
"""How long the gateway is waited for while there are messages to read."""


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
        """Whether it has a channel."""
        found = (each.match(channel) for each in self._regexes.values())
        return channel in self._names or any(found)

    def exclude(self, channel: str) -> None:
        """Do not join a channel again before the next `replace`."""
        self._retry_s[channel] = math.inf

    def join(
        self, joined: Collection[str], join: Callable[[str], None], *, reading: bool
    ) -> Iterator[tuple[str, SluicewayError]]:
        """Call `join` with each channel not joined yet; yield failures, each error once.

        Other exceptions propagate, and the channel is tried again later. With `reading`, the
        gateway gets little time to answer.
        """
        for name in self._names:
            if name in joined or time.monotonic() < self._retry_s.get(name, 0.0):
                continue
            self._retry_s[name] = time.monotonic() + _RETRY_S
            failed = self._try(name, joined, join, _READING_TIMEOUT_S if reading else None)
            if any(isinstance(each, GatewayUnavailable) for each in failed.values()):
                self._retry_s[name] = time.monotonic() + _AWAY_RETRY_S
            for where, error in failed.items():
                if self._reported.get(where) != error.code:
                    self._reported[where] = error.code
                    yield where, error

    def _try(
        self,
        name: str,
        joined: Collection[str],
        join: Callable[[str], None],
        timeout_s: float | None,
    ) -> dict[str, SluicewayError]:
        try:
            channels = self._matching(name, timeout_s)
        except SluicewayError as error:
            return {name: error}
        self._reported.pop(name, None)
        failed: dict[str, SluicewayError] = {}
        for channel in channels:
            if channel in joined or self._retry_s.get(channel) == math.inf:
                continue
            try:
                join(channel)
            except SluicewayError as error:
                failed[channel] = error
            else:
                self._reported.pop(channel, None)
        return failed

    def _matching(self, name: str, timeout_s: float | None) -> list[str]:
        regex = self._regexes.get(name)
        if regex is not None:
            found = self._control.channels(timeout_s=timeout_s)
            return [each.name for each in found if regex.match(each.name)]
        if timeout_s is not None:
            self._control.channel(name, timeout_s=timeout_s)
        return [name]
