"""Topics and commands for them, messages, brokers, watermarks and listeners as frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

from sluiceway_gateway.core.errors import AccessFailure, AccessProblem, InvalidRequest, Violation


@dataclass(frozen=True, kw_only=True)
class DesiredTopic:
    """The topic that a channel specifies.

    `id` is the recorded topic id in Kafka's base64 form, None before the topic was first observed.
    `replication` None is the broker's default; it matters only at creation. `config` holds all
    overrides. `wanted` is False while the channel is being deleted with its topic. `owned` is False
    for an adopted topic, which must not be changed.
    """

    name: str
    id: str | None
    partitions: int
    replication: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    wanted: bool = True
    owned: bool = True
    exactly_once: bool = False
    """Whether committed records must survive, which adds overrides by the number of replicas."""


@dataclass(frozen=True, kw_only=True)
class ObservedTopic:
    """A topic as Kafka describes it; `config` holds only the topic's own dynamic overrides."""

    name: str
    id: str
    partitions: int
    replication: int
    config: Mapping[str, str] = field(default_factory=dict)


class Cause(StrEnum):
    """Cause of a rejection; determines the reaction."""

    TOPIC_ABSENT = "topic_absent"
    TOPIC_EXISTS = "topic_exists"
    INVALID_NAME = "invalid_name"
    INVALID_PARTITIONS = "invalid_partitions"
    INVALID_REPLICATION = "invalid_replication"
    INVALID_CONFIG = "invalid_config"
    DENIED = "denied"
    """Kafka's ACLs or policies forbid it."""
    UNAVAILABLE = "unavailable"
    """The same request may succeed later."""
    OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """A refusal by Kafka; `message` is the broker's."""

    cause: Cause
    message: str


@dataclass(frozen=True, kw_only=True)
class ObservedTopics:
    """Existing topics, and the rejections of topics that Kafka did not describe.

    A requested topic in neither does not exist.
    """

    topics: Mapping[str, ObservedTopic]
    rejections: Mapping[str, Rejection]


@dataclass(frozen=True, kw_only=True)
class PartitionLeadership:
    """Brokers of a partition; `leader` is None while there is none."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class TopicMetadata:
    """A topic's identity and its partitions in ascending order."""

    name: str
    id: str
    partitions: tuple[PartitionLeadership, ...]


@dataclass(frozen=True, kw_only=True)
class GroupOffset:
    """The offset of the next message that a consumer group of Kafka reads, with its metadata."""

    offset: int
    metadata: str | None


@dataclass(frozen=True, kw_only=True)
class KafkaGroup:
    """A consumer group of Kafka and its committed offsets in one topic, by partition."""

    name: str
    active: bool
    """Whether it has members, of any topic."""
    offsets: Mapping[int, GroupOffset]


@dataclass(frozen=True, kw_only=True)
class Watermarks:
    """The first available offset of a partition and the offset of the next message."""

    begin_offset: int
    end_offset: int


@dataclass(frozen=True, kw_only=True)
class NewMessage:
    """A message to produce."""

    partition: int
    key: bytes | None = None
    value: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class Broker:
    """A broker with its advertised address. `rack` is null if it has none, or does not tell it."""

    id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The cluster. `controller_id` is null while there is no controller."""

    cluster_id: str | None
    controller_id: int | None
    brokers: tuple[Broker, ...]


UNNAMED = "default"
"""Name of the only listener of a gateway without named listeners."""


@dataclass(frozen=True, kw_only=True)
class Listeners:
    """Kafka properties for clients, by listener; `default` names the one used without a name.

    They may contain credentials, so `repr` omits them.
    """

    default: str
    properties: Mapping[str, Mapping[str, str]] = field(repr=False)

    def reached_by(self, name: str | None) -> Mapping[str, str]:
        """Return the properties of a listener; raises InvalidRequest for an unknown name."""
        try:
            return self.properties[self.default if name is None else name]
        except KeyError:
            names = ", ".join(sorted(self.properties))
            raise InvalidRequest(
                f"There is no listener {name!r}; this gateway has {names}. Name one of them with "
                "SLUICEWAY_LISTENER or Gateway(listener=...), or leave it out for "
                f"{self.default!r}.",
                (Violation(pointer="query:listener", message=f"expected one of {names}"),),
            ) from None


@dataclass(frozen=True, kw_only=True)
class CreateTopic:
    """Create the topic; `replication` None takes the broker's default."""

    name: str
    partitions: int
    replication: int | None
    config: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class GrowPartitions:
    """Raise the number of partitions to `partitions` in total."""

    name: str
    partitions: int


@dataclass(frozen=True, kw_only=True)
class AlterConfig:
    """Set some overrides, and delete others so that the broker's defaults apply."""

    name: str
    set: Mapping[str, str]
    delete: frozenset[str]

    @property
    def names(self) -> list[str]:
        """The sorted names of all settings that change."""
        return sorted({*self.set, *self.delete})


@dataclass(frozen=True, kw_only=True)
class DeleteTopic:
    """Delete the topic and its data."""

    name: str


class Interval(NamedTuple):
    """The offsets `[first, end)`."""

    first: int
    end: int


@dataclass(frozen=True, kw_only=True)
class ReadMessage:
    """A message from Kafka."""

    partition: int
    offset: int
    timestamp_ms: int | None
    timestamp_type: Literal["create", "append"] | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def size_bytes(self) -> int:
        """The size of key, value and headers."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers


class Reason(StrEnum):
    """Reason of a condition; stable, part of the HTTP interface."""

    PROVISIONING = "Provisioning"
    TOPIC_CREATED = "TopicCreated"
    TOPIC_ADOPTED = "TopicAdopted"
    CLOSING = "Closing"
    CLOSED = "Closed"
    UP_TO_DATE = "UpToDate"
    DRIFT_REVERTED = "DriftReverted"
    PARTITIONS_EXCEED_SPEC = "PartitionsExceedSpec"
    BROKER_UNAVAILABLE = "BrokerUnavailable"
    KAFKA_CREDENTIALS_REFUSED = "KafkaCredentialsRefused"
    KAFKA_CERTIFICATE_REFUSED = "KafkaCertificateRefused"
    KAFKA_PROTOCOL_MISMATCH = "KafkaProtocolMismatch"
    WRONG_KAFKA_CLUSTER = "WrongKafkaCluster"
    INVALID_REPLICATION = "InvalidReplication"
    CONFIG_REJECTED = "ConfigRejected"
    KAFKA_REFUSED = "KafkaRefused"
    TOPIC_MISSING = "TopicMissing"
    TOPIC_RECREATED = "TopicRecreated"
    DELETING = "Deleting"


_ACCESS_REASONS: Mapping[AccessProblem, Reason] = {
    AccessProblem.CREDENTIALS: Reason.KAFKA_CREDENTIALS_REFUSED,
    AccessProblem.CERTIFICATE: Reason.KAFKA_CERTIFICATE_REFUSED,
    AccessProblem.PROTOCOL: Reason.KAFKA_PROTOCOL_MISMATCH,
    AccessProblem.CLUSTER: Reason.WRONG_KAFKA_CLUSTER,
}


def unavailable_reason(failure: AccessFailure | None) -> Reason:
    """Return the reason why Kafka is unusable."""
    return Reason.BROKER_UNAVAILABLE if failure is None else _ACCESS_REASONS[failure.problem]
