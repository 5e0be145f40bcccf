"""Translation of Sluiceway's errors into KafkaError."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message

from sluiceway import Connection
from sluiceway.errors import (
    ChannelClosed,
    ChannelNotFound,
    ChannelNotReady,
    CommitBeyondRead,
    Conflict,
    EndpointClosed,
    Fenced,
    Forbidden,
    GatewayError,
    GatewayUnavailable,
    InvalidRequest,
    KafkaUnavailable,
    OffsetOutOfRange,
    OptionError,
    SluicewayError,
    SluicewayTimeout,
    StaleGeneration,
    TopicGone,
    Unauthenticated,
)
from sluiceway.spi import Process

# librdkafka's own codes have names with an underscore.
CONFLICT: Final[int] = KafkaError._CONFLICT
INVALID_ARG: Final[int] = KafkaError._INVALID_ARG
PARTITION_EOF: Final[int] = KafkaError._PARTITION_EOF
FENCED: Final[int] = KafkaError._FENCED
NO_OFFSET: Final[int] = KafkaError._NO_OFFSET
STATE: Final[int] = KafkaError._STATE
UNKNOWN_PARTITION: Final[int] = KafkaError._UNKNOWN_PARTITION
FAIL: Final[int] = KafkaError._FAIL
TIMED_OUT: Final[int] = KafkaError._TIMED_OUT
MSG_TIMED_OUT: Final[int] = KafkaError._MSG_TIMED_OUT
QUEUE_FULL: Final[int] = KafkaError._QUEUE_FULL
PURGE_QUEUE: Final[int] = KafkaError._PURGE_QUEUE
AUTO_OFFSET_RESET: Final[int] = KafkaError._AUTO_OFFSET_RESET

_BY_CODE: Final = {
    "goes_back": KafkaError.INVALID_REQUEST,
    "position_moved": KafkaError._CONFLICT,
    "members_open": KafkaError.UNKNOWN_MEMBER_ID,
    "endpoint_not_found": KafkaError.UNKNOWN_MEMBER_ID,
    "group_size": KafkaError.INCONSISTENT_GROUP_PROTOCOL,
    "group_mode": KafkaError.INCONSISTENT_GROUP_PROTOCOL,
    "not_assigned": UNKNOWN_PARTITION,
    "topic_changed": KafkaError.UNKNOWN_TOPIC_ID,
    "partitions_shrink": KafkaError.INVALID_PARTITIONS,
    **dict.fromkeys(
        ("channel_adopted", "channel_pinned", "endpoints_live", "unread_data"),
        KafkaError.POLICY_VIOLATION,
    ),
    "uid_mismatch": KafkaError.UNKNOWN_TOPIC_OR_PART,
}
_BY_CLASS: Final[tuple[tuple[type[SluicewayError], int], ...]] = (
    (GatewayUnavailable, KafkaError._TRANSPORT),
    (Unauthenticated, KafkaError._AUTHENTICATION),
    (Forbidden, KafkaError.TOPIC_AUTHORIZATION_FAILED),
    (ChannelNotFound, KafkaError.UNKNOWN_TOPIC_OR_PART),
    (ChannelNotReady, KafkaError.LEADER_NOT_AVAILABLE),
    (ChannelClosed, KafkaError.POLICY_VIOLATION),
    (Fenced, KafkaError.UNKNOWN_MEMBER_ID),
    # Not ILLEGAL_GENERATION, after which programs give up: the member goes on with its next poll.
    (StaleGeneration, KafkaError.REBALANCE_IN_PROGRESS),
    (InvalidRequest, INVALID_ARG),
    (CommitBeyondRead, KafkaError.OFFSET_OUT_OF_RANGE),
    (OptionError, INVALID_ARG),
    (EndpointClosed, KafkaError.UNKNOWN_MEMBER_ID),
    (OffsetOutOfRange, KafkaError.OFFSET_OUT_OF_RANGE),
    (TopicGone, KafkaError.UNKNOWN_TOPIC_OR_PART),
    (KafkaUnavailable, KafkaError._ALL_BROKERS_DOWN),
    (SluicewayTimeout, TIMED_OUT),
    (GatewayError, KafkaError.UNKNOWN),
)


def kafka_error(error: SluicewayError, *, fatal: bool = False, static: bool = False) -> KafkaError:
    """Return `error` with Kafka's code and its own message; `static`: for a static member."""
    code = _BY_CODE.get(error.code) if isinstance(error, Conflict | ChannelNotFound) else None
    if static and isinstance(error, Fenced):
        code = KafkaError.FENCED_INSTANCE_ID
    if code is None:
        codes = (code for kind, code in _BY_CLASS if isinstance(error, kind))
        code = next(codes, FAIL)
    return KafkaError(code, str(error), fatal=fatal, retriable=error.retriable)


def refused(code: int, reason: str) -> KafkaException:
    """Return the exception for an error found by this client."""
    return KafkaException(KafkaError(code, reason))


def require_same_process(process: Process, client: str) -> None:
    """Raise KafkaException _STATE in a forked child, which lacks the threads of the client."""
    if process.forked:
        raise refused(
            STATE,
            f"this {client} was created by the process {process.pid} and cannot be used in a "
            "process forked from it: create one here",
        )


def require_same_kafka(kafka: Mapping[str, str], connection: Connection, client: str) -> None:
    """Raise KafkaException _CONFLICT unless a channel has the client's Kafka properties."""
    if dict(kafka) != dict(connection.kafka):
        raise refused(
            CONFLICT,
            f"the channel {connection.channel_name!r} has other Kafka connection properties than "
            f"the channels of this {client}: use another {client} for it",
        )


def error_event(topic: str, error: KafkaError, **place: int) -> Message:
    """Return an event for a poll to return; `place` is its partition and offset.

    Its value is the error's text, as librdkafka's: `if not message` is true for a message without
    one.
    """
    return Message(topic=topic, value=error.str().encode(), error=error, **place)


@contextmanager
def kafka_exceptions() -> Iterator[None]:
    """Raise KafkaException for each SluicewayError of the block."""
    try:
        yield
    except SluicewayError as error:
        raise KafkaException(kafka_error(error)) from error
