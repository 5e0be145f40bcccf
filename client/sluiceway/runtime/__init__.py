"""The client's own threads: requests of the main thread, work in the background, and timers."""

from sluiceway.runtime.threads import Background, Signal, call
from sluiceway.runtime.timers import Timer

__all__ = ["Background", "Signal", "Timer", "call"]
