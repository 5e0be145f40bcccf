"""Consumer: messages of assigned partitions in offset order, and the idle timeout."""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException

from sluiceway.api.models import Connection
from sluiceway.concurrency import this_process
from sluiceway.errors import (
    EndpointClosed,
    KafkaFailure,
    KafkaUnavailable,
    OffsetOutOfRange,
    SluicewayError,
    TopicGone,
)
from sluiceway.kafka.config import consumer_config
from sluiceway.kafka.errors import translate_error
from sluiceway.kafka.io_thread import Chunk, Consumers, MessageQueue, is_failure
from sluiceway.kafka.topic import EARLIEST, LATEST, TopicIdentity
from sluiceway.runtime.threads import Signal, call

__all__ = [
    "FetchedMessages",
    "IdleTimeout",
    "MessageStream",
    "PartitionStream",
    "Watermarks",
]

LOGGER = logging.getLogger("sluiceway.kafka")

T = TypeVar("T")

_PROBE_S = 2.0
_PROBE_MAX_AGE_S = 1.0
"""The age up to which a probe of another reader of the process serves as well."""
_RENEW_EVERY_S = 10.0
_RENEW_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Watermarks:
    """The first offset of a partition, and the offset after its last message."""

    begin: int
    end: int


@dataclass(frozen=True, kw_only=True)
class FetchedMessages:
    """The result of one `poll`: messages in the order in which they arrived.

    `next` has the next offset of each partition with messages, and of those that are at their end:
    there it is past transaction markers and other control records. `refused` are partitions that
    return no more messages before a call of `PartitionStream.reassign_refused`.
    """

    chunks: Sequence[Chunk]
    next: Mapping[int, int]
    at_end: Collection[int] = ()
    refused: Collection[int] = ()

    @property
    def items(self) -> list[Any]:
        """The values of all messages, or the messages; see `Chunk`."""
        return [*chain.from_iterable(chunk.items for chunk in self.chunks)]


class PartitionStream(Protocol):
    """Messages and offsets of one topic's partitions, as visible to a reader."""

    @property
    def arrived(self) -> Signal:
        """It is set when a `poll` may return messages."""

    def discover_partitions(self) -> int:
        """Request the number of the topic's partitions.

        It is never less than that of the connection: a broker may not know the topic, yet or any
        more. Raises KafkaUnavailable.
        """

    def renew(self, *, timeout_s: float) -> bool:
        """Refresh the topic's metadata; replace a Kafka client that does not get it.

        librdkafka does not reconnect after a response without brokers, as a broker that shuts down
        sends (confluentinc/librdkafka#5301). Returns whether the client was replaced: then call
        `assign`. Raises KafkaFailure, also KafkaUnavailable while the topic has no brokers.
        """

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets, and drop fetched messages."""

    def add(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions as well."""

    def drop(self, partitions: Collection[int]) -> None:
        """Stop reading partitions."""

    def close(self) -> None:
        """Release the connections. May be repeated."""

    def poll(self, limit: int, wait_s: float) -> FetchedMessages:
        """Return up to `limit` messages; none if none arrived within `wait_s`."""

    def reassign_refused(self, offsets: Mapping[int, int]) -> dict[int, OffsetOutOfRange]:
        """Assign refused partitions again at these offsets; return errors for missing offsets.

        An offset that exists is not the refused one, which was requested before a seek. librdkafka
        has stopped fetching nevertheless. Raises the errors of `watermarks`.
        """
        errors = {
            p: OffsetOutOfRange(partition=p, offset=offsets[p], begin=mark.begin, end=mark.end)
            for p, mark in self.watermarks(offsets.keys()).items()
            if not mark.begin <= offsets[p] <= mark.end
        }
        valid = {p: offset for p, offset in offsets.items() if p not in errors}
        self.drop(valid)
        self.add(valid)
        return errors

    def verify(self, *, timeout_s: float | None = None, max_age_s: float = 0.0) -> None:
        """Raise TopicGone or KafkaUnavailable unless the topic exists and is the same."""

    def count_partitions(self, *, timeout_s: float, max_age_s: float) -> int:
        """Return the topic's number of partitions, after the checks of `verify`."""

    def watermarks(self, partitions: Collection[int]) -> dict[int, Watermarks]:
        """Return the watermarks of the messages that can be read now."""

    def known_end(self, partition: int) -> int:
        """Return the end of a partition as far as it is known without a request; else -1."""

    def offsets(
        self, times: Mapping[int, int], *, timeout_s: float | None = None
    ) -> dict[int, int]:
        """Return the first readable offset not older than each partition's time (Unix, in ms).

        -1 if there is none. EARLIEST and LATEST are times: `begins` and `ends`. Raises
        KafkaUnavailable after `timeout_s`, and TopicGone.
        """

    def begins(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the first offset of each partition."""

    def earliest(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the offset at which a read of everything begins in each partition."""
        return self.begins(partitions)

    def ends(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the offset up to which each partition can be read now."""

    def final_ends(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the offset up to which each partition is written, readable now or later."""
        return self.ends(partitions)

    def offsets_at(self, time_ms: int, partitions: Collection[int]) -> dict[int, int]:
        """Return the first offset not older than `time_ms` (Unix time), or the end."""

    @property
    def awaits_messages(self) -> bool:
        """True while Kafka has messages that the reader has not received."""
        return False

    def idle_error(self, idle_s: float) -> SluicewayError:
        """Return the error for awaited messages that have not arrived for `idle_s`."""


class MessageStream(PartitionStream):
    """Messages of one topic's partitions, assigned by hand and without a consumer group.

    The caller keeps the offsets. Streams of the same `consumers` share a Kafka client. `poll`
    returns the messages' values, or `whole_messages`. Offsets are listed by the admin client of the
    process: a consumer's own connections are busy waiting for messages.
    """

    def __init__(
        self,
        connection: Connection,
        config: Mapping[str, object] | None = None,
        *,
        timeout_s: float,
        consumers: Consumers | None = None,
        whole_messages: bool = False,
    ) -> None:
        self._topic = connection.topic_name
        self._timeout_s = timeout_s
        properties = consumer_config(connection.kafka, config)
        self._committed = properties.get("isolation.level") != "read_uncommitted"
        self._process = this_process()
        self._identity = TopicIdentity(connection, config)
        self._pending_failure: SluicewayError | None = None
        self._closed = False
        self._changes = 0
        consumers = consumers or Consumers()
        self._pool = consumers.pool(properties)
        self._queue = MessageQueue(
            self._topic,
            connection.topic_id,
            connection.partitions,
            consumers.arrived,
            whole_messages=whole_messages,
        )
        abandon = self._process.finalize(self, self._queue.abandon)
        abandon.atexit = False

    @property
    def arrived(self) -> Signal:
        """It is set when a `poll` may return messages."""
        return self._queue.arrived

    def discover_partitions(self) -> int:
        """Request the number of the topic's partitions."""
        self._check()
        try:
            partitions = self._identity.partitions(timeout_s=self._timeout_s)
        except TopicGone:
            # A later request for offsets says so.
            partitions = 0
        return max(partitions, self._queue.partitions)

    def renew(self, *, timeout_s: float) -> bool:
        """Refresh the topic's metadata; replace a client that does not get it."""
        try:
            self.request_metadata(timeout_s, max_age_s=_PROBE_MAX_AGE_S)
        except KafkaUnavailable as error:
            LOGGER.info("the client of the topic %s is replaced: %s", self._topic, error)
            self._change(self._pool.replace, self._queue)
            return True
        return False

    def request_metadata(self, timeout_s: float, *, max_age_s: float = 0.0) -> None:
        """Request the topic's metadata on the connections of its consumer, unless it is recent.

        Raises KafkaFailure.
        """
        if self._queue.consumer is None:
            self.assign({})
        assert self._queue.consumer is not None  # noqa: S101 - assigned
        self._call(self._queue.consumer.request_metadata, self._topic, timeout_s, max_age_s)

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets."""
        self._pending_failure = None
        self._change(self._pool.assign, self._queue, offsets)

    def add(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions as well."""
        self._change(self._pool.add, self._queue, offsets)

    def drop(self, partitions: Collection[int]) -> None:
        """Stop reading partitions."""
        consumer = self._queue.consumer
        if consumer is not None:
            self._change(consumer.drop, self._queue, partitions)

    def close(self) -> None:
        """Stop reading; a consumer without other streams is closed a moment later.

        May be repeated.
        """
        if not self._closed and not self._process.forked:
            self._change(self._remove)
        self._closed = True

    def poll(self, limit: int, wait_s: float) -> FetchedMessages:
        """Return up to `limit` messages; none if none arrived within `wait_s`.

        Raises KafkaFailure for errors that are not retried, after the messages before them.
        """
        failure, self._pending_failure = self._pending_failure, None
        if failure is not None:
            raise failure
        self._check()
        chunks = self._queue.take(limit, wait_s)
        if not chunks and (error := self._queue.take_failure()) is not None:
            raise self._failure(error) if isinstance(error, KafkaError) else self._unexpected(error)
        next_: dict[int, int] = {}
        at_end: set[int] = set()
        refused: set[int] = set()
        for chunk in chunks:
            if chunk.offsets:
                next_[chunk.partition] = chunk.offsets[-1] + 1
                at_end.discard(chunk.partition)
            for event in chunk.events:
                code = event.error().code()
                if code == KafkaError._PARTITION_EOF:
                    if event.offset() >= next_.get(chunk.partition, 0):
                        next_[chunk.partition] = event.offset()
                        at_end.add(chunk.partition)
                elif code == KafkaError._AUTO_OFFSET_RESET:
                    refused.add(chunk.partition)
                elif is_failure(event):
                    # librdkafka retries the others by itself; the idle timeout diagnoses them.
                    failure = self._failure(event.error(), f"reading partition {chunk.partition}")
        if failure is not None and not next_ and not refused:
            raise failure
        self._pending_failure = failure
        received = [chunk for chunk in chunks if chunk.offsets]
        return FetchedMessages(chunks=received, next=next_, at_end=at_end, refused=refused)

    def verify(self, *, timeout_s: float | None = None, max_age_s: float = 0.0) -> None:
        """Raise TopicGone or KafkaUnavailable unless the topic exists and is the same."""
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        self._identity.verify(timeout_s=timeout_s, max_age_s=max_age_s)

    def count_partitions(self, *, timeout_s: float, max_age_s: float) -> int:
        """Return the topic's number of partitions, after the checks of `verify`."""
        return self._identity.count_partitions(timeout_s=timeout_s, max_age_s=max_age_s)

    def watermarks(self, partitions: Collection[int]) -> dict[int, Watermarks]:
        """Return the watermarks of each partition."""
        begins = self.begins(partitions)
        ends = self.ends(partitions)
        return {p: Watermarks(begin=begins[p], end=ends[p]) for p in partitions}

    def known_end(self, partition: int) -> int:
        """Return the end of a partition as of its last fetch; -1 before the first."""
        return self._queue.known_ends.get(partition, -1)

    def offsets(
        self, times: Mapping[int, int], *, timeout_s: float | None = None
    ) -> dict[int, int]:
        """Return the first offset not older than each time (ms), or -1."""
        self._check()
        if not times:
            return {}
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        return self._identity.offsets(times, timeout_s=timeout_s, committed=self._committed)

    def begins(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the first offset of each partition."""
        return self.offsets(dict.fromkeys(partitions, EARLIEST))

    def ends(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the offset after the last message of each partition."""
        return self.offsets(dict.fromkeys(partitions, LATEST))

    def idle_error(self, idle_s: float) -> SluicewayError:
        """Return the error for awaited messages that have not arrived for `idle_s`."""
        return KafkaUnavailable(
            f"no messages arrived from the topic {self._topic} for {idle_s:.0f} s, although "
            "its end is not reached. Positions are unchanged; try again"
        )

    def offsets_at(self, time_ms: int, partitions: Collection[int]) -> dict[int, int]:
        """Return the first offset not older than `time_ms` (Unix time), or the end."""
        listed = self.offsets(dict.fromkeys(partitions, time_ms))
        return listed | self.ends([p for p, offset in listed.items() if offset < 0])

    def _check(self) -> None:
        self._process.check("this reader")
        if self._closed:
            raise EndpointClosed("this reader is closed; open a new one with channel.reader()")

    def _remove(self) -> None:
        if self._queue.consumer is not None:
            self._queue.consumer.remove(self._queue)

    def _change(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """Change what the stream reads, unless a later change was made meanwhile.

        A call that was interrupted goes on in the background.
        """
        self._changes = number = self._changes + 1

        def change() -> T | None:
            with self._pool.lock:
                return function(*arguments) if number == self._changes else None

        return self._call(change)

    def _call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        self._check()
        try:
            return call(lambda: function(*arguments, **named))
        except KafkaException as error:
            raise self._failure(error.args[0]) from error

    def _unexpected(self, error: Exception) -> SluicewayError:
        failure = KafkaFailure(
            f"reading the topic {self._topic} failed: {type(error).__name__}: {error}. Positions "
            "are unchanged; read again"
        )
        failure.__cause__ = error
        return failure

    def _failure(self, error: KafkaError, doing: str = "reading") -> SluicewayError:
        return translate_error(error, doing=doing, topic=self._topic)


class IdleTimeout:
    """The time since the last message, with probes of the topic meanwhile."""

    def __init__(
        self, *, timeout_s: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._timeout_s = timeout_s
        self._monotonic = monotonic
        self._since_s = self._next_probe_s = self._last_call_s = 0.0
        self._renewed_s = self._monotonic()
        self._pause_excluded = False
        self.reset()

    def reset(self) -> None:
        """Restart the timeout: a message has arrived."""
        self._since_s = self._last_call_s = self._monotonic()
        self._next_probe_s = self._since_s + min(_PROBE_S, self._timeout_s / 2)
        self._pause_excluded = False

    def probe(self, stream: PartitionStream, *, awaited: bool) -> bool:
        """Verify the topic if a probe is due; return whether partitions must be assigned again.

        `awaited`: messages must arrive. After the timeout, restarts and raises KafkaUnavailable if
        Kafka does not answer, or the stream's `idle_error` if awaited messages did not arrive. Also
        raises the other errors of `verify`.
        """
        now_s = self._monotonic()
        self._exclude_pause(now_s)
        if now_s < self._next_probe_s:
            return False
        idle_s = now_s - self._since_s
        expired = idle_s >= self._timeout_s
        self._next_probe_s = now_s + min(_PROBE_S, self._timeout_s / 2)
        try:
            stream.verify(timeout_s=min(_PROBE_S, self._timeout_s), max_age_s=_PROBE_MAX_AGE_S)
            if awaited or now_s - self._renewed_s > _RENEW_EVERY_S:
                self._renewed_s = now_s
                if stream.renew(timeout_s=min(_RENEW_TIMEOUT_S, self._timeout_s)):
                    return True
        except KafkaUnavailable:
            if not expired:
                return False
            self.reset()
            raise
        finally:
            self._last_call_s = self._monotonic()
        if not awaited:
            # An idle topic is no failure.
            self.reset()
        elif expired:
            self.reset()
            raise stream.idle_error(idle_s)
        return False

    def _exclude_pause(self, now_s: float) -> None:
        """Exclude one pause of the process, or of its calls, from the idle time."""
        pause_s, self._last_call_s = now_s - self._last_call_s, now_s
        if pause_s > self._timeout_s / 2 and not self._pause_excluded:
            self._pause_excluded = True
            self._since_s += pause_s
