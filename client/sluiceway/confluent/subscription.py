"""The channels that a consumer has subscribed to, and how joining them went."""

import math
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence

from sluiceway.confluent.errors import INVALID_ARG, refused
from sluiceway.errors import GatewayUnavailable, SluicewayError
from sluiceway.rest.channels import Control

__all__ = ["Subscription"]

_AGAIN_S = 2.0
_AWAY_S = 20.0
"""How long a gateway that does not answer is left alone by who has records to read."""
_GLANCE_S = 1.0


class Subscription:
    """Names of channels, and regexes of names, which begin with `^`."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._names: tuple[str, ...] = ()
        self._regexes: dict[str, re.Pattern[str]] = {}
        self._tried_s: dict[str, float] = {}
        self._told: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._names)

    def choose(self, names: Sequence[str]) -> None:
        """Take these in place of those before. Raises KafkaException _INVALID_ARG."""
        try:
            regexes = {name: re.compile(name) for name in names if name.startswith("^")}
        except re.error as error:
            raise refused(INVALID_ARG, f"{error.pattern!r} is no regex: {error}") from error
        self._names, self._regexes = tuple(names), regexes
        self._tried_s, self._told = {}, {}

    def wants(self, channel: str) -> bool:
        """Whether a channel is one of them."""
        found = (each.match(channel) for each in self._regexes.values())
        return channel in self._names or any(found)

    def lose(self, channel: str) -> None:
        """Leave a channel alone until it is subscribed to again."""
        self._tried_s[channel] = math.inf

    def join(
        self, joined: Collection[str], enter: Callable[[str], None], *, reading: bool
    ) -> Iterator[tuple[str, SluicewayError]]:
        """Call `enter` with the channels that are not joined; give those where it failed, once.

        What is no SluicewayError comes out, and the channel is tried again in its time. While
        there are records to read (`reading`), the gateway is not waited for.
        """
        for name in self._names:
            if name in joined or time.monotonic() < self._tried_s.get(name, 0.0):
                continue
            self._tried_s[name] = time.monotonic() + _AGAIN_S
            failed = self._try(name, joined, enter, _GLANCE_S if reading else None)
            if any(isinstance(each, GatewayUnavailable) for each in failed.values()):
                self._tried_s[name] = time.monotonic() + _AWAY_S
            for where, error in failed.items():
                if self._told.get(where) != error.code:
                    self._told[where] = error.code
                    yield where, error

    def _try(
        self,
        name: str,
        joined: Collection[str],
        enter: Callable[[str], None],
        patience_s: float | None,
    ) -> dict[str, SluicewayError]:
        try:
            channels = self._matching(name, patience_s)
        except SluicewayError as error:
            return {name: error}
        self._told.pop(name, None)
        failed: dict[str, SluicewayError] = {}
        for channel in channels:
            if channel in joined or self._tried_s.get(channel) == math.inf:
                continue
            try:
                enter(channel)
            except SluicewayError as error:
                failed[channel] = error
            else:
                self._told.pop(channel, None)
        return failed

    def _matching(self, name: str, patience_s: float | None) -> list[str]:
        regex = self._regexes.get(name)
        if regex is not None:
            found = self._control.channels(timeout_s=patience_s)
            return [each.name for each in found if regex.match(each.name)]
        if patience_s is not None:
            self._control.channel(name, timeout_s=patience_s)
        return [name]
