"""Partition assignment: the changing partitions of a dynamic group's member, and its rebalances."""

import logging
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial

from sluiceway.api.endpoints import HeartbeatResult, Position, SyncResult
from sluiceway.endpoint.attached import AttachedEndpoint
from sluiceway.endpoint.committer import AttachedMember
from sluiceway.endpoint.stop_condition import StopCondition
from sluiceway.errors import GatewayError, StaleGeneration
from sluiceway.runtime.steps import Steps
from sluiceway.runtime.threads import Signal

__all__ = ["PartitionAssignment", "StopAtAssignmentEnd", "sync"]

LOGGER = logging.getLogger("sluiceway.endpoint.assignment")

Release = Callable[[tuple[int, ...]], Steps[BaseException | None]]
"""Calls back, commits, drops revoked partitions from the assignment, and stops reading them.

A returned exception is raised once they are released; a raised one makes another rebalance due.
"""
Take = Callable[[tuple[int, ...]], Steps[None]]
"""Starts to read new partitions, and calls back."""


def sync(member: AttachedMember, offer: SyncResult | None = None) -> SyncResult:
    """Request the assignment of a dynamic group's member, or take the offered one.

    Raises GatewayError.
    """
    request = partial(
        member.calls.sync,
        member.channel,
        member.id,
        uid=member.uid,
        epoch=member.attached.epoch,
        take=None if offer is None else offer.generation,
        has=None if offer is None else offer.has,
    )
    try:
        return request()
    except StaleGeneration:
        # The member was lost, and no heartbeat has revived it yet.
        member.heartbeat_now()
    return request()


class PartitionAssignment:
    """The partitions of one member; heartbeat results announce changes.

    A rebalance is `follow`, whose steps run in the thread that reads. `partitions` are assigned
    now, `pending` once their current member has released them. `positions` are the group's
    committed positions as of the last rebalance, `total` is the channel's number of partitions.
    `forfeited`: the member was lost, took too long to release partitions, or its group was reset,
    so all its partitions are revoked and cannot be committed.
    """

    def __init__(
        self, handle: AttachedEndpoint, *, notify: Callable[[], object] = lambda: None
    ) -> None:
        """Observe a member's heartbeats; `notify` is called after each one."""
        self._handle = handle
        self.partitions: tuple[int, ...] = ()
        self.pending: tuple[int, ...] = ()
        self.positions: Mapping[int, Position] = {}
        self.total = 0
        self.forfeited = False
        self._generation: int | None = None
        self._announced_generation: int | None = None
        self._offer: SyncResult | None = None
        self._heartbeat = Signal()
        self._required_total = 0
        on_heartbeat = weakref.WeakMethod(self.on_heartbeat)

        def on_result(result: HeartbeatResult) -> None:
            if (method := on_heartbeat()) is not None:
                method(result)
                notify()

        # A weak reference, or its endpoint would keep an abandoned reader alive.
        handle.on_result = on_result

    @property
    def rebalance_due(self) -> bool:
        """True if a heartbeat came since the last request, and the assignment may have changed."""
        return self._heartbeat.is_set() and (
            self._generation is None
            or self._announced_generation != self._generation
            or not self.stable
        )

    @property
    def stable(self) -> bool:
        """Whether the group's current members have no further partition for this one."""
        return not self.pending and self._required_total <= self.total

    def require_total(self, partitions: int) -> None:
        """Record that the channel has at least this number of partitions."""
        self._required_total = max(self._required_total, partitions)

    def request_rebalance(self) -> None:
        """Make a rebalance due."""
        self._announced_generation = None
        self._heartbeat.set()

    def has_kept(self, partitions: Collection[int]) -> bool:
        """Return whether the member holds these partitions in its latest assignment at the gateway.

        Then its commits are of that generation from now on; otherwise a rebalance is due. Raises
        GatewayError.
        """
        latest = sync(self._handle)
        if latest.has is None or not set(partitions) <= set(latest.held):
            self.request_rebalance()
            return False
        generation = max(latest.has, self._handle.attached.generation)
        self._handle.attached = replace(self._handle.attached, generation=generation)
        return True

    def wait(self, timeout_s: float) -> None:
        """Wait until a rebalance may be due."""
        if not self.rebalance_due:
            self._heartbeat.clear()
            self._heartbeat.wait(timeout_s)

    def join(self) -> None:
        """Take a new member's first partitions. Raises GatewayError."""
        offer = sync(self._handle)
        self.total = offer.total
        self._update(sync(self._handle, offer))

    def follow(self, held: Collection[int], release: Release, take: Take) -> Steps[None]:
        """Release revoked partitions of those `held`, then take new ones.

        `release` gets the revoked partitions, also if there are none, while the member may still
        commit them. Raises GatewayError.
        """
        revoked: tuple[int, ...] = ()
        if self.rebalance_due:
            revoked = yield self._find_revoked
            try:
                failure = yield from release(revoked)
            except BaseException:
                # The callback was called, so only the partitions are left to drop.
                self.request_rebalance()
                raise
            yield self._accept
            if failure is not None:
                raise failure
        kept = {p for p in held if p not in revoked}
        added = tuple(p for p in self.partitions if p not in kept)
        if added:
            yield from take(added)

    def drop(self, revoked: Collection[int]) -> None:
        """Remove partitions."""
        self.partitions = tuple(p for p in self.partitions if p not in revoked)

    def _find_revoked(self) -> tuple[int, ...]:
        """Request the assignment and return the revoked partitions; none without a response."""
        self._heartbeat.clear()
        self._offer = None
        try:
            self._offer = offer = sync(self._handle)
        except GatewayError as error:
            if error.is_final:
                raise
            LOGGER.warning("the assignment of %s stays unchanged: %s", self._handle.name, error)
            return ()
        self.forfeited = offer.has is None and self._generation is not None
        if self.forfeited and self.partitions:
            LOGGER.warning(
                "%s took too long and loses its partitions %s: their uncommitted records are read "
                "again. It continues with a new assignment",
                self._handle.name,
                ", ".join(map(str, self.partitions)),
            )
        kept = set(offer.held) & set(offer.partitions)
        return tuple(p for p in self.partitions if p not in kept)

    def _accept(self) -> None:
        """Take the assignment that was requested last, unless the group has changed again."""
        offer, self._offer = self._offer, None
        if offer is None:
            return
        try:
            self._update(offer if offer.taken else sync(self._handle, offer))
        except GatewayError as error:
            if error.is_final:
                raise
            LOGGER.warning("%s has not taken its new assignment: %s", self._handle.name, error)

    def on_heartbeat(self, result: HeartbeatResult) -> None:
        """Record the generation that a heartbeat announced; runs in the heartbeat thread."""
        if result.generation is not None:
            self._announced_generation = result.generation
        self._heartbeat.set()

    def _update(self, taken: SyncResult) -> None:
        self.total = taken.total
        if not taken.taken:
            self.request_rebalance()
            return
        self._handle.attached = replace(
            self._handle.attached,
            generation=taken.generation,
            partitions=taken.partitions,
            positions=taken.positions,
        )
        self._generation = taken.generation
        self._announced_generation = max(self._announced_generation or 0, taken.generation)
        self.partitions, self.pending = taken.partitions, taken.pending
        self.positions = taken.positions


class StopAtAssignmentEnd(StopCondition):
    """A stop condition restricted to the currently assigned partitions."""

    def __init__(self, whole: StopCondition, assignment: PartitionAssignment) -> None:
        super().__init__(None)
        self._whole = whole
        self._assignment = assignment

    def ends(self) -> Mapping[int, int] | None:
        """Return the end offsets of the assigned partitions."""
        ends = self._whole.ends()
        if ends is None:
            return None
        self._assignment.require_total(max(ends, default=-1) + 1)
        return {p: ends.get(p, 0) for p in self._assignment.partitions}

    def on_idle(self) -> None:
        """Raise if the end offsets are unavailable."""
        self._whole.on_idle()

    @property
    def finished_through(self) -> int | None:
        """The highest number of the writers whose end it waited for."""
        return self._whole.finished_through

    @property
    def failed(self) -> bool:
        """Whether records are missing."""
        return self._whole.failed

    def verify_complete(self) -> bool:
        """Raise if records are missing, unless further partitions may be assigned."""
        return not self._assignment.stable or self._whole.verify_complete()
