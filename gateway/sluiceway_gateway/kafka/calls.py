"""The calls to Kafka that services depend on, as protocols."""

from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from sluiceway_gateway.errors import KafkaUnavailable
from sluiceway_gateway.kafka.model import ObservedTopic, Rejection, Watermarks


@dataclass(frozen=True, kw_only=True)
class Observation:
    """`topics` has those that exist, `rejections` those that Kafka would not show.

    A topic that was asked for and is in neither does not exist.
    """

    topics: Mapping[str, ObservedTopic]
    rejections: Mapping[str, Rejection]


class ClusterView(Protocol):
    """What is known of the cluster."""

    @property
    def brokers(self) -> Sized:
        """The brokers that are alive."""


class TopicCalls(Protocol):
    """The ends of topics."""

    def watermarks(self, name: str, partitions: Iterable[int]) -> Mapping[int, Watermarks | None]:
        """Return a topic's bounds by partition; raises KafkaUnavailable."""


def require_watermarks(
    calls: TopicCalls, topic: str, partitions: int, *, unknown: str = ""
) -> dict[int, Watermarks]:
    """Return the bounds of all partitions of a topic.

    Raises KafkaUnavailable, with a message that begins with `unknown`.
    """
    try:
        found = calls.watermarks(topic, range(partitions))
    except KafkaUnavailable as error:
        raise KafkaUnavailable(f"{unknown} {error}".lstrip(), error.lockout) from error
    missing = [partition for partition, bounds in found.items() if bounds is None]
    if missing:
        text = f"{unknown} Kafka did not return the end offset of partition {missing[0]}."
        raise KafkaUnavailable(text.lstrip())
    return {partition: bounds for partition, bounds in found.items() if bounds is not None}


class LogCalls(TopicCalls, Protocol):
    """The ends of topics, and the time of what was written last."""

    def newest(self, name: str, partitions: Iterable[int]) -> datetime | None:
        """Return the latest time of a topic's records; raises KafkaUnavailable."""


class ClusterCalls(TopicCalls, Protocol):
    """The Kafka cluster."""

    def observe(self, names: Iterable[str]) -> Observation:
        """Look at topics; raises KafkaUnavailable."""

    def describe_cluster(self, timeout_s: float) -> ClusterView:
        """Ask Kafka; raises KafkaUnavailable if there is no answer in `timeout_s`."""
