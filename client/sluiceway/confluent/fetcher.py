"""Message fetcher: librdkafka's messages with the names of their channels.

The client's fetch loop (`kafka/fetcher.py`) decodes records of one channel. A Consumer returns
librdkafka's own messages of any channels. librdkafka keeps the positions: nothing is buffered.
"""

import collections
import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    Consumer,
    KafkaException,
    Message,
    TopicPartition,
)

from sluiceway.confluent.committed_messages import CommittedMessages
from sluiceway.confluent.errors import (
    UNKNOWN_PARTITION,
    kafka_exceptions,
    refused,
    require_same_kafka,
)
from sluiceway.confluent.partition_offsets import Partition, ReturnedOffsets
from sluiceway.kafka.config import MaskedProperties, consumer_config
from sluiceway.kafka.errors import create_client, handler_exception, with_retries
from sluiceway.ledger.visibility import Visibility
from sluiceway.records.to_python import gc_paused
from sluiceway.rest.models import Connection
from sluiceway.runtime.threads import Signal

__all__ = ["MessageFetcher"]

T = TypeVar("T")

_METADATA_TIMEOUT_S: Final = 30.0
_LARGE_BATCH: Final = 64
_SLICE_S: Final = 0.02


class MessageFetcher:
    """Fetches partitions of channels from given offsets, without groups and commits.

    `starts` has the start offsets of the assigned partitions.
    """

    def __init__(
        self, config: MaskedProperties, callbacks: Mapping[str, Any], *, reset: str, eof: bool
    ) -> None:
        self._config = config
        self._own = {**callbacks, "auto.offset.reset": reset, "enable.partition.eof": eof}
        self._consumer: Any = None
        self._kafka: Mapping[str, str] | None = None
        self.connections: dict[str, Connection] = {}
        self._names: dict[str, str] = {}
        # The channel's name if there is only one, and the most frequent call.
        self._only_name: str | None = None
        self._poll: Callable[[float], Message | None] = _no_message
        # Exactly-once channels by name: librdkafka's consumer would also return uncommitted ones.
        self._committed: dict[str, CommittedMessages] = {}
        self._turn = 0
        self._closed = False
        self._requests = RequestTurns()
        self._returned = ReturnedOffsets()
        # Threads that read the watermarks of a partition do not hold the consumer's lock.
        self._lock = threading.Lock()
        self.starts: dict[Partition, int] = {}

    @property
    def ready(self) -> bool:
        """True once it has a channel to poll."""
        return self._consumer is not None

    def add_channel(self, connection: Connection, visibility: Visibility | None) -> None:
        """Add a channel, an exactly-once one with its visibility; thread-safe.

        Raises KafkaException _CONFLICT if its Kafka properties differ.
        """
        with self._lock, kafka_exceptions():
            if self._kafka is not None:
                require_same_kafka(self._kafka, connection, "consumer")
            if self._consumer is None:
                config = consumer_config(connection.kafka, self._config)
                self._consumer = create_client(Consumer, config.over(self._own))
                self._poll = self._consumer.poll
                self._kafka = connection.kafka
            if visibility is not None and connection.channel_name not in self._committed:
                own = CommittedMessages(
                    connection,
                    self._config,
                    visibility,
                    reset=self._own["auto.offset.reset"],
                    eof=self._own["enable.partition.eof"],
                )
                # A new mapping, because another thread may iterate over this one in a poll.
                self._committed = {**self._committed, connection.channel_name: own}
                self._poll = self._poll_all
            self._returned.settle()
            self.connections[connection.channel_name] = connection
            self._names[connection.topic_name] = connection.channel_name
            self._only_name = connection.channel_name if len(self._names) == 1 else None

    def poll(self, timeout_s: float) -> Message | None:
        """Return a message or an event, or None after `timeout_s`."""
        if (
            self._requests.running
            and (timeout_s := self._requests.wait_for_requests(timeout_s)) < 0
        ):
            return None
        try:
            message = self._poll(timeout_s)
            if message is not None:
                if self._only_name is not None:
                    message.set_topic(self._only_name)
                    if message.error() is None:
                        self._returned.last[message.partition()] = message
                else:
                    if (topic := message.topic()) is not None:
                        message.set_topic(self._names.get(topic, topic))
                    self._returned.add((message,), one_channel=False)
        except BaseException as error:
            raise self._interrupted(error) from error.__cause__
        return message

    def consume(self, limit: int, timeout_s: float) -> list[Message]:
        """Return up to `limit` messages and events, fewer after `timeout_s`."""
        consumer = self._consumer
        if consumer is None:
            return []
        if (
            self._requests.running
            and (timeout_s := self._requests.wait_for_requests(timeout_s)) < 0
        ):
            return []
        try:
            if self._committed:
                messages = self._consume_all(limit, timeout_s)
            elif limit < _LARGE_BATCH:
                messages = consumer.consume(limit, timeout_s)
            else:
                with gc_paused():
                    messages = consumer.consume(limit, timeout_s)
            if self._only_name is not None:
                names: Iterable[str] = itertools.repeat(self._only_name)
            else:
                # Events without a topic get an empty name.
                topics = [message.topic() or "" for message in messages]
                names = [self._names.get(topic, topic) for topic in topics]
            # The hot loop: one call per message, without bytecode.
            collections.deque(map(Message.set_topic, messages, names), maxlen=0)
            self._returned.add(messages, one_channel=self._only_name is not None)
        except BaseException as error:
            raise self._interrupted(error) from error.__cause__
        return messages

    def _interrupted(self, error: BaseException) -> BaseException:
        """Go back to messages that an interrupted call has taken but does not return.

        Returns the error to raise.
        """
        if not self._closed:
            self._returned.settle()
            for partition, offset in self.consumed(self.starts).items():
                returned = self._returned.next_offsets.get(partition, self.starts[partition])
                if offset > returned:
                    self.seek(partition, returned)
        return handler_exception(error)

    def assign(self, offsets: Mapping[Partition, int]) -> None:
        """Fetch these partitions as well, from these offsets."""
        if not offsets:
            return
        for channel, own in self._committed.items():
            if chosen := {p: at for (name, p), at in offsets.items() if name == channel}:
                with kafka_exceptions():
                    own.assign(chosen)
        plain = [
            self._place(*each) for each in offsets.items() if each[0][0] not in self._committed
        ]
        if plain:
            self._consumer.incremental_assign(plain)
        self._forget(offsets)
        self.starts |= offsets

    def unassign(self, partitions: Collection[Partition]) -> None:
        """Stop fetching these partitions."""
        known = [each for each in partitions if each in self.starts]
        if known and not self._closed:
            for own, numbers in self._of_committed(known):
                own.unassign(numbers)
            places = [self._place(each) for each in known if each[0] not in self._committed]
            if places:
                self._consumer.incremental_unassign(places)
                # Otherwise a pause would also apply to the partition's next assignment.
                self._consumer.resume(places)
        self._forget(known)
        for each in known:
            del self.starts[each]

    def seek(self, partition: Partition, offset: int) -> None:
        """Continue at an offset. Raises KafkaException _UNKNOWN_PARTITION if not assigned."""
        self._assigned([partition])
        start = self.resolve({partition: offset})[partition]
        if partition[0] in self._committed:
            with kafka_exceptions():
                self._committed[partition[0]].seek(partition[1], start)
        else:
            self._consumer.seek(self._place(partition, start))
        self._forget([partition])
        self.starts[partition] = start

    def pause(self, partitions: Collection[Partition]) -> None:
        """Return no messages of these partitions until `resume`."""
        places = self._assigned(partitions)
        for own, numbers in self._of_committed(partitions):
            own.pause(numbers)
        if places:
            self._consumer.pause(places)

    def resume(self, partitions: Collection[Partition]) -> None:
        """Return messages of these partitions again."""
        places = self._assigned(partitions)
        for own, numbers in self._of_committed(partitions):
            own.resume(numbers)
        if places:
            self._consumer.resume(places)

    def consumed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the offset after the last returned message, for partitions with any."""
        requested = [each for each in partitions if each in self.starts]
        committed: dict[Partition, int] = {}
        if self._committed:
            for each in requested:
                own = self._committed.get(each[0])
                if own is not None and (at := own.consumed(each[1])) is not None:
                    committed[each] = at
            requested = [each for each in requested if each[0] not in self._committed]
        if not requested or self._closed:
            return committed
        places = [self._place(each) for each in requested]
        found = self._requests.run(lambda: self._consumer.position(places))
        return committed | {
            key: each.offset for key, each in zip(requested, found, strict=True) if each.offset >= 0
        }

    def positions(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the next offset of each partition."""
        requested = {each: at for each in partitions if (at := self.starts.get(each)) is not None}
        return requested | self.consumed(requested)

    def watermarks(
        self, partition: Partition, timeout_s: float, *, cached: bool
    ) -> tuple[int, int] | None:
        """Return the first offset of a partition and the one after its last message."""
        if partition[0] in self._committed:
            with kafka_exceptions():
                return self._committed[partition[0]].watermarks(partition[1])
        place = self._place(partition)

        def request(left_s: float) -> tuple[int, int] | None:
            found: tuple[int, int] | None = self._requests.run(
                lambda: self._consumer.get_watermark_offsets(place, timeout=left_s, cached=cached)
            )
            return found

        return with_retries(request, timeout_s=timeout_s)

    def offsets_at(self, times: Mapping[Partition, int], timeout_s: float) -> dict[Partition, int]:
        """Return the first offset not older than each time (Unix, in ms)."""
        committed: dict[Partition, int] = {}
        with kafka_exceptions():
            for (channel, number), at in times.items():
                if channel in self._committed:
                    own = self._committed[channel]
                    committed[channel, number] = own.offset_at(at, number)
        rest = {each: at for each, at in times.items() if each not in committed}
        requested = [self._place(*each) for each in rest.items()]

        def request(left_s: float) -> dict[Partition, int]:
            found: list[Any] = self._requests.run(
                lambda: self._consumer.offsets_for_times(requested, timeout=left_s)
            )
            for each in found:
                if each.error is not None:
                    raise KafkaException(each.error)
            return {key: each.offset for key, each in zip(rest, found, strict=True)}

        return committed | (with_retries(request, timeout_s=timeout_s) if requested else {})

    def resolve(self, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return offsets as numbers, with the current OFFSET_BEGINNING and OFFSET_END."""
        # ListOffsets accepts both in place of a time.
        logical = {each: at for each, at in offsets.items() if at in (OFFSET_BEGINNING, OFFSET_END)}
        found: dict[Partition, int] = {}
        for channel, own in self._committed.items():
            chosen = {p: logical.pop((name, p)) for name, p in [*logical] if name == channel}
            if chosen:
                with kafka_exceptions():
                    found |= {(channel, p): at for p, at in own.resolve(chosen).items()}
        return {**offsets, **found, **self.offsets_at(logical, _METADATA_TIMEOUT_S)}

    def check(self, partition: Partition, timeout_s: float = _METADATA_TIMEOUT_S) -> None:
        """Raise KafkaException _UNKNOWN_PARTITION if the channel has no such partition.

        Also makes librdkafka aware of new partitions.
        """
        channel, number = partition
        connection = self.connections[channel]
        if 0 <= number < connection.partitions:
            return
        if number >= 0:
            if channel in self._committed:
                with kafka_exceptions():
                    if number < self._committed[channel].discover_partitions():
                        return
            topic = connection.topic_name
            known = self._requests.run(lambda: self._consumer.list_topics(topic, timeout=timeout_s))
            if number in known.topics[topic].partitions:
                return
        raise refused(
            UNKNOWN_PARTITION,
            f"the channel {channel!r} has {connection.partitions} partitions, but no {number}",
        )

    def close(self) -> None:
        """Disconnect from Kafka. May be repeated."""
        if not self._closed:
            self._closed = True
            # librdkafka crashes if one thread closes it during another thread's call. So it is
            # closed by the release of the last reference, which that call holds.
            self._consumer, self._poll = None, _no_message
            for own in self._committed.values():
                own.close()

    def _forget(self, partitions: Iterable[Partition]) -> None:
        """Forget the returned messages of partitions that continue elsewhere."""
        self._returned.settle()
        for each in partitions:
            self._returned.next_offsets.pop(each, None)

    def _assigned(self, partitions: Collection[Partition]) -> list[TopicPartition]:
        for channel, number in partitions:
            if (channel, number) not in self.starts:
                raise refused(
                    UNKNOWN_PARTITION,
                    f"partition {number} of {channel!r} is not assigned to this consumer",
                )
        return [self._place(each) for each in partitions if each[0] not in self._committed]

    def _of_committed(
        self, partitions: Collection[Partition]
    ) -> Iterable[tuple[CommittedMessages, list[int]]]:
        """Return partitions of exactly-once channels, by channel."""
        for channel, own in self._committed.items():
            if numbers := [number for name, number in partitions if name == channel]:
                yield own, numbers

    def _sources(self) -> list[Any]:
        """Return the sources to poll, in rotating order."""
        sources: list[Any] = [each for each in self._committed.values() if each.assigned]
        if any(channel not in self._committed for channel, _ in self.starts):
            sources.append(self._consumer)
        self._turn += 1
        first = self._turn % len(sources) if sources else 0
        return sources[first:] + sources[:first]

    def _poll_all(self, timeout_s: float) -> Message | None:
        """Poll the exactly-once channels and the others in turn."""
        deadline_s = time.monotonic() + timeout_s
        consumer, sources = self._consumer, self._sources()
        if consumer not in sources and consumer is not None:
            # Runs librdkafka's callbacks.
            event = consumer.poll(0)
            if event is not None:
                return event
        for source in sources:
            message = source.poll(0) if len(sources) > 1 else source.poll(timeout_s)
            if message is not None:
                return message
        while len(sources) != 1 and (left_s := deadline_s - time.monotonic()) > 0:
            if not sources:
                time.sleep(min(_SLICE_S, left_s))
                return None
            for source in sources:
                message = source.poll(min(_SLICE_S, left_s) / len(sources))
                if message is not None:
                    return message
        return None

    def _consume_all(self, limit: int, timeout_s: float) -> list[Message]:
        found: list[Message] = []
        for source in self._sources():
            if len(found) < limit:
                found += source.consume(limit - len(found), 0)
        if not found and limit:
            message = self._poll_all(timeout_s)
            found = [] if message is None else [message]
        return found

    def _place(self, partition: Partition, offset: int = OFFSET_INVALID) -> TopicPartition:
        channel, number = partition
        return TopicPartition(self.connections[channel].topic_name, number, offset)


class RequestTurns:
    """Precedence of requests over polls.

    confluent-kafka runs one call of a consumer at a time, in any order, so threads that poll all
    the time could delay a request forever.
    """

    def __init__(self) -> None:
        self.running: dict[int, Signal] = {}
        """The ends of running requests, by thread."""

    def run(self, request: Callable[[], T]) -> T:
        """Return the result of a request. Polls in other threads wait for it."""
        thread, ended = threading.get_ident(), Signal()
        try:
            self.running[thread] = ended
            return request()
        finally:
            self.running.pop(thread, None)
            ended.set()

    def wait_for_requests(self, timeout_s: float) -> float:
        """Wait up to `timeout_s` for requests; return the remaining seconds, -1 after a timeout."""
        until_s = time.monotonic() + timeout_s
        while ends := tuple(self.running.values()):
            left_s = until_s - time.monotonic()
            if not ends[0].wait(min(_SLICE_S, left_s)) and left_s <= 0:
                return -1.0
        return max(0.0, until_s - time.monotonic())


def _no_message(timeout_s: float) -> None:
    """Poll without a channel."""
    del timeout_s
