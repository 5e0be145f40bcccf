"""Responses in pykafka's form, with a `reason` beside each code.

`err` and `error_code` are 0, or a code of `exceptions.ERROR_CODES`. `topics` has the results by
topic, in bytes or str, and partition. Results of a partition, and the entries of metadata, are
tuples of pykafka's fields in its order; additional fields are attributes.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

from sluiceway.broker.exceptions import ERROR_CODES, ProtocolClientError, UnknownError
from sluiceway.broker.requests import ByName, Message

__all__ = [
    "BrokerMetadata",
    "FetchPartitionResponse",
    "FetchResponse",
    "HeartbeatResponse",
    "JoinGroupResponse",
    "LeaveGroupResponse",
    "ListOffsetResponse",
    "MemberAssignment",
    "MetadataResponse",
    "OffsetCommitPartitionResponse",
    "OffsetCommitResponse",
    "OffsetFetchPartitionResponse",
    "OffsetFetchResponse",
    "OffsetPartitionResponse",
    "PartitionMetadata",
    "ProducePartitionResponse",
    "ProduceResponse",
    "SyncGroupResponse",
    "TopicMetadata",
]


@dataclass(frozen=True)
class Response(ABC):
    """A response."""

    @abstractmethod
    def failures(self) -> Iterator[ProtocolClientError]:
        """Yield the refusals as exceptions."""

    def check(self) -> Self:
        """Return the response itself. Raises the first refusal."""
        for failure in self.failures():
            raise failure
        return self


class Reasoned:
    """Mixin of result tuples: the reason of a refusal, beside pykafka's fields."""

    reason = ""

    def because(self, refusal: object) -> Self:
        """Return the result itself, with the text of `refusal` as its reason."""
        self.reason = str(refusal)
        return self

    def __repr__(self) -> str:
        shown = super().__repr__()
        return f"{shown[:-1]}, reason={self.reason!r})" if self.reason else shown


@dataclass(frozen=True)
class PartitionResponses(Response):
    """A result for each partition."""

    topics: ByName[dict[int, Any]]

    def failures(self) -> Iterator[ProtocolClientError]:
        """Yield the refusals as exceptions."""
        for topic, partitions in self.topics.items():
            for partition, each in partitions.items():
                if each.err:
                    where = f"{topic.decode()}, partition {partition}"
                    yield exception(each.err, f"{where}: {each.reason}")


@dataclass(frozen=True)
class GroupResponse(Response):
    """A response to a group request."""

    error_code: int = 0
    reason: str = field(default="", kw_only=True)

    def failures(self) -> Iterator[ProtocolClientError]:
        """Yield the refusal as an exception."""
        if self.error_code:
            yield exception(self.error_code, self.reason)


class FetchPartitionResponse(
    Reasoned,
    NamedTuple(
        "FetchPartitionResponse", [("max_offset", int), ("messages", list[Message]), ("err", int)]
    ),
):
    """Messages in order, and the end of the partition at the time of the fetch."""


class FetchResponse(PartitionResponses):
    """The response of `fetch_messages`: a FetchPartitionResponse for each partition."""

    throttle_time: ClassVar[int] = 0


class ProducePartitionResponse(
    Reasoned, NamedTuple("ProducePartitionResponse", [("err", int), ("offset", int)])
):
    """The offset of the first message."""


class ProduceResponse(PartitionResponses):
    """The response of `produce_messages`: a ProducePartitionResponse for each partition."""


class OffsetPartitionResponse(
    Reasoned, NamedTuple("OffsetPartitionResponse", [("offset", list[int]), ("err", int)])
):
    """One offset, in a list."""


class ListOffsetResponse(PartitionResponses):
    """The response of `request_offset_limits`: an OffsetPartitionResponse for each partition."""


class OffsetCommitPartitionResponse(
    Reasoned, NamedTuple("OffsetCommitPartitionResponse", [("err", int)])
):
    """Whether the partition's offset was committed."""


class OffsetCommitResponse(PartitionResponses):
    """The response of a commit: an OffsetCommitPartitionResponse for each partition."""


class OffsetFetchPartitionResponse(
    Reasoned,
    NamedTuple(
        "OffsetFetchPartitionResponse", [("offset", int), ("metadata", bytes), ("err", int)]
    ),
):
    """The next offset to read, with its metadata; -1 without a commit."""


class OffsetFetchResponse(PartitionResponses):
    """Committed offsets: an OffsetFetchPartitionResponse for each partition."""

    err: ClassVar[int] = 0


class BrokerMetadata(NamedTuple("BrokerMetadata", [("id", int), ("host", str), ("port", int)])):
    """A Kafka broker with its address for this client; `gateway` is the source of the metadata."""

    rack: bytes | None = None
    gateway: Any = None

    @classmethod
    def named_by(cls, gateway: Any, broker: Any) -> Self:
        """Return the metadata of a broker with an id, a host and a port."""
        metadata = cls(broker.id, broker.host, broker.port)
        metadata.gateway = gateway
        return metadata


class PartitionMetadata(
    Reasoned,
    NamedTuple(
        "PartitionMetadata",
        [("id", int), ("leader", int), ("replicas", list[int]), ("isr", list[int]), ("err", int)],
    ),
):
    """The leader and the replicas of a partition."""


class TopicMetadata(
    Reasoned,
    NamedTuple(
        "TopicMetadata",
        [("name", bytes), ("partitions", dict[int, PartitionMetadata]), ("err", int)],
    ),
):
    """A channel, with its partitions by number."""

    is_internal = False


@dataclass(frozen=True)
class MetadataResponse(Response):
    """Kafka's brokers by id, and channels by name."""

    brokers: dict[int, BrokerMetadata]
    topics: ByName[TopicMetadata]
    controller_id: int | None = None
    cluster_id: str | None = None
    throttle_time_ms: ClassVar[int] = 0

    def failures(self) -> Iterator[ProtocolClientError]:
        """Yield the refusals as exceptions."""
        for topic in self.topics.values():
            if topic.err:
                yield exception(topic.err, f"{topic.name.decode()}: {topic.reason}")
            for each in topic.partitions.values():
                if each.err:
                    where = f"{topic.name.decode()}, partition {each.id}"
                    yield exception(each.err, f"{where}: {each.reason}")


@dataclass(frozen=True)
class JoinGroupResponse(GroupResponse):
    """The member's id and the group's generation.

    The leader is the live member that joined first. Only its response has `members`, their metadata
    by id.
    """

    generation_id: int = -1
    group_protocol: bytes = b""
    leader_id: bytes = b""
    member_id: bytes = b""
    members: Mapping[bytes, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MemberAssignment:
    """A member's partitions: pairs of a topic and a list of partitions."""

    partition_assignment: Sequence[tuple[bytes, list[int]]] = ()
    version: int = 1


@dataclass(frozen=True)
class SyncGroupResponse(GroupResponse):
    """The member's partitions."""

    member_assignment: MemberAssignment = MemberAssignment()


class HeartbeatResponse(GroupResponse):
    """Whether the member may continue."""


class LeaveGroupResponse(GroupResponse):
    """Whether the member has left."""


def exception(code: int, reason: str) -> ProtocolClientError:
    """Return the exception of a code."""
    return ERROR_CODES.get(code, UnknownError)(reason)
