"""Visible runs: the intervals of a channel's committed records, by partition."""

import bisect
from array import array

from sluiceway.api.ledger import Committed, Interval
from sluiceway.errors import IncompatibleGateway

__all__ = ["VisibleRuns"]


class _PartitionRuns:
    """The runs of one partition below `stable`, sorted and disjoint.

    Arrays save memory: failed attempts of years may leave hundreds of thousands of runs.
    """

    __slots__ = ("ends", "firsts", "stable")

    def __init__(self) -> None:
        self.stable = 0
        self.firsts, self.ends = array("q"), array("q")

    def append(self, run: Interval) -> None:
        """Add the unknown part of a later run."""
        first, end = max(run.first, self.stable), run.end
        if first >= end:
            return
        if self.ends and self.ends[-1] == first:
            self.ends[-1] = end
        else:
            self.firsts.append(first)
            self.ends.append(end)


class VisibleRuns:
    """Committed runs of a channel below `stable`, by partition.

    Responses of the ledger may be added in any order; `stable` never falls, and runs below it never
    change. A partition without a response has no runs. Can be pickled. One thread adds, others may
    read meanwhile; below a `stable` that they have read, the runs are complete.
    """

    def __init__(self) -> None:
        self._partitions: dict[int, _PartitionRuns] = {}

    @property
    def stable(self) -> dict[int, int]:
        """By partition, the offset below which the runs are final."""
        return {partition: runs.stable for partition, runs in list(self._partitions.items())}

    def add(self, response: Committed) -> None:
        """Add a complete response that begins at or below the `stable` of each partition.

        Raises IncompatibleGateway if runs are missing: `stable` is always the end of a run, or of
        a run that a repair removed.
        """
        for partition, stable in response.stable.items():
            intervals = response.runs.get(partition)
            given_up = response.given_up.get(partition, ())
            if any(lost.first < stable <= lost.end for lost in given_up):
                continue
            if intervals and intervals[-1].end < stable > self.stable_of(partition):
                raise IncompatibleGateway(
                    f"the gateway's list of committed records is incomplete: partition "
                    f"{partition} is listed up to {intervals[-1].end}, but committed up to "
                    f"{stable}, so the list is not used. Update the gateway"
                )
        for partition, stable in response.stable.items():
            runs = self._partitions.setdefault(partition, _PartitionRuns())
            if stable <= runs.stable:
                continue
            for run in response.runs.get(partition, ()):
                runs.append(Interval(run.first, min(run.end, stable)))
            runs.stable = stable

    def stable_of(self, partition: int) -> int:
        """Return a partition's `stable`."""
        runs = self._partitions.get(partition)
        return 0 if runs is None else runs.stable

    def next_run(self, partition: int, offset: int) -> Interval | None:
        """Return the next visible interval from `offset` on; None without one below `stable`.

        It begins at or after `offset`, and ends with its run.
        """
        runs = self._partitions.get(partition)
        if runs is None:
            return None
        index = bisect.bisect_right(runs.ends, offset)
        if index == len(runs.ends):
            return None
        return Interval(max(offset, runs.firsts[index]), runs.ends[index])

    def between(self, partition: int, first: int, end: int) -> tuple[Interval, ...]:
        """Return the visible intervals from `first` up to, not including, `end`."""
        intervals = []
        at = self.next_run(partition, first)
        while at is not None and at.first < end:
            intervals.append(Interval(at.first, min(at.end, end)))
            at = self.next_run(partition, at.end)
        return tuple(intervals)
