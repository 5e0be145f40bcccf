"""Everything that the gateway refuses or cannot do, as one tree.

SluicewayGatewayError
├── InvalidRequest                malformed input, whatever the state
│   ├── InvalidSchema
│   └── ConfigNotAllowed
├── BodyTooLarge
├── Unauthenticated
├── Forbidden
├── NotFound
│   └── ChannelNotFound
├── MethodNotAllowed
├── Conflict                      well-formed, but not in this state
│   ├── UidMismatch
│   ├── PartitionsShrink
│   ├── ChannelPinned
│   ├── ImmutableField
│   ├── SchemaChanged
│   ├── ChannelDeleting
│   ├── ChannelNotReady
│   ├── ReplicationExceedsBrokers
│   ├── IdempotencyKeyReused
│   └── ConcurrentChange
├── PreconditionFailed
├── Unavailable                   a part that the gateway needs is away
│   ├── DatabaseUnavailable
│   ├── KafkaUnavailable
│   └── TooManyWaiters
└── StartupRefused                the process must not run like this
    ├── InvalidSettings
    ├── BindRefused
    └── WrongRevision

`code` is stable and part of the HTTP interface; `retriable` says whether the
same request can succeed later without anybody changing it. The text of an
error says what is wrong and what to do about it; it never holds a secret.
"""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One thing that is wrong with a request.

    `pointer` is a JSON pointer into the body ("/spec/partitions"), or where else
    the value was: "path:name", "query:limit", "header:If-Match".
    """

    pointer: str
    message: str


class SluicewayGatewayError(Exception):
    """Root of all errors of this package."""

    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "The gateway failed"
    retriable: ClassVar[bool] = False


class InvalidRequest(SluicewayGatewayError):
    """The request is malformed; `violations` says where."""

    code = "invalid_request"
    title = "The request is malformed"

    def __init__(self, detail: str, violations: tuple[Violation, ...] = ()) -> None:
        super().__init__(detail)
        self.violations = violations


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


class SchemaChanged(Conflict):
    """The channel has another schema."""

    code = "schema_changed"
    title = "The channel has another schema"


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


class PreconditionFailed(SluicewayGatewayError):
    """`If-Match` or `If-None-Match` does not hold."""

    code = "precondition_failed"
    title = "The precondition does not hold"


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
    """Kafka does not answer in time."""

    code = "kafka_unavailable"
    title = "Kafka is not available"
    retry_after_s = 2


class TooManyWaiters(Unavailable):
    """As many requests are waiting as this replica allows."""

    code = "too_many_waiters"
    title = "Too many waiting requests"


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
