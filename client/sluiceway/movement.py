"""How an endpoint moves: noted by the thread that works with it, reported by that of the beats."""

import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sluiceway.position import Position

__all__ = ["Movement"]

_CYCLES = 10
"""That averages are taken over."""
Look = Callable[[], tuple[int, Mapping[int, Position]]]
"""Says how many records a reader has handed out, and where it is."""
_NAMES = {
    "reader": ("receivedRecordCount", "Read"),
    "writer": ("sentRecordCount", "Output"),
}


class Movement:
    """Counts records and the time between calls, and finds out the positions.

    What the thread of the beats reads is put in its place as a whole, and never changed there.
    """

    def __init__(self, role: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.records = 0
        self.positions: Mapping[int, Position] | None = None
        self._count_name, self._kind = _NAMES[role]
        self._monotonic = monotonic
        self._cycles: deque[tuple[float, int]] = deque(maxlen=_CYCLES)
        self._begun: tuple[float, int] | None = None
        self._sums: tuple[float, int, int] = (0.0, 0, 0)
        self._look: weakref.ref[Look] | None = None
        # What the gateway knows of the positions, and what the beat on its way tells.
        self._told: Mapping[int, Position] | None = None
        self._telling: Mapping[int, Position] | None = None

    def turn(self, records: int) -> None:
        """Note a call that reads or writes, and that `records` were moved before it, in all."""
        now_s = self._monotonic()
        if self._begun is not None:
            since_s, before = self._begun
            self._cycles.append((now_s - since_s, max(0, records - before)))
            seconds = sum(each for each, _ in self._cycles)
            self._sums = (seconds, sum(count for _, count in self._cycles), len(self._cycles))
        self._begun = (now_s, records)
        self.records = records

    def follow(self, look: Look) -> None:
        """Let `look`, a method, say where a reader is, for as long as there is somebody to ask.

        It is called in the thread of the beats, and not held: what the program has forgotten is
        not kept alive by it.
        """
        self._look = weakref.WeakMethod(look)

    def news(self, takes: Collection[str]) -> dict[str, Any]:
        """Return what the next beat tells; positions where the gateway does not know them yet."""
        self._look_now()
        self._telling = self.positions
        if self._telling == self._told or "positions" not in takes:
            return {"counters": self.counters()}
        return self._all(takes)

    def heard(self) -> None:
        """Note that the gateway has what the last beat told."""
        self._told = self._telling

    def last_word(self, takes: Collection[str]) -> dict[str, Any]:
        """Return all that there is to tell."""
        self._look_now()
        return self._all(takes)

    def counters(self) -> dict[str, float]:
        """Return what beats tell, by pypz's names; averages once there is something to average."""
        seconds, records, cycles = self._sums
        found: dict[str, float] = {"records": self.records, self._count_name: self.records}
        if cycles:
            kind = self._kind
            found[f"averageTimePer{kind}CycleMs"] = round(1000 * seconds / cycles, 3)
            found[f"averageRecordPer{kind}Cycle"] = round(records / cycles, 3)
        if records:
            found[f"averageTimePer{self._kind}RecordMs"] = round(1000 * seconds / records, 6)
        return found

    def _look_now(self) -> None:
        look = None if self._look is None else self._look()
        if look is not None:
            self.records, self.positions = look()

    def _all(self, takes: Collection[str]) -> dict[str, Any]:
        told: dict[str, Any] = {"counters": self.counters()}
        if self.positions is not None and "positions" in takes:
            places = self.positions.items()
            told["positions"] = {str(each): [at.offset, at.records] for each, at in places}
        return told
