"""What a reader makes of writers that did not come to their end."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sluiceway.ending import OnLostWriter, outcome
from sluiceway.endpoint import Endpoint
from sluiceway.errors import CounterpartError

__all__ = ["Fate", "Fates"]


@dataclass(frozen=True, kw_only=True)
class Fate:
    """Nobody writes any more, and not everybody has finished; `fault` None: wait for them."""

    fault: CounterpartError | None


class Fates:
    """Judges the writers of a channel, as often as somebody asks whether more is to come.

    A writer that was at work while this reader was there, and failed or was lost since, is a fault
    at once. One that had failed before may be started again along with the reader: for the
    channel's patience it is waited for.
    """

    def __init__(
        self,
        channel: str,
        on_lost_writer: OnLostWriter,
        *,
        patience_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._channel = channel
        self._on_lost_writer: OnLostWriter = on_lost_writer
        self._monotonic = monotonic
        self._deadline_s = monotonic() + patience_s
        self._met: set[str] = set()

    def meet(self, endpoints: Iterable[Endpoint]) -> None:
        """Note who is at work."""
        self._met |= {each.id for each in endpoints if each.role == "writer" and each.lives}

    def judge(self, endpoints: Iterable[Endpoint]) -> Fate | None:
        """Return their fate; None while one is at work, and when all have finished."""
        writers = [each for each in endpoints if each.role == "writer"]
        self.meet(writers)
        unclear = [each for each in writers if not each.lives and each.state != "closed"]
        if not unclear or any(each.lives for each in writers) or self._on_lost_writer == "go_on":
            return None
        news = any(each.id in self._met for each in unclear)
        if self._on_lost_writer == "wait" or not (news or self._monotonic() >= self._deadline_s):
            return Fate(fault=None)
        found = outcome(writers, channel=self._channel, writers=0, on_lost_writer="raise")
        fault = None if found is None else found.fault
        if fault is None:
            return None
        advice = "In a port's channelConfig that is onLostWriter='go_on', or 'wait'"
        return Fate(fault=type(fault)(f"{fault}. {advice}", endpoints=fault.endpoints))
