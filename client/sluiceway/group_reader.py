"""DynamicGroupReader: reads as a member of a dynamic group."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from sluiceway import offsets
from sluiceway.endpoint.assignment import PartitionAssignment, StopAtAssignmentEnd
from sluiceway.endpoint.handle import EndpointHandle
from sluiceway.endpoint.stop_condition import OnLostWriter, StopCondition
from sluiceway.errors import OptionError, StaleGeneration
from sluiceway.reader import ChannelReader
from sluiceway.rest.endpoint_models import Position
from sluiceway.rest.models import Connection

__all__ = ["DynamicGroupReader", "OnPartitions", "maker"]

LOGGER = logging.getLogger("sluiceway.endpoint.assignment")

OnPartitions = Callable[[tuple[int, ...]], object]

_TURN_S = 0.25


class DynamicGroupReader(ChannelReader):
    """A reader whose partitions change while it reads; made by `Channel.reader(dynamic=True)`.

    Between records it lets go of what others are to have, and takes what they have let go of;
    `partitions` tells what it has. `read` returns what it has before that happens. It ends when
    all of *its* partitions are read, and then others may still be at work on theirs.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        attachment: EndpointHandle,
        start: offsets.Start,
        on_assign: OnPartitions | None = None,
        on_revoke: OnPartitions | None = None,
        **wishes: Any,
    ) -> None:
        """Open a member; ChannelReader says what the other arguments mean.

        `on_revoke` is called with the partitions that it is about to lose, while it may still
        commit, and when it is closed in good order; `on_assign` with those that it gets, once it
        has them. Both are called by whoever reads, and what they raise comes out of that call.
        After a pause longer than the channel's heartbeat timeout the partitions are lost already: a
        commit in `on_revoke` is StaleGeneration then, which is written to the log if it leaves the
        callback, and reading goes on with the new share.
        """
        self._share = PartitionAssignment(attachment)
        self._on_assign, self._on_revoke = on_assign, on_revoke
        self._revoked: set[int] = set()
        self._announced = False
        self._start = start
        self._share.begin()
        super().__init__(connection, attachment=attachment, start=start, **wishes)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Give record after record; each counts as done when it is handed out."""
        while (records := self._next(self._intake.records)) is not None:
            for record in records:
                yield record
                if self._share.due:
                    break

    def commit(self, positions: Mapping[int, Position | int] | None = None) -> None:
        """Keep these positions with the gateway, as ChannelReader does, of partitions it has.

        Raises StaleGeneration if it was not waited for any longer: others have its partitions.
        Read on then: it begins anew, with what is its own now.
        """
        try:
            super().commit(positions)
        except StaleGeneration:
            self._share.hurry()
            raise

    def committed(self) -> dict[int, Position]:
        """Return the positions that are kept with the gateway, of this reader's partitions."""
        own = set(self.partitions)
        return {p: place for p, place in super().committed().items() if p in own}

    @property
    def finished(self) -> bool:
        """Whether all of its partitions are read, and none is to come to it from others."""
        return (
            self._intake.finished
            and self._intake.bounded
            and self._share.settled
            and not self._share.due
        )

    def close(self) -> None:
        """Let go of everything, `on_revoke` first, and leave the group. May be repeated."""
        try:
            with self._intake.turn.urgently():
                try:
                    if not self._closed and self._announced:
                        self._intake.hold_back()
                        self._call(
                            self._on_revoke,
                            tuple(p for p in self.partitions if p not in self._revoked),
                        )
                finally:
                    self._let_go()
        finally:
            super().close()

    def _begin(
        self, start: offsets.Start, partitions: Sequence[int], committed: Mapping[int, Position]
    ) -> dict[int, Position]:
        if isinstance(start, Mapping) and start:
            offsets.chosen_partitions(list(start), self._share.total)
        elif start == "latest":
            # Of this moment, also for partitions that come later: their records are to be read.
            self._start = dict(self._stream.ends(range(self._share.total)))
        return self._places(partitions, committed)

    def _places(
        self, partitions: Sequence[int], committed: Mapping[int, Position]
    ) -> dict[int, Position]:
        start = self._start
        if isinstance(start, Mapping):
            start = {p: place for p, place in start.items() if p in partitions}
        return offsets.start_positions(start, partitions, self._stream, committed)

    def _made_ending(
        self,
        until: offsets.Until,
        chosen: Sequence[int],
        writers: int,
        on_lost_writer: OnLostWriter,
    ) -> StopCondition:
        del chosen  # what it has is another thing at every moment
        everything = range(self._share.total)
        whole = super()._made_ending(until, everything, writers, on_lost_writer)
        return StopAtAssignmentEnd(whole, self._share)

    def _fetched(self, deadline_s: float, *, holding: bool = False) -> bool:
        while True:
            self._require_open()
            if holding and self._share.due:
                # They are to be handed out before anybody commits them.
                return False
            self._share_anew()
            turn_s = min(deadline_s, time.monotonic() + _TURN_S)
            if super()._fetched(turn_s, holding=holding):
                return True
            left_s = deadline_s - time.monotonic()
            if self.finished or left_s <= 0:
                return False
            if self._intake.finished:
                # There is nothing to fetch until a beat brings something.
                self._ending.idle()
                self._share.wait(min(left_s, _TURN_S))
            if self._intake.due_to_give_way(holding=holding):
                self._intake.turn.give_way(-math.inf if holding else deadline_s)

    def _share_anew(self) -> None:
        """Let go of what is to be another's, and begin with what has come."""
        if not self._announced:
            self._announced = True
            self._call(self._on_assign, self.partitions)
        if self._share.due:
            lost = self._share.look()
            told = tuple(p for p in lost if p not in self._revoked)
            self._revoked.update(told)
            # What `on_revoke` commits is all that this reader hands out of them.
            self._intake.hold_back()
            try:
                self._call(self._on_revoke, told)
            except StaleGeneration as error:
                if not self._share.forfeited:
                    self._share.hurry()
                    raise
                LOGGER.warning("on_revoke came too late to commit: %s", error)
            except BaseException:
                # It was told; next time they go.
                self._share.hurry()
                raise
            self._share.drop(lost)
            self._let_go_of(lost)
            self._share.take()
        came = tuple(p for p in self._share.partitions if p not in self.partitions)
        if came:
            self._receive(came)

    def _let_go_of(self, lost: Sequence[int]) -> None:
        if lost:
            self._revoked.difference_update(lost)
            self._intake.reassign(gone=lost)
            self._commits.forget(lost)

    def _receive(self, came: tuple[int, ...]) -> None:
        if max(came) >= self.connection.partitions:
            self._stream.meet_new_partitions()
        committed = {p: at for p, at in self._share.positions.items() if p in came}
        places = self._places(came, committed)
        self._commits.begin(places, committed)
        self._intake.reassign(come=places)
        self._call(self._on_assign, came)

    def _call(self, callback: OnPartitions | None, partitions: tuple[int, ...]) -> None:
        if callback is not None and partitions:
            callback(partitions)


def maker(
    *, dynamic: bool, on_assign: OnPartitions | None, on_revoke: OnPartitions | None
) -> Callable[..., ChannelReader]:
    """Return what makes the reader that is asked for. Raises OptionError."""
    if dynamic:
        return partial(DynamicGroupReader, on_assign=on_assign, on_revoke=on_revoke)
    if on_assign is not None or on_revoke is not None:
        raise OptionError("on_assign and on_revoke are of dynamic groups: give dynamic=True")
    return ChannelReader
