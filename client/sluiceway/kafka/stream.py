"""Messages of assigned partitions, in the order of their offsets."""

import contextlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sluiceway.errors import KafkaUnavailable, SluicewayError, TopicGone
from sluiceway.garbage import nothing_to_collect
from sluiceway.kafka.failures import is_gone, is_unavailable, made, translated
from sluiceway.kafka.properties import consumer_config
from sluiceway.kafka.topic import TopicIdentity
from sluiceway.pauses import Pauses
from sluiceway.protocol import Connection

__all__ = ["MessageStream", "Taken", "Watermarks"]

# What Kafka's ListOffsets takes in the place of a time.
_LATEST, _EARLIEST = -1, -2
# How long a chunk waits for more once its first message is there.
_GATHER_S = 0.001
_MAX_LOOK_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Watermarks:
    """The first offset that a partition holds and the one after its last message."""

    begin: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What one call of `take` brought.

    `ends` has the next offset of partitions whose end was met after `messages`; it lies past
    whatever occupies offsets without being a message. `refused` has a partition whose offset is
    not in Kafka: nothing more comes from it until it is assigned again.
    """

    messages: list[Message]
    ends: Mapping[int, int]
    refused: int | None


class MessageStream:
    """A consumer without a group: partitions are assigned by hand, offsets kept by the caller."""

    def __init__(
        self,
        connection: Connection,
        config: Mapping[str, object] | None = None,
        *,
        timeout_s: float,
    ) -> None:
        self._process = os.getpid()
        self._topic = connection.topic_name
        self._timeout_s = timeout_s
        self._consumer = made(Consumer, consumer_config(connection.kafka, config))
        self._identity = TopicIdentity(connection, config)

    def verify(self, *, timeout_s: float | None = None, max_age_s: float = 0.0) -> None:
        """Raise TopicGone or KafkaUnavailable unless the topic is there and the same."""
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        self._identity.verify(timeout_s=timeout_s, max_age_s=max_age_s)

    def meet_new_partitions(self) -> int:
        """Learn of partitions that the topic has grown by; else they stay unknown for minutes.

        Returns how many it has. Raises KafkaUnavailable.
        """
        known = self._call(self._consumer.list_topics, self._topic, timeout=self._timeout_s)
        return len(known.topics[self._topic].partitions)

    def watermarks(self, partitions: Collection[int]) -> dict[int, Watermarks]:
        """Return the watermarks of each partition, asked for together."""
        begins = self.begins(partitions)
        ends = self.ends(partitions)
        return {p: Watermarks(begin=begins[p], end=ends[p]) for p in partitions}

    def begins(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the first offset that each partition holds."""
        return self._offsets(dict.fromkeys(partitions, _EARLIEST))

    def ends(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the offset after the last message of each partition."""
        return self._offsets(dict.fromkeys(partitions, _LATEST))

    def ends_at_once(self, partitions: Collection[int]) -> dict[int, int]:
        """Return what `ends` does, by a connection of its own: where a fetch waits, others wait."""
        return self._identity.ends(partitions, timeout_s=self._timeout_s, committed=True)

    def offsets_at(self, time_ms: int, partitions: Collection[int]) -> dict[int, int]:
        """Return the first offset not older than `time_ms` (Unix time), or the end."""
        found = self._offsets(dict.fromkeys(partitions, time_ms))
        late = [p for p, offset in found.items() if offset < 0]
        return found | self.ends(late)

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets; what was fetched before is dropped."""
        self._call(self._consumer.assign, [self._at(p, offset) for p, offset in offsets.items()])

    def drop(self, partitions: Collection[int]) -> None:
        """Read no more of these partitions."""
        self._call(self._consumer.incremental_unassign, [self._at(p) for p in partitions])

    def take(self, limit: int, wait_s: float) -> Taken:
        """Return up to `limit` messages, none if none came within `wait_s`.

        Raises KafkaFailure for what does not heal by itself.
        """
        # One message with patience, then what is there: asking for many waits for all of them.
        got = self._call(self._consumer.consume, 1, wait_s)
        if got and limit > 1:
            with nothing_to_collect():
                got += self._call(self._consumer.consume, limit - 1, _GATHER_S)
        events = [each for each in got if each.error() is not None]
        if not events:
            return Taken(messages=got, ends={}, refused=None)
        messages = [each for each in got if each.error() is None]
        ends: dict[int, int] = {}
        refused = None
        for event in events:
            code = event.error().code()
            if code == KafkaError._PARTITION_EOF:  # noqa: SLF001
                ends[event.partition()] = event.offset()
            elif code == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
                refused = event.partition()
            elif not is_unavailable(event.error()) and not is_gone(event.error()):
                # librdkafka goes on by itself after the others; idle readers look for the cause.
                raise translated(event.error(), doing="reading", topic=self._topic)
        return Taken(messages=messages, ends=ends, refused=refused)

    def close(self) -> None:
        """Let go of the connections. May be repeated."""
        # In a process that was forked, librdkafka's threads are missing: it would wait for them.
        if os.getpid() == self._process:
            self._consumer.close()

    def _offsets(self, times: Mapping[int, int]) -> dict[int, int]:
        if not times:
            return {}
        pauses = Pauses(self._timeout_s)
        while True:
            left_s = max(0.1, pauses.left_s)
            try:
                return self._offsets_now(times, left_s)
            except (KafkaUnavailable, TopicGone) as error:
                # Leaders move, new topics take a moment, and librdkafka also calls those unknown
                # that it cannot ask about: only a broker's word makes a topic gone.
                self._refute_gone(min(left_s, _MAX_LOOK_S))
                if not pauses.wait():
                    raise KafkaUnavailable(
                        f"Kafka did not tell the offsets of the topic {self._topic} within "
                        f"{self._timeout_s:g} s. Positions are kept; try again when the brokers "
                        "are back"
                    ) from error

    def _refute_gone(self, timeout_s: float) -> None:
        with contextlib.suppress(KafkaUnavailable):
            self.verify(timeout_s=timeout_s)

    def _offsets_now(self, times: Mapping[int, int], timeout_s: float) -> dict[int, int]:
        found = self._call(
            self._consumer.offsets_for_times,
            [self._at(p, time_ms) for p, time_ms in times.items()],
            timeout=timeout_s,
        )
        for each in found:
            if each.error is not None:
                raise self._failure(each.error)
        return {each.partition: each.offset for each in found}

    def _at(self, partition: int, offset: int = _LATEST) -> TopicPartition:
        return TopicPartition(self._topic, partition, offset)

    def _call(self, call: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return call(*arguments, **named)
        except KafkaException as error:
            raise self._failure(error.args[0]) from error

    def _failure(self, error: KafkaError) -> SluicewayError:
        return translated(error, doing="reading", topic=self._topic)
