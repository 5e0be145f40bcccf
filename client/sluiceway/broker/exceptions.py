"""pykafka's exceptions, and the translation of errors into Kafka's codes.

    SluicewayError
    └── KafkaException
        ├── SocketDisconnectedError        the gateway or Kafka does not answer, or it is closed
        └── ProtocolClientError            an error code in a response
            ├── UnknownError, OffsetOutOfRangeError, InvalidMessageError, …
            └── one for each code in ERROR_CODES

Responses carry codes, as pykafka's do. `response.check()`, and every call of a Broker created with
`raise_errors=True`, raises the exception of the first code that is not 0.
"""

import re
from collections.abc import Mapping
from typing import ClassVar

from confluent_kafka import KafkaError

from sluiceway.errors import (
    ChannelClosed,
    ChannelNotFound,
    ChannelNotReady,
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
from sluiceway.spi import is_gone, is_unavailable

__all__ = [
    "ERROR_CODES",
    "GroupAuthorizationFailed",
    "GroupCoordinatorNotAvailable",
    "GroupLoadInProgress",
    "IllegalGeneration",
    "InconsistentGroupProtocol",
    "InvalidMessageError",
    "InvalidMessageSize",
    "InvalidSessionTimeout",
    "InvalidTopic",
    "KafkaException",
    "LeaderNotAvailable",
    "MessageSizeTooLarge",
    "NotCoordinatorForGroup",
    "NotLeaderForPartition",
    "OffsetMetadataTooLarge",
    "OffsetOutOfRangeError",
    "ProtocolClientError",
    "RebalanceInProgress",
    "RequestTimedOut",
    "SocketDisconnectedError",
    "TopicAuthorizationFailed",
    "UnknownError",
    "UnknownMemberId",
    "UnknownTopicOrPartition",
]


class KafkaException(SluicewayError, code="broker_error"):
    """Base of the exceptions with pykafka's names."""


class SocketDisconnectedError(KafkaException, code="broker_disconnected", retriable=True):
    """The gateway or Kafka does not answer, or the Broker is not connected; connect it again."""


class ProtocolClientError(KafkaException, code="broker_refused"):
    """An error code in a response; `ERROR_CODE` is the code."""

    ERROR_CODE: ClassVar[int]

    def __init_subclass__(cls, error_code: int, *, retriable: bool = False) -> None:
        """Set the codes; `code` of `LeaderNotAvailable` is `broker_leader_not_available`."""
        words = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__.removesuffix("Error")).lower()
        cls.code = vars(cls).get("code", f"broker_{words}")
        cls.ERROR_CODE, cls.retriable = error_code, retriable


class UnknownError(ProtocolClientError, error_code=-1):
    """Refused for a reason without a Kafka error code; the message has the reason."""

    code = "broker_unknown_error"


class OffsetOutOfRangeError(ProtocolClientError, error_code=1):
    """The partition has no such offset, or a commit is past the fetched messages or goes back."""


class InvalidMessageError(ProtocolClientError, error_code=2):
    """The channel's readers could not decode the message; nothing was sent to its partition."""


class UnknownTopicOrPartition(ProtocolClientError, error_code=3):
    """The channel does not exist, or has no such partition."""


class InvalidMessageSize(ProtocolClientError, error_code=4):
    """The message has a negative size."""


class LeaderNotAvailable(ProtocolClientError, error_code=5, retriable=True):
    """The partition has no leader, or the channel's topic is not ready yet."""


class NotLeaderForPartition(ProtocolClientError, error_code=6, retriable=True):
    """Another broker leads the partition now."""


class RequestTimedOut(ProtocolClientError, error_code=7, retriable=True):
    """Kafka did not acknowledge within the request's timeout."""


class MessageSizeTooLarge(ProtocolClientError, error_code=10):
    """The message exceeds the channel's limit; nothing was sent to its partition."""


class OffsetMetadataTooLarge(ProtocolClientError, error_code=12):
    """The metadata of a commit is too long."""


class GroupLoadInProgress(ProtocolClientError, error_code=14, retriable=True):
    """The coordinator is loading the group."""


class GroupCoordinatorNotAvailable(ProtocolClientError, error_code=15, retriable=True):
    """The channel is not ready for groups yet; try again."""


class NotCoordinatorForGroup(ProtocolClientError, error_code=16, retriable=True):
    """Another broker coordinates the group."""


class InvalidTopic(ProtocolClientError, error_code=17):
    """The channel name is invalid, or the channel is closed for writing."""


class IllegalGeneration(ProtocolClientError, error_code=22):
    """The generation is not that of the member's assignment; join the group again."""


class InconsistentGroupProtocol(ProtocolClientError, error_code=23):
    """The group has members with fixed places."""


class UnknownMemberId(ProtocolClientError, error_code=25):
    """The group has no such member, or no longer; join with an empty id."""


class InvalidSessionTimeout(ProtocolClientError, error_code=26):
    """The session timeout is out of the allowed range."""


class RebalanceInProgress(ProtocolClientError, error_code=27, retriable=True):
    """The membership changed, or partitions became free; join the group again."""


class TopicAuthorizationFailed(ProtocolClientError, error_code=29):
    """The token does not allow this for the channel."""


class GroupAuthorizationFailed(ProtocolClientError, error_code=30):
    """The token does not allow this for the group."""


ERROR_CODES: Mapping[int, type[ProtocolClientError]] = {
    kind.ERROR_CODE: kind for kind in ProtocolClientError.__subclasses__()
}
"""Every code that a response may carry, besides 0."""

_TOPIC_ERRORS: Mapping[type[SluicewayError], type[ProtocolClientError]] = {
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
_GROUP_ERRORS: Mapping[type[SluicewayError], type[ProtocolClientError]] = {
    ChannelNotFound: UnknownTopicOrPartition,
    ChannelNotReady: GroupCoordinatorNotAvailable,
    EndpointClosed: UnknownMemberId,
    Fenced: UnknownMemberId,
    Forbidden: GroupAuthorizationFailed,
    InvalidRequest: InvalidTopic,
    StaleGeneration: IllegalGeneration,
    TopicGone: UnknownTopicOrPartition,
}
_GROUP_CONFLICTS: Mapping[str, type[ProtocolClientError]] = {
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


def topic_refusal(error: SluicewayError) -> ProtocolClientError:
    """Return the refusal of a topic for `error`.

    Raises SocketDisconnectedError if the gateway or Kafka did not answer, and `error` itself if
    it has no code.
    """
    return _refusal(error, _TOPIC_ERRORS)


def group_refusal(error: SluicewayError) -> ProtocolClientError:
    """Return the refusal of a group request for `error`; raises as `topic_refusal` does."""
    if type(error) is Conflict and error.code in _GROUP_CONFLICTS:
        return _GROUP_CONFLICTS[error.code](str(error))
    return _refusal(error, _GROUP_ERRORS)


def partition_refusal(error: KafkaError, doing: str) -> ProtocolClientError:
    """Return the refusal of one partition for an error of librdkafka."""
    if error.code() > 0 and error.code() in ERROR_CODES:
        # librdkafka passes Kafka's own codes on; its own codes are negative.
        kind = ERROR_CODES[error.code()]
    elif is_gone(error):
        kind = UnknownTopicOrPartition
    else:
        kind = RequestTimedOut if is_unavailable(error) else UnknownError
    return kind(f"Kafka refused {doing}: {error.name()}, {error.str()}")


def _refusal(
    error: SluicewayError, kinds: Mapping[type[SluicewayError], type[ProtocolClientError]]
) -> ProtocolClientError:
    if isinstance(error, ProtocolClientError):
        return error
    lasting = isinstance(error, GatewayAccessFailed | KafkaAccessFailed)
    if isinstance(error, GatewayUnavailable | KafkaUnavailable) and not lasting:
        raise SocketDisconnectedError(str(error)) from error
    for kind in type(error).__mro__:
        if kind in kinds:
            return kinds[kind](str(error))
    raise error
