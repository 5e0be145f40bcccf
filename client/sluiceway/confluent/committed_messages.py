"""Committed messages of one exactly-once channel, in the form of librdkafka's consumer."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, Message

from sluiceway.concurrency import FairLock
from sluiceway.confluent.errors import AUTO_OFFSET_RESET, PARTITION_EOF, error_event, kafka_error
from sluiceway.errors import SluicewayError
from sluiceway.kafka.config import MaskedProperties
from sluiceway.kafka.consumer import FetchedMessages, open_stream
from sluiceway.ledger.committed_stream import CommittedStream
from sluiceway.ledger.visibility import Visibility
from sluiceway.rest.models import Connection

__all__ = ["CommittedMessages"]

_MAX_MESSAGES: Final = 1000
_TIMEOUT_S: Final = 30.0


class CommittedMessages:
    """Committed messages, in order, and events of one channel's assigned partitions.

    Errors are events, as in librdkafka, and skip no message. Requests for offsets raise
    SluicewayError. Thread-safe.
    """

    def __init__(
        self,
        connection: Connection,
        config: MaskedProperties,
        visibility: Visibility,
        *,
        reset: str,
        eof: bool,
    ) -> None:
        self._name = connection.channel_name
        self._visibility = visibility
        self._reset, self._eof = reset, eof
        stream = open_stream(connection, config, timeout_s=_TIMEOUT_S, grouped=False, shared=False)
        self._stream = CommittedStream(stream, visibility)
        self._lock = FairLock()
        self._buffer: list[Message] = []
        # By partition, the next offset to return; paused partitions are not in the stream.
        self._next: dict[int, int] = {}
        self._returned: set[int] = set()
        self._paused: set[int] = set()
        # By partition, the end that an event has reported.
        self._reported: dict[int, int] = {}
        # Whether the stream continues after the buffer. False after an exception in between.
        self._in_step = True
        self._closed = False

    @property
    def assigned(self) -> bool:
        """Whether any partition is assigned and not paused."""
        return bool(self._next.keys() - self._paused)

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions as well, from these offsets."""
        with self._lock, self._stream_change():
            self._move(offsets)

    def unassign(self, partitions: Collection[int]) -> None:
        """Stop reading partitions."""
        with self._lock, self._stream_change():
            self._drop(partitions)
            self._paused.difference_update(partitions)
            for partition in partitions:
                self._next.pop(partition, None)
                self._reported.pop(partition, None)
            self._returned.difference_update(partitions)

    def seek(self, partition: int, offset: int) -> None:
        """Continue a partition at an offset."""
        with self._lock, self._stream_change():
            self._drop([partition])
            self._returned.discard(partition)
            self._reported.pop(partition, None)
            self._move({partition: offset})

    def pause(self, partitions: Collection[int]) -> None:
        """Return no messages of these partitions until `resume`."""
        with self._lock, self._stream_change():
            self._drop(partitions)
            self._paused.update(partitions)

    def resume(self, partitions: Collection[int]) -> None:
        """Return messages of these partitions again."""
        with self._lock, self._stream_change():
            resumed = {p: self._next[p] for p in partitions if p in self._paused}
            self._paused.difference_update(resumed)
            self._move(resumed)

    def poll(self, timeout_s: float) -> Message | None:
        """Return a message or an event, or None after `timeout_s`."""
        found = self.consume(1, timeout_s)
        return found[0] if found else None

    def consume(self, limit: int, timeout_s: float) -> list[Message]:
        """Return up to `limit` messages and events as soon as there are some."""
        with self._lock:
            if self._closed:
                return []
            if not self._buffer and limit:
                self._fetch(timeout_s)
            messages = self._buffer[:limit]
            after = {m.partition(): m.offset() + 1 for m in messages if m.error() is None}
            # In this order, and each at once: after an interrupt, the caller seeks to what it has
            # returned, if that is less than `consumed`.
            self._returned.update(after)
            self._next |= after
            del self._buffer[:limit]
            return messages

    def consumed(self, partition: int) -> int | None:
        """Return the offset after the last returned message, or None."""
        return self._next.get(partition) if partition in self._returned else None

    def watermarks(self, partition: int) -> tuple[int, int]:
        """Return the first offset of a partition, and the end of its readable messages."""
        found = self._stream.watermarks([partition])[partition]
        return found.begin, found.end

    def offset_at(self, time_ms: int, partition: int) -> int:
        """Return the first offset not older than a time, or OFFSET_END."""
        found = self._stream.offsets_at(time_ms, [partition])[partition]
        return found if found < self._visibility.runs.stable_of(partition) else OFFSET_END

    def resolve(self, offsets: Mapping[int, int]) -> dict[int, int]:
        """Return offsets as numbers, with the current OFFSET_BEGINNING and OFFSET_END."""
        found = dict(offsets)
        found |= self._stream.begins([p for p, at in offsets.items() if at == OFFSET_BEGINNING])
        ends = [p for p, at in offsets.items() if at == OFFSET_END]
        return found | (self._stream.ends(ends) if ends else {})

    def discover_partitions(self) -> int:
        """Return the current number of partitions."""
        with self._lock:
            return self._stream.discover_partitions()

    def close(self) -> None:
        """Disconnect from Kafka. May be repeated."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._buffer.clear()
                self._stream.close()

    def _move(self, offsets: Mapping[int, int]) -> None:
        """Read partitions from offsets that are not in the stream."""
        self._next |= offsets
        read = {p: at for p, at in offsets.items() if p not in self._paused}
        if read:
            self._stream.add(read)
        self._report_ends(read)

    def _drop(self, partitions: Collection[int]) -> None:
        self._stream.drop(list(partitions))
        if self._buffer:
            self._buffer = [m for m in self._buffer if m.partition() not in partitions]

    @contextmanager
    def _stream_change(self) -> Iterator[None]:
        """Change the stream and other fields. After an exception, the next change assigns anew."""
        if not self._in_step:
            # From the next offsets to return, which are before the buffer.
            self._buffer.clear()
            self._reported.clear()
            self._stream.assign({p: at for p, at in self._next.items() if p not in self._paused})
        self._in_step = False
        yield
        self._in_step = True

    def _fetch(self, timeout_s: float) -> None:
        """Fill the buffer, with an event for an error."""
        if not self._next:
            return
        try:
            with self._stream_change():
                self._take(self._stream.poll(_MAX_MESSAGES, timeout_s))
        except SluicewayError as error:
            self._buffer.append(error_event(self._name, kafka_error(error)))

    def _take(self, polled: FetchedMessages) -> None:
        self._buffer.extend(polled.messages)
        self._report_ends(polled.next)
        if polled.out_of_range:
            self._continue(polled.out_of_range)

    def _continue(self, partitions: Collection[int]) -> None:
        """Continue partitions that Kafka has refused, by the policy if they are out of range."""
        marks = self._stream.watermarks(partitions)
        # Others had an earlier offset then. librdkafka has stopped fetching them as well.
        starts = {p: self._next[p] for p in partitions}
        gone = [p for p, at in starts.items() if not marks[p].begin <= at <= marks[p].end]
        if self._reset == "error":
            for partition in gone:
                at = starts.pop(partition)
                reason = f"the offset {at} is out of range, and auto.offset.reset is error"
                error = KafkaError(AUTO_OFFSET_RESET, reason)
                self._buffer.append(error_event(self._name, error, partition=partition))
        else:
            place = OFFSET_BEGINNING if self._reset == "earliest" else OFFSET_END
            starts |= self.resolve(dict.fromkeys(gone, place))
        self._drop(starts)
        self._move(starts)

    def _report_ends(self, reached: Mapping[int, int]) -> None:
        """Add an event for each partition that has reached the end of its readable messages."""
        if not self._eof:
            return
        for partition, offset in reached.items():
            end = self._visibility.runs.stable_of(partition)
            if offset >= end and self._reported.get(partition) != offset:
                self._reported[partition] = offset
                error = KafkaError(PARTITION_EOF)
                self._buffer.append(
                    error_event(self._name, error, partition=partition, offset=offset)
                )
