"""Offsets by partition: those of callers, and those after the messages that a Consumer returned."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from confluent_kafka import Message, TopicPartition

__all__ = ["Partition", "ReturnedOffsets", "partitions_of", "topic_partitions"]

Partition: TypeAlias = tuple[str, int]
"""A channel and the number of a partition."""
_RECENT: Final = 32
"""The offsets of this number of messages are recorded together, which is faster."""


def topic_partitions(offsets: Mapping[Partition, int]) -> list[TopicPartition]:
    """Return offsets in confluent-kafka's class."""
    return [TopicPartition(channel, number, at) for (channel, number), at in offsets.items()]


def partitions_of(given: Sequence[TopicPartition]) -> dict[Partition, int]:
    """Return a caller's partitions with their offsets. Raises TypeError."""
    if not isinstance(given, list | tuple):
        raise TypeError("expected list of TopicPartition")
    for each in given:
        if not isinstance(each, TopicPartition):
            raise TypeError(f"expected TopicPartition, not {type(each).__name__}")
    return {(each.topic, each.partition): each.offset for each in given}


class ReturnedOffsets:
    """The offsets after the last returned messages, by partition.

    librdkafka's positions also include messages that it drops after an interrupt. A request for
    them before each call takes 2 µs per partition; this takes 0.05 µs per message.
    """

    def __init__(self) -> None:
        # Returned messages that are not in `next_offsets` yet, with the names of their channels.
        self._recent: list[Message] = []
        self.next_offsets: dict[Partition, int] = {}

    def add(self, messages: Iterable[Message], only_name: str | None) -> None:
        """Add returned messages and events, all of the channel `only_name` if there is one."""
        self._recent += messages
        if len(self._recent) >= _RECENT:
            self.settle(only_name)

    def settle(self, only_name: str | None) -> None:
        """Update `next_offsets` with all messages that were added."""
        recent, self._recent = self._recent, []
        last = _last_by_partition(recent, only_name)
        if any(message.error() is not None for message in last.values()):
            messages = [message for message in recent if message.error() is None]
            last = _last_by_partition(messages, only_name)
        for partition, message in last.items():
            self.next_offsets[partition] = message.offset() + 1


def _last_by_partition(
    messages: Sequence[Message], only_name: str | None
) -> dict[Partition, Message]:
    """Return the last message of each partition."""
    numbers = map(Message.partition, messages)
    if only_name is None:
        topics = map(Message.topic, messages)
        return dict(zip(zip(topics, numbers, strict=True), messages, strict=True))
    last = dict(zip(numbers, messages, strict=True))
    return {(only_name, number): message for number, message in last.items()}
