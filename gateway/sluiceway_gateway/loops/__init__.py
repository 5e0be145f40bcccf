"""Background loops, which run on the replica that holds the lease."""

from sluiceway_gateway.loops.background import Loop, Loops
from sluiceway_gateway.loops.leader import Leader

__all__ = ["Leader", "Loop", "Loops"]
