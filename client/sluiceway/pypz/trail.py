"""Which positions a count of records comes to."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from sluiceway.position import Position

__all__ = ["Trail"]

_LONGEST = 10_000


@dataclass(kw_only=True)
class _Run:
    """From `count` on, `length` records lie one after the other; `before` is where all stood."""

    count: int
    length: int
    partition: int | None
    before: Mapping[int, Position]

    def leads_to(self, partition: int, trail: "Trail") -> bool:
        return self.partition == partition and self.at(trail.count) == trail.now

    def at(self, count: int) -> Mapping[int, Position]:
        if self.partition is None:
            return self.before
        offset = self.before[self.partition].offset + count - self.count
        return {**self.before, self.partition: Position(offset=offset)}


class Trail:
    """Remembers where a reader stood when it had read so many records.

    Where it reads one partition without gaps, every count has its position. Where it reads
    several, or one with gaps, only the counts between two calls have; for others it is the last
    position before, so that what is committed was done. Of positions that are not committed it
    keeps so many.
    """

    def __init__(self, count: int, positions: Mapping[int, Position]) -> None:
        self.count = count
        self.now = dict(positions)
        self._runs: deque[_Run] = deque(maxlen=_LONGEST)

    def note(self, records: int, positions: Mapping[int, Position]) -> None:
        """Note that so many records more were read, up to these positions."""
        if not records:
            # Nothing to hand out lay in between.
            self.now = dict(positions)
            return
        moved = [p for p in positions if positions[p] != self.now.get(p)]
        partition = (
            moved[0] if len(moved) == 1 and self._in_a_row(moved[0], records, positions) else None
        )
        last = self._runs[-1] if self._runs else None
        if last is not None and partition is not None and last.leads_to(partition, self):
            last.length += records
        else:
            self._runs.append(
                _Run(count=self.count, length=records, partition=partition, before=self.now)
            )
        self.count += records
        self.now = dict(positions)

    def at(self, count: int) -> Mapping[int, Position] | None:
        """Return the positions after so many records, or the last that are known before."""
        if count >= self.count:
            return self.now
        for run in reversed(self._runs):
            if run.count <= count:
                return run.at(count)
        return None

    def forget(self, count: int) -> None:
        """Forget what lies before a count: it is committed."""
        while self._runs and self._runs[0].count + self._runs[0].length <= count:
            self._runs.popleft()

    def _in_a_row(self, partition: int, records: int, positions: Mapping[int, Position]) -> bool:
        before, after = self.now.get(partition), positions[partition]
        if before is None or before.records or after.records:
            return False
        return after.offset - before.offset == records
