"""Consumer: messages of assigned partitions in offset order."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sluiceway.errors import SluicewayError
from sluiceway.fork_guard import ForkGuard
from sluiceway.garbage import nothing_to_collect
from sluiceway.kafka.config import consumer_config
from sluiceway.kafka.errors import is_gone, is_unavailable, made, translated
from sluiceway.kafka.topic import EARLIEST, LATEST, TopicIdentity
from sluiceway.rest.models import Connection

GATHER_S = 0.001
"""How long a chunk waits for more once its first message is there."""


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


class MessageStream(ABC):
    """Reads partitions of one topic without a group: they are assigned by hand.

    Offsets are kept by the caller. It is an OwnStream or a SharedStream, by who has the consumer.
    """

    def __init__(
        self,
        connection: Connection,
        config: Mapping[str, object] | None = None,
        *,
        timeout_s: float,
    ) -> None:
        self._topic = connection.topic_name
        self._timeout_s = timeout_s
        self._identity = TopicIdentity(connection, config)
        self._late: SluicewayError | None = None

    @abstractmethod
    def meet_new_partitions(self) -> int:
        """Learn of partitions that the topic has grown by; else they stay unknown for minutes.

        Returns how many it has. Raises KafkaUnavailable.
        """

    @abstractmethod
    def assign(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets; what was fetched before is dropped."""

    @abstractmethod
    def drop(self, partitions: Collection[int]) -> None:
        """Read no more of these partitions."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the connections. May be repeated."""

    @abstractmethod
    def _got(self, limit: int, wait_s: float) -> Sequence[Message]:
        """Return up to `limit` messages and events, as soon as there are some."""

    @abstractmethod
    def _offsets_now(self, times: Mapping[int, int]) -> dict[int, int]:
        """Return what Kafka's ListOffsets answers of these times, with retries for `timeout_s`."""

    def take(self, limit: int, wait_s: float) -> Taken:
        """Return up to `limit` messages, none if none came within `wait_s`.

        Raises KafkaFailure for what does not heal by itself, after the messages before it.
        """
        late, self._late = self._late, None
        if late is not None:
            raise late
        got = self._got(limit, wait_s)
        messages = [each for each in got if each.error() is None]
        ends: dict[int, int] = {}
        refused = None
        for event in () if len(messages) == len(got) else got:
            error = event.error()
            if error is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                ends[event.partition()] = event.offset()
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
                refused = event.partition()
            elif not is_unavailable(error) and not is_gone(error):
                # librdkafka goes on by itself after the others; idle readers look for the cause.
                self._late = self._failure(error)
        if self._late is not None and not messages and not ends and refused is None:
            late, self._late = self._late, None
            raise late
        return Taken(messages=messages, ends=ends, refused=refused)

    def verify(self, *, timeout_s: float | None = None, max_age_s: float = 0.0) -> None:
        """Raise TopicGone or KafkaUnavailable unless the topic is there and the same."""
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        self._identity.verify(timeout_s=timeout_s, max_age_s=max_age_s)

    def watermarks(self, partitions: Collection[int]) -> dict[int, Watermarks]:
        """Return the watermarks of each partition, asked for together."""
        begins = self.begins(partitions)
        ends = self.ends(partitions)
        return {p: Watermarks(begin=begins[p], end=ends[p]) for p in partitions}

    def begins(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the first offset that each partition holds."""
        return self._offsets(dict.fromkeys(partitions, EARLIEST))

    def ends(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the offset after the last message of each partition."""
        return self._offsets(dict.fromkeys(partitions, LATEST))

    def ends_at_once(self, partitions: Collection[int]) -> dict[int, int]:
        """Return what `ends` does, by a connection of its own: where a fetch waits, others wait."""
        return self._identity.ends(partitions, timeout_s=self._timeout_s, committed=True)

    def offsets_at(self, time_ms: int, partitions: Collection[int]) -> dict[int, int]:
        """Return the first offset not older than `time_ms` (Unix time), or the end."""
        found = self._offsets(dict.fromkeys(partitions, time_ms))
        late = [p for p, offset in found.items() if offset < 0]
        return found | self.ends(late)

    def _offsets(self, times: Mapping[int, int]) -> dict[int, int]:
        return self._offsets_now(times) if times else {}

    def _call(self, call: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return call(*arguments, **named)
        except KafkaException as error:
            raise self._failure(error.args[0]) from error

    def _failure(self, error: KafkaError) -> SluicewayError:
        return translated(error, doing="reading", topic=self._topic)


class OwnStream(MessageStream):
    """Fetches by connections that nobody else uses."""

    def __init__(
        self,
        connection: Connection,
        config: Mapping[str, object] | None = None,
        *,
        timeout_s: float,
    ) -> None:
        self._fork_guard = ForkGuard()
        self._consumer = made(Consumer, consumer_config(connection.kafka, config))
        super().__init__(connection, config, timeout_s=timeout_s)

    def meet_new_partitions(self) -> int:
        """Learn of partitions that the topic has grown by, and return how many it has."""
        known = self._call(self._consumer.list_topics, self._topic, timeout=self._timeout_s)
        return len(known.topics[self._topic].partitions)

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets."""
        self._late = None
        self._call(self._consumer.assign, [self._at(p, offset) for p, offset in offsets.items()])

    def drop(self, partitions: Collection[int]) -> None:
        """Read no more of these partitions."""
        self._call(self._consumer.incremental_unassign, [self._at(p) for p in partitions])

    def close(self) -> None:
        """Close the consumer. May be repeated."""
        if not self._fork_guard.forked:
            self._consumer.close()

    def _got(self, limit: int, wait_s: float) -> Sequence[Message]:
        # One message with patience, then what is there: asking for many waits for all of them.
        got: list[Message] = self._call(self._consumer.consume, 1, wait_s)
        if got and limit > 1:
            with nothing_to_collect():
                got += self._call(self._consumer.consume, limit - 1, GATHER_S)
        return got

    def _offsets_now(self, times: Mapping[int, int]) -> dict[int, int]:
        return self._identity.with_retries(
            lambda left_s: self._listed(times, left_s), timeout_s=self._timeout_s
        )

    def _listed(self, times: Mapping[int, int], timeout_s: float) -> dict[int, int]:
        found = self._call(
            self._consumer.offsets_for_times,
            [self._at(p, time_ms) for p, time_ms in times.items()],
            timeout=timeout_s,
        )
        for each in found:
            if each.error is not None:
                raise self._failure(each.error)
        return {each.partition: each.offset for each in found}

    def _at(self, partition: int, offset: int = LATEST) -> TopicPartition:
        return TopicPartition(self._topic, partition, offset)


__all__ = ["GATHER_S", "MessageStream", "OwnStream", "Taken", "Watermarks"]
