"""Sources of fetched messages: partitions of a channel with their buffers."""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluiceway.api.models import Connection
from sluiceway.broker.exceptions import (
    OffsetOutOfRangeError,
    ProtocolClientError,
    UnknownError,
    topic_refusal,
)
from sluiceway.errors import RecordsLost, SluicewayError
from sluiceway.kafka.consumer import PartitionStream, open_stream
from sluiceway.kafka.io_thread import SHARED_CONSUMERS
from sluiceway.ledger.committed_stream import CommittedStream
from sluiceway.ledger.visibility import Visibility

__all__ = ["FetchedPartition", "Source", "open_source"]

_MAX_MESSAGES = 1000
"""The most messages taken from librdkafka at once."""
_MAX_BUFFER_BYTES = 16 << 20
"""A partition with a larger buffer is dropped when other partitions are requested."""
_SLICE_S = 0.25
_LEAST_TIMEOUT_S = 1.0


@dataclass(eq=False)
class FetchedPartition:
    """A fetched partition, with the messages that no request has taken yet."""

    number: int
    start: int
    """The first offset to buffer."""
    next: int
    """The offset after the buffered messages."""
    messages: deque[tuple[int, int, Any]] = field(default_factory=deque)
    """Offset, size and message."""
    size: int = 0
    at_end: bool = False
    refusal: ProtocolClientError | None = None

    @property
    def answered(self) -> bool:
        """Whether Kafka has answered: with messages, the end, or an error."""
        return bool(self.messages) or self.at_end or self.refusal is not None

    def add(self, message: Any) -> None:
        """Buffer a message."""
        size = len(message.value() or b"") + len(message.key() or b"")
        offset = message.offset()
        self.messages.append((offset, size, message))
        self.size += size
        self.next = offset + 1
        self.at_end = False

    def skip_to(self, offset: int) -> None:
        """Drop the messages before an offset."""
        self.start = offset
        while self.messages and self.messages[0][0] < offset:
            self.size -= self.messages.popleft()[1]

    def take(self, max_bytes: int) -> list[Any]:
        """Take messages of up to `max_bytes`, and at least one if there is one."""
        taken: list[Any] = []
        left = max_bytes
        while self.messages and (not taken or self.messages[0][1] <= left):
            offset, size, message = self.messages[0]
            # First: after an interrupt, a request for this offset fetches it again.
            self.start = offset + 1
            self.messages.popleft()
            self.size -= size
            left -= size
            taken.append(message)
        return taken


class Source:
    """Partitions of one channel that are fetched together. Not thread-safe.

    Those of an exactly-once channel have a `visibility`, and end at its committed messages.
    """

    def __init__(self, stream: PartitionStream, visibility: Visibility | None) -> None:
        self._stream = stream
        self._visibility = visibility
        self._partitions: dict[int, FetchedPartition] = {}
        # Whether the stream has the partitions, and continues after their buffers. False after an
        # exception in between; the next `assign` then begins with none.
        self._in_step = True

    def assign(self, offsets: Mapping[int, int]) -> Mapping[int, FetchedPartition]:
        """Fetch these partitions from these offsets; return their buffers.

        If all committed messages were taken, requests new commits. Partitions without such an
        offset, and all if the gateway refuses that request, are refused. Raises SluicewayError.
        """
        refusal = self._refresh(offsets)
        if not self._in_step:
            self._stream.assign({})
            self._partitions = {}
        self._in_step = False
        buffers: dict[int, FetchedPartition] = {}
        moved: dict[int, FetchedPartition] = {}
        for number, offset in offsets.items():
            buffer = self._partitions.get(number)
            if buffer and buffer.start <= offset <= buffer.next:
                buffer.skip_to(offset)
            else:
                buffer = moved[number] = FetchedPartition(number, offset, offset)
            buffer.refusal = buffer.refusal or refusal
            buffers[number] = buffer
        self._drop(moved)
        if moved:
            self._stream.add({number: buffer.next for number, buffer in moved.items()})
            self._partitions |= moved
        self._update_ends(buffers.values())
        self._in_step = True
        return buffers

    def drop(self, numbers: Collection[int]) -> None:
        """Stop fetching partitions, and forget their messages."""
        if self._in_step:
            self._in_step = False
            self._drop(numbers)
            self._in_step = True

    def drop_large(self, requested: Collection[int]) -> None:
        """Drop the partitions with large buffers that are not requested."""
        idle = self._partitions.keys() - set(requested)
        large = [n for n in idle if self._partitions[n].size > _MAX_BUFFER_BYTES]
        if large:
            self.drop(large)

    def poll(self, timeout_s: float) -> bool:
        """Buffer the messages of any partition that arrive in time; return whether some did."""
        self._in_step = False
        try:
            polled = self._stream.poll(_MAX_MESSAGES, min(_SLICE_S, max(0.0, timeout_s)))
            for message in polled.items:
                self._partitions[message.partition()].add(message)
            for number, offset in polled.next.items():
                self._partitions[number].next = offset
                self._partitions[number].at_end = number in polled.at_end
            for number in polled.out_of_range:
                self._check_range(self._partitions[number])
            arrived = bool(polled.next or polled.out_of_range)
        except SluicewayError as error:
            lost = isinstance(error, RecordsLost)
            refusal = UnknownError(str(error)) if lost else topic_refusal(error)
            for partition in self._partitions.values():
                partition.refusal = refusal
            arrived = True
        self._update_ends(self._partitions.values())
        self._in_step = True
        return arrived

    def high_watermark(self, partition: FetchedPartition) -> int:
        """Return the last known end of a partition; -1 if unknown."""
        return self._stream.known_end(partition.number)

    def close(self) -> None:
        """Disconnect from Kafka."""
        self._stream.close()

    def _refresh(self, offsets: Mapping[int, int]) -> ProtocolClientError | None:
        """Request new commits if all known ones were taken; return the gateway's refusal."""
        visibility = self._visibility
        if visibility is None or all(
            offset < visibility.runs.stable_of(number) for number, offset in offsets.items()
        ):
            return None
        try:
            visibility.refresh()
        except SluicewayError as error:
            return topic_refusal(error)
        return None

    def _update_ends(self, partitions: Iterable[FetchedPartition]) -> None:
        """Compare the partitions of an exactly-once channel with the end of its commits."""
        if self._visibility is None:
            return
        for partition in partitions:
            stable = self._visibility.runs.stable_of(partition.number)
            partition.at_end = partition.next >= stable
            if partition.next > stable and partition.refusal is None:
                begin = self._stream.begins([partition.number])[partition.number]
                partition.refusal = _out_of_range(partition.next, begin, stable)

    def _check_range(self, partition: FetchedPartition) -> None:
        """Refuse the partition if its next offset is out of range."""
        marks = self._stream.watermarks([partition.number])[partition.number]
        if marks.begin <= partition.next <= marks.end:
            # A stale error for an earlier offset. librdkafka has stopped fetching, so assign the
            # partition again.
            self._stream.drop([partition.number])
            self._stream.add({partition.number: partition.next})
            return
        partition.refusal = _out_of_range(partition.next, marks.begin, marks.end)

    def _drop(self, numbers: Iterable[int]) -> None:
        dropped = [n for n in numbers if self._partitions.pop(n, None) is not None]
        if dropped:
            self._stream.drop(dropped)


def open_source(
    connection: Connection, visibility: Visibility | None, *, timeout_s: float
) -> Source:
    """Connect to a channel's topic; an exactly-once one has a `visibility`."""
    timeout_s = max(_LEAST_TIMEOUT_S, timeout_s)
    stream = open_stream(
        connection,
        None,
        timeout_s=timeout_s,
        consumers=SHARED_CONSUMERS,
        whole_messages=True,
    )
    if visibility is None:
        return Source(stream, None)
    return Source(CommittedStream(stream, visibility), visibility)


def _out_of_range(offset: int, begin: int, end: int) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        f"the partition has no offset {offset}: its range is {begin} to {end}"
    )
