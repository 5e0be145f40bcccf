"""Visible runs: by partition the committed offsets, as far as the ledger's answers go."""

import bisect
from array import array

from sluiceway.errors import IncompatibleGateway
from sluiceway.rest.ledger_models import Committed, Interval

__all__ = ["VisibleRuns"]


class _PartitionRuns:
    """The runs of one partition below `stable`: sorted, and apart from each other.

    Two arrays, as failed attempts of years may leave hundreds of thousands of runs.
    """

    __slots__ = ("ends", "firsts", "stable")

    def __init__(self) -> None:
        self.stable = 0
        self.firsts, self.ends = array("q"), array("q")

    def append(self, run: Interval) -> None:
        """Add what of a later run is not known yet."""
        first, end = max(run.first, self.stable), run.end
        if first >= end:
            return
        if self.ends and self.ends[-1] == first:
            self.ends[-1] = end
        else:
            self.firsts.append(first)
            self.ends.append(end)


class VisibleRuns:
    """What a reader may see of a channel: the runs below `stable`, by partition.

    Answers of the ledger are added in any order; `stable` never falls, and what is below it never
    changes. A partition that no answer named has nothing visible. Can be pickled. One thread adds,
    others may look meanwhile; what they see below a `stable` that they have read is complete.
    """

    def __init__(self) -> None:
        self._partitions: dict[int, _PartitionRuns] = {}

    @property
    def stable(self) -> dict[int, int]:
        """By partition, the offset below which nothing changes any more."""
        return {partition: runs.stable for partition, runs in list(self._partitions.items())}

    def add(self, answer: Committed) -> None:
        """Add a whole answer that begins at or below the `stable` of each partition.

        Raises IncompatibleGateway if runs are missing: `stable` is always the end of a run.
        """
        for partition, stable in answer.stable.items():
            found = answer.runs.get(partition)
            if found and found[-1].end < stable > self.stable_of(partition):
                raise IncompatibleGateway(
                    f"the gateway's list of committed records is not complete: partition "
                    f"{partition} is listed up to {found[-1].end}, but committed up to {stable}. "
                    "Nothing of it is used. Update the gateway"
                )
        for partition, stable in answer.stable.items():
            runs = self._partitions.setdefault(partition, _PartitionRuns())
            if stable <= runs.stable:
                continue
            for run in answer.runs.get(partition, ()):
                runs.append(Interval(run.first, min(run.end, stable)))
            runs.stable = stable

    def stable_of(self, partition: int) -> int:
        """Return a partition's `stable`."""
        runs = self._partitions.get(partition)
        return 0 if runs is None else runs.stable

    def next_run(self, partition: int, offset: int) -> Interval | None:
        """Return what is visible next, from `offset` on; None if there is nothing below `stable`.

        The interval begins at `offset` or behind it, and ends with its run.
        """
        runs = self._partitions.get(partition)
        if runs is None:
            return None
        index = bisect.bisect_right(runs.ends, offset)
        if index == len(runs.ends):
            return None
        return Interval(max(offset, runs.firsts[index]), runs.ends[index])

    def visible(self, partition: int, offset: int) -> bool:
        """Whether the record at an offset is visible."""
        found = self.next_run(partition, offset)
        return found is not None and found.first == offset

    def between(self, partition: int, first: int, end: int) -> tuple[Interval, ...]:
        """Return what is visible from `first` up to, not including, `end`."""
        found = []
        at = self.next_run(partition, first)
        while at is not None and at.first < end:
            found.append(Interval(at.first, min(at.end, end)))
            at = self.next_run(partition, at.end)
        return tuple(found)
