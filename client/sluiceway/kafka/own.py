"""A stream with a consumer of its own."""

import os
from collections.abc import Collection, Mapping, Sequence

from confluent_kafka import Consumer, Message, TopicPartition

from sluiceway.garbage import nothing_to_collect
from sluiceway.kafka.config import consumer_config
from sluiceway.kafka.consumer import GATHER_S, MessageStream
from sluiceway.kafka.errors import made
from sluiceway.kafka.topic import LATEST
from sluiceway.rest.models import Connection

__all__ = ["OwnStream"]


class OwnStream(MessageStream):
    """Fetches by connections that nobody else uses."""

    def __init__(
        self,
        connection: Connection,
        config: Mapping[str, object] | None = None,
        *,
        timeout_s: float,
    ) -> None:
        self._process = os.getpid()
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
        # In a process that was forked, librdkafka's threads are missing: it would wait for them.
        if os.getpid() == self._process:
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
