"""Every exception that the client raises on purpose.

    SluicewayError
    ├── GatewayError               what the gateway said, or that it said nothing
    │   ├── GatewayUnavailable     no answer, or 503, until the repeats were used up
    │   │   └── GatewayAccessFailed    it is there, but its certificate or protocol does not fit
    │   ├── Unauthenticated        no token, or one that the gateway does not know
    │   ├── Forbidden              the token's scopes do not reach that far
    │   ├── ChannelNotFound        no channel of that name, or no longer that one
    │   ├── ChannelNotReady        its topic is not there (yet)
    │   ├── Conflict               the channel does not allow the change; `code` says why
    │   │   ├── ChannelClosed      nobody writes to it any more
    │   │   ├── Fenced             this endpoint's place was taken
    │   │   └── StaleGeneration    the group was changed or reset meanwhile
    │   ├── InvalidRequest         the gateway refused the request's content
    │   └── IncompatibleGateway    an answer that this version does not understand
    ├── SchemaError
    │   ├── InvalidSchema          not a schema, or one that is not allowed
    │   ├── SchemaMismatch         a schema, but not the channel's
    │   └── UnsupportedType        a type that a channel cannot carry
    ├── RecordError                nothing of the write was sent
    │   ├── InvalidRecord          a record does not fit the schema
    │   └── RecordTooLarge         a record is larger than a message may be
    ├── KafkaFailure               what Kafka refused
    │   ├── KafkaUnavailable       no broker answered in time
    │   │   └── KafkaAccessFailed      brokers are there, but let nobody in like this
    │   ├── DeliveryFailed         a message was not acknowledged
    │   ├── OffsetOutOfRange       the position to read from does not exist
    │   └── TopicGone              the topic was deleted, or is another one now
    ├── CounterpartError           the other side did not come to its end
    │   ├── WriterFailed           a writer ended by an error
    │   └── WriterLost             a writer was heard of no more
    ├── PortError                  some of an output port's channels failed
    ├── CorruptMessage             a message in the topic is not of this channel
    ├── ValueOutOfRange            a value that Python cannot express, only Arrow
    ├── CheckpointMismatch         a streaming query's checkpoint is of another channel
    ├── OptionError                an argument or a setting that makes no sense
    │   └── CommitBeyondRead       a commit of what was not handed out
    ├── EndpointClosed             the gateway, writer or reader cannot be used any more
    └── SluicewayTimeout           what was waited for did not happen in time

`code` is stable and meant for programs; `retriable` says whether the same call
may succeed later. Both stand on the class; answers of the gateway that share a
class (`Conflict`) carry their own `code`. `summary` is what others may read of an
error: it holds no value of a record, and is None where only the type may be told.
"""

from sluiceway.errors.calls import (
    CheckpointMismatch,
    CommitBeyondRead,
    EndpointClosed,
    OptionError,
    SluicewayTimeout,
)
from sluiceway.errors.endpoints import CounterpartError, WriterFailed, WriterLost
from sluiceway.errors.gateway import (
    ChannelClosed,
    ChannelNotFound,
    ChannelNotReady,
    Conflict,
    Fenced,
    Forbidden,
    GatewayAccessFailed,
    GatewayError,
    GatewayUnavailable,
    IncompatibleGateway,
    InvalidRequest,
    StaleGeneration,
    Unauthenticated,
)
from sluiceway.errors.kafka import (
    DeliveryFailed,
    KafkaAccessFailed,
    KafkaFailure,
    KafkaUnavailable,
    OffsetOutOfRange,
    TopicGone,
)
from sluiceway.errors.messages import CorruptMessage, ValueOutOfRange
from sluiceway.errors.ports import PortError
from sluiceway.errors.records import InvalidRecord, RecordError, RecordTooLarge
from sluiceway.errors.root import SluicewayError
from sluiceway.errors.schemas import InvalidSchema, SchemaError, SchemaMismatch, UnsupportedType

__all__ = [
    "ChannelClosed",
    "ChannelNotFound",
    "ChannelNotReady",
    "CheckpointMismatch",
    "CommitBeyondRead",
    "Conflict",
    "CorruptMessage",
    "CounterpartError",
    "DeliveryFailed",
    "EndpointClosed",
    "Fenced",
    "Forbidden",
    "GatewayAccessFailed",
    "GatewayError",
    "GatewayUnavailable",
    "IncompatibleGateway",
    "InvalidRecord",
    "InvalidRequest",
    "InvalidSchema",
    "KafkaAccessFailed",
    "KafkaFailure",
    "KafkaUnavailable",
    "OffsetOutOfRange",
    "OptionError",
    "PortError",
    "RecordError",
    "RecordTooLarge",
    "SchemaError",
    "SchemaMismatch",
    "SluicewayError",
    "SluicewayTimeout",
    "StaleGeneration",
    "TopicGone",
    "Unauthenticated",
    "UnsupportedType",
    "ValueOutOfRange",
    "WriterFailed",
    "WriterLost",
]
