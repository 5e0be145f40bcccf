"""Shared consumer: one Kafka consumer for many readers of a process."""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from sluiceway.kafka.config import MaskedProperties
from sluiceway.kafka.consumer import GATHER_S
from sluiceway.kafka.errors import create_client, is_gone, is_unavailable, run_callbacks
from sluiceway.records.to_python import gc_paused
from sluiceway.runtime.threads import Signal

__all__ = ["SharedConsumer", "SharedPartitionBuffer"]

_MESSAGE_BYTES = 300
"""The memory of a message in Python in addition to its value."""
_MIN_POLL_MESSAGES = 1024
"""The least number of messages to poll, because most may be for other readers."""
_BUFFER_BYTES = 1024 * 1024
_TOTAL_BYTES = 64 * 1024 * 1024
_OF_A_PARTITION = frozenset({KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET})
_T = TypeVar("_T")


@dataclass
class _Run:
    """Consecutive messages and events of one partition, and their size in bytes."""

    partition: int
    items: list[Message]
    size: int


class SharedPartitionBuffer:
    """One reader's messages in a SharedConsumer, whose lock guards it.

    `next` has the offset after the last buffered message, for each assigned partition. `size` is
    in bytes. `paused`: the reader is too slow, so nothing is fetched for it.
    """

    def __init__(self, topic: str, topic_id: str | None, partitions: int) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partitions = partitions
        self.next: dict[int, int] = {}
        self.size = 0
        self.paused = False
        self.failures: deque[KafkaError] = deque(maxlen=1)
        self._runs: deque[_Run] = deque()

    @property
    def empty(self) -> bool:
        """Whether there are neither messages nor failures."""
        return not self._runs and not self.failures

    def put(self, partition: int, items: list[Message]) -> None:
        """Append messages and events of a partition."""
        run = _Run(partition=partition, items=items, size=_size(items))
        self._runs.append(run)
        self.next[partition] = max(self.next[partition], _after(items))
        self.size += run.size

    def pop(self, limit: int) -> list[Message]:
        """Remove and return up to `limit` messages and events, in their order."""
        popped: list[Message] = []
        while self._runs and len(popped) < limit:
            run, left = self._runs[0], limit - len(popped)
            if len(run.items) <= left:
                self._runs.popleft()
                self.size -= run.size
                popped += run.items
            else:
                piece, run.items = run.items[:left], run.items[left:]
                size = _size(piece)
                run.size -= size
                self.size -= size
                popped += piece
        return popped

    def keep(self, partitions: Collection[int]) -> None:
        """Drop the messages of all other partitions."""
        self._runs = deque(run for run in self._runs if run.partition in partitions)
        self.size = sum(run.size for run in self._runs)

    def repair(self) -> None:
        """Compute `next` and `size` from the messages, after `put` was interrupted."""
        self.keep(self.next)
        for run in self._runs:
            self.next[run.partition] = max(self.next[run.partition], _after(run.items))


def _size(items: list[Message]) -> int:
    return sum(map(len, items)) + _MESSAGE_BYTES * len(items)


def _after(items: list[Message]) -> int:
    """Return the offset after these messages; 0 if none of them has one."""
    for item in reversed(items):
        error = item.error()
        if error is None:
            return int(item.offset() or 0) + 1
        if error.code() == KafkaError._PARTITION_EOF:
            return int(item.offset() or 0)
    return 0


class SharedConsumer:
    """A consumer with one buffer per reader.

    Leader/follower, without a thread of its own: one waiting reader polls for all, fills their
    buffers, and passes the role to another. While all buffers together exceed 64 MB, a reader
    whose buffer exceeds 1 MB is paused: its partitions are unassigned, and assigned again from
    their next offsets after it has taken half of these messages.

    The lock guards everything but the wait for a message. A message that arrives for a partition
    unassigned during the wait may be outdated: it is dropped, and the partition is fetched again.
    """

    def __init__(self, properties: MaskedProperties) -> None:
        self._consumer = create_client(Consumer, properties)
        self._lock = threading.RLock()
        self._buffers: dict[SharedPartitionBuffer, None] = {}
        self._routes: dict[tuple[str, int], SharedPartitionBuffer] = {}
        # The id of each topic, and the number of its partitions that the consumer knows.
        self._topics: dict[str, tuple[str | None, int]] = {}
        self._waiting: dict[SharedPartitionBuffer, Signal] = {}
        self._polling = False
        # Whether an interrupt may have lost polled messages before they were buffered, or left a
        # change of the assignment half done.
        self._undelivered = self._half_changed = False
        # Partitions unassigned since the wait for a message began.
        self._unassigned: set[tuple[str, int]] = set()

    @property
    def unused(self) -> bool:
        """Whether it has no buffers."""
        return not self._buffers

    def assign(
        self, buffer: SharedPartitionBuffer, offsets: Mapping[int, int], *, timeout_s: float
    ) -> bool:
        """Read these partitions for a buffer instead of its earlier ones.

        Returns False, and changes nothing, if another buffer has one of them, or if the consumer
        may have cached a deleted topic of that name.
        """
        with self._lock, self._change():
            if any(self._routes.get((buffer.topic, p), buffer) is not buffer for p in offsets):
                return False
            topic_id, known = self._topics.get(buffer.topic, (buffer.topic_id, buffer.partitions))
            if topic_id != buffer.topic_id:
                return False
            self._buffers[buffer] = None
            self._clear(buffer)
            if known < buffer.partitions:
                known = self._count_partitions(buffer.topic, timeout_s)
            self._topics[buffer.topic] = (topic_id, known)
            self._assign(buffer, offsets)
            buffer.next.update(offsets)
            self._routes.update(((buffer.topic, p), buffer) for p in offsets)
            return True

    def add(self, buffer: SharedPartitionBuffer, offsets: Mapping[int, int]) -> bool:
        """Read these partitions for a buffer as well; False if another buffer has one of them."""
        with self._lock, self._change():
            if any((buffer.topic, p) in self._routes for p in offsets):
                return False
            if not buffer.paused:
                self._assign(buffer, offsets)
            buffer.next.update(offsets)
            self._routes.update(((buffer.topic, p), buffer) for p in offsets)
            return True

    def drop(self, buffer: SharedPartitionBuffer, partitions: Collection[int]) -> None:
        """Stop reading partitions, and drop their messages."""
        with self._lock, self._change():
            self._drop(buffer, partitions)

    def remove(self, buffer: SharedPartitionBuffer) -> None:
        """Remove a buffer."""
        with self._lock, self._change():
            self._clear(buffer)
            self._buffers.pop(buffer, None)

    def discover_partitions(self, buffer: SharedPartitionBuffer, *, timeout_s: float) -> int:
        """Refresh the metadata of a buffer's topic and return the number of its partitions."""
        with self._lock:
            known = self._count_partitions(buffer.topic, timeout_s)
            self._topics[buffer.topic] = (buffer.topic_id, known)
            buffer.partitions = max(buffer.partitions, known)
            return buffer.partitions

    def poll(self, buffer: SharedPartitionBuffer, limit: int, wait_s: float) -> list[Message]:
        """Return up to `limit` messages and events of a buffer, as soon as there are some."""
        deadline_s = time.monotonic() + wait_s
        with self._lock:
            try:
                while buffer.empty:
                    left_s = max(0.0, deadline_s - time.monotonic())
                    if not self._polling:
                        self._poll(max(limit, _MIN_POLL_MESSAGES), left_s)
                    elif left_s:
                        self._wait(buffer, left_s)
                    if not left_s:
                        break
                popped = buffer.pop(limit)
                if buffer.paused and buffer.size <= _BUFFER_BYTES // 2:
                    with self._change():
                        self._assign(buffer, buffer.next)
                        buffer.paused = False
                return popped
            finally:
                if not self._polling and self._waiting:
                    next(iter(self._waiting.values())).set()

    def close(self) -> None:
        """Release the connections."""
        self._consumer.close()

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Change the assignment in the block; if it is interrupted, the next change repairs it."""
        if self._half_changed:
            self._repair()
        self._half_changed = True
        yield
        self._half_changed = False

    def _repair(self) -> None:
        """Assign the partitions of all buffers anew, from the offsets after their messages."""
        for buffer in self._buffers:
            buffer.repair()
        self._routes = {(buffer.topic, p): buffer for buffer in self._buffers for p in buffer.next}
        assigned = self._consumer.assignment()
        self._unassigned.update((each.topic, each.partition) for each in assigned)
        if assigned:
            self._consumer.incremental_unassign(assigned)
        for buffer in self._buffers:
            if not buffer.paused:
                self._assign(buffer, buffer.next)
        self._half_changed = False

    def _without_lock(self, call: Callable[..., _T], *args: Any) -> _T:
        """Call without the lock; it is held again afterwards, also after an interrupt.

        Not a context manager: an interrupt could leave that before its block begins.
        """
        try:
            self._lock.release()
            return call(*args)
        finally:
            try:
                self._hold()
            except BaseException:
                self._hold()
                raise

    def _hold(self) -> None:
        """Hold the lock once, also if an interrupt has left it held."""
        with suppress(RuntimeError):
            self._lock.release()
        self._lock.acquire()

    def _wait(self, buffer: SharedPartitionBuffer, timeout_s: float) -> None:
        self._waiting[buffer] = notified = Signal()
        try:
            self._without_lock(notified.wait, timeout_s)
        finally:
            del self._waiting[buffer]

    def _poll(self, limit: int, wait_s: float) -> None:
        """Wait for a message of any reader, and buffer all available messages."""
        if self._undelivered or self._half_changed:
            self._repair()
            self._undelivered = False
        self._unassigned.clear()
        self._polling = self._undelivered = True
        try:
            polled = self._without_lock(run_callbacks, self._consumer.consume, 1, wait_s)
        finally:
            self._polling = False
        if polled:
            self._deliver(self._without_stale(polled))
            with gc_paused():
                # With the lock held nothing is unassigned, and librdkafka drops stale messages.
                self._deliver(run_callbacks(self._consumer.consume, limit, GATHER_S))
        self._undelivered = False

    def _without_stale(self, polled: list[Message]) -> list[Message]:
        """Drop the first message if its partition was unassigned meanwhile; fetch it again."""
        topic, partition = polled[0].topic(), polled[0].partition()
        if (topic, partition) not in self._unassigned:
            return polled
        buffer = self._routes.get((topic, partition))
        if buffer is not None and not buffer.paused:
            offsets = {partition: buffer.next[partition]}
            self._unassign(buffer, offsets)
            self._assign(buffer, offsets)
        return []

    def _deliver(self, polled: list[Message]) -> None:
        """Append messages and events to their buffers, in order."""
        first = 0
        routes = zip(map(Message.topic, polled), map(Message.partition, polled), strict=True)
        for (topic, partition), same in groupby(routes):
            end = first + len(list(same))
            items, first = polled[first:end], end
            buffer = self._routes.get((topic, partition))
            if buffer is None:
                self._broadcast(topic, items)
                continue
            buffer.put(partition, items)
            self._notify(buffer)
            full = buffer.size > _BUFFER_BYTES and not buffer.paused
            if full and sum(each.size for each in self._buffers) > _TOTAL_BYTES:
                self._unassign(buffer, buffer.next)
                buffer.paused = True

    def _broadcast(self, topic: str | None, events: list[Message]) -> None:
        """Pass failures of a topic or the brokers to all affected readers."""
        for event in events:
            error = event.error()
            if error is None or error.code() in _OF_A_PARTITION:
                # The partition was unassigned meanwhile.
                continue
            if is_unavailable(error) or is_gone(error):
                continue
            for buffer in self._buffers:
                if not topic or topic == buffer.topic:
                    buffer.failures.append(error)
                    self._notify(buffer)

    def _notify(self, buffer: SharedPartitionBuffer) -> None:
        if buffer in self._waiting:
            self._waiting[buffer].set()

    def _clear(self, buffer: SharedPartitionBuffer) -> None:
        self._drop(buffer, [*buffer.next])
        buffer.failures.clear()
        buffer.paused = False

    def _drop(self, buffer: SharedPartitionBuffer, partitions: Collection[int]) -> None:
        offsets = {p: buffer.next.pop(p) for p in partitions if p in buffer.next}
        for partition in offsets:
            self._routes.pop((buffer.topic, partition), None)
        buffer.keep(buffer.next)
        if not buffer.paused:
            self._unassign(buffer, offsets)

    def _assign(self, buffer: SharedPartitionBuffer, offsets: Mapping[int, int]) -> None:
        if offsets:
            self._consumer.incremental_assign(_at(buffer.topic, offsets))

    def _unassign(self, buffer: SharedPartitionBuffer, offsets: Mapping[int, int]) -> None:
        if offsets:
            self._unassigned.update((buffer.topic, p) for p in offsets)
            self._consumer.incremental_unassign(_at(buffer.topic, offsets))

    def _count_partitions(self, topic: str, timeout_s: float) -> int:
        metadata = self._consumer.list_topics(topic, timeout=timeout_s)
        return len(metadata.topics[topic].partitions)


def _at(topic: str, offsets: Mapping[int, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, p, offset) for p, offset in offsets.items()]
