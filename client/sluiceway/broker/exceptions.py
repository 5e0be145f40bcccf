"""pykafka's exceptions, as far as a Broker has a use for them.

    SluicewayError
    └── KafkaException
        ├── SocketDisconnectedError        the gateway or Kafka does not answer, or it is closed
        └── ProtocolClientError            what a code in a response stands for
            ├── UnknownError, OffsetOutOfRangeError, InvalidMessageError, …
            └── one for each code in ERROR_CODES

Responses carry codes, as pykafka's do; `response.check()`, and a Broker that was made with
`raise_errors=True`, raise the exception of the first code that is not 0.
"""

from collections.abc import Mapping
from typing import ClassVar

from sluiceway.errors import SluicewayError

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


class KafkaException(SluicewayError):
    """The base of what a Broker raises under pykafka's names."""

    code = "broker_error"


class SocketDisconnectedError(KafkaException):
    """The gateway, or Kafka, does not answer, or the Broker is not connected; connect it again."""

    code = "broker_disconnected"
    retriable = True


class ProtocolClientError(KafkaException):
    """What a code in a response stands for; `ERROR_CODE` is the code."""

    code = "broker_refused"
    ERROR_CODE: ClassVar[int]


class UnknownError(ProtocolClientError):
    """Refused for a reason that Kafka's codes have no word for; the message says which."""

    code = "broker_unknown_error"
    ERROR_CODE = -1


class OffsetOutOfRangeError(ProtocolClientError):
    """The offset is not in the partition; or, in a commit, past what was fetched, or goes back."""

    code = "broker_offset_out_of_range"
    ERROR_CODE = 1


class InvalidMessageError(ProtocolClientError):
    """The message is none that the channel's readers could read; none of its partition was sent."""

    code = "broker_invalid_message"
    ERROR_CODE = 2


class UnknownTopicOrPartition(ProtocolClientError):
    """There is no such channel, or it has no such partition."""

    code = "broker_unknown_topic_or_partition"
    ERROR_CODE = 3


class InvalidMessageSize(ProtocolClientError):
    """The message has a negative size."""

    code = "broker_invalid_message_size"
    ERROR_CODE = 4


class LeaderNotAvailable(ProtocolClientError):
    """The partition has no leader now, or the channel's topic is not there yet."""

    code = "broker_leader_not_available"
    retriable = True
    ERROR_CODE = 5


class NotLeaderForPartition(ProtocolClientError):
    """The partition has another leader by now."""

    code = "broker_not_leader_for_partition"
    retriable = True
    ERROR_CODE = 6


class RequestTimedOut(ProtocolClientError):
    """Kafka did not acknowledge in the time that the request gave it."""

    code = "broker_request_timed_out"
    retriable = True
    ERROR_CODE = 7


class MessageSizeTooLarge(ProtocolClientError):
    """The message is larger than the channel takes; none of its partition was sent."""

    code = "broker_message_size_too_large"
    ERROR_CODE = 10


class OffsetMetadataTooLarge(ProtocolClientError):
    """The metadata of a commit are too long."""

    code = "broker_offset_metadata_too_large"
    ERROR_CODE = 12


class GroupLoadInProgress(ProtocolClientError):
    """The coordinator is loading the group."""

    code = "broker_group_load_in_progress"
    retriable = True
    ERROR_CODE = 14


class GroupCoordinatorNotAvailable(ProtocolClientError):
    """The channel is not ready for groups yet; ask again."""

    code = "broker_group_coordinator_not_available"
    retriable = True
    ERROR_CODE = 15


class NotCoordinatorForGroup(ProtocolClientError):
    """Another broker coordinates the group."""

    code = "broker_not_coordinator_for_group"
    retriable = True
    ERROR_CODE = 16


class InvalidTopic(ProtocolClientError):
    """No channel can have such a name, or nobody writes to this one any more."""

    code = "broker_invalid_topic"
    ERROR_CODE = 17


class IllegalGeneration(ProtocolClientError):
    """The generation is not the one of the member's share; join the group again."""

    code = "broker_illegal_generation"
    ERROR_CODE = 22


class InconsistentGroupProtocol(ProtocolClientError):
    """The group has members of another kind, with fixed places."""

    code = "broker_inconsistent_group_protocol"
    ERROR_CODE = 23


class UnknownMemberId(ProtocolClientError):
    """The group has no such member (any more); join with an empty id."""

    code = "broker_unknown_member_id"
    ERROR_CODE = 25


class InvalidSessionTimeout(ProtocolClientError):
    """The session timeout is out of the range that is allowed."""

    code = "broker_invalid_session_timeout"
    ERROR_CODE = 26


class RebalanceInProgress(ProtocolClientError):
    """Members came or went, or partitions are free by now; join the group again."""

    code = "broker_rebalance_in_progress"
    retriable = True
    ERROR_CODE = 27


class TopicAuthorizationFailed(ProtocolClientError):
    """The token does not allow that with this channel."""

    code = "broker_topic_authorization_failed"
    ERROR_CODE = 29


class GroupAuthorizationFailed(ProtocolClientError):
    """The token does not allow that with this group."""

    code = "broker_group_authorization_failed"
    ERROR_CODE = 30


ERROR_CODES: Mapping[int, type[ProtocolClientError]] = {
    kind.ERROR_CODE: kind for kind in ProtocolClientError.__subclasses__()
}
"""Every code that a response may carry, besides 0."""
