"""Everything that the gateway refuses or cannot do, as one tree.

SluicewayGatewayError
├── InvalidRequest                malformed input, whatever the state
│   ├── InvalidSchema
│   └── ConfigNotAllowed
├── BodyTooLarge
├── MalformedHttp
├── UrlTooLong
├── HeadersTooLarge
├── RequestTimeout
├── Unauthenticated
├── Forbidden
├── NotFound
│   ├── ChannelNotFound
│   ├── EndpointNotFound
│   └── GroupNotFound
├── MethodNotAllowed
├── Conflict                      well-formed, but not in this state
│   ├── UidMismatch
│   ├── PartitionsShrink
│   ├── ChannelPinned
│   ├── ImmutableField
│   ├── SchemaIncompatible
│   ├── TooManySchemas
│   ├── ChannelAdopted
│   ├── ChannelClosed
│   ├── ChannelDeleting
│   ├── ChannelNotReady
│   ├── EndpointsLive
│   ├── UnreadData
│   ├── TopicNotFound
│   ├── TopicTaken
│   ├── ReplicationExceedsBrokers
│   ├── IdempotencyKeyReused
│   ├── ConcurrentChange
│   ├── Fenced                    of endpoints and their groups, from here on
│   ├── IllegalTransition
│   ├── EndpointIdReused
│   ├── GroupSize
│   ├── GroupMode
│   ├── GroupLargerThanPinned
│   ├── MembersOpen
│   ├── NoGroup
│   ├── NotAssigned
│   ├── StaleGeneration
│   ├── TopicChanged
│   ├── GoesBack
│   └── PositionMoved
├── PreconditionFailed
├── Unavailable                   a part that the gateway needs is away
│   ├── DatabaseUnavailable
│   ├── KafkaUnavailable
│   ├── TooManyConnections
│   └── TooManyWaiters
└── StartupRefused                the process must not run like this
    ├── InvalidSettings
    ├── BindRefused
    ├── WrongRevision
    └── WrongEncoding

`code` is stable and part of the HTTP interface; `retriable` says whether the
same request can succeed later without anybody changing it. The text of an
error says what is wrong and what to do about it; it never holds a secret.
"""

from sluiceway_gateway.domain.errors.conflicts import (
    ChannelAdopted,
    ChannelClosed,
    ChannelDeleting,
    ChannelNotReady,
    ChannelPinned,
    ConcurrentChange,
    Conflict,
    EndpointsLive,
    IdempotencyKeyReused,
    ImmutableField,
    PartitionsShrink,
    ReplicationExceedsBrokers,
    SchemaIncompatible,
    TooManySchemas,
    TopicNotFound,
    TopicTaken,
    UidMismatch,
    UnreadData,
)
from sluiceway_gateway.domain.errors.endpoints import (
    EndpointIdReused,
    EndpointNotFound,
    Fenced,
    GoesBack,
    GroupLargerThanPinned,
    GroupMode,
    GroupNotFound,
    GroupSize,
    IllegalTransition,
    MembersOpen,
    NoGroup,
    NotAssigned,
    PositionMoved,
    StaleGeneration,
    TopicChanged,
)
from sluiceway_gateway.domain.errors.outages import (
    DatabaseUnavailable,
    KafkaUnavailable,
    TooManyConnections,
    TooManyWaiters,
    Unavailable,
)
from sluiceway_gateway.domain.errors.requests import (
    BodyTooLarge,
    ChannelNotFound,
    ConfigNotAllowed,
    Forbidden,
    HeadersTooLarge,
    InvalidRequest,
    InvalidSchema,
    MalformedHttp,
    MethodNotAllowed,
    NotFound,
    PreconditionFailed,
    RequestTimeout,
    Unauthenticated,
    UrlTooLong,
)
from sluiceway_gateway.domain.errors.root import SluicewayGatewayError, Violation
from sluiceway_gateway.domain.errors.startup import (
    BindRefused,
    InvalidSettings,
    StartupRefused,
    WrongEncoding,
    WrongRevision,
)

__all__ = [
    "BindRefused",
    "BodyTooLarge",
    "ChannelAdopted",
    "ChannelClosed",
    "ChannelDeleting",
    "ChannelNotFound",
    "ChannelNotReady",
    "ChannelPinned",
    "ConcurrentChange",
    "ConfigNotAllowed",
    "Conflict",
    "DatabaseUnavailable",
    "EndpointIdReused",
    "EndpointNotFound",
    "EndpointsLive",
    "Fenced",
    "Forbidden",
    "GoesBack",
    "GroupLargerThanPinned",
    "GroupMode",
    "GroupNotFound",
    "GroupSize",
    "HeadersTooLarge",
    "IdempotencyKeyReused",
    "IllegalTransition",
    "ImmutableField",
    "InvalidRequest",
    "InvalidSchema",
    "InvalidSettings",
    "KafkaUnavailable",
    "MalformedHttp",
    "MembersOpen",
    "MethodNotAllowed",
    "NoGroup",
    "NotAssigned",
    "NotFound",
    "PartitionsShrink",
    "PositionMoved",
    "PreconditionFailed",
    "ReplicationExceedsBrokers",
    "RequestTimeout",
    "SchemaIncompatible",
    "SluicewayGatewayError",
    "StaleGeneration",
    "StartupRefused",
    "TooManyConnections",
    "TooManySchemas",
    "TooManyWaiters",
    "TopicChanged",
    "TopicNotFound",
    "TopicTaken",
    "UidMismatch",
    "Unauthenticated",
    "Unavailable",
    "UnreadData",
    "UrlTooLong",
    "Violation",
    "WrongEncoding",
    "WrongRevision",
]
