"""Offsets by partition: those of callers, and those after the messages that a Consumer returned."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from confluent_kafka import Message, TopicPartition

__all__ = ["Partition", "ReturnedOffsets", "partitions_of", "topic_partitions"]

Partition: TypeAlias = tuple[str, int]
"""A channel and the number of a partition."""


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
        self.last: dict[int, Message] = {}
        """By partition, messages of the only channel that are not in `next_offsets` yet."""
        self.next_offsets: dict[Partition, int] = {}

    def add(self, messages: Sequence[Message], *, one_channel: bool) -> None:
        """Add returned messages and events; `one_channel`: they are of the only channel."""
        if one_channel:
            last = dict(zip(map(Message.partition, messages), messages, strict=True))
            if any(message.error() is not None for message in last.values()):
                last = {each.partition(): each for each in messages if each.error() is None}
            self.last |= last
            return
        # All at once: the caller returns none of them if this is interrupted.
        self.next_offsets |= {
            (each.topic(), each.partition()): each.offset() + 1
            for each in messages
            if each.error() is None
        }

    def settle(self) -> None:
        """Move the offsets of `last` to `next_offsets`."""
        last, self.last = self.last, {}
        # A copy, because another thread may still be adding a message.
        for message in [*last.values()]:
            self.next_offsets[message.topic(), message.partition()] = message.offset() + 1
