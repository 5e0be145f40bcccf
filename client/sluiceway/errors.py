"""The client's exceptions.

    SluicewayError
    ├── CheckpointMismatch, EndpointClosed, SluicewayTimeout, CorruptMessage,
    │   ValueOutOfRange, PortError, CommitUnknown, ReplayMismatch, IncompleteBatch
    ├── OptionError
    │   └── CommitBeyondRead
    ├── CounterpartError
    │   └── WriterFailed, WriterLost
    ├── GatewayError
    │   ├── Unauthenticated, Forbidden, ChannelNotFound, ChannelNotReady, InvalidRequest,
    │   │   IncompatibleGateway
    │   ├── GatewayUnavailable
    │   │   └── GatewayAccessFailed
    │   └── Conflict
    │       └── ChannelClosed, Fenced, StaleGeneration
    ├── KafkaFailure
    │   ├── DeliveryFailed, OffsetOutOfRange, RecordsLost, TopicGone
    │   └── KafkaUnavailable
    │       └── KafkaAccessFailed
    ├── RecordError
    │   └── InvalidRecord, RecordTooLarge
    └── SchemaError
        └── InvalidSchema, SchemaMismatch, UnsupportedType

`code` is stable and meant for programs. `retriable` says whether the same call may succeed later.
Both are class attributes; responses of the gateway that share a class, such as `Conflict`, have
codes of their own. `summary` is the part of the message that is public: it contains no values of
records, and is None if only the type of the error is public.
"""

from collections.abc import Mapping, Sequence

from sluiceway.error_base import SluicewayError as SluicewayError
from sluiceway.error_base import cause_of as cause_of


class OptionError(SluicewayError, ValueError):
    """An invalid argument, option or setting; the message says what is valid."""

    code = "invalid_option"


class CommitBeyondRead(OptionError):
    """A position to commit is past the returned records; nothing was committed."""

    code = "commit_beyond_read"
    message_is_public = True


class CheckpointMismatch(SluicewayError):
    """A streaming query's checkpoint belongs to another or a recreated channel."""

    code = "checkpoint_mismatch"


class EndpointClosed(SluicewayError):
    """The gateway, writer or reader was closed, or has failed; open a new one."""

    code = "endpoint_closed"
    message_is_public = True


class SluicewayTimeout(SluicewayError, TimeoutError):
    """The wait timed out; nothing was undone."""

    code = "timeout"
    message_is_public = True
    retriable = True


class CommitUnknown(SluicewayError):
    """The gateway did not answer the commit of the batch `key`, so its state is unknown."""

    code = "commit_unknown"
    message_is_public = True
    retriable = True

    def __init__(self, *, channel: str, key: str) -> None:
        super().__init__(
            f"the gateway did not answer the commit of the batch {key!r} in the channel "
            f"{channel!r}, so its records may be visible or not. Call writer.resolve(), or retry "
            "with the same key: a committed batch is not written again"
        )
        self.channel, self.key = channel, key


class ReplayMismatch(SluicewayError):
    """A batch was committed before with a different number of records; nothing was written."""

    code = "replay_mismatch"
    message_is_public = True


class IncompleteBatch(SluicewayError):
    """Parts of a distributed job's batch are missing, so nothing was committed."""

    code = "incomplete_batch"
    message_is_public = True


class CounterpartError(SluicewayError):
    """Endpoints on the other side of the channel did not finish; `endpoints` are their ids."""

    code = "counterpart_error"
    message_is_public = True
    retriable = True

    def __init__(self, message: str, *, endpoints: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.endpoints = endpoints


class WriterFailed(CounterpartError):
    """A writer failed without a successor in time; its records were read."""

    code = "writer_failed"


class WriterLost(CounterpartError):
    """A writer stopped sending heartbeats; its known records were read."""

    code = "writer_lost"


class GatewayError(SluicewayError):
    """The gateway refused a call, or failed.

    `status` is the HTTP status, or None without a response. `code` is the problem's code, and
    `errors` its list of `{"pointer", "message"}`.
    """

    code = "gateway_error"
    message_is_public = True

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        retriable: bool | None = None,
        errors: Sequence[Mapping[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.errors = tuple(errors)
        self.code = self.code if code is None else code
        self.retriable = self.retriable if retriable is None else retriable


class GatewayUnavailable(GatewayError):
    """The gateway did not respond to any of the retries, or responded with 503."""

    code = "gateway_unavailable"
    retriable = True


class GatewayAccessFailed(GatewayUnavailable):
    """The gateway's certificate or protocol does not match; a retry does not help."""

    code = "gateway_access_failed"
    retriable = False


class Unauthenticated(GatewayError):
    """The token is missing or unknown to the gateway."""

    code = "unauthenticated"


class Forbidden(GatewayError):
    """The token's scopes do not cover the call."""

    code = "forbidden"


class ChannelNotFound(GatewayError):
    """No channel has this name, or the opened channel was deleted."""

    code = "channel_not_found"


class ChannelNotReady(GatewayError):
    """The channel exists, but its topic does not exist yet; the message has the condition."""

    code = "channel_not_ready"
    retriable = True


class Conflict(GatewayError):
    """The state of the channel does not allow the call; `code` is the reason."""

    code = "conflict"


class ChannelClosed(Conflict):
    """The channel was closed: it can still be read, but no longer written."""

    code = "channel_closed"


class Fenced(Conflict):
    """The endpoint lost its place to another instance, a dismissal or a resize, and must stop."""

    code = "fenced"


class StaleGeneration(Conflict):
    """The group was changed or reset since this endpoint attached; open a new one.

    A member of a dynamic group was lost, and continues from the committed positions.
    """

    code = "stale_generation"


class InvalidRequest(GatewayError):
    """The content of a request is invalid; `errors` has the fields."""

    code = "invalid_request"


class IncompatibleGateway(GatewayError):
    """The response is unknown to this version of the client."""

    code = "incompatible_gateway"


class KafkaFailure(SluicewayError):
    """Kafka refused a request; subclasses name known causes."""

    code = "kafka_failure"
    message_is_public = True


class KafkaUnavailable(KafkaFailure):
    """No broker responded in time. Positions are unchanged: repeat the call."""

    code = "kafka_unavailable"
    retriable = True


class KafkaAccessFailed(KafkaUnavailable):
    """Brokers refuse the connection: credentials, certificates or protocol; do not retry."""

    code = "kafka_access_failed"
    retriable = False


class DeliveryFailed(KafkaFailure):
    """Kafka did not acknowledge a message.

    `partition` is that of the first failure, if known, and `reason` Kafka's error. Of the records
    since the writer was opened, `written_records` were acknowledged, `failed_records` were not.
    After a timeout, a failed message may still be in the topic.
    """

    code = "delivery_failed"

    def __init__(
        self, *, partition: int | None, reason: str, written_records: int, failed_records: int
    ) -> None:
        where = "the topic" if partition is None else f"partition {partition}"
        super().__init__(
            f"{where}: {reason}; {written_records:,} records of this writer are "
            f"written, {failed_records:,} may not be. Open a new writer to continue"
        )
        self.partition, self.reason = partition, reason
        self.written_records, self.failed_records = written_records, failed_records


class OffsetOutOfRange(KafkaFailure):
    """The offset is outside of the partition's range, `begin` to `end`; positions are unchanged."""

    code = "offset_out_of_range"

    def __init__(
        self,
        *,
        partition: int,
        offset: int,
        begin: int,
        end: int,
        advice: str = "Seek to a position within the range",
    ) -> None:
        cause = "earlier records were deleted" if offset < begin else "later ones do not exist yet"
        super().__init__(
            f"partition {partition} has no offset {offset}: its range is {begin} to {end}, "
            f"{cause}. {advice}"
        )
        self.partition, self.offset, self.begin, self.end = partition, offset, begin, end


class RecordsLost(KafkaFailure):
    """A committed record is missing in Kafka, although retention did not remove it."""

    code = "records_lost"


class TopicGone(KafkaFailure):
    """The channel's topic was deleted, or replaced by another of the same name."""

    code = "topic_gone"


class CorruptMessage(SluicewayError):
    """The message at `offset` of `partition` cannot be decoded; the position stays before it."""

    code = "corrupt_message"

    def __init__(self, *, channel: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(
            f"channel {channel!r}, partition {partition}, offset {offset}: {reason}. Seek past "
            'it, or read with on_corrupt="skip"'
        )
        self.channel, self.partition, self.offset, self.reason = channel, partition, offset, reason

    @property
    def summary(self) -> str:
        """The partition and offset; the reason may quote the message."""
        return (
            f"channel {self.channel!r}, partition {self.partition}, offset {self.offset}: it "
            "cannot be decoded"
        )


class ValueOutOfRange(SluicewayError):
    """Python cannot represent a value; `batches()` returns it as an Arrow value."""

    code = "value_out_of_range"
    message_is_public = True


class PortError(SluicewayError):
    """Some channels of an output port failed; all were tried. `errors` are by channel."""

    code = "port_failed"

    def __init__(self, doing: str, *, errors: Mapping[str, SluicewayError], channels: int) -> None:
        failed = f"{doing} failed for {len(errors)} of the {channels} channels of an output port"
        super().__init__(f"{failed}: " + "; ".join(f"{name}: {e}" for name, e in errors.items()))
        self.errors = dict(errors)
        self.retriable = all(error.retriable for error in errors.values())
        self._failed = failed

    @property
    def summary(self) -> str:
        """The number of failed channels, and the public cause of each."""
        causes = "; ".join(f"{name}: {cause_of(error)}" for name, error in self.errors.items())
        return f"{self._failed}: {causes}"


class RecordError(SluicewayError):
    """A record was refused. No record of that write was sent."""

    code = "record_error"


class InvalidRecord(RecordError):
    """The record at `index` of the write does not fit the schema.

    `index` counts from 0 within the write; `field` is a dotted path, empty for the whole record.
    `schema_path` and `public_reason` are the path and the reason without values of the record;
    the reason is None if it is not public.
    """

    code = "invalid_record"

    def __init__(
        self,
        *,
        index: int,
        field: str,
        reason: str,
        schema_path: str = "",
        public_reason: str | None = None,
    ) -> None:
        super().__init__(f"{_where(index, field)}: {reason}; no record of this write was sent")
        self.index, self.field, self.reason = index, field, reason
        self.schema_path, self.public_reason = schema_path, public_reason

    @property
    def summary(self) -> str:
        """The record's index, the field and the reason, without values."""
        where = _where(self.index, self.schema_path)
        return where if self.public_reason is None else f"{where}: {self.public_reason}"


class RecordTooLarge(RecordError):
    """The record at `index` of the write is larger than the topic's message limit."""

    code = "record_too_large"
    message_is_public = True

    def __init__(self, *, index: int, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"record {index} takes {size_bytes:,} bytes; the limit of this channel's messages is "
            f"{limit_bytes:,}. No record of this write was sent. Make the record smaller, or raise "
            "the channel's max.message.bytes"
        )
        self.index, self.size_bytes, self.limit_bytes = index, size_bytes, limit_bytes


def _where(index: int, field: str) -> str:
    return f"record {index}, field {field!r}" if field else f"record {index}"


class SchemaError(SluicewayError):
    """A schema or its source is unusable; `path` is the field's, empty for the whole schema."""

    code, path = "schema_error", ""


class InvalidSchema(SchemaError):
    """The schema is invalid for a channel; the message has the path and the reason."""

    code = "invalid_schema"


class SchemaMismatch(SchemaError):
    """The schema does not fit the channel."""

    code = "schema_mismatch"


class UnsupportedType(SchemaError):
    """The field at `path` has a type that channels do not support."""

    code = "unsupported_type"
    message_is_public = True

    def __init__(self, *, path: str, type_name: str, hint: str = "") -> None:
        where = f"the field {path!r}" if path else "the schema"
        advice = f"; {hint}" if hint else ""
        super().__init__(f"{where} has the type {type_name}, which no channel can carry{advice}")
        self.path, self.type_name = path, type_name


__all__ = [
    *("ChannelClosed", "ChannelNotFound", "ChannelNotReady", "CheckpointMismatch"),
    *("CommitBeyondRead", "CommitUnknown", "Conflict", "CorruptMessage", "CounterpartError"),
    *("DeliveryFailed", "EndpointClosed", "Fenced", "Forbidden", "GatewayAccessFailed"),
    *("GatewayError", "GatewayUnavailable", "IncompatibleGateway", "IncompleteBatch"),
    *("InvalidRecord", "InvalidRequest", "InvalidSchema", "KafkaAccessFailed", "KafkaFailure"),
    *("KafkaUnavailable", "OffsetOutOfRange", "OptionError", "PortError", "RecordError"),
    *("RecordTooLarge", "RecordsLost", "ReplayMismatch", "SchemaError", "SchemaMismatch"),
    *("SluicewayError", "SluicewayTimeout", "StaleGeneration", "TopicGone", "Unauthenticated"),
    *("UnsupportedType", "ValueOutOfRange", "WriterFailed", "WriterLost", "cause_of"),
]
