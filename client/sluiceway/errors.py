"""Every exception that the client raises on purpose.

    SluicewayError
    ├── GatewayError               what the gateway said, or that it said nothing
    │   ├── GatewayUnavailable     no answer, or 503, until the repeats were used up
    │   ├── Unauthenticated        no token, or one that the gateway does not know
    │   ├── Forbidden              the token's scopes do not reach that far
    │   ├── ChannelNotFound        no channel of that name, or no longer that one
    │   ├── ChannelNotReady        its topic is not there (yet)
    │   ├── Conflict               the channel does not allow the change; `code` says why
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
    │   ├── DeliveryFailed         a message was not acknowledged
    │   ├── OffsetOutOfRange       the position to read from does not exist
    │   └── TopicGone              the topic was deleted, or is another one now
    ├── CorruptMessage             a message in the topic is not of this channel
    ├── ValueOutOfRange            a value that Python cannot express, only Arrow
    ├── OptionError                an argument or a setting that makes no sense
    ├── EndpointClosed             the writer or reader cannot be used any more
    └── SluicewayTimeout           what was waited for did not happen in time

`code` is stable and meant for programs; `retriable` says whether the same call
may succeed later. Both stand on the class; answers of the gateway that share a
class (`Conflict`) carry their own `code`.
"""

from collections.abc import Mapping, Sequence
from typing import Any


class SluicewayError(Exception):
    """The root of everything that Sluiceway's client raises on purpose."""

    code: str = "error"
    retriable: bool = False

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


class GatewayError(SluicewayError):
    """The gateway refused a call or failed at it.

    `status` is the HTTP status (None: there was no answer), `code` the problem's code and
    `errors` its list of `{"pointer", "message"}`, empty where it has none.
    """

    code = "gateway_error"

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


class InvalidRequest(GatewayError):
    """The gateway refused the content of a request; `errors` points at the fields."""

    code = "invalid_request"


class IncompatibleGateway(GatewayError):
    """The answer is not one that this version of the client understands."""

    code = "incompatible_gateway"


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

    def __init__(self, *, path: str, type_name: str, hint: str = "") -> None:
        where = f"the field {path!r}" if path else "the schema"
        advice = f"; {hint}" if hint else ""
        super().__init__(f"{where} has the type {type_name}, which no channel can carry{advice}")
        self.path, self.type_name = path, type_name


class RecordError(SluicewayError):
    """A record was refused. Nothing of the write that held it was sent."""

    code = "record_error"


class InvalidRecord(RecordError):
    """The record at `index` of the write does not fit the schema.

    `index` counts from 0 within the write; `field` is a dotted path, empty for a whole record.
    """

    code = "invalid_record"

    def __init__(self, *, index: int, field: str, reason: str) -> None:
        where = f"record {index}, field {field!r}" if field else f"record {index}"
        super().__init__(f"{where}: {reason}; nothing of this write was sent")
        self.index, self.field, self.reason = index, field, reason


class RecordTooLarge(RecordError):
    """The record at `index` of the write is larger than one message of the topic may be."""

    code = "record_too_large"

    def __init__(self, *, index: int, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"record {index} takes {size_bytes:,} bytes, a message of this channel may take "
            f"{limit_bytes:,}; nothing of this write was sent. Make the record smaller, or raise "
            "the channel's max.message.bytes"
        )
        self.index, self.size_bytes, self.limit_bytes = index, size_bytes, limit_bytes


class KafkaFailure(SluicewayError):
    """Kafka refused something; the subclasses say what, where it is known."""

    code = "kafka_failure"


class KafkaUnavailable(KafkaFailure):
    """No broker answered in time. Positions are kept: the same call may be made again."""

    code = "kafka_unavailable"
    retriable = True


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

    def __init__(self, *, partition: int, offset: int, begin: int, end: int) -> None:
        cause = "nothing was written there yet"
        if offset < begin:
            cause = "the records before the beginning are no longer kept"
        super().__init__(
            f"partition {partition} has no offset {offset}: its range is {begin} to {end}, "
            f"{cause}. Seek to a position within the range"
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


class ValueOutOfRange(SluicewayError):
    """A value that was read has no form in Python; `batches()` gives it as Arrow's."""

    code = "value_out_of_range"


class OptionError(SluicewayError, ValueError):
    """An argument, an option or a setting that makes no sense; the message says what would."""

    code = "invalid_option"


class EndpointClosed(SluicewayError):
    """The writer or reader was closed, or failed before; open a new one."""

    code = "endpoint_closed"


class SluicewayTimeout(SluicewayError, TimeoutError):
    """What was waited for did not happen in time; nothing was undone."""

    code = "timeout"
    retriable = True
