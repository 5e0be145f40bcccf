"""Offset history: pypz's offsets, which count records, as positions."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from sluiceway.rest.endpoint_models import Position

__all__ = ["OffsetHistory"]

_MAX_RUNS = 10_000


@dataclass(kw_only=True)
class _Run:
    """`length` consecutive records from `count` on; `before` are the positions before them."""

    count: int
    length: int
    partition: int | None
    before: Mapping[int, Position]

    def leads_to(self, partition: int, history: "OffsetHistory") -> bool:
        return self.partition == partition and self.at(history.count) == history.current

    def at(self, count: int) -> Mapping[int, Position]:
        if self.partition is None:
            return self.before
        offset = self.before[self.partition].offset + count - self.count
        return {**self.before, self.partition: Position(offset=offset)}


class OffsetHistory:
    """Positions of a reader by the number of records read, until they are committed.

    In one partition without gaps, every count has its position. With several partitions, or gaps,
    only the counts at the ends of calls have; others get the last position before, so a commit
    never covers a record that was not read.
    """

    def __init__(self, count: int, positions: Mapping[int, Position]) -> None:
        self.count = count
        self.current = dict(positions)
        self._runs: deque[_Run] = deque(maxlen=_MAX_RUNS)

    def add(self, records: int, positions: Mapping[int, Position]) -> None:
        """Add records that were read, up to these positions."""
        if not records:
            # Only offsets without records lay in between.
            self.current = dict(positions)
            return
        moved = [p for p in positions if positions[p] != self.current.get(p)]
        partition = None
        if len(moved) == 1 and self._is_consecutive(moved[0], records, positions):
            partition = moved[0]
        last = self._runs[-1] if self._runs else None
        if last is not None and partition is not None and last.leads_to(partition, self):
            last.length += records
        else:
            self._runs.append(
                _Run(count=self.count, length=records, partition=partition, before=self.current)
            )
        self.count += records
        self.current = dict(positions)

    def at(self, count: int) -> Mapping[int, Position] | None:
        """Return the positions after `count` records, or the last known ones before."""
        if count >= self.count:
            return self.current
        for run in reversed(self._runs):
            if run.count <= count:
                return run.at(count)
        return None

    def forget(self, count: int) -> None:
        """Forget the positions before `count`, which is committed."""
        while self._runs and self._runs[0].count + self._runs[0].length <= count:
            self._runs.popleft()

    def _is_consecutive(
        self, partition: int, records: int, positions: Mapping[int, Position]
    ) -> bool:
        before, after = self.current.get(partition), positions[partition]
        if before is None or before.records or after.records:
            return False
        return after.offset - before.offset == records
