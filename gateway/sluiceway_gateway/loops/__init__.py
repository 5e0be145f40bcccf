"""Background loops, which run on the replica that holds the lease."""

from sluiceway_gateway.loops.background import Loops
from sluiceway_gateway.loops.leader import Leader
from sluiceway_gateway.loops.loop import Loop

__all__ = ["Leader", "Loop", "Loops"]
