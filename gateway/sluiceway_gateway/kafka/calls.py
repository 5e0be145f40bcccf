"""What the services need from Kafka, in as few words as possible."""

from collections.abc import Iterable, Mapping, Sized
from datetime import datetime
from typing import Protocol

from sluiceway_gateway.broker.observation import Observation
from sluiceway_gateway.kafka.model import Watermarks


class ClusterView(Protocol):
    """What is known of the cluster."""

    @property
    def brokers(self) -> Sized:
        """The brokers that are alive."""


class Topics(Protocol):
    """The ends of topics."""

    def watermarks(self, name: str, partitions: Iterable[int]) -> Mapping[int, Watermarks | None]:
        """Return a topic's bounds by partition; raises KafkaUnavailable."""


class Logs(Topics, Protocol):
    """The ends of topics, and the time of what was written last."""

    def newest(self, name: str, partitions: Iterable[int]) -> datetime | None:
        """Return the latest time of a topic's records; raises KafkaUnavailable."""


class Cluster(Topics, Protocol):
    """The Kafka cluster."""

    def observe(self, names: Iterable[str]) -> Observation:
        """Look at topics; raises KafkaUnavailable."""

    def describe_cluster(self, timeout_s: float) -> ClusterView:
        """Ask Kafka; raises KafkaUnavailable if there is no answer in `timeout_s`."""
