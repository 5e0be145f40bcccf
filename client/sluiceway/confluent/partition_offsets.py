"""Offsets by partition, and their conversion from and to confluent-kafka's class."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar

from confluent_kafka import TopicPartition

__all__ = ["Partition", "by_channel", "partitions_of", "topic_partitions"]

V = TypeVar("V")
Partition: TypeAlias = tuple[str, int]
"""A channel and the number of a partition."""


def topic_partitions(offsets: Mapping[Partition, int]) -> list[TopicPartition]:
    """Return offsets in confluent-kafka's class."""
    return [TopicPartition(channel, number, at) for (channel, number), at in offsets.items()]


def partitions_of(partitions: Sequence[TopicPartition]) -> dict[Partition, int]:
    """Return a caller's partitions with their offsets. Raises TypeError."""
    if not isinstance(partitions, list | tuple):
        raise TypeError("expected list of TopicPartition")
    for topic_partition in partitions:
        if not isinstance(topic_partition, TopicPartition):
            raise TypeError(f"expected TopicPartition, not {type(topic_partition).__name__}")
    return {
        (topic_partition.topic, topic_partition.partition): topic_partition.offset
        for topic_partition in partitions
    }


def by_channel(values: Mapping[Partition, V]) -> dict[str, dict[int, V]]:
    """Return values by channel and partition."""
    channels: dict[str, dict[int, V]] = {}
    for (channel, number), value in values.items():
        channels.setdefault(channel, {})[number] = value
    return channels
