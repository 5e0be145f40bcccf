"""The partition assignment of a dynamic group's member."""

import logging
import threading
import weakref
from collections.abc import Mapping
from dataclasses import replace

from sluiceway.endpoint.handle import EndpointHandle
from sluiceway.endpoint.stop_condition import StopCondition
from sluiceway.errors import GatewayUnavailable, StaleGeneration
from sluiceway.rest.endpoint_models import HeartbeatResult, Position, SyncResult

__all__ = ["PartitionAssignment", "StopAtAssignmentEnd"]

LOGGER = logging.getLogger("sluiceway.endpoint.assignment")


class PartitionAssignment:
    """The share of one reader. Beats, in their thread, say when it is to be taken anew.

    `partitions` are the reader's; `pending` become so when another lets go of them. `positions`
    are those that the group had committed when it was taken; the channel has `total` partitions.
    `forfeited`: the share that was looked at last is no longer the reader's, as it was lost, slow
    to let go, or the group was reset. All its partitions are given up, and take no commit.
    """

    def __init__(self, attachment: EndpointHandle) -> None:
        self._attachment = attachment
        self.partitions: tuple[int, ...] = ()
        self.pending: tuple[int, ...] = ()
        self.positions: Mapping[int, Position] = {}
        self.total = 0
        self.forfeited = False
        self._generation: int | None = None
        self._heard: int | None = None
        self._asked: SyncResult | None = None
        self._again = threading.Event()
        self._needed = 0
        hear = weakref.WeakMethod(self.hear)

        def heard(word: HeartbeatResult) -> None:
            if (told := hear()) is not None:
                told(word)

        # Held weakly: a reader that the program has forgotten is not kept by its own endpoint.
        attachment.on_heard = heard

    @property
    def due(self) -> bool:
        """Whether something may be otherwise, and there was a beat since it was asked for."""
        return self._again.is_set() and (
            self._generation is None or self._heard != self._generation or not self.settled
        )

    @property
    def settled(self) -> bool:
        """Whether no partition is known that may come to it as the group is."""
        return not self.pending and self._needed <= self.total

    def need(self, partitions: int) -> None:
        """Note that the channel has so many partitions by now."""
        self._needed = max(self._needed, partitions)

    def hurry(self) -> None:
        """Have it be asked for anew."""
        self._heard = None
        self._again.set()

    def wait(self, timeout_s: float) -> None:
        """Wait for a beat that could bring something."""
        if not self.due:
            self._again.clear()
            self._again.wait(timeout_s)

    def begin(self) -> None:
        """Take what there is to take for one who comes. Raises GatewayError."""
        self._asked = self._sync(None)
        self.total = self._asked.total
        self._settle(self._sync(self._asked))

    def look(self) -> tuple[int, ...]:
        """Ask what is to be let go of; nothing, also while the gateway is away."""
        self._again.clear()
        self._asked = None
        try:
            self._asked = asked = self._sync(None)
        except GatewayUnavailable as error:
            LOGGER.warning("the share of %s stays as it is: %s", self._attachment.name, error)
            return ()
        self.forfeited = asked.has is None and self._generation is not None
        if self.forfeited and self.partitions:
            LOGGER.warning(
                "%s was not waited for any longer, and gives up its partitions %s: what it has not "
                "committed of them is read again. It goes on with a new share",
                self._attachment.name,
                ", ".join(map(str, self.partitions)),
            )
        stays = set(asked.held) & set(asked.partitions)
        return tuple(p for p in self.partitions if p not in stays)

    def drop(self, lost: tuple[int, ...]) -> None:
        """Read these partitions no more."""
        self.partitions = tuple(p for p in self.partitions if p not in lost)

    def take(self) -> None:
        """Take what was looked at; when the group has changed again, that is to be looked at."""
        asked, self._asked = self._asked, None
        if asked is None:
            return
        try:
            told = asked if asked.taken else self._sync(asked)
        except GatewayUnavailable as error:
            LOGGER.warning("%s has not taken its new share: %s", self._attachment.name, error)
            return
        self._settle(told)

    def _settle(self, told: SyncResult) -> None:
        self.total = told.total
        if not told.taken:
            self.hurry()
            return
        attachment = self._attachment
        attachment.attached = replace(
            attachment.attached,
            generation=told.generation,
            partitions=told.partitions,
            positions=told.positions,
        )
        self._generation = told.generation
        self._heard = max(self._heard or 0, told.generation)
        self.partitions, self.pending = told.partitions, told.pending
        self.positions = told.positions

    def _sync(self, asked: SyncResult | None) -> SyncResult:
        attachment = self._attachment
        body = {"uid": attachment.uid, "epoch": attachment.attached.epoch}
        wish = {} if asked is None else {"take": asked.generation, "has": asked.has}
        calls = attachment.session.calls
        try:
            return calls.sync(attachment.channel, attachment.id, {**body, **wish})
        except StaleGeneration:
            # It was lost, and no heartbeat has brought it back yet.
            attachment.inquire()
        return calls.sync(attachment.channel, attachment.id, {**body, **wish})

    def hear(self, heard: HeartbeatResult) -> None:
        """Take what a beat brought; called in the thread of the beats."""
        if heard.generation is not None:
            self._heard = heard.generation
        self._again.set()


class StopAtAssignmentEnd(StopCondition):
    """Ends where another ending does, for the partitions that are the reader's at the moment."""

    def __init__(self, whole: StopCondition, share: PartitionAssignment) -> None:
        super().__init__(None)
        self._whole = whole
        self._share = share

    def ends(self) -> Mapping[int, int] | None:
        """Return the ends of the share."""
        ends = self._whole.ends()
        if ends is None:
            return None
        self._share.need(max(ends, default=-1) + 1)
        return {p: ends.get(p, 0) for p in self._share.partitions}

    def idle(self) -> None:
        """Raise if the ends cannot be known."""
        self._whole.idle()

    def confirm(self) -> None:
        """Raise if that was not all there should be, once nothing more is to come from others."""
        if self._share.settled:
            self._whole.confirm()
