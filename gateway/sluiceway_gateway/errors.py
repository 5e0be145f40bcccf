"""The errors of the gateway, as one tree.

    SluicewayGatewayError
    ├── BodyTooLarge, MalformedHttp, UrlTooLong, HeadersTooLarge, RequestTimeout,
    │   Unauthenticated, Forbidden, MethodNotAllowed, PreconditionFailed
    ├── StartupRefused
    │   └── InvalidSettings, BindRefused, WrongRevision, WrongEncoding
    ├── Unavailable
    │   └── DatabaseUnavailable, KafkaUnavailable, TooManyConnections, TooManyWaiters
    ├── InvalidRequest
    │   └── InvalidSchema, ConfigNotAllowed
    ├── NotFound
    │   └── ChannelNotFound, EndpointNotFound, GroupNotFound
    └── Conflict
        └── UidMismatch, PartitionsShrink, ChannelPinned, ImmutableField,
            SchemaIncompatible, TooManySchemas, ChannelAdopted, ChannelClosed,
            ChannelDeleting, ChannelNotReady, EndpointsLive, UnreadData, TopicNotFound,
            TopicTaken, ReplicationExceedsBrokers, IdempotencyKeyReused, ConcurrentChange,
            Fenced, IllegalTransition, EndpointIdReused, GroupSize, GroupMode,
            GroupLargerThanPinned, MembersOpen, NoGroup, NotAssigned, StaleGeneration,
            TopicChanged, GoesBack, PositionMoved

`code` is stable and part of the HTTP interface; `retriable` says whether the
same request can succeed later without anybody changing it. The text of an
error says what is wrong and what to do about it; it never holds a secret.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Self


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One thing that is wrong with a request.

    `pointer` is a JSON pointer into the body ("/spec/partitions"), or where else
    the value was: "path:name", "query:limit", "header:If-Match".
    """

    pointer: str
    message: str


class SluicewayGatewayError(Exception):
    """Root of all errors of this package; `violations` says where in the request it lies."""

    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "The gateway failed"
    retriable: ClassVar[bool] = False

    def __init__(self, detail: str, violations: tuple[Violation, ...] = ()) -> None:
        super().__init__(detail)
        self.violations = violations


class StartupRefused(SluicewayGatewayError):
    """The process must not run like this; an operator has to change something."""

    code = "startup_refused"
    title = "The gateway does not start"


class InvalidSettings(StartupRefused):
    """A setting is missing, unknown or contradicts another."""

    code = "invalid_settings"


class BindRefused(StartupRefused):
    """The address would expose the gateway without protection."""

    code = "bind_refused"


class WrongRevision(StartupRefused):
    """The database's schema is not the one that this version knows."""

    code = "wrong_revision"


class WrongEncoding(StartupRefused):
    """The database does not keep text as UTF-8."""

    code = "wrong_encoding"


class Misfit(StrEnum):
    """What does not fit."""

    CREDENTIALS = "credentials"
    """User, password or mechanism."""
    CERTIFICATE = "certificate"
    """The broker's, to the gateway, or the gateway's, to the broker."""
    PROTOCOL = "protocol"
    """With TLS or without, with a login or without; or it is no Kafka at all."""


@dataclass(frozen=True, kw_only=True)
class AccessFailure:
    """`words` say what does not fit and what to do, and stay the same as long as that does."""

    misfit: Misfit
    words: str


class Unavailable(SluicewayGatewayError):
    """A part that the gateway needs is away; ask again after `retry_after_s`."""

    code = "unavailable"
    title = "Not available at the moment"
    retriable = True
    retry_after_s: ClassVar[int] = 1


class DatabaseUnavailable(Unavailable):
    """The database is locked, away, full or not migrated."""

    code = "database_unavailable"
    title = "The database is not available"


class KafkaUnavailable(Unavailable):
    """Kafka does not answer in time; `lockout` says why where it does not let the gateway in."""

    code = "kafka_unavailable"
    title = "Kafka is not available"
    retry_after_s = 2

    def __init__(self, detail: str, lockout: AccessFailure | None = None) -> None:
        super().__init__(detail)
        self.lockout = lockout


class TooManyConnections(Unavailable):
    """As many connections are busy as this replica allows."""

    code = "too_many_connections"
    title = "Too many connections"


class TooManyWaiters(Unavailable):
    """As many requests are waiting as this replica allows."""

    code = "too_many_waiters"
    title = "Too many waiting requests"


MOST_VIOLATIONS = 20
"""In one error."""


class InvalidRequest(SluicewayGatewayError):
    """The request is malformed."""

    code = "invalid_request"
    title = "The request is malformed"

    @classmethod
    def malformed(cls, violations: Sequence[Violation], *, count: int = 0) -> Self:
        """Return an error that lists the first 20 violations and counts the rest of `count`."""
        listed = tuple(violations[:MOST_VIOLATIONS])
        texts = [f"{each.pointer or 'the body'}: {each.message}" for each in listed]
        more = max(count, len(violations)) - len(listed)
        if more:
            texts.append(f"and {more:,} more")
        return cls(f"Malformed: {'; '.join(texts)}.", listed)


class InvalidSchema(InvalidRequest):
    """The schema is not one that a channel can have."""

    code = "invalid_schema"
    title = "The schema cannot be used"


class ConfigNotAllowed(InvalidRequest):
    """A topic setting that channels do not take, or a value that it cannot have."""

    code = "config_not_allowed"
    title = "The topic configuration is refused"


class BodyTooLarge(SluicewayGatewayError):
    """The request's body passes the limit."""

    code = "body_too_large"
    title = "The request's body is too large"


class MalformedHttp(SluicewayGatewayError):
    """What came is not HTTP/1.1."""

    code = "malformed_http"
    title = "Not an HTTP request"


class UrlTooLong(SluicewayGatewayError):
    """The request's URL passes the limit."""

    code = "url_too_long"
    title = "The URL is too long"


class HeadersTooLarge(SluicewayGatewayError):
    """The request's headers pass a limit."""

    code = "headers_too_large"
    title = "The headers are too large"


class RequestTimeout(SluicewayGatewayError):
    """The request did not arrive in time."""

    code = "request_timeout"
    title = "The request did not arrive in time"
    retriable = True


class Unauthenticated(SluicewayGatewayError):
    """No token, or none that is valid."""

    code = "unauthenticated"
    title = "A valid token is needed"


class Forbidden(SluicewayGatewayError):
    """The token is valid, but its scopes do not cover the request."""

    code = "forbidden"
    title = "Not allowed"


class NotFound(SluicewayGatewayError):
    """There is no such thing."""

    code = "not_found"
    title = "Not found"


class ChannelNotFound(NotFound):
    """There is no channel of this name, or not of this uid any more."""

    code = "channel_not_found"
    title = "No such channel"


class MethodNotAllowed(SluicewayGatewayError):
    """The resource does not have this method."""

    code = "method_not_allowed"
    title = "Method not allowed"


class PreconditionFailed(SluicewayGatewayError):
    """`If-Match` or `If-None-Match` does not hold."""

    code = "precondition_failed"
    title = "The precondition does not hold"


class Conflict(SluicewayGatewayError):
    """The request is well-formed, but the state does not allow it."""

    code = "conflict"
    title = "The channel's state does not allow this"


class UidMismatch(Conflict):
    """The name belongs to another incarnation of the channel."""

    code = "uid_mismatch"
    title = "Another channel has this name now"


class PartitionsShrink(Conflict):
    """Partitions are never taken away: their records would be lost."""

    code = "partitions_shrink"
    title = "A channel never loses partitions"


class ChannelPinned(Conflict):
    """The channel's number of partitions is pinned."""

    code = "channel_pinned"
    title = "The channel's partitions are pinned"


class ImmutableField(Conflict):
    """The field is fixed at creation."""

    code = "immutable_field"
    title = "The field cannot be changed"


class SchemaIncompatible(Conflict):
    """The schema does not go with those that the channel keeps; one violation a broken rule."""

    code = "schema_incompatible"
    title = "The schema is not compatible"


class TooManySchemas(Conflict):
    """The channel keeps as many versions of its schema as one may."""

    code = "too_many_schemas"
    title = "The channel keeps too many schemas"


class ChannelAdopted(Conflict):
    """The channel's topic was there before it, and is left as it is."""

    code = "channel_adopted"
    title = "The channel's topic is adopted"


class ChannelClosed(Conflict):
    """Nobody writes to the channel any more."""

    code = "channel_closed"
    title = "The channel is closed"


class ChannelDeleting(Conflict):
    """The channel is on its way out; its name is free when it is gone."""

    code = "channel_deleting"
    title = "The channel is being deleted"
    retriable = True


class ChannelNotReady(Conflict):
    """The channel has no usable topic at the moment."""

    code = "channel_not_ready"
    title = "The channel is not ready"
    retriable = True


class EndpointsLive(Conflict):
    """Writers or readers of the channel are at work."""

    code = "endpoints_live"
    title = "The channel is in use"
    retriable = True


class UnreadData(Conflict):
    """Groups have not read all of the channel."""

    code = "unread_data"
    title = "The channel holds records that were not read"
    retriable = True


class TopicNotFound(Conflict):
    """There is no topic to adopt."""

    code = "topic_not_found"
    title = "No such topic"


class TopicTaken(Conflict):
    """The topic to adopt belongs to another channel."""

    code = "topic_taken"
    title = "The topic belongs to another channel"


class ReplicationExceedsBrokers(Conflict):
    """More replicas are asked for than Kafka has brokers."""

    code = "replication_exceeds_brokers"
    title = "Not enough brokers"


class IdempotencyKeyReused(Conflict):
    """The idempotency key was used for another request."""

    code = "idempotency_key_reused"
    title = "The idempotency key belongs to another request"


class ConcurrentChange(Conflict):
    """Somebody else changed the channel at the same time."""

    code = "concurrent_change"
    title = "The channel was changed at the same time"
    retriable = True


class EndpointNotFound(NotFound):
    """No endpoint of this channel has this id."""

    code = "endpoint_not_found"
    title = "No such endpoint"


class GroupNotFound(NotFound):
    """No reader of this channel was ever attached in this group."""

    code = "group_not_found"
    title = "No such group"


class Fenced(Conflict):
    """The endpoint's place was taken: by another instance, or by somebody who removed it."""

    code = "fenced"
    title = "The endpoint's place was taken"


class IllegalTransition(Conflict):
    """An endpoint in its state cannot do this next."""

    code = "illegal_transition"
    title = "Not in the endpoint's state"


class EndpointIdReused(Conflict):
    """The id belongs to another endpoint."""

    code = "endpoint_id_reused"
    title = "The id belongs to another endpoint"


class GroupSize(Conflict):
    """The group has another size, and members that live."""

    code = "group_size"
    title = "The group has another size"


class GroupMode(Conflict):
    """The group has another mode, and members that live."""

    code = "group_mode"
    title = "The group has another mode"


class GroupLargerThanPinned(Conflict):
    """More members than the channel may ever have partitions."""

    code = "group_larger_than_pinned"
    title = "The group is larger than the channel may grow"


class MembersOpen(Conflict):
    """Other members of the group are at work."""

    code = "members_open"
    title = "Other members of the group are open"
    retriable = True


class NoGroup(Conflict):
    """What has no group has no positions."""

    code = "no_group"
    title = "Only readers of a group commit"


class NotAssigned(Conflict):
    """The partition is another member's, or there is none."""

    code = "not_assigned"
    title = "The partition is not the member's"


class StaleGeneration(Conflict):
    """The group was resized or reset meanwhile."""

    code = "stale_generation"
    title = "The group is at another generation"


class TopicChanged(Conflict):
    """The positions are of another topic."""

    code = "topic_changed"
    title = "The positions are of another topic"


class GoesBack(Conflict):
    """Committed positions go forward; going back is the reset."""

    code = "goes_back"
    title = "A commit does not go back"


class PositionMoved(Conflict):
    """Somebody else moved the position since it was looked at."""

    code = "position_moved"
    title = "The position was moved meanwhile"


__all__ = [
    *("BindRefused", "BodyTooLarge", "ChannelAdopted", "ChannelClosed", "ChannelDeleting"),
    *("ChannelNotFound", "ChannelNotReady", "ChannelPinned", "ConcurrentChange"),
    *("ConfigNotAllowed", "Conflict", "DatabaseUnavailable", "EndpointIdReused"),
    *("EndpointNotFound", "EndpointsLive", "Fenced", "Forbidden", "GoesBack"),
    *("GroupLargerThanPinned", "GroupMode", "GroupNotFound", "GroupSize"),
    *("HeadersTooLarge", "IdempotencyKeyReused", "IllegalTransition", "ImmutableField"),
    *("InvalidRequest", "InvalidSchema", "InvalidSettings", "KafkaUnavailable"),
    *("MalformedHttp", "MembersOpen", "MethodNotAllowed", "NoGroup", "NotAssigned"),
    *("NotFound", "PartitionsShrink", "PositionMoved", "PreconditionFailed"),
    *("ReplicationExceedsBrokers", "RequestTimeout", "SchemaIncompatible"),
    *("SluicewayGatewayError", "StaleGeneration", "StartupRefused", "TooManyConnections"),
    *("TooManySchemas", "TooManyWaiters", "TopicChanged", "TopicNotFound", "TopicTaken"),
    *("UidMismatch", "Unauthenticated", "Unavailable", "UnreadData", "UrlTooLong"),
    *("Violation", "WrongEncoding", "WrongRevision"),
]
