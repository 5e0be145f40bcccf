"""The client's own threads: requests of the main thread, and work in the background."""

from sluiceway.runtime.threads import Background, Signal, call

__all__ = ["Background", "Signal", "call"]
