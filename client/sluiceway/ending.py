"""When a reader is done: at offsets that are known, or when the channel's writers have finished."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sluiceway.attachment import Attachment
from sluiceway.endpoint import Endpoint
from sluiceway.errors import CounterpartError, OptionError, WriterFailed, WriterLost

__all__ = ["Ending", "OnLostWriter", "Outcome", "WhenFinished", "outcome"]

LOGGER = logging.getLogger("sluiceway.ending")

OnLostWriter = Literal["raise", "wait", "go_on"]

_LONG_S = 30.0
_NOBODY: tuple[frozenset[str], bool] = (frozenset(), False)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """No writer is at work any more.

    `ends` is the offset up to which each partition holds what they wrote. `silent` are the ids of
    those that left no word of how far they came, `fault` what to raise when all is read. `short`:
    fewer came than were waited for, and the channel has closed.
    """

    ends: Mapping[int, int]
    short: bool = False
    silent: frozenset[str] = frozenset()
    fault: CounterpartError | None = None


def outcome(
    endpoints: Iterable[Endpoint],
    *,
    channel: str,
    writers: int,
    on_lost_writer: OnLostWriter,
    complete: bool = False,
) -> Outcome | None:
    """Return what the channel's writers have come to; None while more is to be expected.

    `complete`: the channel closes, so no writer comes any more, be they fewer than `writers`.
    """
    present = [each for each in endpoints if each.role == "writer"]
    if any(each.lives for each in present) or (len(present) < writers and not complete):
        return None
    unclear = [each for each in present if each.state != "closed"]
    if unclear and on_lost_writer == "wait":
        return None
    ends: dict[int, int] = {}
    for each in present:
        # One that was closed without ends has written nothing.
        for partition, end in (each.ends or each.lost_at or {}).items():
            ends[partition] = max(end, ends.get(partition, 0))
    return Outcome(
        ends=ends,
        short=len(present) < writers,
        silent=frozenset(e.id for e in unclear if e.ends is None and e.lost_at is None),
        fault=_fault(unclear, channel) if unclear and on_lost_writer == "raise" else None,
    )


class Ending:
    """Ends at offsets that are known from the start, or never (None)."""

    def __init__(
        self, ends: Mapping[int, int] | None, attachment: Attachment | None = None
    ) -> None:
        self._ends = ends
        self._attachment = attachment

    def ends(self) -> Mapping[int, int] | None:
        """Return the offset before which each partition ends, as far as that is known now.

        Asked again and again. Raises Fenced and EndpointClosed for a reader that has to stop.
        """
        if self._attachment is not None:
            self._attachment.check()
        return self._ends

    def idle(self) -> None:
        """Nothing comes from Kafka, and the ends are not known: raise if they cannot be."""

    def confirm(self) -> None:
        """Everything up to the ends was handed out: raise if that is not all there should be."""


class WhenFinished(Ending):
    """Ends when at least `writers` have come, none is at work, and all they wrote is read.

    When the channel closes, those that have come are all, and what is in it is all there is. What
    they are at is known from the beats. A writer that comes before all is read puts the end off.
    `watermarks` gives the ends of the partitions that this reader has; `mine` tells of a partition
    whether it is the reader's, since the channel may have grown.
    """

    def __init__(
        self,
        attachment: Attachment,
        *,
        watermarks: Callable[[], Mapping[int, int]],
        mine: Callable[[int], bool],
        writers: int,
        on_lost_writer: OnLostWriter,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if type(writers) is not int or writers < 1:
            raise OptionError(f"writers is {writers!r}; it takes a number from 1")
        if on_lost_writer not in ("raise", "wait", "go_on"):
            raise OptionError(
                f"on_lost_writer is {on_lost_writer!r}; it takes 'raise', 'wait' or 'go_on'"
            )
        super().__init__(None, attachment)
        self._endpoint = attachment
        self._watermarks = watermarks
        self._mine = mine
        self._writers = writers
        self._on_lost_writer: OnLostWriter = on_lost_writer
        self._monotonic = monotonic
        self._judged: Sequence[Endpoint] | None = None
        self._complete = False
        self._outcome: Outcome | None = None
        self._silent: tuple[object, Mapping[int, int]] = (_NOBODY, {})
        self._idle_since_s: float | None = None
        attachment.listen()

    def ends(self) -> Mapping[int, int] | None:
        """Return the ends once all writers have finished; None while they have not."""
        super().ends()
        complete = self._endpoint.finish_requested
        present = self._endpoint.counterparts
        if present is not None and (present is not self._judged or complete != self._complete):
            found = outcome(
                present,
                channel=self._endpoint.channel,
                writers=self._writers,
                on_lost_writer=self._on_lost_writer,
                complete=complete,
            )
            self._ends = None if found is None else self._bounds(found)
            self._outcome = found
            self._judged, self._complete = present, complete
        return self._ends

    def idle(self) -> None:
        """Raise what has kept the gateway away for too long; it alone knows of the end."""
        trouble = self._endpoint.session.trouble
        if trouble is not None:
            raise trouble
        now_s = self._monotonic()
        if self._idle_since_s is None:
            self._idle_since_s = now_s
        elif now_s - self._idle_since_s >= _LONG_S:
            self._idle_since_s = float("inf")
            LOGGER.warning("%s", self._explain())

    def confirm(self) -> None:
        """Raise WriterFailed or WriterLost."""
        if self._outcome is not None and self._outcome.fault is not None:
            raise self._outcome.fault

    def _bounds(self, found: Outcome) -> Mapping[int, int]:
        ends = {p: end for p, end in found.ends.items() if self._mine(p)}
        unknown = (found.silent, found.short)
        if unknown != self._silent[0]:
            # How far they came is not known: what is there now is theirs, and no more.
            self._silent = (unknown, self._watermarks())
        for partition, end in self._silent[1].items():
            ends[partition] = max(end, ends.get(partition, 0))
        return ends

    def _explain(self) -> str:
        writers = [each for each in self._judged or () if each.role == "writer"]
        at_work = ", ".join(each.place for each in writers if each.state != "closed")
        return (
            f"{self._endpoint.name} has read all there is and waits for the end: {len(writers)} of "
            f"{self._writers} writers have come, not finished: {at_work or 'none'}. Writers that "
            "nobody knows of (Spark without a driver that was registered, programs without the "
            "client) are not waited for: read what they write with until='now'"
        )


def _fault(unclear: Sequence[Endpoint], channel: str) -> CounterpartError:
    failed = [each for each in unclear if each.state == "error"]
    kind, which = (WriterFailed, failed) if failed else (WriterLost, list(unclear))
    said = "failed" if failed else "is lost (no beat for the channel's patience)"
    told = ", ".join(f"{each.place} {f'({each.cause})' if each.cause else ''}" for each in which)
    return kind(
        f"not every writer of the channel {channel!r} has finished: {told.strip()} {said}. All "
        "that is known of was handed out. Start it again in its place (the same group and index) "
        "and read on, read with on_lost_writer='go_on', or let readers forget it: "
        f"channel.dismiss({which[0].id!r})",
        endpoints=tuple(each.id for each in which),
    )
