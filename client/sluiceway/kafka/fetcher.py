"""Fetcher: decoded messages in hand, and positions."""

import itertools
import operator
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa
from confluent_kafka import Message

from sluiceway.codecs import Decoder
from sluiceway.codecs.decoder import corrupt_error
from sluiceway.endpoint.stop_condition import StopCondition
from sluiceway.errors import KafkaFailure, KafkaUnavailable, OffsetOutOfRange, SluicewayError
from sluiceway.fair_lock import FairLock
from sluiceway.kafka.completed_fetch import CompletedFetch
from sluiceway.kafka.consumer import MessageStream, Taken
from sluiceway.kafka.idle_timeout import IdleTimeout
from sluiceway.rest.endpoint_models import Position
from sluiceway.rest.models import Connection

__all__ = ["Fetcher"]

_CHUNK_MESSAGES = {"avro": 8192, "arrow": 32, "bytes": 8192}
"""What lies ready is taken at once, up to so many; `arrow` messages hold many records each."""
_SLICE_S = 0.25
_IDENTITY_MAX_AGE_S = 5.0


class Fetcher:
    """Fetches chunk after chunk, up to the ends, and keeps the positions.

    A position moves only when records are handed out, or when it is certain that none lie
    between it and its new place.

    Two locks make it thread-safe. `turn` is held by whoever fetches or changes what is fetched,
    also while Kafka is waited for; whoever waits gives way now and then. `_state` guards what is
    in hand and the positions, and nobody waits for anything while holding it. It is taken after
    `turn`, never before. What the fields are is changed with both and read with either.
    """

    def __init__(
        self,
        connection: Connection,
        decoder: Decoder,
        stream: MessageStream,
        *,
        positions: Mapping[int, Position],
        ending: StopCondition,
        skip_corrupt: bool,
        timeout_s: float,
    ) -> None:
        self.turn = FairLock()
        self._state = threading.RLock()
        self._connection = connection
        self._decoder = decoder
        self._stream = stream
        self._skip_corrupt = skip_corrupt
        self._ending = ending
        self._positions = dict(positions)
        self._told_ends = ending.ends()
        self._ends = self._bounded(self._told_ends)
        # Where fetching stands, which is ahead of the positions.
        self._next: dict[int, int] = {}
        self._open: set[int] = set()
        self._failure: SluicewayError | None = None
        # Whether the message that the chunk pauses before was raised.
        self._refused = False
        # Where reading stood before the records that a `read` under way has in hand.
        self._held_from: dict[int, Position] | None = None
        self._silence = IdleTimeout(connection.topic_name, timeout_s=timeout_s)
        self.chunk = CompletedFetch.nothing()
        self._records = 0
        self._skipped = 0
        self._restart()
        self._seen = (0, self.position())

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that are read, in order."""
        with self._state:
            return tuple(sorted(self._positions))

    @property
    def handed_out(self) -> int:
        """How many records have been handed out so far, those met again after a seek included."""
        with self._state:
            return self._records + self.chunk.handed_out

    @property
    def corrupt_messages(self) -> int:
        """How many messages were passed over so far, those met again after a seek included."""
        with self._state:
            return self._skipped + self.chunk.skipped_messages

    @property
    def finished(self) -> bool:
        """Whether everything before the ends has been handed out."""
        with self._state:
            return not self._open and not self._stopped and self.chunk.empty

    @property
    def bounded(self) -> bool:
        """Whether it is known where reading ends."""
        return self._ends is not None

    def records(self) -> Iterator[dict[str, Any]]:
        """Return an iterator over records that were fetched; what is taken is handed out."""
        with self._state:
            return self.chunk.records()

    def take(self, count: int) -> list[dict[str, Any]]:
        """Return up to `count` records that were fetched, for a `read` that may wait for more.

        They count as handed out once it returns, which `handed_over` tells.
        """
        with self._state:
            records = self.chunk.records()
            if self._held_from is None and operator.length_hint(records) < count:
                self._held_from = self._position()
            return list(itertools.islice(records, count))

    @property
    def lent(self) -> bool:
        """Whether a `read` that waits for more has records in hand."""
        return self._held_from is not None

    def handed_over(self) -> None:
        """Note that the caller of a `read` has its records now."""
        if self._held_from is not None:
            with self._state:
                self._held_from = None

    def batch(self) -> pa.RecordBatch | None:
        """Hand out a batch of what was fetched; None: another thread took the rest."""
        with self._state:
            self.chunk.take_back()
            return None if self.chunk.empty else self.chunk.batch()

    def hold_back(self) -> None:
        """Hand out nothing, until the thread that has the turn asks for records again."""
        with self._state:
            self.chunk.take_back()

    def glance(self) -> tuple[int, Mapping[int, Position]]:
        """Return how many records were handed out, and where that is; for any thread, at once.

        While records are converted, it is what was so a moment ago.
        """
        if self._state.acquire(blocking=False):
            try:
                self._seen = (self.handed_out, self.position())
            finally:
                self._state.release()
        return self._seen

    def position(self) -> dict[int, Position]:
        """Return the next record to hand out, for each partition.

        Records that a `read` has in hand and has not returned yet count as not handed out.
        """
        with self._state:
            return self._position() | (self._held_from or {})

    def seek(self, positions: Mapping[int, Position]) -> None:
        """Go on from these positions; the other partitions stay where they are."""
        with self.turn:
            with self._state:
                self.chunk.take_back()
                now = self._position()
                moved = {p: at for p, at in positions.items() if now.get(p) != at}
                passed = self.chunk.pass_failed(moved)
                if self._held_from is not None:
                    self._held_from |= positions
                if passed:
                    # What follows the message that failed is here already, and decoded.
                    self._positions |= moved
                    self._refused = False
                else:
                    self._drop(now | moved)
            if not passed:
                self._restart()

    def reassign(
        self, *, come: Mapping[int, Position] | None = None, gone: Collection[int] = ()
    ) -> None:
        """Read the partitions too that have come, from here, and those that have gone no more."""
        with self.turn:
            with self._state:
                self.chunk.take_back()
                places = self._position() | dict(come or {})
                self._drop({p: at for p, at in places.items() if p not in gone})
                held = self._held_from
                self._held_from = held and {p: at for p, at in held.items() if p not in gone}
                self._told_ends = self._ends = None
            try:
                told_ends = self._ending.ends()
                ends = self._bounded(told_ends)
                with self._state:
                    self._told_ends, self._ends = told_ends, ends
            finally:
                # Also where the ends cannot be had now: what was in hand has to come again.
                self._restart()

    def fetch(self, deadline_s: float, *, holding: bool) -> bool:
        """Return True once `chunk` has a record; False at the end or at the deadline.

        To be called with the turn. Also False when other threads want it: all of them, or, for a
        caller that is `holding` records which it has not handed out, those in a hurry.

        Raises KafkaFailure, CorruptMessage, SchemaMismatch and, for a schema that the gateway has
        to be asked for, GatewayError or EndpointClosed, when everything before them has been
        handed out; and what the ending raises.
        """
        while self.chunk.empty:
            self._follow_ends()
            self._raise_failure()
            if not self._open:
                return False
            self._take(deadline_s)
            over = time.monotonic() >= deadline_s or self.due_to_give_way(holding=holding)
            if over and self.chunk.empty:
                return False
        return True

    def due_to_give_way(self, *, holding: bool) -> bool:
        """Whether threads wait for the turn that this one should let go first."""
        return self.turn.wanted_urgently if holding else self.turn.wanted

    @property
    def _stopped(self) -> bool:
        """Whether what was fetched ends with an error."""
        return self._failure is not None or self.chunk.failed is not None

    def _raise_failure(self) -> None:
        """Raise what comes after everything that was handed out."""
        failed = self.chunk.failed
        if failed is not None and not self._refused:
            self._refused = True
            raise corrupt_error(self._connection.channel_name, *failed)
        if failed is not None:
            # Nobody went past it: it is asked for again, and may not be there any more.
            self._restart()
        elif self._failure is not None:
            failure = self._failure
            self._restart()
            raise failure

    def _position(self) -> dict[int, Position]:
        if not self.chunk.empty or self._stopped:
            self.chunk.settle(self._positions)
            return dict(self._positions)
        # Nothing is left before the place that fetching has reached.
        for partition, offset in self._next.items():
            if self._ends is not None:
                offset = min(offset, self._ends.get(partition, offset))
            if offset > self._positions[partition].offset:
                self._positions[partition] = Position(offset=offset)
        return dict(self._positions)

    def _follow_ends(self) -> None:
        """Take the ends as they are known now."""
        ends = self._ending.ends()
        if ends == self._told_ends:
            return
        before, partitions = self._ends, set(self._positions)
        bounds = self._bounded(ends)
        with self._state:
            # What lies past the ends as they were was fetched, and left out.
            self._position()
            self._told_ends, self._ends = ends, bounds
        if before is not None or self._positions.keys() != partitions:
            self._restart()
        elif ended := self._ended(self._next):
            failure = self._end(ended)
            with self._state:
                self._open -= ended
                self._failure = self._failure or failure

    def _bounded(self, ends: Mapping[int, int] | None) -> Mapping[int, int] | None:
        """Return an end for every partition, those included that the channel has got since."""
        if ends is None:
            return None
        if grown := ends.keys() - self._positions.keys():
            self._stream.meet_new_partitions()
            with self._state:
                self._positions |= {p: Position(offset=0) for p in grown}
        # A partition that nobody names holds nothing that is waited for.
        return {**dict.fromkeys(self._positions, 0), **ends}

    def _restart(self) -> None:
        """Fetch from the positions again."""
        with self._state:
            self.chunk.take_back()
            self._drop(self._position())
            self._open -= self._ended(self._next)
            places = {p: self._next[p] for p in self._open}
        self._stream.assign(places)
        self._silence.end()

    def _drop(self, positions: Mapping[int, Position]) -> None:
        """Have nothing in hand, and these positions."""
        self._replace(CompletedFetch.nothing())
        self._failure = None
        self._positions = dict(positions)
        self._next = {p: position.offset for p, position in positions.items()}
        self._open = set(self._next)

    def _replace(self, chunk: CompletedFetch) -> None:
        self.chunk.take_back()
        self._records += self.chunk.handed_out
        self._skipped += self.chunk.skipped_messages
        self.chunk = chunk
        self._refused = False

    def _ended(self, reached: Mapping[int, int]) -> set[int]:
        """Return the open partitions that are done when fetching has come so far."""
        ends = self._ends
        return set() if ends is None else {p for p in self._open if reached[p] >= ends[p]}

    def _take(self, deadline_s: float) -> None:
        # In slices, so that an interrupt of the process is served in between.
        wait_s = max(0.0, min(_SLICE_S, deadline_s - time.monotonic()))
        taken = self._stream.take(self._limit(), wait_s)
        try:
            self._accept(taken)
        except BaseException:
            # An interrupt, say, while the gateway is asked: nothing was handed out yet.
            self._restart()
            raise
        if taken.messages or taken.ends:
            self._silence.end()
        elif self._silence.probe(self._stream, awaited=self.bounded) and not self.bounded:
            self._ending.idle()

    def _accept(self, taken: Taken) -> None:
        """Decode what was taken, and note how far fetching has come."""
        last = {message.partition(): message for message in taken.messages}
        reached = {p: message.offset() + 1 for p, message in last.items()}
        for partition, offset in taken.ends.items():
            reached[partition] = max(offset, reached.get(partition, 0))
        messages = taken.messages
        ends = self._ends
        if ends is not None and any(reached[p] > ends[p] for p in last):
            messages = [each for each in messages if each.offset() < ends[each.partition()]]
        chunk: CompletedFetch | None = None
        failure: SluicewayError | None = None
        if messages:
            try:
                chunk = self._decoded(messages)
            except SluicewayError as error:
                failure = error
        following = self._next | reached
        if taken.refused is not None and failure is None:
            failure = self._refused_offset(taken.refused, following)
        ended = self._ended(following)
        if ended:
            failure = self._end(ended, failure)
        with self._state:
            # All that was in hand is handed out.
            self._position()
            if chunk is not None:
                self._replace(chunk)
            self._next = following
            self._open -= ended
            self._failure = failure

    def _limit(self) -> int:
        limit = _CHUNK_MESSAGES[self._connection.format]
        if self._ends is None:
            return limit
        # No more than there is, or the last call would wait for what never comes.
        return min(limit, sum(self._ends[p] - self._next[p] for p in self._open))

    def _decoded(self, messages: list[Message]) -> CompletedFetch:
        decoded = self._decoder.decode([message.value() for message in messages])
        return CompletedFetch(messages, decoded, self._positions, skip=self._skip_corrupt)

    def _end(
        self, partitions: set[int], failure: SluicewayError | None = None
    ) -> SluicewayError | None:
        """Fetch no more of these; return what is amiss, if it was the last."""
        self._stream.drop(partitions)
        if partitions == self._open and failure is None:
            try:
                self._stream.verify(max_age_s=_IDENTITY_MAX_AGE_S)
            except KafkaUnavailable:
                # Everything is here: that nobody answers any more changes nothing.
                return None
            except KafkaFailure as error:
                return error
        return failure

    def _refused_offset(
        self, partition: int, following: Mapping[int, int]
    ) -> SluicewayError | None:
        """Kafka does not have the offset that was to be fetched next, or an earlier one."""
        offset = following[partition]
        try:
            self._stream.verify()
            mark = self._stream.watermarks([partition])[partition]
        except KafkaFailure as error:
            return error
        if mark.begin <= offset <= mark.end:
            # Said of a place that was left since: a late word, but fetching stopped over it.
            self._stream.assign({p: following[p] for p in self._open})
            return None
        return OffsetOutOfRange(partition=partition, offset=offset, begin=mark.begin, end=mark.end)
