"""Requests and responses in pykafka's form, with a `reason` beside each code of a response.

pykafka's names are bytes. str works as well, in requests and for lookups in responses. `err`
and `error_code` are 0, or a code of `exceptions.ERROR_CODES`. `topics` has the results by topic,
in bytes or str, and partition. Results of a partition, and the entries of metadata, are tuples of
pykafka's fields in its order; additional fields are attributes.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from sluiceway.broker.exceptions import ERROR_CODES, ProtocolClientError, UnknownError
from sluiceway.errors import OptionError

Name = bytes | str
V = TypeVar("V")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class CompressionType:
    """Compression of messages."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3


class OffsetType:
    """Special times of a PartitionOffsetRequest."""

    EARLIEST = -2
    LATEST = -1


class PartitionFetchRequest(
    NamedTuple(
        "PartitionFetchRequest",
        [("topic_name", Name), ("partition_id", int), ("offset", int), ("max_bytes", int)],
    )
):
    """Fetch of a partition: from `offset` on, up to `max_bytes` of keys and values."""

    def __new__(
        cls, topic: Name, partition: int, offset: int, max_bytes: int = 1024 * 1024
    ) -> Self:
        """Return a request; the arguments have pykafka's names."""
        return super().__new__(cls, topic, partition, offset, max_bytes)


class PartitionOffsetRequest(NamedTuple):
    """An offset of a partition by an OffsetType, or a time in milliseconds since 1970, UTC."""

    topic_name: Name
    partition_id: int
    offsets_before: int
    max_offsets: int = 1


class PartitionOffsetCommitRequest(NamedTuple):
    """The next offset to read of a partition, with metadata of up to 4096 characters."""

    topic_name: Name
    partition_id: int
    offset: int
    timestamp: int = -1
    metadata: bytes = b""


class PartitionOffsetFetchRequest(NamedTuple):
    """The partition of a committed offset."""

    topic_name: Name
    partition_id: int


class CreateTopicRequest(NamedTuple):
    """A channel to create, of the format `bytes`."""

    topic_name: Name
    num_partitions: int = 1
    replication_factor: int = -1
    replica_assignment: Any = ()
    config_entries: Any = ()


@dataclass
class Message:
    """A message: `value` and `partition_key` are bytes or None, `timestamp` is in milliseconds.

    A fetched message has its offset and partition. `timestamp` may be given as a datetime.
    """

    value: bytes | None
    partition_key: bytes | None = None
    compression_type: int = CompressionType.NONE
    offset: int = -1
    partition_id: int = -1
    produce_attempt: int = 0
    protocol_version: int = 1
    timestamp: Any = None
    delivery_report_q: Any = None
    partition: Any = None

    def __post_init__(self) -> None:
        if type(self.timestamp) is not int:
            self.set_timestamp(self.timestamp)

    def set_timestamp(self, timestamp: Any) -> None:
        """Set milliseconds, a datetime (UTC if it has no zone), or None."""
        if isinstance(timestamp, datetime):
            self.timestamp_dt = timestamp
        elif timestamp is None or (
            isinstance(timestamp, int | float) and not isinstance(timestamp, bool)
        ):
            self.timestamp = timestamp
        else:
            raise OptionError(
                f"timestamp is {timestamp!r}; it takes milliseconds, a datetime or None"
            )

    @property
    def timestamp_dt(self) -> datetime | None:
        """The timestamp as a datetime in UTC; None if there is none."""
        if not self.timestamp or self.timestamp < 0:
            return None
        return _EPOCH + timedelta(milliseconds=self.timestamp)

    @timestamp_dt.setter
    def timestamp_dt(self, moment: datetime) -> None:
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        self.timestamp = (aware - _EPOCH) // timedelta(milliseconds=1)


@dataclass
class MessageSet:
    """The messages of one partition, in order."""

    compression_type: int = CompressionType.NONE
    messages: list[Message] = field(default_factory=list)


class ProduceRequest:
    """Messages for partitions of topics.

    `timeout` limits the wait for Kafka's acknowledgement, in milliseconds. All replicas always
    acknowledge; with `required_acks` 0, `produce_messages` does not wait for them.
    """

    def __init__(
        self,
        compression_type: int = CompressionType.NONE,
        required_acks: int = 1,
        timeout: int = 10_000,
        broker_version: str = "0.9.0",
    ) -> None:
        del broker_version
        self.compression_type = compression_type
        self.required_acks = required_acks
        self.timeout = timeout
        self.msets: defaultdict[Name, defaultdict[int, MessageSet]] = defaultdict(
            lambda: defaultdict(lambda: MessageSet(compression_type=compression_type))
        )

    @property
    def messages(self) -> Iterator[Message]:
        """All messages of the request."""
        for partitions in self.msets.values():
            for message_set in partitions.values():
                yield from message_set.messages

    def add_message(self, message: Message, topic_name: Name, partition_id: int) -> None:
        """Add a message for a partition."""
        self.msets[topic_name][partition_id].messages.append(message)

    def message_count(self) -> int:
        """Return the number of messages."""
        return sum(1 for _ in self.messages)


def checked_partition(request: Any) -> int:
    """Return a request's partition. Raises OptionError."""
    partition = getattr(request, "partition_id", None)
    if type(partition) is not int:
        raise OptionError(f"partition_id is {partition!r} in {request!r}; it takes a number")
    return partition


def checked_count(value: Any, what: str) -> int:
    """Return the argument `what`, a number from 0. Raises OptionError."""
    if type(value) is not int or value < 0:
        raise OptionError(f"{what} is {value!r}; it takes a number from 0")
    return value


def checked_generation(generation: Any) -> None:
    """Check a generation, which may be negative. Raises OptionError."""
    if type(generation) is not int:
        raise OptionError(f"the generation is {generation!r}; it takes a number")


def in_text(name: object, what: str) -> str:
    """Return the name of a `what` as str. Raises OptionError."""
    if isinstance(name, str):
        return name
    if isinstance(name, bytes | bytearray):
        try:
            return bytes(name).decode()
        except UnicodeDecodeError as error:
            raise OptionError(f"the name of a {what} must be UTF-8; it is {name!r}") from error
    raise OptionError(f"the name of a {what} must be bytes or str; it is {name!r}")


def in_bytes(name: object, what: str) -> bytes:
    """Return the name of a `what` as bytes. Raises OptionError."""
    return in_text(name, what).encode()


def requests_by_topic(requests: Iterable[Any]) -> dict[bytes, dict[int, Any]]:
    """Return the last request for each partition, as pykafka does. Raises OptionError."""
    by_topic: dict[bytes, dict[int, Any]] = {}
    for request in requests:
        topic = in_bytes(request.topic_name, "topic")
        by_topic.setdefault(topic, {})[checked_partition(request)] = request
    return by_topic


class ByName(dict[bytes, V]):
    """Responses by name: keys are bytes, and lookups accept str as well."""

    def __missing__(self, name: object) -> V:
        if isinstance(name, str):
            return self[name.encode()]
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name.encode() if isinstance(name, str) else name)

    def get(self, name: Any, default: Any = None) -> Any:
        """Return the value of a name, or `default`."""
        return super().get(name.encode() if isinstance(name, str) else name, default)


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
            for partition, response in partitions.items():
                if response.err:
                    where = f"{topic.decode()}, partition {partition}"
                    yield exception(response.err, f"{where}: {response.reason}")


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
    """The result of the commit of a partition's offset."""


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
            for partition in topic.partitions.values():
                if partition.err:
                    where = f"{topic.name.decode()}, partition {partition.id}"
                    yield exception(partition.err, f"{where}: {partition.reason}")


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
    """The response of `heartbeat`; its `error_code` says why a member must join again."""


class LeaveGroupResponse(GroupResponse):
    """The response of `leave_group`; its `error_code` says why a member has not left."""


class GroupListing(NamedTuple):
    """A group that has members or committed offsets."""

    group_id: bytes
    protocol_type: bytes = b"consumer"


@dataclass(frozen=True)
class ListGroupsResponse:
    """Groups of all channels, by name."""

    groups: ByName[GroupListing]
    error: int = 0


class GroupMember(NamedTuple):
    """A live reader; `member_assignment` names its channel, without partitions."""

    member_id: bytes
    client_id: bytes
    client_host: bytes
    member_metadata: Any
    member_assignment: MemberAssignment


class DescribeGroupResponse(NamedTuple):
    """A group: `Stable` with live members, `Empty` without, `Dead` if it does not exist."""

    error_code: int
    group_id: bytes
    state: bytes
    protocol_type: bytes
    protocol: bytes
    members: dict[bytes, GroupMember]


@dataclass(frozen=True)
class DescribeGroupsResponse:
    """Groups by name."""

    groups: ByName[DescribeGroupResponse]


class ApiVersionsSpec(NamedTuple):
    """The supported versions of a request."""

    key: int
    min: int = 0
    max: int = 0


@dataclass(frozen=True)
class ApiVersionsResponse:
    """The supported requests, by Kafka's numbers."""

    api_versions: dict[int, ApiVersionsSpec] = field(
        default_factory=lambda: {
            key: ApiVersionsSpec(key) for key in (*range(4), 8, 9, *range(11, 17), 18, 19, 20)
        }
    )


def exception(code: int, reason: str) -> ProtocolClientError:
    """Return the exception of a code."""
    return ERROR_CODES.get(code, UnknownError)(reason)
