"""What a reader makes of writers that did not come to their end."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sluiceway.endpoint.stop_condition import LostWriterPolicy, OnLostWriter, outcome
from sluiceway.errors import CounterpartError
from sluiceway.rest.endpoint_models import Endpoint

__all__ = ["Fate", "Fates"]


@dataclass(frozen=True, kw_only=True)
class Fate:
    """Nobody writes any more, and not everybody has finished; `fault` None: wait for them."""

    fault: CounterpartError | None


class Fates:
    """Judges the writers of a channel, as often as somebody asks whether more is to come.

    pypz starts readers and writers together, each writer in its own place. So one that failed or
    was lost is waited for by `LostWriterPolicy`, also when it had ended before this reader came,
    and when it wrote nothing; that is no fault, but its successor is yet to write.
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
        self._policy = LostWriterPolicy(on_lost_writer, patience_s=patience_s, monotonic=monotonic)

    def meet(self, endpoints: Iterable[Endpoint]) -> None:
        """Note who is at work."""
        self._policy.observe(endpoints)

    def judge(self, endpoints: Iterable[Endpoint]) -> Fate | None:
        """Return their fate; None while one is at work, and when all have finished."""
        writers = [each for each in endpoints if each.role == "writer"]
        self.meet(writers)
        if any(each.lives for each in writers):
            return None
        if self._policy.awaits(each for each in writers if each.state != "closed"):
            return Fate(fault=None)
        found = outcome(writers, self._policy, channel=self._channel, writers=0)
        if found is None or found.fault is None:
            return None
        fault = found.fault
        advice = "In a port's channelConfig that is onLostWriter='go_on', or 'wait'"
        return Fate(fault=type(fault)(f"{fault}. {advice}", endpoints=fault.endpoints))
