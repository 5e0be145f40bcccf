"""Fetcher: fetches and decodes messages up to the end offsets, and keeps the positions."""

import itertools
import logging
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import pyarrow as pa
from confluent_kafka import Message

from sluiceway.api.endpoints import Position
from sluiceway.api.models import Connection
from sluiceway.codecs import Corrupt, Decoder
from sluiceway.codecs.decoder import corrupt_error
from sluiceway.concurrency import FairLock, this_process
from sluiceway.errors import KafkaFailure, KafkaUnavailable, SluicewayError
from sluiceway.kafka.completed_fetch import CompletedFetch
from sluiceway.kafka.consumer import FetchedMessages, IdleTimeout, PartitionStream
from sluiceway.kafka.keys import KeyField, deletes_of
from sluiceway.records.instances import Instances

__all__ = ["EndOffsets", "Fetcher"]

LOGGER = logging.getLogger("sluiceway.kafka.fetcher")

_MAX_MESSAGES = {"arrow": 32, **dict.fromkeys(("avro", "json", "protobuf", "bytes"), 8192)}
"""The most messages decoded together; an `arrow` message holds many records."""
_MAX_LOGGED: Final = 10
"""The most skipped messages of a fetch that are logged with their offsets."""
_POLL_S = 0.25
_IDENTITY_MAX_AGE_S = 5.0


class EndOffsets(Protocol):
    """The offsets at which reading ends; see `endpoint.stop_condition`."""

    def ends(self) -> Mapping[int, int] | None:
        """Return the end offset of each partition; None while they are unknown."""

    def on_idle(self) -> None:
        """Raise if the end offsets are unavailable; called while no messages arrive."""


class Fetcher:
    """Fetches messages of the assigned partitions, and returns their records.

    `instances` makes them instances of a class. With `deletes`, the stream has whole messages, and
    deletes are returned as Deleted, with their keys as values of the field `key`, or as bytes.

    A position moves only when records are returned, or when there are certainly none between the
    old and the new position.

    Thread-safe by two locks. `turn` is held by the thread that fetches or changes the assignment,
    also while it waits for Kafka; it yields to other threads from time to time. `_state` guards
    the current fetch and the positions, for a few instructions; it is taken after `turn`. Fields
    are changed with both locks held, and read with either.
    """

    def __init__(
        self,
        connection: Connection,
        decoder: Decoder,
        stream: PartitionStream,
        *,
        positions: Mapping[int, Position],
        end_offsets: EndOffsets,
        skip_corrupt: bool,
        timeout_s: float,
        instances: Instances | None = None,
        deletes: bool = False,
        key: KeyField | None = None,
    ) -> None:
        self.turn = FairLock()
        self._process = this_process()
        self._state = threading.RLock()
        self._connection = connection
        self._decoder = decoder
        self._stream = stream
        self._skip_corrupt = skip_corrupt
        self._instances = instances
        self._deletes = deletes
        self._key = key
        self._end_offsets = end_offsets
        self._positions = dict(positions)
        self._known_ends = end_offsets.ends()
        self._ends = self._bounds(self._known_ends)
        # The next offset to fetch, ahead of the position.
        self._next: dict[int, int] = {}
        self._unfinished: set[int] = set()
        self._failure: SluicewayError | None = None
        # Whether the failure that the current fetch stops before was raised.
        self._failure_raised = False
        # The thread of the last call that took records, as long as that call may be interrupted:
        # the records of the current fetch returned before it, or, once something else needs them,
        # the positions before it.
        self._taker: int | None = None
        self._taken_from: int | None = None
        self._positions_before: dict[int, Position] = {}
        self.reading = False
        """True while a call that has taken records has not returned them."""
        # Whether the stream continues at `_next`. It does not after an interrupt of a poll, which
        # loses the polled messages, or between `_reset` and `assign`.
        self._in_step = False
        self._idle_timeout = IdleTimeout(timeout_s=timeout_s)
        self._current = CompletedFetch.empty()
        self._records = 0
        self._skipped = 0
        self._restart()
        self._last_progress = (0, self.position())

    @property
    def partitions(self) -> tuple[int, ...]:
        """The assigned partitions, in order."""
        with self._state:
            return tuple(sorted(self._positions))

    @property
    def returned_records(self) -> int:
        """The number of returned records, counted again after a seek."""
        with self._state:
            return self._records + self._current.returned_records

    @property
    def corrupt_messages(self) -> int:
        """The number of messages skipped, counted again after a seek."""
        with self._state:
            return self._skipped + self._current.skipped_messages

    @property
    def finished(self) -> bool:
        """Whether all records before the end offsets have been returned."""
        with self._state:
            return not self._unfinished and not self._stopped and self._current.exhausted

    @property
    def bounded(self) -> bool:
        """Whether the end offsets are known."""
        return self._ends is not None

    def records(self) -> Iterator[Any]:
        """Return an iterator over fetched records; each counts as returned when it is taken."""
        with self._state:
            return self._current.records()

    def begin_call(self) -> None:
        """Begin a call of this thread, which may be cancelled; its last one has returned."""
        if self._taker == threading.get_ident():
            self._taker = None

    def take(self, count: int) -> list[Any]:
        """Return up to `count` fetched records for a `read` that may wait for more.

        They count as returned once `end_read` is called.
        """
        with self._state:
            if not self.reading:
                self._begin_taking()
                self.reading = True
            return list(itertools.islice(self._current.records(), count))

    def end_read(self) -> None:
        """Count the records taken by a `read` as returned."""
        self.reading = False

    def batch(self) -> pa.RecordBatch | None:
        """Return a batch of fetched records; None if another thread took the rest."""
        with self._state:
            self._current.reclaim()
            if self._current.exhausted:
                return None
            if not self.reading:
                self._begin_taking()
            return self._current.batch()

    def take_batch(self) -> pa.RecordBatch | None:
        """Like `batch`; it counts as returned once `end_call` is called."""
        with self._state:
            batch = self.batch()
            self.reading = self.reading or batch is not None
            return batch

    def end_call(self) -> None:
        """Count what the last `take` or `batch` returned as returned, for good."""
        self._taker, self.reading = None, False

    def cancel_call(self, taker: int | None = None) -> None:
        """Put back what this thread's `take` or `batch` returned: its caller does not get it.

        `taker` is the thread that has called them, if it is another one.
        """
        taker = threading.get_ident() if taker is None else taker
        if self._taker != taker:
            return
        with self.turn.urgent(), self._state:
            if self._taker == taker:
                positions = self._position()
                self._reset(positions | self._positions_before)
                self._taker, self.reading = None, False

    def put_back(self) -> None:
        """Put back what the last `take` or `batch` of any thread returned, before `end_call`."""
        if self._taker is not None:
            self.cancel_call(self._taker)

    def _begin_taking(self) -> None:
        # All at once: no interrupt comes in between.
        thread, returned = threading.get_ident(), self._current.returned_records
        self._taker, self._taken_from, self._positions_before = thread, returned, {}

    def reclaim(self) -> None:
        """Take the remaining records back from the iterators of `records`, for later calls."""
        with self._state:
            self._current.reclaim()

    def progress(self) -> tuple[int, Mapping[int, Position]]:
        """Return the number of returned records and the positions, without waiting.

        While another thread converts records, these are the previous values.
        """
        if self._state.acquire(blocking=False):
            try:
                self._last_progress = (self.returned_records, self.position())
            finally:
                self._state.release()
        return self._last_progress

    def position(self) -> dict[int, Position]:
        """Return the position of the next record, by partition.

        Records of a `take` or `take_batch` that do not count as returned yet are not counted.
        """
        with self._state:
            positions = self._position()
            return positions | self._positions_before if self.reading else positions

    def seek(self, positions: Mapping[int, Position]) -> None:
        """Continue from these positions; the other partitions keep theirs."""
        with self.turn:
            with self._state:
                self._current.reclaim()
                before = self._position()
                moved = {p: at for p, at in positions.items() if before.get(p) != at}
                skips_failed = self._current.skip_failed(moved)
                if self._positions_before:
                    self._positions_before |= positions
                if skips_failed:
                    # The messages after the failed one are already decoded.
                    self._positions |= moved
                    self._failure_raised = False
                else:
                    self._reset(before | moved)
            if not skips_failed:
                self._restart()

    def reassign(
        self, *, added: Mapping[int, Position] | None = None, removed: Collection[int] = ()
    ) -> None:
        """Add partitions with their start positions, and remove others."""
        with self.turn:
            with self._state:
                self._current.reclaim()
                positions = self._position() | dict(added or {})
                self._reset({p: at for p, at in positions.items() if p not in removed})
                before = self._positions_before
                self._positions_before = {p: at for p, at in before.items() if p not in removed}
                self._known_ends = self._ends = None
            try:
                known_ends = self._end_offsets.ends()
                ends = self._bounds(known_ends)
                with self._state:
                    self._known_ends, self._ends = known_ends, ends
            finally:
                # Also if the end offsets are unavailable: dropped records must be fetched again.
                self._restart()

    def fetch(self, deadline_s: float, *, holding: bool) -> bool:
        """Fetch until there are records to return; False at the end or the deadline.

        Call it with `turn` held. It also returns False when other threads wait for `turn`; if the
        caller is `holding` records that it has not returned, only for urgent ones.

        After all records before the failure were returned, raises KafkaFailure, CorruptMessage,
        SchemaMismatch, GatewayError or EndpointClosed (from the request for a schema, or in a
        forked child, whose parent returns the same records), and the errors of `EndOffsets`.
        """
        self._process.check("this reader")
        while self._current.exhausted:
            self._update_ends()
            self._raise_failure()
            if not self._unfinished:
                return False
            self._poll(deadline_s)
            over = time.monotonic() >= deadline_s or self.should_yield(holding=holding)
            if over and self._current.exhausted:
                return False
        return True

    def should_yield(self, *, holding: bool) -> bool:
        """Whether the caller should yield `turn` to other threads."""
        return self.turn.urgently_contended if holding else self.turn.contended

    @property
    def _stopped(self) -> bool:
        """Whether a failure follows the fetched records."""
        return self._failure is not None or self._current.failed is not None

    def _raise_failure(self) -> None:
        failed = self._current.failed
        if failed is not None and not self._failure_raised:
            self._failure_raised = True
            raise corrupt_error(self._connection.channel_name, *failed)
        if failed is not None:
            # No seek has skipped it: fetch it again, because it may be gone by now.
            self._restart()
        elif self._failure is not None:
            failure = self._failure
            self._restart()
            raise failure

    def _position(self) -> dict[int, Position]:
        if self._taken_from is not None:
            self._current.advance(self._positions, self._taken_from)
            self._positions_before, self._taken_from = dict(self._positions), None
        if not self._current.exhausted or self._stopped:
            self._current.advance(self._positions)
            return dict(self._positions)
        # There are no records before the next offset to fetch.
        for partition, offset in self._next.items():
            if self._ends is not None:
                offset = min(offset, self._ends.get(partition, offset))
            if offset > self._positions[partition].offset:
                self._positions[partition] = Position(offset=offset)
        return dict(self._positions)

    def _update_ends(self) -> None:
        known_ends = self._end_offsets.ends()
        if known_ends == self._known_ends:
            return
        before, partitions = self._ends, set(self._positions)
        in_step, self._in_step = self._in_step, False
        ends = self._bounds(known_ends)
        with self._state:
            # Messages past the previous ends were fetched and dropped.
            self._position()
            self._known_ends, self._ends = known_ends, ends
        if before is not None or self._positions.keys() != partitions:
            self._restart()
            return
        if ended := self._ended(self._next):
            failure = self._finish(ended)
            with self._state:
                self._failure = self._failure or failure
                self._unfinished -= ended
        self._in_step = in_step

    def _bounds(self, ends: Mapping[int, int] | None) -> Mapping[int, int] | None:
        """Return an end offset for each partition; first add partitions that only `ends` has."""
        if ends is None:
            return None
        if grown := ends.keys() - self._positions.keys():
            self._stream.discover_partitions()
            with self._state:
                self._positions |= {p: Position(offset=0) for p in grown}
        # Other partitions hold no awaited records.
        return {**dict.fromkeys(self._positions, 0), **ends}

    def _restart(self) -> None:
        """Fetch from the positions again."""
        with self._state:
            self._current.reclaim()
            self._reset(self._position())
            self._unfinished -= self._ended(self._next)
            offsets = {p: self._next[p] for p in self._unfinished}
        self._stream.assign(offsets)
        self._in_step = True
        self._idle_timeout.reset()

    def _reset(self, positions: Mapping[int, Position]) -> None:
        """Drop the fetched records and continue at `positions`."""
        self._in_step = False
        self._replace(CompletedFetch.empty())
        self._failure = None
        self._positions = dict(positions)
        self._next = {p: position.offset for p, position in positions.items()}
        self._unfinished = set(self._next)

    def _replace(self, completed: CompletedFetch) -> None:
        self._current.reclaim()
        self._records += self._current.returned_records
        self._skipped += self._current.skipped_messages
        self._current = completed
        self._failure_raised = False

    def _ended(self, reached: Mapping[int, int]) -> set[int]:
        """Return the unfinished partitions that end at or before these offsets."""
        ends = self._ends
        return set() if ends is None else {p for p in self._unfinished if reached[p] >= ends[p]}

    def _poll(self, deadline_s: float) -> None:
        if not self._in_step:
            self._restart()
        # In short waits, between which an interrupt of the process is handled.
        wait_s = max(0.0, min(_POLL_S, deadline_s - time.monotonic()))
        self._in_step = False
        fetched = self._stream.poll(_MAX_MESSAGES[self._connection.format], wait_s)
        self._accept(fetched)
        self._in_step = True
        if fetched.next:
            self._idle_timeout.reset()
        else:
            awaited = self.bounded or self._stream.awaits_messages
            # It may replace the consumer, also if an interrupt ends it: that one has no partitions.
            self._in_step = False
            self._in_step = not self._idle_timeout.probe(self._stream, awaited=awaited)
            if not self.bounded:
                self._end_offsets.on_idle()

    def _accept(self, fetched: FetchedMessages) -> None:
        """Decode fetched messages and advance the next offsets."""
        ends = self._ends
        if ends is not None and any(offset > ends[p] for p, offset in fetched.next.items()):
            before_ends = [chunk.part(0, ends[chunk.partition]) for chunk in fetched.chunks]
            fetched = replace(fetched, chunks=before_ends)
        completed: CompletedFetch | None = None
        failure: SluicewayError | None = None
        if items := fetched.items:
            try:
                values = [*map(Message.value, items)] if self._deletes else items
                decoded = self._decoder.decode(values)
                deletes: Mapping[int, Any] = {}
                if self._deletes:
                    deletes, decoded = deletes_of(items, decoded, self._key)
                completed = CompletedFetch(
                    [(chunk.partition, chunk.offsets) for chunk in fetched.chunks],
                    decoded,
                    self._positions,
                    skip=self._skip_corrupt,
                    instances=self._instances,
                    deletes=deletes,
                )
                _log_skipped(self._connection.channel_name, completed.skipped)
            except SluicewayError as error:
                failure = error
        following = {**self._next, **fetched.next}
        if fetched.refused and failure is None:
            failure = self._reassign_refused({p: following[p] for p in fetched.refused})
        ended = self._ended(following)
        if ended:
            failure = self._finish(ended, failure)
        with self._state:
            # All records of the previous fetch were returned.
            self._position()
            if completed is not None:
                self._replace(completed)
            self._next = following
            self._unfinished -= ended
            self._failure = failure

    def _finish(
        self, partitions: set[int], failure: SluicewayError | None = None
    ) -> SluicewayError | None:
        """Stop fetching partitions; after the last, return a failure if the topic has changed."""
        self._stream.drop(partitions)
        if partitions == self._unfinished and failure is None:
            try:
                self._stream.verify(max_age_s=_IDENTITY_MAX_AGE_S)
            except KafkaUnavailable:
                # Everything is fetched, so an unavailable broker makes no difference.
                return None
            except KafkaFailure as error:
                return error
        return failure

    def _reassign_refused(self, offsets: Mapping[int, int]) -> SluicewayError | None:
        """Assign refused partitions again; return the failure for an offset that does not exist."""
        try:
            self._stream.verify()
            errors = self._stream.reassign_refused(offsets)
        except KafkaFailure as error:
            return error
        return next(iter(errors.values()), None)


def _log_skipped(channel: str, skipped: Sequence[tuple[int, int, Corrupt]]) -> None:
    for partition, offset, corrupt in skipped[:_MAX_LOGGED]:
        LOGGER.warning(
            "channel %r, partition %d: the corrupt message at offset %d is skipped: %s",
            *(channel, partition, offset, corrupt.reason),
        )
    if len(skipped) > _MAX_LOGGED:
        more = len(skipped) - _MAX_LOGGED
        LOGGER.warning("channel %r: %d more corrupt messages are skipped", channel, more)
