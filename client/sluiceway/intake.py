"""What a reader has in hand: the messages fetched last, and where each partition stands."""

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from confluent_kafka import Message

from sluiceway.chunk import Chunk
from sluiceway.codecs import Decoder
from sluiceway.decoding import refusal
from sluiceway.ending import Ending
from sluiceway.errors import (
    KafkaFailure,
    KafkaUnavailable,
    OffsetOutOfRange,
    SluicewayError,
)
from sluiceway.kafka.stream import MessageStream
from sluiceway.position import Position
from sluiceway.protocol import Connection
from sluiceway.silence import Silence

__all__ = ["Intake"]

_CHUNK_MESSAGES = {"avro": 8192, "arrow": 32, "bytes": 8192}
"""What lies ready is taken at once, up to so many; `arrow` messages hold many records each."""
_SLICE_S = 0.25
_IDENTITY_MAX_AGE_S = 5.0


class Intake:
    """Fetches chunk after chunk, up to the ends, and keeps the positions.

    A position moves only when records are handed out, or when it is certain that none lie
    between it and its new place.
    """

    def __init__(
        self,
        connection: Connection,
        decoder: Decoder,
        stream: MessageStream,
        *,
        positions: Mapping[int, Position],
        ending: Ending,
        skip_corrupt: bool,
        timeout_s: float,
    ) -> None:
        self.corrupt_messages = 0
        # Positions are found out in the thread of the beats, too; in between it is the reader's.
        self._turn = threading.RLock()
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
        self._silence = Silence(connection.topic_name, timeout_s=timeout_s)
        self.chunk = Chunk.nothing()
        self._records = 0
        self._restart()
        self._seen = (0, self.position())

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that are read, in order."""
        return tuple(sorted(self._positions))

    @property
    def handed_out(self) -> int:
        """How many records have been handed out so far, those met again after a seek included."""
        return self._records + self.chunk.handed_out

    @property
    def finished(self) -> bool:
        """Whether everything before the ends has been handed out."""
        return not self._open and self._failure is None and self.chunk.empty

    @property
    def bounded(self) -> bool:
        """Whether it is known where reading ends."""
        return self._ends is not None

    def records(self) -> Iterator[dict[str, Any]]:
        """Return an iterator over records that were fetched; what is taken is handed out."""
        with self._turn:
            return self.chunk.records()

    def batch(self) -> pa.RecordBatch:
        """Hand out a batch of what was fetched."""
        with self._turn:
            return self.chunk.batch()

    def glance(self) -> tuple[int, Mapping[int, Position]]:
        """Return how many records were handed out, and where that is; for any thread, at once.

        While records are waited for, it is what was so a moment ago.
        """
        if self._turn.acquire(blocking=False):
            try:
                self._seen = (self.handed_out, self.position())
            finally:
                self._turn.release()
        return self._seen

    def position(self) -> dict[int, Position]:
        """Return the next record to hand out, for each partition."""
        with self._turn:
            return self._position()

    def seek(self, positions: Mapping[int, Position]) -> None:
        """Go on from these positions; the other partitions stay where they are."""
        with self._turn:
            self._positions = self.position() | dict(positions)
            self._failure = None
            self._restart()

    def reassign(self, positions: Mapping[int, Position]) -> None:
        """Read these partitions, from here, and no others."""
        with self._turn:
            self._positions = dict(positions)
            self._told_ends = self._ending.ends()
            self._ends = self._bounded(self._told_ends)
            self._failure = None
            self._restart()

    def fetch(self, deadline_s: float) -> bool:
        """Return True once `chunk` has a record; False at the end or at the deadline.

        Raises KafkaFailure, CorruptMessage, SchemaMismatch and, for a schema that the gateway has
        to be asked for, GatewayError or EndpointClosed, when everything before them has been
        handed out; and what the ending raises.
        """
        with self._turn:
            while self.chunk.empty:
                self._seen = (self.handed_out, self.position())
                self._follow_ends()
                if self._failure is not None:
                    failure, self._failure = self._failure, None
                    self._restart()
                    raise failure
                if not self._open:
                    return False
                self._take(deadline_s)
                if self.chunk.empty and time.monotonic() >= deadline_s:
                    return False
            return True

    def _position(self) -> dict[int, Position]:
        if not self.chunk.empty or self._failure is not None:
            self.chunk.settle(self._positions)
            return dict(self._positions)
        # Nothing is left before the place that fetching has reached.
        for partition, offset in self._next.items():
            if self._ends is not None:
                offset = min(offset, self._ends[partition])
            if offset > self._positions[partition].offset:
                self._positions[partition] = Position(offset=offset)
        return dict(self._positions)

    def _follow_ends(self) -> None:
        """Take the ends as they are known now."""
        ends = self._ending.ends()
        if ends == self._told_ends:
            return
        before, partitions = self._ends, set(self._positions)
        self._told_ends, self._ends = ends, self._bounded(ends)
        if before is not None or self._positions.keys() != partitions:
            self._restart()
        elif ended := self._open & self._ended():
            self._end(ended)

    def _bounded(self, ends: Mapping[int, int] | None) -> Mapping[int, int] | None:
        """Return an end for every partition, those included that the channel has got since."""
        if ends is None:
            return None
        if grown := ends.keys() - self._positions.keys():
            self._stream.meet_new_partitions()
            self._positions |= {p: Position(offset=0) for p in grown}
        # A partition that nobody names holds nothing that is waited for.
        return {**dict.fromkeys(self._positions, 0), **ends}

    def _restart(self) -> None:
        """Fetch from the positions again."""
        self._records += self.chunk.handed_out
        self.chunk.abandon()
        self.chunk = Chunk.nothing()
        self._next = {p: position.offset for p, position in self._positions.items()}
        self._open = set(self._next) - self._ended()
        self._stream.assign({p: self._next[p] for p in self._open})
        self._silence.end()

    def _ended(self) -> set[int]:
        if self._ends is None:
            return set()
        return {p for p, offset in self._next.items() if offset >= self._ends[p]}

    def _take(self, deadline_s: float) -> None:
        # In slices, so that an interrupt of the process is served in between.
        wait_s = max(0.0, min(_SLICE_S, deadline_s - time.monotonic()))
        taken = self._stream.take(self._limit(), wait_s)
        if taken.messages or taken.ends:
            self._silence.end()
        elif self._silence.probe(self._stream, awaited=self.bounded) and not self.bounded:
            self._ending.idle()
        last = {message.partition(): message for message in taken.messages}
        reached = {p: message.offset() + 1 for p, message in last.items()}
        for partition, offset in taken.ends.items():
            reached[partition] = max(offset, reached.get(partition, 0))
        self._next |= reached
        messages = taken.messages
        ends = self._ends
        if ends is not None and any(reached[p] > ends[p] for p in last):
            messages = [each for each in messages if each.offset() < ends[each.partition()]]
        if messages:
            self._decode(messages)
        if taken.refused is not None and self._failure is None:
            self._refuse(taken.refused)
        if ended := self._open & self._ended():
            self._end(ended)

    def _limit(self) -> int:
        limit = _CHUNK_MESSAGES[self._connection.format]
        if self._ends is None:
            return limit
        # No more than there is, or the last call would wait for what never comes.
        return min(limit, sum(self._ends[p] - self._next[p] for p in self._open))

    def _decode(self, messages: list[Message]) -> None:
        try:
            decoded = self._decoder.decode([message.value() for message in messages])
            chunk = Chunk(messages, decoded, self._positions, skip=self._skip_corrupt)
        except SluicewayError as error:
            self._failure = error
            return
        except BaseException:
            # An interrupt, say, while the gateway is asked: nothing was handed out yet.
            self._restart()
            raise
        self._records += self.chunk.handed_out
        self.chunk = chunk
        self.corrupt_messages += chunk.skipped_messages
        if chunk.failed is None or chunk.failed_message is None:
            return
        self._failure = refusal(self._connection.channel_name, chunk.failed_message, chunk.failed)

    def _end(self, partitions: set[int]) -> None:
        self._open -= partitions
        self._stream.drop(partitions)
        if not self._open and self._failure is None:
            try:
                self._stream.verify(max_age_s=_IDENTITY_MAX_AGE_S)
            except KafkaUnavailable:
                # Everything is here: that nobody answers any more changes nothing.
                return
            except KafkaFailure as error:
                self._failure = error

    def _refuse(self, partition: int) -> None:
        """Kafka does not have the offset that was to be fetched next, or an earlier one."""
        offset = self._next[partition]
        try:
            self._stream.verify()
            mark = self._stream.watermarks([partition])[partition]
        except KafkaFailure as error:
            self._failure = error
            return
        if mark.begin <= offset <= mark.end:
            # Said of a place that was left since: a late word, but fetching stopped over it.
            self._stream.assign({p: self._next[p] for p in self._open})
            return
        self._failure = OffsetOutOfRange(
            partition=partition, offset=offset, begin=mark.begin, end=mark.end
        )
