"""Streams of readers: of an exactly-once channel, the committed messages only."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Final

from sluiceway.api.ledger import Interval
from sluiceway.api.models import Connection
from sluiceway.errors import RecordsLost, SluicewayError, SluicewayTimeout
from sluiceway.kafka.config import MaskedProperties
from sluiceway.kafka.consumer import FetchedMessages, MessageStream, PartitionStream, Watermarks
from sluiceway.kafka.io_thread import SHARED_CONSUMERS, Chunk, Consumers
from sluiceway.kafka.topic import EARLIEST, LATEST
from sluiceway.ledger.visibility import Visibility
from sluiceway.runtime.threads import Signal

__all__ = ["CommittedStream", "open_stream"]

_JUMP_OFFSETS = 50_000
"""From this number of invisible offsets on, a new fetch is cheaper than reading over them."""
_SHORT_WAIT: Final = MaskedProperties({"fetch.wait.max.ms": 20})
"""A broker answers one fetch after the other, and a new partition is part of the next one, so this
delays the first message of a reader."""
_LONG_WAIT: Final = MaskedProperties({"fetch.wait.max.ms": 500})
"""A thousand waiting members send two requests a second each instead of ten."""


def open_stream(
    connection: Connection,
    config: Mapping[str, object],
    *,
    timeout_s: float,
    visibility: Visibility | None = None,
    grouped: bool = False,
    consumers: Consumers | None = None,
    whole_messages: bool = False,
) -> PartitionStream:
    """Open a reader's stream, by default with a consumer of its own. Raises OptionError.

    `config` has the caller's Kafka properties. Without the `visibility` of an exactly-once channel,
    the stream includes its uncommitted messages.
    """
    properties = MaskedProperties(config)
    if connection.delivery == "exactly_once":
        # With read_committed, a foreign Kafka transaction would hold back committed records.
        properties = properties.over({"isolation.level": "read_uncommitted"})
    # Partitions of such channels are fetched only up to known commits, so short waits cost nothing.
    if connection.delivery == "exactly_once" or consumers is SHARED_CONSUMERS:
        properties = _SHORT_WAIT.over(properties)
    elif grouped:
        properties = _LONG_WAIT.over(properties)
    stream = MessageStream(
        connection,
        properties,
        timeout_s=timeout_s,
        consumers=consumers,
        whole_messages=whole_messages,
    )
    return stream if visibility is None else CommittedStream(stream, visibility)


class CommittedStream(PartitionStream):
    """A stream of the committed messages of another stream.

    Returns only messages in visible runs below `stable`, in offset order; others are dropped
    undecoded. A partition that has reached `stable` is not fetched before there are further
    commits, so messages that may still become visible are never skipped. A missing offset of a run
    raises RecordsLost, or OffsetOutOfRange if the log begins after it.
    """

    def __init__(self, stream: PartitionStream, visibility: Visibility) -> None:
        self._stream = stream
        self._visibility = visibility
        self._number = visibility.number
        self._stable: Mapping[int, int] = visibility.runs.stable
        self._next: dict[int, int] = {}
        # Partitions at `stable`, which are not assigned to the other stream.
        self._waiting: set[int] = set()
        # By partition, a visible offset that was missing in one fetch.
        self._suspected: dict[int, int] = {}
        # By partition, the end that a poll has reported.
        self._reported: dict[int, int] = {}
        self._failure: SluicewayError | None = None
        self._open = True
        visibility.acquire(stream.arrived)

    @property
    def arrived(self) -> Signal:
        """It is set when messages have arrived, and after commits."""
        return self._stream.arrived

    def discover_partitions(self) -> int:
        """Request the number of the topic's partitions."""
        return self._stream.discover_partitions()

    def renew(self, *, timeout_s: float) -> bool:
        """Refresh the topic's metadata; replace a client that does not get it."""
        return self._stream.renew(timeout_s=timeout_s)

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets, and drop fetched messages."""
        self._failure = None
        self._reported = {}
        self._next = dict(offsets)
        self._update_stable()
        self._waiting = {p for p, offset in offsets.items() if offset >= self._stable.get(p, 0)}
        self._stream.assign(self._fetched)

    def add(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions as well."""
        self._next |= offsets
        for partition in offsets:
            self._reported.pop(partition, None)
        resumed = {p: offset for p, offset in offsets.items() if offset < self._stable.get(p, 0)}
        self._waiting.update(offsets.keys() - resumed.keys())
        if resumed:
            self._stream.add(resumed)

    def drop(self, partitions: Collection[int]) -> None:
        """Stop reading partitions."""
        fetched = [p for p in partitions if p in self._next and p not in self._waiting]
        for partition in partitions:
            self._next.pop(partition, None)
            self._reported.pop(partition, None)
        self._waiting.difference_update(partitions)
        if fetched:
            self._stream.drop(fetched)

    def close(self) -> None:
        """Release the connections. May be repeated."""
        self._stream.close()
        if self._open:
            self._open = False
            self._visibility.release()

    def poll(self, limit: int, wait_s: float) -> FetchedMessages:
        """Return up to `limit` visible messages; none if none arrived within `wait_s`.

        Waits for commits after all committed messages were returned. Raises KafkaFailure and
        GatewayError.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        deadline_s = time.monotonic() + wait_s
        self._visibility.require_current()
        if self._waiting:
            everything = len(self._waiting) == len(self._next)
            self._visibility.wait(self._number, wait_s if everything else 0.0)
        self._resume()
        if not self._fetched:
            return self._with_ends(FetchedMessages(chunks=[], next={}))
        polled = self._stream.poll(limit, max(0.0, deadline_s - time.monotonic()))
        before = dict(self._next)
        try:
            # Another reader may have got it meanwhile.
            self._visibility.require_current()
            return self._with_ends(self._visible(polled))
        except BaseException:
            # The polled messages are fetched again by a later call.
            self.assign(before)
            raise

    def _with_ends(self, visible: FetchedMessages) -> FetchedMessages:
        """Add the partitions that have reached their end since the last call."""
        reached = {
            p: self._next[p] for p in self._waiting if self._reported.get(p) != self._next[p]
        }
        self._reported |= reached
        return replace(visible, next={**visible.next, **reached}, at_end=reached.keys())

    def verify(self, *, timeout_s: float | None = None, max_age_s: float = 0.0) -> None:
        """Raise TopicGone or KafkaUnavailable unless the topic exists and is the same."""
        self._stream.verify(timeout_s=timeout_s, max_age_s=max_age_s)

    def count_partitions(self, *, timeout_s: float, max_age_s: float) -> int:
        """Return the topic's number of partitions, after the checks of `verify`."""
        return self._stream.count_partitions(timeout_s=timeout_s, max_age_s=max_age_s)

    def watermarks(self, partitions: Collection[int]) -> dict[int, Watermarks]:
        """Return the log's begin and the `stable` of each partition."""
        self._visibility.refresh()
        begins, runs = self.begins(partitions), self._visibility.runs
        # Retention may have removed all committed messages and uncommitted ones after them.
        return {
            p: Watermarks(begin=begins[p], end=max(begins[p], runs.stable_of(p)))
            for p in partitions
        }

    def known_end(self, partition: int) -> int:
        """Return the `stable` of a partition."""
        return self._visibility.runs.stable_of(partition)

    def offsets(
        self, times: Mapping[int, int], *, timeout_s: float | None = None
    ) -> dict[int, int]:
        """Return the first committed offset not older than each time (ms), or -1."""
        self._visibility.refresh()
        stable_of = self._visibility.runs.stable_of
        latest = {p for p, time_ms in times.items() if time_ms == LATEST}
        listed = self._stream.offsets(
            {p: EARLIEST if p in latest else time_ms for p, time_ms in times.items()},
            timeout_s=timeout_s,
        )
        # Retention may have removed all committed messages and uncommitted ones after them.
        ends = {p: max(listed[p], stable_of(p)) for p in latest}
        return {
            p: -1 if times[p] >= 0 and at >= stable_of(p) else at for p, at in listed.items()
        } | ends

    def begins(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the first offset of each partition."""
        return self._stream.begins(partitions)

    def earliest(self, partitions: Collection[int]) -> dict[int, int]:
        """Return `begins`.

        Raises OffsetOutOfRange for a snapshot of which retention has removed records.
        """
        begins = self.begins(partitions)
        for error in self._visibility.removed_records(begins).values():
            raise error
        return begins

    def ends(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the `stable` of each partition, up to which it can be read now."""
        return {p: mark.end for p, mark in self.watermarks(partitions).items()}

    def final_ends(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the current visible end, which `stable` reaches once open batches end."""
        self._visibility.refresh()
        return {p: self._visibility.visible_end.get(p, 0) for p in partitions}

    def offsets_at(self, time_ms: int, partitions: Collection[int]) -> dict[int, int]:
        """Return the first offset not older than `time_ms` (Unix time), or `stable`.

        Raises OffsetOutOfRange for a snapshot of which retention may have removed such records.
        """
        offsets = self._stream.offsets_at(time_ms, partitions)
        marks = self.watermarks(partitions)
        self.earliest(
            [partition for partition, offset in offsets.items() if offset <= marks[partition].begin]
        )
        return {
            partition: min(offset, marks[partition].end) for partition, offset in offsets.items()
        }

    @property
    def awaits_messages(self) -> bool:
        """True while Kafka has messages below `stable` that the reader has not received."""
        return bool(self._fetched)

    def idle_error(self, idle_s: float) -> SluicewayError:
        """Return the error for awaited messages that have not arrived for `idle_s`."""
        holder = self._visibility.held_back_by() if self._waiting else None
        if holder is None:
            return self._stream.idle_error(idle_s)
        return SluicewayTimeout(
            f"committed records of the channel {self._visibility.channel!r} are not visible after "
            f"{idle_s:.0f} s, because {holder} began before them and has not ended. Positions are "
            "unchanged: read again to wait longer, or abort that batch. To read the visible "
            f"records now, open a reader with snapshot={self._visibility.number}"
        )

    @property
    def _fetched(self) -> dict[int, int]:
        """The next offset of each partition that the other stream has."""
        return {p: offset for p, offset in self._next.items() if p not in self._waiting}

    def _update_stable(self) -> None:
        # The number first: the next call then sees a change that happens in between.
        self._number = self._visibility.number
        self._stable = self._visibility.runs.stable

    def _resume(self) -> None:
        """Resume partitions that have more messages below `stable` now."""
        if self._number == self._visibility.number:
            return
        self._update_stable()
        resumed = {
            p: self._next[p] for p in self._waiting if self._next[p] < self._stable.get(p, 0)
        }
        if resumed:
            self._waiting.difference_update(resumed)
            self._stream.add(resumed)

    def _visible(self, polled: FetchedMessages) -> FetchedMessages:
        """Drop invisible messages, and stop fetching partitions at `stable`."""
        visible: list[Chunk] = []
        lost: dict[int, int] = {}
        reached: set[int] = set()
        for chunk in polled.chunks:
            partition = chunk.partition
            if partition in self._next and partition not in self._waiting | lost.keys():
                reached.add(partition)
                missing = self._take(chunk, visible)
                if missing is not None:
                    lost[partition] = missing
        for partition in polled.at_end:
            if partition in self._next and partition not in self._waiting | lost.keys():
                reached.add(partition)
                # Kafka has no further messages up to this offset.
                end = min(polled.next[partition], self._stable[partition])
                runs = self._visibility.runs.between(partition, self._next[partition], end)
                if runs:
                    lost[partition] = runs[0].first
                else:
                    self._next[partition] = max(end, self._next[partition])
        gone = [p for p, offset in lost.items() if self._on_lost(p, offset)]
        for partition in reached - lost.keys():
            self._suspected.pop(partition, None)
            self._advance(partition)
        next_ = {partition: self._next[partition] for partition in reached}
        refused = {*polled.refused, *gone}
        return FetchedMessages(chunks=visible, next=next_, refused=refused)

    def _take(self, chunk: Chunk, visible: list[Chunk]) -> int | None:
        """Append the visible messages; return the first lost offset."""
        partition = chunk.partition
        end = min(chunk.offsets[-1] + 1, self._stable[partition])
        for run in self._visibility.runs.between(partition, self._next[partition], end):
            part = chunk.part(run.first, run.end)
            missing = _first_missing(run, part.offsets)
            if missing is not None:
                part = part.part(run.first, missing)
            if part.offsets:
                visible.append(part)
            if missing is not None:
                self._next[partition] = missing
                return missing
        self._next[partition] = max(self._next[partition], end)
        return None

    def _on_lost(self, partition: int, offset: int) -> bool:
        """Stop before a missing offset; return whether the partition is out of range."""
        # A second fetch without the offset confirms that it is lost.
        self._stream.drop([partition])
        self._stream.add({partition: self._next[partition]})
        if self._suspected.get(partition) != offset:
            self._suspected[partition] = offset
            return False
        begin = self._stream.begins([partition])[partition]
        if begin > offset:
            return True
        self._failure = RecordsLost(
            f"channel {self._visibility.channel!r}, partition {partition}: the record at offset "
            f"{offset} is committed, but Kafka does not have it, although the partition's log "
            f"begins at {begin}. The position stays before it. Find the cause of the loss; to "
            f"continue without the record, seek to {{{partition}: {offset + 1}}}"
        )
        return False

    def _advance(self, partition: int) -> None:
        """Stop fetching a partition at `stable`, and skip a long part without visible records."""
        at, stable = self._next[partition], self._stable[partition]
        if at >= stable:
            self._waiting.add(partition)
            self._stream.drop([partition])
            return
        run = self._visibility.runs.next_run(partition, at)
        target = stable if run is None else min(run.first, stable)
        if target - at < _JUMP_OFFSETS:
            return
        if self._stream.begins([partition])[partition] > at:
            # Retention may have removed visible records, which Kafka reports next.
            return
        self._next[partition] = target
        self._stream.drop([partition])
        if target >= stable:
            self._waiting.add(partition)
        else:
            self._stream.add({partition: target})


def _first_missing(run: Interval, offsets: Sequence[int]) -> int | None:
    """Return the first offset of a run that is not one of `offsets`, its sorted part; or None."""
    if len(offsets) == run.end - run.first:
        return None
    pairs = zip_longest(range(run.first, run.end), offsets)
    return next(expected for expected, offset in pairs if expected != offset)
