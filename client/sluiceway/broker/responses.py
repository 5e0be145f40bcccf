"""What a Broker answers, in pykafka's shapes; `reason` says in words what a code stands for.

`err` and `error_code` are 0 where nothing is wrong, else a code in `exceptions.ERROR_CODES`.
`topics` has the answers by topic, in bytes or text, and partition.
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
    """An answer."""

    @abstractmethod
    def failures(self) -> Iterator[ProtocolClientError]:
        """Give what was refused, as exceptions."""

    def check(self) -> Self:
        """Return the answer itself; raises what was refused, the first of it."""
        for failure in self.failures():
            raise failure
        return self


@dataclass(frozen=True)
class ByPartition(Response):
    """An answer for each partition."""

    topics: ByName[dict[int, Any]]

    def failures(self) -> Iterator[ProtocolClientError]:
        """Give what was refused, as exceptions."""
        for topic, partitions in self.topics.items():
            for partition, told in partitions.items():
                if told.err:
                    where = f"{topic.decode()}, partition {partition}"
                    yield exception(told.err, f"{where}: {told.reason}")


@dataclass(frozen=True)
class OfGroup(Response):
    """An answer about a group."""

    error_code: int = 0
    reason: str = field(default="", kw_only=True)

    def failures(self) -> Iterator[ProtocolClientError]:
        """Give what was refused, as an exception."""
        if self.error_code:
            yield exception(self.error_code, self.reason)


@dataclass(frozen=True)
class FetchPartitionResponse:
    """The messages, in order, and where the partition ended when they were fetched."""

    max_offset: int
    messages: list[Message]
    err: int = 0
    reason: str = ""


class FetchResponse(ByPartition):
    """The answer of `fetch_messages`: a FetchPartitionResponse for each partition."""

    throttle_time: ClassVar[int] = 0


@dataclass(frozen=True)
class ProducePartitionResponse:
    """The offset of the first message."""

    err: int
    offset: int
    reason: str = ""


class ProduceResponse(ByPartition):
    """The answer of `produce_messages`: a ProducePartitionResponse for each partition."""


@dataclass(frozen=True)
class OffsetPartitionResponse:
    """One offset, in a list."""

    offset: list[int]
    err: int = 0
    reason: str = ""


class ListOffsetResponse(ByPartition):
    """The answer of `request_offset_limits`: an OffsetPartitionResponse for each partition."""


@dataclass(frozen=True)
class OffsetCommitPartitionResponse:
    """Whether the partition's offset was committed."""

    err: int = 0
    reason: str = ""


class OffsetCommitResponse(ByPartition):
    """The answer of a commit: an OffsetCommitPartitionResponse for each partition."""


@dataclass(frozen=True)
class OffsetFetchPartitionResponse:
    """The next offset to read; -1 where nothing is committed. Metadata are always empty."""

    offset: int
    metadata: bytes = b""
    err: int = 0
    reason: str = ""


class OffsetFetchResponse(ByPartition):
    """What is committed: an OffsetFetchPartitionResponse for each partition."""

    err: ClassVar[int] = 0


@dataclass(frozen=True)
class BrokerMetadata:
    """One of Kafka's brokers, as this client reaches it; `gateway` is whom it was heard from."""

    id: int
    host: str
    port: int
    rack: bytes | None = None
    gateway: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class PartitionMetadata:
    """Who leads a partition, and who has it."""

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
        """Give what was refused, as exceptions."""
        for topic in self.topics.values():
            if topic.err:
                yield exception(topic.err, f"{topic.name.decode()}: {topic.reason}")
            for each in topic.partitions.values():
                if each.err:
                    where = f"{topic.name.decode()}, partition {each.id}"
                    yield exception(each.err, f"{where}: {each.reason}")


@dataclass(frozen=True)
class JoinGroupResponse(OfGroup):
    """The member's id and the group's generation; the leader is told who is in it.

    `members` has what each subscribed to, by its id: of the leader, that is the member that
    came first of those at work.
    """

    generation_id: int = -1
    group_protocol: bytes = b""
    leader_id: bytes = b""
    member_id: bytes = b""
    members: Mapping[bytes, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MemberAssignment:
    """Which partitions a member has: pairs of a topic and a list of partitions."""

    partition_assignment: Sequence[tuple[bytes, list[int]]] = ()
    version: int = 1


@dataclass(frozen=True)
class SyncGroupResponse(OfGroup):
    """The member's partitions."""

    member_assignment: MemberAssignment = MemberAssignment()


class HeartbeatResponse(OfGroup):
    """Whether the member may go on."""


class LeaveGroupResponse(OfGroup):
    """Whether the member has left."""


def exception(code: int, reason: str) -> ProtocolClientError:
    """Return the exception that a code stands for."""
    return ERROR_CODES.get(code, UnknownError)(reason)
