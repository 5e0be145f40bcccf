"""Responses in pykafka's shapes, with a `reason` beside each code.

`err` and `error_code` are 0, or a code of `exceptions.ERROR_CODES`. `topics` has the answers by
topic, in bytes or str, and partition.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

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


@dataclass(frozen=True)
class PartitionResponses(Response):
    """An answer for each partition."""

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
    """An answer to a group request."""

    error_code: int = 0
    reason: str = field(default="", kw_only=True)

    def failures(self) -> Iterator[ProtocolClientError]:
        """Yield the refusal as an exception."""
        if self.error_code:
            yield exception(self.error_code, self.reason)


@dataclass(frozen=True)
class FetchPartitionResponse:
    """Messages in order, and the end of the partition when they were fetched."""

    max_offset: int
    messages: list[Message]
    err: int = 0
    reason: str = ""


class FetchResponse(PartitionResponses):
    """The answer of `fetch_messages`: a FetchPartitionResponse for each partition."""

    throttle_time: ClassVar[int] = 0


@dataclass(frozen=True)
class ProducePartitionResponse:
    """The offset of the first message."""

    err: int
    offset: int
    reason: str = ""


class ProduceResponse(PartitionResponses):
    """The answer of `produce_messages`: a ProducePartitionResponse for each partition."""


@dataclass(frozen=True)
class OffsetPartitionResponse:
    """One offset, in a list."""

    offset: list[int]
    err: int = 0
    reason: str = ""


class ListOffsetResponse(PartitionResponses):
    """The answer of `request_offset_limits`: an OffsetPartitionResponse for each partition."""


@dataclass(frozen=True)
class OffsetCommitPartitionResponse:
    """Whether the partition's offset was committed."""

    err: int = 0
    reason: str = ""


class OffsetCommitResponse(PartitionResponses):
    """The answer of a commit: an OffsetCommitPartitionResponse for each partition."""


@dataclass(frozen=True)
class OffsetFetchPartitionResponse:
    """The next offset to read; -1 where nothing is committed. Metadata are always empty."""

    offset: int
    metadata: bytes = b""
    err: int = 0
    reason: str = ""


class OffsetFetchResponse(PartitionResponses):
    """Committed offsets: an OffsetFetchPartitionResponse for each partition."""

    err: ClassVar[int] = 0


@dataclass(frozen=True)
class BrokerMetadata:
    """A Kafka broker as this client reaches it; `gateway` is the gateway that named it."""

    id: int
    host: str
    port: int
    rack: bytes | None = None
    gateway: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class PartitionMetadata:
    """The leader and the replicas of a partition."""

    id: int
    leader: int
    replicas: list[int]
    isr: list[int]
    err: int = 0
    reason: str = ""


@dataclass(frozen=True)
class TopicMetadata:
    """A channel, with its partitions by number."""

    name: bytes
    partitions: dict[int, PartitionMetadata]
    err: int = 0
    reason: str = ""
    is_internal: bool = False


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

    The leader is the live member that joined first. Only its response has `members`: the metadata
    of each, by id.
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
