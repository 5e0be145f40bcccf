"""Topics, brokers, watermarks and listeners as frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sluiceway_gateway.errors import InvalidRequest, Violation


@dataclass(frozen=True, kw_only=True)
class DesiredTopic:
    """What a channel asks of its topic.

    `id` is the topic id that was recorded when the topic was first seen, in Kafka's base64
    form, or None as long as none was. `replication` None means the broker's default and counts
    at creation only. `config` holds every override that the topic shall have, and no other.
    `wanted` is False for a channel that is being deleted together with its topic. `owned` is
    False for a topic that was adopted: nothing may be done to it.
    """

    name: str
    id: str | None
    partitions: int
    replication: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    wanted: bool = True
    owned: bool = True


@dataclass(frozen=True, kw_only=True)
class ObservedTopic:
    """What Kafka says about a topic; `config` holds the topic's own dynamic overrides only."""

    name: str
    id: str
    partitions: int
    replication: int
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PartitionLeadership:
    """Who serves a partition; `leader` is None while it has none."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class TopicMetadata:
    """A topic's identity and the brokers that hold it, partitions in ascending order."""

    name: str
    id: str
    partitions: tuple[PartitionLeadership, ...]


@dataclass(frozen=True, kw_only=True)
class Watermarks:
    """The first offset kept in a partition and the offset that the next message will get."""

    begin_offset: int
    end_offset: int


@dataclass(frozen=True, kw_only=True)
class Broker:
    """One member of the cluster, as clients reach it."""

    id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The Kafka cluster: `controller_id` is None while there is no controller."""

    cluster_id: str | None
    controller_id: int | None
    brokers: tuple[Broker, ...]


UNNAMED = "default"
"""The name of the one listener of a gateway that has none by name."""


@dataclass(frozen=True, kw_only=True)
class Listeners:
    """Kafka properties for clients, by listener; `default` is for clients that name none.

    They may hold credentials, so they are left out of `repr`.
    """

    default: str
    properties: Mapping[str, Mapping[str, str]] = field(repr=False)

    def reached_by(self, name: str | None) -> Mapping[str, str]:
        """Return what a client gets; raises InvalidRequest for a name that there is not."""
        try:
            return self.properties[self.default if name is None else name]
        except KeyError:
            known = ", ".join(sorted(self.properties))
            raise InvalidRequest(
                f"There is no listener {name!r}; this gateway has {known}. Name one of them with "
                "SLUICEWAY_LISTENER or Gateway(listener=...), or leave it out for "
                f"{self.default!r}.",
                (Violation(pointer="query:listener", message=f"expected one of {known}"),),
            ) from None


class Cause(StrEnum):
    """What stood in the way; it decides what happens next, the message is for people."""

    TOPIC_ABSENT = "topic_absent"
    TOPIC_EXISTS = "topic_exists"
    INVALID_NAME = "invalid_name"
    INVALID_PARTITIONS = "invalid_partitions"
    INVALID_REPLICATION = "invalid_replication"
    INVALID_CONFIG = "invalid_config"
    DENIED = "denied"
    """Kafka's ACLs or policies do not let the gateway do it."""
    UNAVAILABLE = "unavailable"
    """Nothing is wrong with the request; it can succeed later as it is."""
    OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """One refusal; `message` holds the broker's own words."""

    cause: Cause
    message: str
