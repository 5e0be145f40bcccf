"""Stop conditions of a reader: fixed end offsets, or all writers finished."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sluiceway.api.arguments import whole_number
from sluiceway.api.endpoints import AttachResult, Endpoint
from sluiceway.endpoint.attached import AttachedEndpoint
from sluiceway.errors import (
    CounterpartError,
    OptionError,
    SluicewayTimeout,
    WriterFailed,
    WriterLost,
)

__all__ = [
    "LOG_AFTER_S",
    "LostWriterPolicy",
    "OnLostWriter",
    "StopCondition",
    "WhenFinished",
    "WritersOutcome",
    "already_read",
    "writers_outcome",
]

LOGGER = logging.getLogger("sluiceway.endpoint.stop_condition")

OnLostWriter = Literal["raise", "wait", "go_on"]

LOG_AFTER_S = 10.0
"""The wait for writers or readers after which a log line names the missing ones."""
_MAX_NAMED = 10


@dataclass(frozen=True, kw_only=True)
class WritersOutcome:
    """The result of a channel's writers after all have ended.

    `ends` are the end offsets of their records by partition. `unreported` has the ids of writers
    without known end offsets. `error` is raised when everything is read. `short`: the channel
    closed before the expected number of writers had attached, or none is expected. `through` is the
    highest number of a writer; None if the gateway does not number them.
    """

    ends: Mapping[int, int]
    through: int | None = field(default=None, compare=False)
    short: bool = False
    unreported: frozenset[str] = frozenset()
    error: CounterpartError | None = None


class LostWriterPolicy:
    """Which writers a reader waits for, and how long for successors of failed and lost ones.

    A writer that has ended does not count if the reader's place has read it to its end before,
    unless it was open while the reader was attached. For a reader that starts at the latest
    records, only those count that were open then, or attached later.

    The wait for a failed writer lasts for the channel's heartbeat timeout, from the first `observe`
    that has the failure. A writer that became lost while the reader was open has already been
    silent for that long. With `on_lost_writer` "wait" the wait is unlimited, with "go_on" there is
    none.
    """

    def __init__(
        self,
        on_lost_writer: OnLostWriter,
        *,
        heartbeat_timeout_s: float,
        reader: AttachResult | None = None,
        latest: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Describe a reader; `latest`: it starts at the latest records, where none is committed."""
        if on_lost_writer not in ("raise", "wait", "go_on"):
            raise OptionError(
                f"on_lost_writer is {on_lost_writer!r}; it takes 'raise', 'wait' or 'go_on'"
            )
        self.on_lost_writer: OnLostWriter = on_lost_writer
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._monotonic = monotonic
        self._seen_open: set[str] = set()
        self.through = 0
        """Writers with a number up to this one have been read to their end."""
        if reader is not None:
            self._seen_open |= reader.live_writers
            self.through = reader.finished_through or 0
            if latest and not reader.positions:
                self.through = max(self.through, reader.number or 0)
        self._ended_s: dict[str, float] = {}
        self._due_s = math.inf

    def is_due(self) -> bool:
        """Whether the wait that the last `waits_for` reported is over; True only once."""
        due = self._monotonic() >= self._due_s
        if due:
            self._due_s = math.inf
        return due

    def observe(self, endpoints: Iterable[Endpoint]) -> None:
        """Record which writers are open and which have ended; thread-safe."""
        for endpoint in endpoints:
            if endpoint.role == "writer" and endpoint.lives:
                self._seen_open.add(endpoint.id)
                self._ended_s.pop(endpoint.id, None)
            elif endpoint.role == "writer" and endpoint.state != "closed":
                self._ended_s.setdefault(endpoint.id, self._monotonic())

    def has_seen_open(self, writer: Endpoint) -> bool:
        """Whether the writer was open while this reader was attached."""
        return writer.id in self._seen_open

    def was_read(self, writer: Endpoint) -> bool:
        """Whether the writer has ended, and the reader's place needs nothing of it any more."""
        # One that failed before it wrote has the number and the ends of its predecessor.
        stands_in = writer.state == "error" and writer.is_accounted_for
        if writer.lives or (self.has_seen_open(writer) and not stands_in):
            return False
        return writer.number is not None and writer.number <= self.through

    def is_settled(self, writer: Endpoint) -> bool:
        """Whether a failed or lost writer of an exactly-once channel has left nothing to wait for.

        Each of its keys is committed, or it committed nothing and was never seen open.
        """
        unseen = not self.has_seen_open(writer)
        return writer.settled == "all" or (writer.settled == "none" and unseen)

    def counts(self, writer: Endpoint) -> bool:
        """Whether the reader waits for this writer, and it is one of the expected number."""
        ignored = writer.wrote_nothing or self.is_settled(writer)
        return not ignored and not self.was_read(writer)

    def waits_for(self, writers: Iterable[Endpoint]) -> bool:
        """Whether one of these failed or lost writers may still get a successor."""
        now_s = self._monotonic()
        ends_s = [end_s for end_s in map(self._until_s, writers) if end_s > now_s]
        self._due_s = min(ends_s, default=math.inf)
        return bool(ends_s)

    def _until_s(self, writer: Endpoint) -> float:
        if self.on_lost_writer == "go_on":
            return -math.inf
        if self.on_lost_writer == "wait":
            return math.inf
        if writer.state != "error" and self.has_seen_open(writer):
            return -math.inf
        return self._ended_s.get(writer.id, -math.inf) + self._heartbeat_timeout_s


def writers_outcome(
    endpoints: Iterable[Endpoint],
    policy: LostWriterPolicy,
    *,
    channel: str,
    writers: int,
    complete: bool = False,
) -> WritersOutcome | None:
    """Return the result of the channel's writers; None while more records may follow.

    `complete`: the channel closes, so no further writer attaches, even if there were fewer than
    `writers`, and no failed one gets a successor. A failed writer that wrote nothing is ignored;
    but if it was open while this reader was attached, the reader waits for its successor.
    """
    present = [endpoint for endpoint in endpoints if endpoint.role == "writer"]
    policy.observe(present)
    counted = [writer for writer in present if policy.counts(writer)]
    if any(writer.lives for writer in present) or (len(counted) < writers and not complete):
        return None
    unaccounted = [writer for writer in counted if not writer.is_accounted_for]
    pristine = [
        writer
        for writer in present
        if writer.wrote_nothing and writer.group is not None and policy.has_seen_open(writer)
    ]
    if not complete and policy.waits_for([*unaccounted, *pristine]):
        return None
    ends: dict[int, int] = {}
    for ended in present:
        end_offsets = ended.ends if ended.is_accounted_for else ended.lost_at
        # A writer that was closed without end offsets has written nothing.
        for partition, end in (end_offsets or {}).items():
            ends[partition] = max(end, ends.get(partition, 0))
    error = None
    if unaccounted and policy.on_lost_writer != "go_on":
        error = _error(unaccounted, channel, complete=complete)
    return WritersOutcome(
        ends=ends,
        through=max(
            (writer.number for writer in present if writer.number is not None), default=None
        ),
        short=len(counted) < max(writers, 1),
        unreported=frozenset(writer.id for writer in unaccounted if writer.lost_at is None),
        error=error,
    )


class StopCondition:
    """Stops at fixed end offsets, or never (None)."""

    def __init__(
        self, ends: Mapping[int, int] | None, handle: AttachedEndpoint | None = None
    ) -> None:
        self._ends = ends
        self._handle = handle

    def ends(self) -> Mapping[int, int] | None:
        """Return the end offset of each partition; None while they are unknown.

        Raises Fenced and EndpointClosed for a reader that has to stop.
        """
        if self._handle is not None:
            self._handle.check()
        return self._ends

    def on_idle(self) -> None:
        """Raise if the end offsets are unavailable; called while no messages arrive."""

    @property
    def finished_through(self) -> int | None:
        """The highest number of the writers whose end it waited for; None if there is none."""
        return None

    @property
    def failed(self) -> bool:
        """Whether `verify_complete` has an error to raise, so reading has not ended there."""
        return False

    def verify_complete(self) -> bool:
        """Raise if records are missing; called when all records up to the ends were returned.

        False if the end offsets may have changed, so that reading has to continue.
        """
        return True


class WhenFinished(StopCondition):
    """Stops when `writers` have attached, none is open, and their records are read.

    When the channel closes, no more writers are expected. Heartbeats report the writers' states; a
    writer that attaches before everything is read postpones the end. `final_ends` returns the
    current end offsets of this reader's partitions, `owns` whether a partition, existing or added
    later, is one of them. With `committed`, reading ends at the committed records when the last
    writer has finished, not at the reported offsets, which include failed attempts. `latest`: the
    reader starts at the latest records. Unless all writers have attached after `open_timeout_s`,
    the wait raises SluicewayTimeout, and begins again with the next call.
    """

    def __init__(
        self,
        handle: AttachedEndpoint,
        *,
        final_ends: Callable[[], Mapping[int, int]],
        owns: Callable[[int], bool],
        writers: int,
        on_lost_writer: OnLostWriter,
        committed: bool = False,
        latest: bool = False,
        open_timeout_s: float | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        number = whole_number(writers)
        if number is None:
            raise OptionError(f"writers is {writers!r}; it takes a number from 0")
        self._policy = LostWriterPolicy(
            on_lost_writer,
            heartbeat_timeout_s=handle.attached.replacement_timeout_s,
            reader=handle.attached,
            latest=latest,
        )
        super().__init__(None, handle)
        self._reader = handle
        self._final_ends = final_ends
        self._committed = committed
        self._owns = owns
        self._writers = number
        self._evaluated: tuple[Sequence[Endpoint] | None, bool] = (None, False)
        self._outcome: WritersOutcome | None = None
        self._raised: CounterpartError | None = None
        # The writers of an error that was confirmed by a heartbeat.
        self._verified: tuple[str, ...] = ()
        # Watermarks in place of unknown end offsets, and the writers that they are for.
        self._substitute: tuple[object, Mapping[int, int]] = ((frozenset(), False), {})
        self._idle_since_s: float | None = None
        self._open_timeout_s = open_timeout_s
        self._monotonic = monotonic
        self._open_since_s: float | None = monotonic()
        # In the heartbeat thread, so the wait for a writer also starts while records are read.
        handle.subscribe(self._policy.observe)

    def ends(self) -> Mapping[int, int] | None:
        """Return the end offsets once all writers have finished."""
        super().ends()
        complete = self._reader.finish_requested
        present = self._reader.counterparts
        changed = present is not self._evaluated[0] or complete != self._evaluated[1]
        if present is not None and (changed or self._policy.is_due()):
            # An evaluation that fails is repeated by the next call.
            self._evaluated = None, complete
            outcome = writers_outcome(
                present,
                self._policy,
                channel=self._reader.channel,
                writers=self._writers,
                complete=complete,
            )
            if len(self._counted()) >= self._writers:
                # The wait begins again once one of them fails.
                self._open_since_s = None
            self._ends = None if outcome is None else self._own_ends(outcome)
            self._outcome = outcome
            self._evaluated = present, complete
        return self._ends

    def on_idle(self) -> None:
        """Raise an outage of the gateway, which reports the end; log or limit a long wait."""
        outage = self._reader.session.outage
        if outage is not None:
            raise outage
        now_s = self._monotonic()
        reported = self._reader.counterparts is not None
        if self._open_timeout_s is not None and reported and len(self._counted()) < self._writers:
            if self._open_since_s is None:
                self._open_since_s = now_s
            if now_s - self._open_since_s >= self._open_timeout_s:
                self._open_since_s = None
                raise SluicewayTimeout(f"after {self._open_timeout_s:g} s {self._explanation()}")
        if self._idle_since_s is None:
            self._idle_since_s = now_s
        elif now_s - self._idle_since_s >= LOG_AFTER_S:
            self._idle_since_s = math.inf
            LOGGER.warning("%s", self._explanation())

    @property
    def finished_through(self) -> int | None:
        """The highest number of the writers in the outcome."""
        return None if self._outcome is None else self._outcome.through

    @property
    def failed(self) -> bool:
        """Whether a writer has failed or is lost."""
        return self._outcome is not None and self._outcome.error is not None

    def verify_complete(self) -> bool:
        """Raise WriterFailed or WriterLost.

        A call after the same error returns False after a heartbeat, which reports a successor that
        has attached since. So does a call before the first error on an exactly-once channel: a
        commit by a job without an endpoint, which may settle a failed one, changes no endpoint.
        """
        error = None if self._outcome is None else self._outcome.error
        if error is None:
            return True
        if self._committed and self._verified != error.endpoints:
            self._verified = error.endpoints
            # Without a known revision, the heartbeat lists the writers again.
            self._reader.subscribe()
            self._reader.heartbeat_now()
            return False
        self._verified = ()
        if error is self._raised:
            self._raised = None
            self._reader.heartbeat_now()
            return False
        self._raised = error
        raise error

    def _own_ends(self, outcome: WritersOutcome) -> Mapping[int, int]:
        if self._committed:
            return self._final_ends()
        ends = {p: end for p, end in outcome.ends.items() if self._owns(p)}
        unknown = (outcome.unreported, outcome.short)
        if unknown != self._substitute[0]:
            # Without end offsets of these writers, the end is that of the topic now.
            self._substitute = (unknown, self._final_ends())
        for partition, end in self._substitute[1].items():
            ends[partition] = max(end, ends.get(partition, 0))
        return ends

    def _counted(self) -> list[Endpoint]:
        writers = (
            endpoint for endpoint in self._reader.counterparts or () if endpoint.role == "writer"
        )
        return [writer for writer in writers if self._policy.counts(writer)]

    def _explanation(self) -> str:
        writers = [
            endpoint for endpoint in self._reader.counterparts or () if endpoint.role == "writer"
        ]
        counted = self._counted()
        missing = len(counted) < self._writers
        unfinished = [writer for writer in counted if writer.state != "closed"]
        ignored = [
            writer for writer in writers if writer.wrote_nothing or self._policy.is_settled(writer)
        ]
        read = _named([writer for writer in writers if self._policy.was_read(writer)])
        reasons = []
        if missing:
            reasons.append(f"{len(counted)} of {self._writers} writers have attached")
        if unfinished:
            have = "has" if len(unfinished) == 1 else "have"
            reasons.append(f"{_named(unfinished)} {have} not finished")
        if not reasons:
            reasons.append("a failed writer may still get a successor")
        notes = []
        if ignored:
            notes.append(f"Ignored, because they failed and left nothing undone: {_named(ignored)}")
        if read:
            notes.append(already_read(read))
        if missing:
            notes.append(
                "Writers without an endpoint (Spark before sluiceway.spark.register, programs "
                "without this client) do not count: read their records with until='now'"
            )
        waiting = f"{self._reader.name} has read everything so far, and waits"
        return ". ".join([f"{waiting}: {', and '.join(reasons)}", *notes])


def already_read(writers: str) -> str:
    """Explain why a reader does not count these writers, which have ended."""
    return (
        f"Not counted, because this reader's place has read them to their end, or starts after "
        f"them: {writers}. Give writers=0 to wait for no others, or reset the group to read their "
        "records again"
    )


def _error(unaccounted: Sequence[Endpoint], channel: str, *, complete: bool) -> CounterpartError:
    failed = [writer for writer in unaccounted if writer.state == "error"]
    kind, writers = (WriterFailed, failed) if failed else (WriterLost, list(unaccounted))
    one = len(writers) == 1
    it = "it" if one else "them"
    what = "failed"
    if not failed:
        what = "is lost: its heartbeats" if one else "are lost: their heartbeats"
        what = f"{what} have stopped"
    advice = "It has no group" if one else "They have no group"
    if complete:
        advice = "The channel closes"
    advice = f"{advice}, so no successor can attach"
    if not complete and any(writer.group is not None for writer in writers):
        advice = f"To read the rest, start {it} again with the same group and index"
    if one:
        command = f"`sluiceway channels dismiss {channel} --endpoint {writers[0].id}`"
    elif failed:
        command = f"`sluiceway channels dismiss {channel} --failed`"
    else:
        command = f"`sluiceway channels dismiss {channel} --lost`"
    return kind(
        f"channel {channel!r}: {_named(writers)} {what}. All records that "
        f"{'it' if one else 'they'} reported are read. {advice}. If nothing is missing, end "
        f"without {it}: {command}, or on_lost_writer='go_on'",
        endpoints=tuple(writer.id for writer in writers),
    )


def _named(writers: Sequence[Endpoint]) -> str:
    names = [
        f"{writer.place} ({writer.cause})" if writer.cause else writer.place for writer in writers
    ]
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more
