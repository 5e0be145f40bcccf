"""I/O thread of a Kafka consumer, and the queues of messages that it fills."""

import logging
import math
import threading
import time
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import filterfalse, groupby
from typing import Any, Final, TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sluiceway.concurrency import Process, this_process
from sluiceway.kafka.config import MaskedProperties
from sluiceway.kafka.errors import create_client, is_gone, is_unavailable
from sluiceway.records.to_python import gc_paused
from sluiceway.runtime.threads import Signal

__all__ = [
    "SHARED_CONSUMERS",
    "Chunk",
    "ConsumerPool",
    "ConsumerThread",
    "Consumers",
    "MessageQueue",
    "is_failure",
]

LOGGER = logging.getLogger("sluiceway.kafka")

_MESSAGE_BYTES = 300
"""The memory of a message in Python in addition to its value."""
_SAMPLE = 64
_QUEUE_BYTES = 4 * 1024 * 1024
"""A queue with more bytes is full; one with less than half of them has room again."""
_TOTAL_BYTES = 64 * 1024 * 1024
"""The bytes in all queues of a consumer from which partitions of full ones are unassigned."""
_POLL_BYTES = 4 * 1024 * 1024
_POLL_MESSAGES = 8192
_POLL_S = 0.1
"""The longest wait for Kafka. Nothing wakes a thread in it, so it delays changes and the end."""
_SHORTEST_POLL_S = 0.002
_RETRY_S = 1.0
_METADATA_TIMEOUT_S = 5.0
_AT_END = KafkaError._PARTITION_EOF
_OF_A_PARTITION = frozenset({_AT_END, KafkaError._AUTO_OFFSET_RESET})
_Partition: TypeAlias = tuple[str, int]
"""A topic's name, and the number of its partition."""


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Messages of one partition in the order of their offsets, then events of the partition.

    `items` are the values of the messages, or whole messages; `size` is their memory in bytes.
    """

    partition: int
    offsets: Sequence[int]
    items: list[Any]
    events: Sequence[Message] = ()
    size: int = 0

    def part(self, first: int, end: int) -> "Chunk":
        """Return the messages with offsets from `first` up to, not including, `end`."""
        return self._slice(bisect_left(self.offsets, first), bisect_left(self.offsets, end))

    def divide(self, count: int) -> "tuple[Chunk, Chunk]":
        """Return the first messages, at most this number, and the rest with the events."""
        rest = self._slice(count, len(self.items))
        return self._slice(0, count), replace(rest, events=self.events)

    def _slice(self, start: int, stop: int) -> "Chunk":
        return Chunk(
            partition=self.partition,
            offsets=self.offsets[start:stop],
            items=self.items[start:stop],
            size=self.size * max(0, stop - start) // max(1, len(self.items)),
        )


class MessageQueue:
    """One stream's messages in a ConsumerThread, in the order in which they arrived.

    The thread appends, the stream takes; one of its calls at a time. The consumer's lock guards
    the other fields. `next` has the offset after the last queued message of each partition, and
    `known_ends` its end as of the last fetch. `paused`: the stream is too slow, so its partitions
    are unassigned. `arrived` is set when messages have arrived; queues may share it. Without
    `whole_messages`, only the values of messages are kept: the garbage collector visits messages.
    """

    def __init__(
        self,
        topic: str,
        topic_id: str | None,
        partitions: int,
        arrived: Signal | None = None,
        *,
        whole_messages: bool = False,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partitions = partitions
        self._whole_messages = whole_messages
        self.arrived = arrived or Signal()
        self.consumer: ConsumerThread | None = None
        self.next: dict[int, int] = {}
        self.known_ends: dict[int, int] = {}
        self.paused = False
        self._chunks: deque[Chunk] = deque()
        self._failures: deque[KafkaError | Exception] = deque(maxlen=1)
        # Each is changed by one thread only.
        self._put_bytes = self._taken_bytes = 0

    @property
    def size(self) -> int:
        """The size of the messages, in bytes."""
        return self._put_bytes - self._taken_bytes

    @property
    def has_room(self) -> bool:
        """Whether its messages are less than half of the limit; then it is filled again."""
        return self.size < _QUEUE_BYTES // 2

    @property
    def is_full(self) -> bool:
        """Whether the size of its messages has reached the limit."""
        return self.size >= _QUEUE_BYTES

    @property
    def positions(self) -> dict[int, int]:
        """The offset of the next message to take, for each assigned partition."""
        positions = dict(self.next)
        for chunk in reversed(self._chunks):
            if chunk.offsets:
                positions[chunk.partition] = chunk.offsets[0]
        return positions

    def take(self, limit: int, wait_s: float) -> list[Chunk]:
        """Remove and return up to `limit` messages, and events, as soon as there are some.

        An interrupt may lose some of them: assign their partitions again.
        """
        # Without a wait, it does not clear what is shared with other queues.
        if not self._chunks and wait_s > 0:
            self.arrived.clear()
            if not self._chunks and not self._failures:
                self.arrived.wait(wait_s)
        taken: list[Chunk] = []
        while self._chunks and limit > 0:
            chunk = self._chunks[0]
            if len(chunk.items) > limit:
                chunk, self._chunks[0] = chunk.divide(limit)
            else:
                self._chunks.popleft()
            taken.append(chunk)
            limit -= len(chunk.items)
        self._taken_bytes += sum(chunk.size for chunk in taken)
        if taken and self.consumer is not None:
            self.consumer.wake()
        return taken

    def take_failure(self) -> KafkaError | Exception | None:
        """Remove and return a failure of the consumer, or None."""
        return self._failures.popleft() if self._failures else None

    def put(self, partition: int, items: list[Message], known_end: int) -> bool:
        """Append messages and events of a partition; only the thread of the consumer.

        Nothing after a failure is appended: librdkafka has skipped the messages that it could not
        read, such as a damaged batch. Returns whether there is none.
        """
        self.known_ends[partition] = max(-1, known_end)
        messages = [*filterfalse(Message.error, items)]
        events = [] if len(messages) == len(items) else [*filter(Message.error, items)]
        failure = next(filter(is_failure, events), None)
        if failure is not None:
            items = items[: items.index(failure) + 1]
            messages = [*filterfalse(Message.error, items)]
            events = [*filter(Message.error, items)]
        ends = [event.offset() for event in events if event.error().code() == _AT_END]
        chunk = Chunk(
            partition=partition,
            offsets=_offsets(messages),
            items=messages if self._whole_messages else [*map(Message.value, messages)],
            events=events,
            size=_size(items),
        )
        after = chunk.offsets[-1] + 1 if messages else 0
        self.next[partition] = max(self.next[partition], after, *ends)
        self._put_bytes += chunk.size
        self._chunks.append(chunk)
        self.arrived.set()
        return failure is None

    def fail(self, failure: KafkaError | Exception) -> None:
        """Add a failure in the place of one that was not taken yet."""
        self._failures.append(failure)
        self.arrived.set()

    def keep(self, partitions: Collection[int]) -> None:
        """Drop the messages of all other partitions."""
        self._chunks = deque(chunk for chunk in self._chunks if chunk.partition in partitions)
        self._taken_bytes = self._put_bytes - sum(chunk.size for chunk in self._chunks)

    def clear(self) -> None:
        """Drop all messages and failures."""
        self.known_ends = {}
        self.keep(())
        self._failures.clear()
        self.paused = False

    def abandon(self) -> None:
        """Let the consumer remove this queue; takes no lock."""
        consumer = self.consumer
        if consumer is not None:
            consumer.abandoned.append(self)
            consumer.wake()


def is_failure(item: Message) -> bool:
    """Whether it is no message, but an error that librdkafka does not retry by itself."""
    error = item.error()
    if error is None or error.code() in _OF_A_PARTITION:
        return False
    return not is_unavailable(error) and not is_gone(error)


def _size(items: list[Message]) -> int:
    """Return the memory of messages in bytes, that of many by a sample."""
    sample = items[:: max(1, len(items) // _SAMPLE)]
    return (sum(map(len, sample)) // len(sample) + _MESSAGE_BYTES) * len(items)


def _offsets(messages: list[Message]) -> Sequence[int]:
    """Return the offsets of messages of one partition: a range if none is left out."""
    if not messages:
        return ()
    first, end = messages[0].offset(), messages[-1].offset() + 1
    return range(first, end) if end - first == len(messages) else [*map(Message.offset, messages)]


class ConsumerThread:
    """A Kafka consumer, the thread that uses it, and a queue for each of its streams.

    Streams only change which partitions are wanted; the thread assigns them. Until it has, it drops
    messages of changed partitions. No signal handler may run in a thread that holds the lock.

    The thread polls while a queue has room. A full queue among others is filled further until all
    queues together exceed 64 MB; then its partitions are unassigned, and assigned again from their
    next offsets once it has room. After its last queue was removed, the thread closes the consumer.
    """

    def __init__(self, properties: MaskedProperties) -> None:
        """Start the thread. Raises OptionError, and RuntimeError without a thread."""
        self.abandoned: deque[MessageQueue] = deque()
        self.ended = False
        self._changed = Signal()
        self._requests: deque[tuple[str, float, Future[None]]] = deque()
        # Guards the fields from here on, and the queues.
        self._lock = threading.Lock()
        self._queues: dict[MessageQueue, None] = {}
        self._routes: dict[_Partition, MessageQueue] = {}
        # Partitions to assign at an offset, or with None to unassign.
        self._changes: dict[_Partition, int | None] = {}
        self._wanted_s = 0.0
        # The id of each topic, and the number of its partitions that the consumer knows.
        self._topics: dict[str, str | None] = {}
        self._partitions: dict[str, int] = {}
        # Whether it ends when it has no queues: not before it got the first one.
        self._ends_unused = False
        # Used by the thread alone: a call of another one would wait for its poll to return.
        self._consumer = create_client(Consumer, properties)
        # Kafka's client also passes its log on in polls.
        has_logger = properties.get("logger") is not None
        self._has_callbacks = has_logger or any(map(callable, properties.values()))
        self._assigned: set[_Partition] = set()
        self._failed = False
        # When the last metadata of each topic was requested.
        self._described_s: dict[str, float] = {}
        try:
            threading.Thread(target=self._run, name="sluiceway-consumer", daemon=True).start()
        except RuntimeError:
            self._consumer.close()
            raise

    def assign(self, queue: MessageQueue, offsets: Mapping[int, int]) -> bool:
        """Read these partitions into a queue instead of its earlier ones.

        Returns False, and changes nothing, if another queue has one of them, if the consumer may
        have cached a deleted topic of that name, or if it has ended.
        """
        with self._lock:
            self._remove_abandoned()
            topic_id = self._topics.setdefault(queue.topic, queue.topic_id)
            if self.ended or topic_id != queue.topic_id or self._has_others(queue, offsets):
                return False
            self._queues[queue] = None
            if queue.topic not in self._partitions:
                self._partitions[queue.topic] = queue.partitions
                if not offsets:
                    # Otherwise a partition that is added later waits for its leader for a second.
                    self._requests.append((queue.topic, _METADATA_TIMEOUT_S, Future()))
            queue.consumer = self
            self._clear(queue)
            self._add(queue, offsets)
        self.wake()
        return True

    def add(self, queue: MessageQueue, offsets: Mapping[int, int]) -> bool:
        """Read these partitions into a queue as well; False if another queue has one of them."""
        with self._lock:
            if self._has_others(queue, offsets):
                return False
            self._add(queue, offsets)
        self.wake()
        return True

    def positions(self, queue: MessageQueue) -> dict[int, int]:
        """Return the offset of the next message to take, for each partition of a queue."""
        with self._lock:
            return queue.positions

    def drop(self, queue: MessageQueue, partitions: Collection[int]) -> None:
        """Stop reading partitions, and drop their messages."""
        with self._lock:
            self._drop(queue, partitions)
        self.wake()

    def remove(self, queue: MessageQueue) -> None:
        """Remove a queue. May be repeated."""
        with self._lock:
            self._remove(queue)
        self.wake()

    def request_metadata(self, topic: str, timeout_s: float, max_age_s: float) -> None:
        """Request a topic's metadata on the consumer's own connections, unless it is recent.

        Raises KafkaException.
        """
        if time.monotonic() - self._described_s.get(topic, -math.inf) < max_age_s:
            return
        response: Future[None] = Future()
        self._requests.append((topic, timeout_s, response))
        self.wake()
        try:
            response.result(timeout_s + _RETRY_S)
        except TimeoutError as error:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from error

    def wake(self) -> None:
        """Let the thread look at its queues unless it waits for Kafka; takes no lock."""
        self._changed.set()

    def _run(self) -> None:
        while not self.ended:
            try:
                self._step()
            except Exception as error:
                LOGGER.exception("the messages of a consumer were not fetched")
                failure = error.args[0] if isinstance(error, KafkaException) else error
                with self._lock:
                    for queue in self._queues:
                        queue.fail(failure)
                self._failed = True
                self._changed.clear()
                self._changed.wait(_RETRY_S)
        self._consumer.close()

    def _step(self) -> None:
        """Wait for a message of any queue, and put all available ones into their queues."""
        self._changed.clear()
        if self._failed:
            self._begin_again()
        with self._lock:
            self._remove_abandoned()
            self.ended = self._ends_unused and not self._queues
            for queue in self._queues:
                if queue.paused and queue.has_room:
                    queue.paused = False
                    self._want(queue, queue.next)
            changes, self._changes = self._changes, {}
            reading = any(
                queue.next and not queue.paused and not queue.is_full for queue in self._queues
            )
        if self.ended:
            return
        self._respond()
        if changes:
            self._apply(changes)
        if not reading:
            self._changed.wait(_POLL_S if self._has_callbacks else threading.TIMEOUT_MAX)
            if self._has_callbacks and not self._assigned:
                self._poll(0.0)
            return
        # Changes often come one after the other: each waits for half of the time since the last.
        since_s = time.monotonic() - self._wanted_s
        self._poll(max(_SHORTEST_POLL_S, min(_POLL_S, since_s / 2)))

    def _poll(self, wait_s: float) -> None:
        """Put available messages into their queues; wait for one. Also runs callbacks."""
        polled = self._consumer.consume(1, wait_s)
        if polled:
            with gc_paused():
                self._poll_others(polled)

    def _poll_others(self, first: list[Message]) -> None:
        """Put this message or event and all others that are available into their queues."""
        limit = max(1, min(_POLL_MESSAGES, _POLL_BYTES // _size(first)))
        polled = first + self._consumer.consume(limit, 0)
        with self._lock:
            self._deliver(polled)

    def _begin_again(self) -> None:
        """Have everything assigned again: changes may be half made, and polled messages lost."""
        self._assigned = {(place.topic, place.partition) for place in self._consumer.assignment()}
        with self._lock:
            self._changes = dict.fromkeys(self._assigned)
            for queue in self._queues:
                if not queue.paused:
                    self._want(queue, queue.next)
        self._failed = False

    def _respond(self) -> None:
        """Respond to the requests for metadata; to all with the first failure."""
        updated: set[str] = set()
        failure: KafkaException | None = None
        while self._requests:
            topic, timeout_s, response = self._requests.popleft()
            if failure is None and topic not in updated:
                try:
                    self._request_partitions(topic, timeout_s)
                    updated.add(topic)
                except KafkaException as error:
                    failure = error
            if failure is not None:
                response.set_exception(failure)
            else:
                response.set_result(None)

    def _request_partitions(self, topic: str, timeout_s: float) -> None:
        began_s = time.monotonic()
        metadata = self._consumer.list_topics(topic, timeout=timeout_s)
        self._described_s[topic] = began_s
        with self._lock:
            self._partitions[topic] = len(metadata.topics[topic].partitions)

    def _apply(self, changes: Mapping[_Partition, int | None]) -> None:
        """Assign and unassign partitions."""
        if removed := self._assigned & changes.keys():
            self._assigned -= removed
            self._consumer.incremental_unassign([TopicPartition(*key) for key in removed])
        added = {key: at for key, at in changes.items() if at is not None}
        # librdkafka learns of added partitions only after minutes.
        for topic in {topic for topic, p in added if p >= self._partitions[topic]}:
            self._request_partitions(topic, _METADATA_TIMEOUT_S)
        if added:
            self._consumer.incremental_assign(
                [TopicPartition(*key, at) for key, at in added.items()]
            )
            self._assigned |= added.keys()

    def _deliver(self, polled: list[Message]) -> None:
        """Put messages and events into their queues, in order."""
        for key, items in self._by_partition(polled):
            if key not in self._assigned:
                self._broadcast(key[0], items)
            elif key not in self._changes:
                queue = self._routes[key]
                _, known_end = self._consumer.get_watermark_offsets(
                    TopicPartition(*key), cached=True
                )
                if not queue.put(key[1], items, known_end):
                    # The stream assigns it again once it has raised the failure.
                    self._want(queue, {key[1]: None})
                if queue.is_full and len(self._queues) > 1:
                    self._limit_total(queue)

    def _by_partition(self, polled: list[Message]) -> Iterator[tuple[_Partition, list[Message]]]:
        """Divide messages and events into pieces of one partition each, in their order."""
        first = 0
        topics = groupby(polled, Message.topic) if len(self._topics) > 1 else [(None, polled)]
        for _, of_topic in topics:
            for partition, same in groupby(map(Message.partition, of_topic)):
                end = first + len([*same])
                yield (polled[first].topic(), partition), polled[first:end]
                first = end

    def _limit_total(self, queue: MessageQueue) -> None:
        """Pause a full queue if all queues hold too much."""
        if sum(other.size for other in self._queues) > _TOTAL_BYTES:
            self._want(queue, dict.fromkeys(queue.next))
            queue.paused = True

    def _broadcast(self, topic: str | None, events: list[Message]) -> None:
        """Pass failures of a topic or the brokers to all affected queues."""
        for event in filter(is_failure, events):
            for queue in self._queues:
                if not topic or topic == queue.topic:
                    queue.fail(event.error())

    def _has_others(self, queue: MessageQueue, partitions: Collection[int]) -> bool:
        """Whether another queue reads one of the partitions."""
        return any(self._routes.get((queue.topic, p), queue) is not queue for p in partitions)

    def _add(self, queue: MessageQueue, offsets: Mapping[int, int]) -> None:
        queue.next.update(offsets)
        self._routes.update(((queue.topic, p), queue) for p in offsets)
        if not queue.paused:
            self._want(queue, offsets)

    def _drop(self, queue: MessageQueue, partitions: Collection[int]) -> None:
        dropped = [p for p in partitions if queue.next.pop(p, None) is not None]
        for partition in dropped:
            del self._routes[queue.topic, partition]
        self._want(queue, dict.fromkeys(dropped))
        queue.keep(queue.next)

    def _clear(self, queue: MessageQueue) -> None:
        self._drop(queue, [*queue.next])
        queue.clear()

    def _remove(self, queue: MessageQueue) -> None:
        self._ends_unused = True
        if queue in self._queues:
            del self._queues[queue]
            self._clear(queue)
            queue.consumer = None

    def _remove_abandoned(self) -> None:
        while self.abandoned:
            self._remove(self.abandoned.popleft())

    def _want(self, queue: MessageQueue, offsets: Mapping[int, int | None]) -> None:
        """Have partitions of a queue assigned at these offsets, or with None unassigned."""
        self._wanted_s = time.monotonic()
        self._changes.update(((queue.topic, p), offset) for p, offset in offsets.items())


class ConsumerPool:
    """The consumers of one configuration, usually one.

    Another one is needed when two streams read the same partition, because a consumer reads a
    partition once. A stream holds `lock` while it changes what it reads.
    """

    def __init__(self, properties: MaskedProperties) -> None:
        self._properties = properties
        # No signal handler may run in a thread that holds it.
        self.lock = threading.Lock()
        self._consumers: list[ConsumerThread] = []

    def assign(self, queue: MessageQueue, offsets: Mapping[int, int]) -> None:
        """Read these partitions into a queue instead of its earlier ones."""
        if queue.consumer is not None:
            if queue.consumer.assign(queue, offsets):
                return
            queue.consumer.remove(queue)
        self._consumers = [consumer for consumer in self._consumers if not consumer.ended]
        for consumer in self._consumers:
            if consumer.assign(queue, offsets):
                return
        self._consumers.append(ConsumerThread(self._properties))
        self._consumers[-1].assign(queue, offsets)

    def add(self, queue: MessageQueue, offsets: Mapping[int, int]) -> None:
        """Read these partitions into a queue as well.

        If another queue of the consumer has one of them, another consumer reads all of them.
        """
        consumer = queue.consumer
        if consumer is None:
            self.assign(queue, offsets)
        elif not consumer.add(queue, offsets):
            self.assign(queue, {**consumer.positions(queue), **offsets})

    def replace(self, queue: MessageQueue) -> None:
        """Remove a queue from its consumer, which gets no other queues."""
        if queue.consumer in self._consumers:
            self._consumers.remove(queue.consumer)
        if queue.consumer is not None:
            queue.consumer.remove(queue)


class Consumers:
    """The Kafka consumers of several streams, with a pool for each configuration.

    `properties` are added to each configuration. The streams share `arrived`, if there is one.
    """

    def __init__(
        self, properties: MaskedProperties | None = None, arrived: Signal | None = None
    ) -> None:
        self._properties = MaskedProperties(properties or {})
        self.arrived = arrived
        # A forked process has pools of its own.
        self._pools: weakref.WeakValueDictionary[tuple[Process, MaskedProperties], ConsumerPool] = (
            weakref.WeakValueDictionary()
        )

    def pool(self, properties: MaskedProperties) -> ConsumerPool:
        """Return the pool of a configuration, which lives as long as one of its users."""
        properties = properties.over(self._properties)
        key = (this_process(), properties)
        return self._pools.get(key) or self._pools.setdefault(key, ConsumerPool(properties))


SHARED_CONSUMERS: Final = Consumers()
"""The Kafka consumers of the process's readers that share connections."""
