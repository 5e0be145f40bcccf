"""Stop conditions of a reader: fixed end offsets, or all writers finished."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sluiceway.endpoint.handle import EndpointHandle
from sluiceway.errors import CounterpartError, OptionError, WriterFailed, WriterLost
from sluiceway.rest.endpoint_models import Endpoint

__all__ = [
    "LostWriterPolicy",
    "OnLostWriter",
    "Outcome",
    "StopCondition",
    "WhenFinished",
    "outcome",
]

LOGGER = logging.getLogger("sluiceway.endpoint.stop_condition")

OnLostWriter = Literal["raise", "wait", "go_on"]

_LONG_S = 30.0
_NAMED = 10
_NOBODY: tuple[frozenset[str], bool] = (frozenset(), False)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """No writer is at work any more, and none is waited for.

    `ends` is the offset up to which each partition holds what they wrote. `silent` are the ids of
    those that left no word of how far they came, `fault` what to raise when all is read. `short`:
    fewer came than were waited for, and the channel has closed.
    """

    ends: Mapping[int, int]
    short: bool = False
    silent: frozenset[str] = frozenset()
    fault: CounterpartError | None = None


class LostWriterPolicy:
    """How long one reader waits for writers that failed or were lost to be started again.

    A writer that failed is waited for, for the channel's heartbeat timeout, from when the reader
    first knew of it: at the latest from `observe`. One that was lost while the reader watched was
    silent for that long already. `on_lost_writer` "wait" waits without end, "go_on" not at all.
    """

    def __init__(
        self,
        on_lost_writer: OnLostWriter,
        *,
        patience_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if on_lost_writer not in ("raise", "wait", "go_on"):
            raise OptionError(
                f"on_lost_writer is {on_lost_writer!r}; it takes 'raise', 'wait' or 'go_on'"
            )
        self.on_lost_writer: OnLostWriter = on_lost_writer
        self._patience_s = patience_s
        self._monotonic = monotonic
        self._at_work: set[str] = set()
        self._ended_s: dict[str, float] = {}
        self._due_s = math.inf

    def is_due(self) -> bool:
        """Whether the time that the last `awaits` found has run out; True once."""
        due = self._monotonic() >= self._due_s
        if due:
            self._due_s = math.inf
        return due

    def observe(self, endpoints: Iterable[Endpoint]) -> None:
        """Note which writers are at work, and which are not any more; in any thread."""
        for each in endpoints:
            if each.role == "writer" and each.lives:
                self._at_work.add(each.id)
                self._ended_s.pop(each.id, None)
            elif each.role == "writer" and each.state != "closed":
                self._ended_s.setdefault(each.id, self._monotonic())

    def watched(self, writer: Endpoint) -> bool:
        """Whether the writer was at work while this reader was there."""
        return writer.id in self._at_work

    def awaits(self, writers: Iterable[Endpoint]) -> bool:
        """Whether one of these, which failed or were lost, may still be started again."""
        now_s = self._monotonic()
        ends_s = [each for each in map(self._until_s, writers) if each > now_s]
        self._due_s = min(ends_s, default=math.inf)
        return bool(ends_s)

    def _until_s(self, writer: Endpoint) -> float:
        if self.on_lost_writer == "go_on":
            return -math.inf
        if self.on_lost_writer == "wait":
            return math.inf
        if writer.state != "error" and self.watched(writer):
            return -math.inf
        return self._ended_s.get(writer.id, -math.inf) + self._patience_s


def outcome(
    endpoints: Iterable[Endpoint],
    policy: LostWriterPolicy,
    *,
    channel: str,
    writers: int,
    complete: bool = False,
) -> Outcome | None:
    """Return what the channel's writers have come to; None while more is to be expected.

    `complete`: the channel closes, so no writer comes any more, be they fewer than `writers`, and
    none takes the place of one that failed. A writer that failed and wrote nothing does not count;
    but if it was at work while this reader was there, a successor in its place is waited for.
    """
    present = [each for each in endpoints if each.role == "writer"]
    policy.observe(present)
    counted = [each for each in present if not each.wrote_nothing]
    if any(each.lives for each in present) or (len(counted) < writers and not complete):
        return None
    unclear = [each for each in counted if not each.is_accounted_for]
    replaced = [e for e in present if e.wrote_nothing and e.group is not None and policy.watched(e)]
    if not complete and policy.awaits([*unclear, *replaced]):
        return None
    ends: dict[int, int] = {}
    for each in counted:
        known = each.ends if each.is_accounted_for else each.lost_at
        # One that was closed without ends has written nothing.
        for partition, end in (known or {}).items():
            ends[partition] = max(end, ends.get(partition, 0))
    fault = None
    if unclear and policy.on_lost_writer != "go_on":
        fault = _fault(unclear, channel, complete=complete)
    return Outcome(
        ends=ends,
        short=len(counted) < writers,
        silent=frozenset(each.id for each in unclear if each.lost_at is None),
        fault=fault,
    )


class StopCondition:
    """Ends at offsets that are known from the start, or never (None)."""

    def __init__(
        self, ends: Mapping[int, int] | None, attachment: EndpointHandle | None = None
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


class WhenFinished(StopCondition):
    """Ends when at least `writers` have come, none is at work, and all they wrote is read.

    When the channel closes, those that have come are all, and what is in it is all there is. What
    they are at is known from the beats. A writer that comes before all is read puts the end off.
    `watermarks` gives the ends of the partitions that this reader has; `mine` tells of a partition
    whether it is the reader's, since the channel may have grown.
    """

    def __init__(
        self,
        attachment: EndpointHandle,
        *,
        watermarks: Callable[[], Mapping[int, int]],
        mine: Callable[[int], bool],
        writers: int,
        on_lost_writer: OnLostWriter,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if type(writers) is not int or writers < 1:
            raise OptionError(f"writers is {writers!r}; it takes a number from 1")
        self._policy = LostWriterPolicy(
            on_lost_writer,
            patience_s=attachment.attached.heartbeat_timeout_ms / 1000,
            monotonic=monotonic,
        )
        super().__init__(None, attachment)
        self._endpoint = attachment
        self._watermarks = watermarks
        self._mine = mine
        self._writers = writers
        self._monotonic = monotonic
        self._judged: Sequence[Endpoint] | None = None
        self._complete = False
        self._outcome: Outcome | None = None
        self._silent: tuple[object, Mapping[int, int]] = (_NOBODY, {})
        self._idle_since_s: float | None = None
        # By the thread of the beats: a writer's time runs while records are read, too.
        attachment.listen(self._policy.observe)

    def ends(self) -> Mapping[int, int] | None:
        """Return the ends once all writers have finished; None while they have not."""
        super().ends()
        complete = self._endpoint.finish_requested
        present = self._endpoint.counterparts
        news = present is not self._judged or complete != self._complete
        if present is not None and (news or self._policy.is_due()):
            found = outcome(
                present,
                self._policy,
                channel=self._endpoint.channel,
                writers=self._writers,
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
        came = [each for each in writers if not each.wrote_nothing]
        at_work = ", ".join(each.place for each in came if each.state != "closed")
        failed = _named([each for each in writers if each.wrote_nothing])
        return (
            f"{self._endpoint.name} has read all there is and waits for the end: {len(came)} of "
            f"{self._writers} writers have come, not finished: {at_work or 'none'}. "
            + (f"Failed before they wrote anything, and not counted: {failed}. " if failed else "")
            + "Writers that nobody knows of (Spark without a driver that was registered, programs "
            "without the client) are not waited for: read what they write with until='now'"
        )


def _fault(unclear: Sequence[Endpoint], channel: str, *, complete: bool) -> CounterpartError:
    failed = [each for each in unclear if each.state == "error"]
    kind, which = (WriterFailed, failed) if failed else (WriterLost, list(unclear))
    said = "failed" if failed else "is lost (no heartbeat for the channel's heartbeat timeout)"
    grouped = [each for each in which if each.group is not None]
    ways = []
    if grouped and not complete:
        ways.append("start it again in its place (the same group and index), and read on")
    ways.append(f"read with on_lost_writer='go_on' to end without {_it(which)}")
    ids = ", ".join(repr(each.id) for each in which[:_NAMED])
    command = f"sluiceway channels dismiss {channel}" + (
        f" --endpoint {which[0].id}" if len(which) == 1 else f" --{'failed' if failed else 'lost'}"
    )
    ways.append(
        f"if what is there is all that should be, let readers take {_it(which)} for finished: "
        f"channel.dismiss({ids}{', …' if len(which) > _NAMED else ''}), or `{command}`"
    )
    why = ""
    if complete:
        why = "The channel closes, so no writer can take its place any more. "
    elif len(grouped) < len(which):
        why = "No writer can take the place of one that has no group. "
    return kind(
        f"not every writer of the channel {channel!r} has finished: {_named(which)} {said}. All "
        f"that is known of was handed out. {why}{_listed(ways)}",
        endpoints=tuple(each.id for each in which),
    )


def _named(writers: Sequence[Endpoint]) -> str:
    told = [f"{each.place} ({each.cause})" if each.cause else each.place for each in writers]
    more = f" and {len(told) - _NAMED} more" if len(told) > _NAMED else ""
    return ", ".join(told[:_NAMED]) + more


def _it(which: Sequence[Endpoint]) -> str:
    return "it" if len(which) == 1 else "them"


def _listed(ways: Sequence[str]) -> str:
    text = "; or ".join(ways)
    return text[0].upper() + text[1:]
