"""Waits of polls: their wakeup, and the time left until a deadline."""

import time

from sluiceway.spi import Signal

__all__ = ["WakeupEvent", "left_s"]


def left_s(deadline_s: float) -> float:
    """Return the time until a deadline (monotonic), for a request: never 0."""
    return max(0.01, deadline_s - time.monotonic())


class WakeupEvent:
    """Makes the next poll serve. `due_s` (monotonic) is the time of that without an event.

    A poll compares one number per message: `due_s` is 0 once the event is set. Polls wait for
    `arrived`, which messages set as well.
    """

    def __init__(self) -> None:
        self.arrived = Signal()
        self.due_s = 0.0

    def is_set(self) -> bool:
        """Whether the next poll serves at once."""
        return self.due_s == 0.0

    def set(self) -> None:
        """Make the next poll serve."""
        self.due_s = 0.0
        self.arrived.set()

    def postpone(self, due_s: float) -> None:
        """Serve at `due_s`, or once the event is set.

        What events before this call announce is looked at after it.
        """
        self.due_s = due_s
