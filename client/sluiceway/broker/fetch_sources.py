"""Sources of fetched messages: partitions with their buffers, from a Kafka consumer."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from sluiceway.broker.exceptions import (
    OffsetOutOfRangeError,
    ProtocolClientError,
    UnknownError,
    partition_refusal,
    topic_refusal,
)
from sluiceway.concurrency import ForkGuard
from sluiceway.errors import RecordsLost, SluicewayError
from sluiceway.kafka.config import MaskedProperties
from sluiceway.kafka.consumer import GATHER_S
from sluiceway.kafka.errors import (
    create_client,
    is_unavailable,
    run_callbacks,
    with_retries,
)
from sluiceway.kafka.shared_stream import open_stream
from sluiceway.ledger.committed_stream import CommittedStream
from sluiceway.ledger.visibility import Visibility
from sluiceway.records.to_python import gc_paused
from sluiceway.rest.models import Connection

__all__ = ["CommittedSource", "FetchedPartition", "KafkaSource", "Source"]

_MAX_MESSAGES = 1000
"""The most messages taken from librdkafka at once."""
_MAX_BUFFER_BYTES = 16 << 20
"""A partition with a larger buffer is dropped when other partitions are requested."""
_WATERMARKS_TIMEOUT_S = 10.0
_SLICE_S = 0.25
_LEAST_TIMEOUT_S = 1.0


@dataclass(eq=False)
class FetchedPartition:
    """A fetched partition, with the messages that no request has taken yet."""

    connection: Connection
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
    def place(self) -> TopicPartition:
        """The next offset to fetch, in confluent-kafka's class."""
        return TopicPartition(self.connection.topic_name, self.number, self.next)

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
        found: list[Any] = []
        left = max_bytes
        while self.messages and (not found or self.messages[0][1] <= left):
            offset, size, message = self.messages[0]
            # First: after an interrupt, a request for this offset fetches it again.
            self.start = offset + 1
            self.messages.popleft()
            self.size -= size
            left -= size
            found.append(message)
        return found


class Source(ABC):
    """Partitions that are fetched together. Not thread-safe."""

    def __init__(self) -> None:
        self._partitions: dict[tuple[str, int], FetchedPartition] = {}
        # Whether the consumer has the partitions, and continues after their buffers. False after an
        # exception in between; the next `assign` then begins with none.
        self._in_step = True

    def assign(
        self, offsets: Mapping[tuple[str, int], tuple[Connection, int]]
    ) -> Mapping[tuple[str, int], FetchedPartition]:
        """Fetch these partitions from these offsets; return their buffers."""
        if not self._in_step:
            self._unassign_all()
            self._partitions = {}
        self._in_step = False
        buffers: dict[tuple[str, int], FetchedPartition] = {}
        moved: dict[tuple[str, int], FetchedPartition] = {}
        for key, (connection, offset) in offsets.items():
            buffer = self._partitions.get(key)
            same = buffer and buffer.connection == connection
            if buffer and same and buffer.start <= offset <= buffer.next:
                buffer.skip_to(offset)
            else:
                buffer = moved[key] = FetchedPartition(connection, key[1], offset, offset)
            buffers[key] = buffer
        idle = [
            key
            for key, partition in self._partitions.items()
            if key not in offsets and partition.size > _MAX_BUFFER_BYTES
        ]
        self._drop([*moved, *idle])
        if moved:
            self._assign(moved)
            self._partitions |= moved
        self._in_step = True
        return buffers

    def drop(self, keys: Collection[tuple[str, int]]) -> None:
        """Stop fetching partitions, and forget their messages."""
        if self._in_step:
            self._in_step = False
            self._drop(keys)
            self._in_step = True

    def poll(self, timeout_s: float) -> bool:
        """Buffer the messages of any partition that arrive in time; return whether some did."""
        self._in_step = False
        arrived = self._poll(min(_SLICE_S, max(0.0, timeout_s)))
        self._in_step = True
        return arrived

    def _drop(self, keys: Iterable[tuple[str, int]]) -> None:
        if dropped := [key for key in keys if self._partitions.pop(key, None) is not None]:
            self._unassign(dropped)

    @abstractmethod
    def _poll(self, wait_s: float) -> bool:
        """Buffer messages that arrive in time; return whether some did."""

    @abstractmethod
    def high_watermark(self, partition: FetchedPartition) -> int:
        """Return the last known end of a partition; -1 if unknown."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect from Kafka."""

    @abstractmethod
    def _assign(self, partitions: Mapping[tuple[str, int], FetchedPartition]) -> None:
        """Let the consumer fetch partitions that it does not have."""

    @abstractmethod
    def _unassign(self, keys: Sequence[tuple[str, int]]) -> None:
        """Let the consumer stop fetching partitions that it has."""

    @abstractmethod
    def _unassign_all(self) -> None:
        """Let the consumer stop fetching."""


class KafkaSource(Source):
    """A Kafka consumer for partitions with the same connection properties."""

    def __init__(self, properties: MaskedProperties) -> None:
        super().__init__()
        self._guard = ForkGuard()
        self._consumer = create_client(Consumer, properties)

    def _poll(self, wait_s: float) -> bool:
        """Buffer messages that arrive in time; return whether some did."""
        got = run_callbacks(self._consumer.consume, 1, wait_s)
        if got:
            with gc_paused():
                got += run_callbacks(self._consumer.consume, _MAX_MESSAGES, GATHER_S)
        for message in got:
            partition = self._partitions.get((message.topic(), message.partition()))
            if partition is None:
                continue
            if message.error() is None:
                partition.add(message)
            else:
                self._take_error(partition, message.error(), message.offset())
        return bool(got)

    def high_watermark(self, partition: FetchedPartition) -> int:
        """Return the end of a partition by the last fetch; -1 before the first."""
        _low, high = self._consumer.get_watermark_offsets(partition.place, cached=True)
        return int(high) if high >= 0 else -1

    def close(self) -> None:
        """Close the consumer."""
        # A forked process lacks librdkafka's threads, so closing would wait forever.
        if not self._guard.forked:
            self._consumer.close()

    def _assign(self, partitions: Mapping[tuple[str, int], FetchedPartition]) -> None:
        self._consumer.incremental_assign([partition.place for partition in partitions.values()])

    def _unassign(self, keys: Sequence[tuple[str, int]]) -> None:
        self._consumer.incremental_unassign([TopicPartition(*key) for key in keys])

    def _unassign_all(self) -> None:
        if assigned := self._consumer.assignment():
            self._consumer.incremental_unassign(assigned)

    def _take_error(self, partition: FetchedPartition, error: KafkaError, offset: int) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            partition.at_end = offset >= partition.next
            partition.next = max(partition.next, offset)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._check_range(partition)
        elif not is_unavailable(error):
            partition.refusal = partition_refusal(error, "fetching")

    def _check_range(self, partition: FetchedPartition) -> None:
        """Refuse the partition if its next offset is out of range."""
        place = partition.place
        low, high = with_retries(
            lambda left_s: self._consumer.get_watermark_offsets(place, timeout=left_s),
            timeout_s=_WATERMARKS_TIMEOUT_S,
        )
        if low <= partition.next <= high:
            # A stale error for an earlier offset. librdkafka has stopped fetching, so assign the
            # partition again.
            self._consumer.incremental_unassign([place])
            self._consumer.incremental_assign([place])
            return
        partition.refusal = out_of_range(partition.next, low, high)


class CommittedSource(Source):
    """The committed messages of one exactly-once channel."""

    def __init__(self, connection: Connection, visibility: Visibility, *, timeout_s: float) -> None:
        super().__init__()
        self._visibility = visibility
        timeout_s = max(_LEAST_TIMEOUT_S, timeout_s)
        stream = open_stream(connection, None, timeout_s=timeout_s, grouped=False, shared=False)
        self._stream = CommittedStream(stream, visibility)

    def assign(
        self, offsets: Mapping[tuple[str, int], tuple[Connection, int]]
    ) -> Mapping[tuple[str, int], FetchedPartition]:
        """Fetch these partitions from these offsets; return their buffers.

        Requests new commits if all committed messages were taken; if the gateway refuses that,
        refuses the partitions. Raises SocketDisconnectedError.
        """
        stable_of = self._visibility.runs.stable_of
        refusal = None
        if any(offset >= stable_of(key[1]) for key, (_, offset) in offsets.items()):
            try:
                self._visibility.refresh()
            except SluicewayError as error:
                refusal = topic_refusal(error)
        found = super().assign(offsets)
        for each in found.values():
            if refusal is not None:
                each.refusal = refusal
            elif each.next > stable_of(each.number):
                begin = self._stream.begins([each.number])[each.number]
                each.refusal = out_of_range(each.next, begin, stable_of(each.number))
        self._update_ends()
        return found

    def _poll(self, wait_s: float) -> bool:
        """Buffer committed messages that arrive in time; return whether some did."""
        partitions = {key[1]: each for key, each in self._partitions.items()}
        try:
            polled = self._stream.poll(_MAX_MESSAGES, wait_s)
        except SluicewayError as error:
            lost = isinstance(error, RecordsLost)
            refusal = UnknownError(str(error)) if lost else topic_refusal(error)
            for each in partitions.values():
                each.refusal = refusal
            return True
        for message in polled.messages:
            partitions[message.partition()].add(message)
        for number, end in polled.ends.items():
            partitions[number].next = max(end, partitions[number].next)
        for number in polled.out_of_range:
            partition = partitions[number]
            begin = self._stream.begins([partition.number])[partition.number]
            end = max(begin, self.high_watermark(partition))
            partition.refusal = out_of_range(partition.next, begin, end)
        self._update_ends()
        return bool(polled.messages)

    def high_watermark(self, partition: FetchedPartition) -> int:
        """Return the end of the readable committed messages."""
        return self._visibility.runs.stable_of(partition.number)

    def close(self) -> None:
        """Close the consumer."""
        self._stream.close()

    def _assign(self, partitions: Mapping[tuple[str, int], FetchedPartition]) -> None:
        self._stream.add({key[1]: partition.next for key, partition in partitions.items()})

    def _unassign(self, keys: Sequence[tuple[str, int]]) -> None:
        self._stream.drop([number for _, number in keys])

    def _unassign_all(self) -> None:
        self._stream.assign({})

    def _update_ends(self) -> None:
        for each in self._partitions.values():
            each.at_end = each.next >= self._visibility.runs.stable_of(each.number)


def out_of_range(offset: int, begin: int, end: int) -> OffsetOutOfRangeError:
    """Return the refusal of an offset."""
    return OffsetOutOfRangeError(
        f"the partition has no offset {offset}: its range is {begin} to {end}"
    )
