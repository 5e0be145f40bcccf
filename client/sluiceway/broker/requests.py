"""Requests in pykafka's form.

pykafka's names are bytes. str works as well, in requests and for lookups in responses.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Self, TypeVar

from sluiceway.errors import OptionError

Name = bytes | str
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
            for each in partitions.values():
                yield from each.messages

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


def each_once(requests: Iterable[Any]) -> list[Any]:
    """Return the last request for each partition, as pykafka does."""
    last = {(each.topic_name, checked_partition(each)): each for each in requests}
    return list(last.values())


V = TypeVar("V")


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


__all__ = [
    "ByName",
    "CompressionType",
    "Message",
    "MessageSet",
    "OffsetType",
    "PartitionFetchRequest",
    "PartitionOffsetCommitRequest",
    "PartitionOffsetFetchRequest",
    "PartitionOffsetRequest",
    "ProduceRequest",
    "in_bytes",
    "in_text",
]
