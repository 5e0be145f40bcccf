"""Consumer: messages of assigned partitions in offset order, and the idle timeout."""

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sluiceway.concurrency import ForkGuard
from sluiceway.errors import KafkaUnavailable, SluicewayError
from sluiceway.kafka.config import consumer_config
from sluiceway.kafka.errors import (
    create_client,
    is_gone,
    is_unavailable,
    run_callbacks,
    translate_error,
)
from sluiceway.kafka.topic import EARLIEST, LATEST, TopicIdentity
from sluiceway.records.to_python import gc_paused
from sluiceway.rest.models import Connection

__all__ = [
    "GATHER_S",
    "FetchedMessages",
    "IdleTimeout",
    "MessageStream",
    "OwnStream",
    "PartitionStream",
    "Watermarks",
]

LOGGER = logging.getLogger("sluiceway.kafka")

GATHER_S = 0.001
"""The time that a fetch waits for further messages after its first one."""
_PROBE_S = 2.0
_RENEW_EVERY_S = 10.0
_RENEW_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Watermarks:
    """The first offset of a partition, and the offset after its last message."""

    begin: int
    end: int


@dataclass(frozen=True, kw_only=True)
class FetchedMessages:
    """The result of one `poll`.

    `ends` has the next offset of partitions whose end was reached after `messages`; it is past
    transaction markers and other control records. `out_of_range` are partitions whose offset does
    not exist: they return no more messages until they are assigned again.
    """

    messages: list[Message]
    ends: Mapping[int, int]
    out_of_range: Collection[int] = ()


class PartitionStream(Protocol):
    """Messages and offsets of one topic's partitions, as visible to a reader."""

    def discover_partitions(self) -> int:
        """Refresh the topic's metadata and return the number of its partitions.

        It is never less than that of the connection: a broker that does not know the topic, yet or
        any more, responds without partitions. Raises KafkaUnavailable.
        """

    def renew(self, *, timeout_s: float) -> bool:
        """Refresh the topic's metadata; replace a Kafka client that does not get it.

        librdkafka does not reconnect after a response without brokers, as a broker that shuts down
        sends (confluentinc/librdkafka#5301). Returns whether the client was replaced: then call
        `assign`. Raises KafkaFailure, also KafkaUnavailable while the topic has no brokers.
        """

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets, and drop fetched messages."""

    def drop(self, partitions: Collection[int]) -> None:
        """Stop reading partitions."""

    def close(self) -> None:
        """Release the connections. May be repeated."""

    def poll(self, limit: int, wait_s: float) -> FetchedMessages:
        """Return up to `limit` messages; none if none arrived within `wait_s`."""

    def verify(self, *, timeout_s: float | None = None, max_age_s: float = 0.0) -> None:
        """Raise TopicGone or KafkaUnavailable unless the topic exists and is the same."""

    def count_partitions(self, *, timeout_s: float, max_age_s: float) -> int:
        """Return the topic's number of partitions, after the checks of `verify`."""

    def watermarks(self, partitions: Collection[int]) -> dict[int, Watermarks]:
        """Return the watermarks of the messages that can be read now."""

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

    The caller keeps the offsets. An `OwnStream` has its own consumer, a `SharedStream`
    shares one. Offsets are listed by the admin client of the process: a consumer's own
    connections are busy waiting for messages.
    """

    def __init__(
        self,
        connection: Connection,
        config: Mapping[str, object] | None = None,
        *,
        timeout_s: float,
    ) -> None:
        self._topic = connection.topic_name
        self._partitions = connection.partitions
        self._timeout_s = timeout_s
        self._properties = consumer_config(connection.kafka, config)
        self._committed = self._properties.get("isolation.level") != "read_uncommitted"
        self._fork_guard = ForkGuard()
        self._identity = TopicIdentity(connection, config)
        self._pending_failure: SluicewayError | None = None

    @abstractmethod
    def add(self, offsets: Mapping[int, int]) -> bool:
        """Read these partitions as well; False if all must be assigned again instead."""

    def renew(self, *, timeout_s: float) -> bool:
        """Refresh the topic's metadata; replace a client that does not get it."""
        try:
            self._call(self._refresh_metadata, timeout_s)
        except KafkaUnavailable as error:
            LOGGER.info("the client of the topic %s is replaced: %s", self._topic, error)
            self._replace_client()
            return True
        return False

    @abstractmethod
    def _refresh_metadata(self, timeout_s: float) -> object:
        """Request the topic's metadata. Raises KafkaException."""

    @abstractmethod
    def _replace_client(self) -> None:
        """Use a new Kafka client, without partitions."""

    @abstractmethod
    def _poll(self, limit: int, wait_s: float) -> Sequence[Message]:
        """Return up to `limit` messages and events, as soon as there are some."""

    def poll(self, limit: int, wait_s: float) -> FetchedMessages:
        """Return up to `limit` messages; none if none arrived within `wait_s`.

        Raises KafkaFailure for errors that are not retried, after the messages before them.
        """
        failure, self._pending_failure = self._pending_failure, None
        if failure is not None:
            raise failure
        polled = self._poll(limit, wait_s)
        messages = [each for each in polled if each.error() is None]
        ends: dict[int, int] = {}
        out_of_range: set[int] = set()
        for event in () if len(messages) == len(polled) else polled:
            error = event.error()
            if error is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                ends[event.partition()] = event.offset()
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                out_of_range.add(event.partition())
            elif not is_unavailable(error) and not is_gone(error):
                # librdkafka retries the others by itself; the idle timeout diagnoses them.
                failure = self._failure(error)
        if failure is not None and not (messages or ends or out_of_range):
            raise failure
        self._pending_failure = failure
        return FetchedMessages(messages=messages, ends=ends, out_of_range=out_of_range)

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

    def begins(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the first offset of each partition."""
        return self._offsets(dict.fromkeys(partitions, EARLIEST))

    def ends(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the offset after the last message of each partition."""
        return self._offsets(dict.fromkeys(partitions, LATEST))

    def idle_error(self, idle_s: float) -> SluicewayError:
        """Return the error for awaited messages that have not arrived for `idle_s`."""
        return KafkaUnavailable(
            f"no messages arrived from the topic {self._topic} for {idle_s:.0f} s, although "
            "its end is not reached. Positions are unchanged; try again"
        )

    def offsets_at(self, time_ms: int, partitions: Collection[int]) -> dict[int, int]:
        """Return the first offset not older than `time_ms` (Unix time), or the end."""
        found = self._offsets(dict.fromkeys(partitions, time_ms))
        return found | self.ends([p for p, offset in found.items() if offset < 0])

    def _offsets(self, times: Mapping[int, int]) -> dict[int, int]:
        self._check()
        if not times:
            return {}
        return self._identity.offsets(times, timeout_s=self._timeout_s, committed=self._committed)

    def _check(self) -> None:
        self._fork_guard.check("this reader")

    def _call(self, call: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return run_callbacks(call, *arguments, **named)
        except KafkaException as error:
            raise self._failure(error.args[0]) from error

    def _failure(self, error: KafkaError) -> SluicewayError:
        return translate_error(error, doing="reading", topic=self._topic)


class OwnStream(MessageStream):
    """A stream with its own consumer."""

    def __init__(
        self,
        connection: Connection,
        config: Mapping[str, object] | None = None,
        *,
        timeout_s: float,
    ) -> None:
        super().__init__(connection, config, timeout_s=timeout_s)
        self._consumer = create_client(Consumer, self._properties)

    def discover_partitions(self) -> int:
        """Refresh the topic's metadata and return the number of its partitions."""
        metadata = self._call(self._consumer.list_topics, self._topic, timeout=self._timeout_s)
        return max(self._partitions, len(metadata.topics[self._topic].partitions))

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets."""
        self._pending_failure = None
        self._call(self._consumer.assign, [self._at(p, offset) for p, offset in offsets.items()])

    def add(self, offsets: Mapping[int, int]) -> bool:
        """Read these partitions as well."""
        places = [self._at(p, offset) for p, offset in offsets.items()]
        self._call(self._consumer.incremental_assign, places)
        return True

    def drop(self, partitions: Collection[int]) -> None:
        """Stop reading partitions."""
        self._call(self._consumer.incremental_unassign, [self._at(p) for p in partitions])

    def close(self) -> None:
        """Close the consumer. May be repeated."""
        if not self._fork_guard.forked:
            self._consumer.close()

    def _refresh_metadata(self, timeout_s: float) -> object:
        return self._consumer.list_topics(self._topic, timeout=timeout_s)

    def _replace_client(self) -> None:
        replaced, self._consumer = self._consumer, create_client(Consumer, self._properties)
        replaced.close()

    def _poll(self, limit: int, wait_s: float) -> Sequence[Message]:
        # First one message, then the rest: `consume` waits for the full number of messages.
        polled: list[Message] = self._call(self._consumer.consume, 1, wait_s)
        if polled and limit > 1:
            with gc_paused():
                polled += self._call(self._consumer.consume, limit - 1, GATHER_S)
        return polled

    def _at(self, partition: int, offset: int = LATEST) -> TopicPartition:
        return TopicPartition(self._topic, partition, offset)


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
            stream.verify(timeout_s=min(_PROBE_S, self._timeout_s))
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
