"""The exceptions that the client raises on purpose.

    SluicewayError
    ├── CheckpointMismatch, EndpointClosed, SluicewayTimeout, CorruptMessage,
    │   ValueOutOfRange, PortError
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
    │   ├── DeliveryFailed, OffsetOutOfRange, TopicGone
    │   └── KafkaUnavailable
    │       └── KafkaAccessFailed
    ├── RecordError
    │   └── InvalidRecord, RecordTooLarge
    └── SchemaError
        └── InvalidSchema, SchemaMismatch, UnsupportedType

`code` is stable and meant for programs; `retriable` says whether the same call
may succeed later. Both stand on the class; answers of the gateway that share a
class (`Conflict`) carry their own `code`. `summary` is what others may read of an
error: it holds no value of a record, and is None where only the type may be told.
"""

from collections.abc import Mapping, Sequence
from typing import Any


class SluicewayError(Exception):
    """The root of everything that Sluiceway's client raises on purpose."""

    code: str = "error"
    retriable: bool = False
    message_is_public: bool = False
    """Whether the message holds no value of any record, so that others may read it."""

    @property
    def summary(self) -> str | None:
        """What went wrong, without any value of a record; None where only the type may be told."""
        return str(self) if self.message_is_public else None

    def __reduce__(self) -> tuple[Any, ...]:
        # Subclasses have keyword-only facts; Spark's tasks carry exceptions between processes.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(
    kind: type[SluicewayError], args: tuple[Any, ...], facts: Mapping[str, Any]
) -> SluicewayError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


def cause_of(error: BaseException) -> str:
    """Return the type of an error and, of ours, the summary: an endpoint's cause, which is public.

    All who may see the channel read it. The messages of other exceptions may hold anything, so
    they stay with the job.
    """
    kind = type(error)
    known = kind.__module__ == "builtins" or kind.__module__.partition(".")[0] == "sluiceway"
    name = kind.__qualname__ if known else f"{kind.__module__}.{kind.__qualname__}"
    summary = error.summary if isinstance(error, SluicewayError) else None
    return name if summary is None else f"{name}: {summary}"


class OptionError(SluicewayError, ValueError):
    """An argument, an option or a setting that makes no sense; the message says what would."""

    code = "invalid_option"


class CommitBeyondRead(OptionError):
    """A position to commit lies past what the reader has handed out; nothing was committed."""

    code = "commit_beyond_read"
    message_is_public = True


class CheckpointMismatch(SluicewayError):
    """A streaming query's checkpoint belongs to another channel, or to one that was made anew."""

    code = "checkpoint_mismatch"


class EndpointClosed(SluicewayError):
    """The gateway, writer or reader was closed, or failed before; open a new one."""

    code = "endpoint_closed"
    message_is_public = True


class SluicewayTimeout(SluicewayError, TimeoutError):
    """What was waited for did not happen in time; nothing was undone."""

    code = "timeout"
    message_is_public = True
    retriable = True


class CounterpartError(SluicewayError):
    """The other side of the channel did not come to its end; `endpoints` are their ids."""

    code = "counterpart_error"
    message_is_public = True
    retriable = True

    def __init__(self, message: str, *, endpoints: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.endpoints = endpoints


class WriterFailed(CounterpartError):
    """A writer ended by an error, and none took its place in time; what it wrote was handed out."""

    code = "writer_failed"


class WriterLost(CounterpartError):
    """A writer sent no heartbeat any more; what it is known to have written was handed out."""

    code = "writer_lost"


class GatewayError(SluicewayError):
    """The gateway refused a call or failed at it.

    `status` is the HTTP status (None: there was no answer), `code` the problem's code and
    `errors` its list of `{"pointer", "message"}`, empty where it has none.
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
    """The gateway gave no answer, or 503, as often as it was asked."""

    code = "gateway_unavailable"
    retriable = True


class GatewayAccessFailed(GatewayUnavailable):
    """Something answers, but its certificate or its protocol does not fit; it will not heal."""

    code = "gateway_access_failed"
    retriable = False


class Unauthenticated(GatewayError):
    """The gateway knows no such token, or none was sent."""

    code = "unauthenticated"


class Forbidden(GatewayError):
    """The token's scopes do not cover the call."""

    code = "forbidden"


class ChannelNotFound(GatewayError):
    """There is no channel of that name, or it is no longer the one that was opened."""

    code = "channel_not_found"


class ChannelNotReady(GatewayError):
    """The channel is there, its topic is not; the message carries the condition's words."""

    code = "channel_not_ready"
    retriable = True


class Conflict(GatewayError):
    """What the channel is does not allow what was asked; `code` says what stands against it."""

    code = "conflict"


class ChannelClosed(Conflict):
    """The channel was closed: its records are read as before, nobody writes any more."""

    code = "channel_closed"


class Fenced(Conflict):
    """The endpoint's place was taken: what it sends counts no more. Stop.

    The message says by what: another instance, somebody who removed it, another size of the group.
    """

    code = "fenced"


class StaleGeneration(Conflict):
    """The group was changed, or reset, since this endpoint attached; open it anew.

    A member of a dynamic group was lost, or not waited for any longer: it reads on instead, from
    what is committed.
    """

    code = "stale_generation"


class InvalidRequest(GatewayError):
    """The gateway refused the content of a request; `errors` points at the fields."""

    code = "invalid_request"


class IncompatibleGateway(GatewayError):
    """The answer is not one that this version of the client understands."""

    code = "incompatible_gateway"


class KafkaFailure(SluicewayError):
    """Kafka refused something; the subclasses say what, where it is known."""

    code = "kafka_failure"
    message_is_public = True


class KafkaUnavailable(KafkaFailure):
    """No broker answered in time. Positions are kept: the same call may be made again."""

    code = "kafka_unavailable"
    retriable = True


class KafkaAccessFailed(KafkaUnavailable):
    """Brokers answer, but no connection comes about: credentials, certificates or protocol.

    The message says which of them and what to do. It will not heal by itself.
    """

    code = "kafka_access_failed"
    retriable = False


class DeliveryFailed(KafkaFailure):
    """A message was not acknowledged by Kafka.

    `partition` is that of the first failure (None where there was none yet) and `reason` Kafka's
    cause. `written_records` counts what is known to be written, in all partitions since the
    writer was opened, `failed_records` the rest of what it took. After a timeout a failed
    message may still be in the topic.
    """

    code = "delivery_failed"

    def __init__(
        self, *, partition: int | None, reason: str, written_records: int, failed_records: int
    ) -> None:
        where = "the topic" if partition is None else f"partition {partition}"
        super().__init__(
            f"{where}: {reason}; {written_records:,} records of this writer are "
            f"known to be written, {failed_records:,} are not. Open a new writer to go on"
        )
        self.partition, self.reason = partition, reason
        self.written_records, self.failed_records = written_records, failed_records


class OffsetOutOfRange(KafkaFailure):
    """The offset to read from is not in the partition, whose range is `begin` to `end`.

    Below `begin` the records were removed by retention or by hand; above `end` they were never
    written. Positions did not move.
    """

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
        cause = "nothing was written there yet"
        if offset < begin:
            cause = "the records before the beginning are no longer kept"
        super().__init__(
            f"partition {partition} has no offset {offset}: its range is {begin} to {end}, "
            f"{cause}. {advice}"
        )
        self.partition, self.offset, self.begin, self.end = partition, offset, begin, end


class TopicGone(KafkaFailure):
    """The channel's topic was deleted, or another topic has its name now."""

    code = "topic_gone"


class CorruptMessage(SluicewayError):
    """The message at `offset` of `partition` cannot be read as a record of the channel.

    The reader's position stays before it: seek past it, or read with `on_corrupt="skip"`.
    """

    code = "corrupt_message"

    def __init__(self, *, channel: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(
            f"channel {channel!r}, partition {partition}, offset {offset}: {reason}. Seek past "
            'it, or read with on_corrupt="skip"'
        )
        self.channel, self.partition, self.offset, self.reason = channel, partition, offset, reason

    @property
    def summary(self) -> str:
        """The message's place: the reason may quote what the message holds."""
        return (
            f"channel {self.channel!r}, partition {self.partition}, offset {self.offset}: it "
            "cannot be read as a record"
        )


class ValueOutOfRange(SluicewayError):
    """A value that was read has no form in Python; `batches()` gives it as Arrow's."""

    code = "value_out_of_range"
    message_is_public = True


class PortError(SluicewayError):
    """Some of an output port's channels failed; all were tried. `errors` has each, by channel."""

    code = "port_failed"

    def __init__(self, doing: str, *, errors: Mapping[str, SluicewayError], channels: int) -> None:
        failed = f"{doing} failed for {len(errors)} of the {channels} channels of an output port"
        super().__init__(f"{failed}: " + "; ".join(f"{name}: {e}" for name, e in errors.items()))
        self.errors = dict(errors)
        self.retriable = all(error.retriable for error in errors.values())
        self._failed = failed

    @property
    def summary(self) -> str:
        """How many channels failed, and the cause of each."""
        causes = "; ".join(f"{name}: {cause_of(error)}" for name, error in self.errors.items())
        return f"{self._failed}: {causes}"


class RecordError(SluicewayError):
    """A record was refused. Nothing of the write that held it was sent."""

    code = "record_error"


class InvalidRecord(RecordError):
    """The record at `index` of the write does not fit the schema.

    `index` counts from 0 within the write; `field` is a dotted path, empty for a whole record.
    `schema_path` and `public_reason` say the same without any value: the path by the schema's own
    names, and None where no reason may be told.
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
        super().__init__(f"{_where(index, field)}: {reason}; nothing of this write was sent")
        self.index, self.field, self.reason = index, field, reason
        self.schema_path, self.public_reason = schema_path, public_reason

    @property
    def summary(self) -> str:
        """The record's index, the field and the reason, without any value."""
        where = _where(self.index, self.schema_path)
        return where if self.public_reason is None else f"{where}: {self.public_reason}"


class RecordTooLarge(RecordError):
    """The record at `index` of the write is larger than one message of the topic may be."""

    code = "record_too_large"
    message_is_public = True

    def __init__(self, *, index: int, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"record {index} takes {size_bytes:,} bytes, a message of this channel may take "
            f"{limit_bytes:,}; nothing of this write was sent. Make the record smaller, or raise "
            "the channel's max.message.bytes"
        )
        self.index, self.size_bytes, self.limit_bytes = index, size_bytes, limit_bytes


def _where(index: int, field: str) -> str:
    return f"record {index}, field {field!r}" if field else f"record {index}"


class SchemaError(SluicewayError):
    """A schema, or what it was made from, cannot be used."""

    code = "schema_error"


class InvalidSchema(SchemaError):
    """It is not a schema, or not one that a channel may have; the message says where and why."""

    code = "invalid_schema"


class SchemaMismatch(SchemaError):
    """It is a schema, but not the channel's."""

    code = "schema_mismatch"


class UnsupportedType(SchemaError):
    """The field at `path` has a type that a channel cannot carry."""

    code = "unsupported_type"
    message_is_public = True

    def __init__(self, *, path: str, type_name: str, hint: str = "") -> None:
        where = f"the field {path!r}" if path else "the schema"
        advice = f"; {hint}" if hint else ""
        super().__init__(f"{where} has the type {type_name}, which no channel can carry{advice}")
        self.path, self.type_name = path, type_name


__all__ = [
    *("ChannelClosed", "ChannelNotFound", "ChannelNotReady", "CheckpointMismatch"),
    *("CommitBeyondRead", "Conflict", "CorruptMessage", "CounterpartError"),
    *("DeliveryFailed", "EndpointClosed", "Fenced", "Forbidden", "GatewayAccessFailed"),
    *("GatewayError", "GatewayUnavailable", "IncompatibleGateway", "InvalidRecord"),
    *("InvalidRequest", "InvalidSchema", "KafkaAccessFailed", "KafkaFailure"),
    *("KafkaUnavailable", "OffsetOutOfRange", "OptionError", "PortError", "RecordError"),
    *("RecordTooLarge", "SchemaError", "SchemaMismatch", "SluicewayError"),
    *("SluicewayTimeout", "StaleGeneration", "TopicGone", "Unauthenticated"),
    *("UnsupportedType", "ValueOutOfRange", "WriterFailed", "WriterLost"),
]
