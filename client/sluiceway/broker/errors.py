"""Translation of errors into Kafka's error codes."""

from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError

from sluiceway.broker.exceptions import (
    ERROR_CODES,
    GroupAuthorizationFailed,
    GroupCoordinatorNotAvailable,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidTopic,
    LeaderNotAvailable,
    OffsetOutOfRangeError,
    ProtocolClientError,
    RequestTimedOut,
    SocketDisconnectedError,
    TopicAuthorizationFailed,
    UnknownError,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from sluiceway.errors import (
    ChannelClosed,
    ChannelNotFound,
    ChannelNotReady,
    CommitBeyondRead,
    Conflict,
    EndpointClosed,
    Fenced,
    Forbidden,
    GatewayAccessFailed,
    GatewayUnavailable,
    InvalidRequest,
    KafkaAccessFailed,
    KafkaUnavailable,
    SluicewayError,
    StaleGeneration,
    TopicGone,
)
from sluiceway.kafka.errors import is_gone, is_unavailable

__all__ = ["Refusal", "of_group", "of_kafka", "of_topic"]

Kind = type[ProtocolClientError]

_OF_TOPIC: Mapping[type[SluicewayError], Kind] = {
    ChannelNotFound: UnknownTopicOrPartition,
    ChannelNotReady: LeaderNotAvailable,
    ChannelClosed: InvalidTopic,
    Conflict: UnknownTopicOrPartition,
    EndpointClosed: UnknownTopicOrPartition,
    Fenced: InvalidTopic,
    Forbidden: TopicAuthorizationFailed,
    InvalidRequest: InvalidTopic,
    TopicGone: UnknownTopicOrPartition,
}
_OF_GROUP: Mapping[type[SluicewayError], Kind] = {
    ChannelNotFound: UnknownTopicOrPartition,
    ChannelNotReady: GroupCoordinatorNotAvailable,
    CommitBeyondRead: OffsetOutOfRangeError,
    EndpointClosed: UnknownMemberId,
    Fenced: UnknownMemberId,
    Forbidden: GroupAuthorizationFailed,
    InvalidRequest: InvalidTopic,
    StaleGeneration: IllegalGeneration,
    TopicGone: UnknownTopicOrPartition,
}
_CONFLICTS: Mapping[str, Kind] = {
    "endpoint_not_found": UnknownMemberId,
    "goes_back": OffsetOutOfRangeError,
    "group_mode": InconsistentGroupProtocol,
    "group_size": InconsistentGroupProtocol,
    "illegal_transition": UnknownMemberId,
    "members_open": UnknownMemberId,
    "no_group": InconsistentGroupProtocol,
    "not_assigned": IllegalGeneration,
    "position_moved": IllegalGeneration,
    "topic_changed": UnknownTopicOrPartition,
    "uid_mismatch": UnknownTopicOrPartition,
}


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A code, and in words why and what to do; the code 0 refuses nothing."""

    err: int = 0
    reason: str = ""

    @classmethod
    def of(cls, kind: Kind, reason: str) -> "Refusal":
        """Return the refusal by an exception's code."""
        return cls(err=kind.ERROR_CODE, reason=reason)


def of_topic(error: SluicewayError) -> Refusal:
    """Return what to answer for a topic where `error` came.

    Raises SocketDisconnectedError where nobody answered, and what no code has a word for.
    """
    return _refusal(error, _OF_TOPIC)


def of_group(error: SluicewayError) -> Refusal:
    """Return what to answer for a group where `error` came; raises as `of_topic` does."""
    if type(error) is Conflict and error.code in _CONFLICTS:
        return Refusal.of(_CONFLICTS[error.code], str(error))
    return _refusal(error, _OF_GROUP)


def of_kafka(error: KafkaError, doing: str) -> Refusal:
    """Return what to answer for an error of librdkafka's that concerns one partition."""
    reason = f"Kafka refused {doing}: {error.name()}, {error.str()}"
    # librdkafka has Kafka's own codes, and negative ones for what it found out by itself.
    if error.code() > 0 and error.code() in ERROR_CODES:
        return Refusal(err=error.code(), reason=reason)
    if is_gone(error):
        return Refusal.of(UnknownTopicOrPartition, reason)
    return Refusal.of(RequestTimedOut if is_unavailable(error) else UnknownError, reason)


def _refusal(error: SluicewayError, kinds: Mapping[type[SluicewayError], Kind]) -> Refusal:
    lasting = isinstance(error, GatewayAccessFailed | KafkaAccessFailed)
    if isinstance(error, GatewayUnavailable | KafkaUnavailable) and not lasting:
        raise SocketDisconnectedError(str(error)) from error
    for kind in type(error).__mro__:
        if kind in kinds:
            return Refusal.of(kinds[kind], str(error))
    raise error
