"""What one look at Kafka showed of a set of topics."""

from collections.abc import Mapping
from dataclasses import dataclass

from sluiceway_gateway.domain.rejection import Rejection
from sluiceway_gateway.kafka.model import ObservedTopic


@dataclass(frozen=True, kw_only=True)
class Observation:
    """`topics` has those that exist, `rejections` those that Kafka would not show.

    A topic that was asked for and is in neither does not exist.
    """

    topics: Mapping[str, ObservedTopic]
    rejections: Mapping[str, Rejection]
