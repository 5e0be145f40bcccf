"""DynamicGroupReader: a reader whose partitions change."""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from sluiceway import offsets
from sluiceway.api.endpoints import Position
from sluiceway.api.models import Connection
from sluiceway.endpoint.assignment import PartitionAssignment, StopAtAssignmentEnd
from sluiceway.endpoint.attached import AttachedEndpoint
from sluiceway.endpoint.stop_condition import StopCondition
from sluiceway.errors import OptionError, StaleGeneration
from sluiceway.reader import ChannelReader, R
from sluiceway.runtime.steps import Steps, run_steps

__all__ = ["DynamicGroupReader", "OnPartitions"]

LOGGER = logging.getLogger("sluiceway.group_reader")

OnPartitions = Callable[[tuple[int, ...]], object]

_WAIT_S = 0.25


class DynamicGroupReader(ChannelReader[R]):
    """A reader with a changing assignment; opened by `Channel.reader(dynamic=True)`.

    Rebalances happen between records: the reader releases revoked partitions and takes newly
    assigned ones; `partitions` are the current ones. Before a rebalance, `read` returns the records
    it has. Reading ends when all of *its* partitions are read; other members may still read theirs.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        handle: AttachedEndpoint,
        start: offsets.Start,
        on_assign: OnPartitions | None = None,
        on_revoke: OnPartitions | None = None,
        **options: Any,
    ) -> None:
        """Open a member; the other arguments are ChannelReader's.

        `on_revoke` is called with revoked partitions while the member may still commit them, and
        with all of them when it is closed; `on_assign` with new partitions. Both run in the thread
        that reads, and their exceptions reach the caller. After a pause longer than the channel's
        heartbeat timeout the partitions are already lost: a commit in `on_revoke` then raises
        StaleGeneration. If this error leaves the callback, it is logged, and reading continues
        with the new assignment.
        """
        self._assignment = PartitionAssignment(handle)
        self._on_assign, self._on_revoke = on_assign, on_revoke
        # Partitions for which `on_assign` was called, and `on_revoke` not yet.
        self._announced: set[int] = set()
        self._started = False
        self._start = start
        self._assignment.join()
        super().__init__(connection, handle=handle, start=start, **options)
        # The gateway's assignment has them.
        self._follows_growth = False

    def records_at_hand(self) -> Iterator[R]:
        """Return an iterator over some fetched records, which ends before a rebalance."""
        return self._until_rebalance(super().records_at_hand())

    def commit(self, positions: Mapping[int, Position | int] | None = None) -> None:
        """Store positions of its current partitions with the gateway, as ChannelReader does.

        Raises StaleGeneration if other members have its partitions, after too long a pause. The
        next read then continues with a new assignment.
        """
        try:
            super().commit(positions)
        except StaleGeneration:
            self._assignment.request_rebalance()
            raise

    def committed(self) -> dict[int, Position]:
        """Return the committed positions of its current partitions."""
        own = set(self.partitions)
        return {p: position for p, position in super().committed().items() if p in own}

    def discover_partitions(self) -> tuple[int, ...]:
        """Return no partitions: added ones come with a rebalance."""
        return ()

    def require_end(self) -> None:
        """Raise OptionError: the records up to an end may go to other members."""
        raise OptionError(
            "the partitions of a dynamic group's member change while it reads, so there are no "
            "records up to its end: loop over batches()"
        )

    @property
    def rebalance_due(self) -> bool:
        """Whether the next call begins with a rebalance of the group."""
        return self._assignment.rebalance_due

    @property
    def finished(self) -> bool:
        """Whether all of its partitions are read, and no further ones will be assigned."""
        return (
            super().finished
            and self._fetcher.bounded
            and self._assignment.stable
            and not self._assignment.rebalance_due
            # Taking new ones may have failed.
            and set(self._assignment.partitions) == set(self.partitions)
        )

    def close(self) -> None:
        """Call `on_revoke`, release all partitions, and leave the group."""
        try:
            with self._fetcher.turn.urgent():
                try:
                    if not self._closed:
                        self._announce_revoked(self.partitions)
                finally:
                    self._release()
        finally:
            super().close()

    def _until_rebalance(self, records: Iterator[R]) -> Iterator[R]:
        for record in records:
            yield record
            if self._assignment.rebalance_due:
                break

    def _start_positions(
        self, start: offsets.Start, partitions: Sequence[int], committed: Mapping[int, Position]
    ) -> dict[int, Position]:
        if isinstance(start, Mapping) and start:
            offsets.chosen_partitions(list(start), self._assignment.total)
        elif start == "latest":
            # Also for partitions that are assigned later, or records until then would be skipped.
            self._start = dict(self._stream.ends(range(self._assignment.total)))
        return self._added_positions(partitions, committed)

    def _added_positions(
        self, partitions: Sequence[int], committed: Mapping[int, Position]
    ) -> dict[int, Position]:
        start = self._start
        if isinstance(start, Mapping):
            start = {p: position for p, position in start.items() if p in partitions}
        return offsets.start_positions(start, partitions, self._stream, committed)

    def _create_stop_condition(
        self,
        until: offsets.Until,
        chosen: Sequence[int],
        **waiting: Any,
    ) -> StopCondition:
        del chosen  # the assignment changes
        everything = range(self._assignment.total)
        whole = super()._create_stop_condition(until, everything, **waiting)
        return StopAtAssignmentEnd(whole, self._assignment)

    def _fetch(self, deadline_s: float, *, holding: bool = False) -> bool:
        while True:
            self._require_open()
            if holding and self._assignment.rebalance_due:
                # Return the records before a rebalance may commit them.
                return False
            self._rebalance()
            wait_until_s = min(deadline_s, time.monotonic() + _WAIT_S)
            if super()._fetch(wait_until_s, holding=holding):
                return True
            left_s = deadline_s - time.monotonic()
            if self.finished or left_s <= 0:
                return False
            if self._fetcher.finished:
                # There is nothing to fetch until a heartbeat announces a change.
                self._stop_condition.on_idle()
                self._assignment.wait(min(left_s, _WAIT_S))
            if self._fetcher.should_yield(holding=holding):
                self._fetcher.turn.yield_to_waiters(-math.inf if holding else deadline_s)

    def _rebalance(self) -> None:
        """Release revoked partitions, and start reading new ones."""
        if not self._started:
            self._started = True
            self._announce_assigned()
        run_steps(self._assignment.follow(self.partitions, self._give_up, self._take))
        self._announce_assigned()

    def _give_up(self, revoked: tuple[int, ...]) -> Steps[None]:
        yield from ()  # `on_revoke` makes its requests itself
        try:
            self._announce_revoked(revoked)
        except StaleGeneration as error:
            if not self._assignment.forfeited:
                raise
            LOGGER.warning("on_revoke came too late to commit: %s", error)
        self._assignment.drop(revoked)
        if revoked:
            # It may be of a revoked partition; of another, it is met again.
            self._failure = None
            self._committer.revoke(revoked, self._fetcher.position())
            self._fetcher.reassign(removed=revoked)

    def _take(self, added: tuple[int, ...]) -> Steps[None]:
        yield from ()
        if max(added) >= self.connection.partitions:
            self._stream.discover_partitions()
        committed = {p: at for p, at in self._assignment.positions.items() if p in added}
        positions = self._added_positions(added, committed)
        self._committer.assign(positions, committed)
        self._fetcher.reassign(added=positions)
        if self._handle is not None:
            self._handle.mark_incomplete()

    def _announce_assigned(self) -> None:
        """Call `on_assign` with new partitions, unless an earlier call has closed the reader."""
        if self._closed:
            return
        new = tuple(p for p in self._assignment.partitions if p not in self._announced)
        self._announced.update(new)
        if new and self._on_assign is not None:
            self._on_assign(new)

    def _announce_revoked(self, partitions: Collection[int]) -> None:
        """Call `on_revoke` with those of the partitions that were announced."""
        revoked = tuple(p for p in partitions if p in self._announced)
        self._announced.difference_update(revoked)
        # The positions that `on_revoke` commits must be those of the last returned records.
        self._fetcher.reclaim()
        if revoked and self._on_revoke is not None:
            self._on_revoke(revoked)
