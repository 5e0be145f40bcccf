"""The client's exceptions.

    SluicewayError
    ├── CheckpointMismatch, EndpointClosed, SluicewayTimeout, CorruptMessage,
    │   ValidationFailed, ValueOutOfRange, PortError, CommitUnknown, ReplayMismatch,
    │   IncompleteBatch
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
    ├── RegistryFailure
    │   └── RegistryUnavailable
    ├── RecordError
    │   └── InvalidRecord, RecordTooLarge
    └── SchemaError
        └── InvalidSchema, SchemaMismatch, UnsupportedType

`code` is stable and meant for programs. `retriable` says whether the same call may succeed later.
Both are class attributes; responses of the gateway that share a class, such as `Conflict`, have
codes of their own. `is_final` says whether work in the background has to give up. `summary` is the
part of the message that is public: it contains no values of records, and is None if only the type
of the error is public.
"""

import copyreg
from collections.abc import Mapping, Sequence
from typing import Any


class SluicewayError(Exception):
    """Base class of the client's exceptions; a subclass names `code`, and what differs."""

    code: str = "error"
    retriable: bool = False
    message_is_public: bool = False
    """True if the message contains no values of records; statuses show only such messages."""

    def __init_subclass__(
        cls, *, code: str = "", public: bool | None = None, retriable: bool | None = None
    ) -> None:
        """Set the class attributes that are given; the others are the parent's."""
        super().__init_subclass__()
        cls.code = code or cls.code
        cls.message_is_public = cls.message_is_public if public is None else public
        cls.retriable = cls.retriable if retriable is None else retriable

    @property
    def is_final(self) -> bool:
        """Whether a repeat of the same request would fail too, so that a job must not wait for it.

        More than `retriable` errors may pass while a job runs; see `GatewayError`.
        """
        return not self.retriable

    @property
    def summary(self) -> str | None:
        """The message without values of records, or None if only the type is public."""
        return str(self) if self.message_is_public else None

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark pickles exceptions, and subclasses have keyword-only arguments.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


def cause_of(error: BaseException) -> str:
    """Return the public cause of an error: its type and, for the client's own, the summary.

    It is visible to everyone with access to the channel. Messages of other exceptions may contain
    anything, so they are left out.
    """
    kind = type(error)
    unqualified = kind.__module__ == "builtins" or kind.__module__.partition(".")[0] == "sluiceway"
    name = kind.__qualname__ if unqualified else f"{kind.__module__}.{kind.__qualname__}"
    summary: str | None = None
    match error:
        case SluicewayError():
            summary = error.summary
        case SystemExit(code=str()):
            summary = "the program has exited with an error message, which its log has"
        case SystemExit(code=code):
            summary = f"the program has exited with the code {code or 0}"
        case KeyboardInterrupt():
            summary = "the program was interrupted"
    return name if summary is None else f"{name}: {summary}"


def clear_tracebacks(error: BaseException) -> None:
    """Drop the tracebacks of a foreign exception and of its causes.

    Error reporters render the locals of every frame: those of httpx contain the token, those of a
    parser the response, and those of Kafka clients credentials.
    """
    chain = [error]
    for exception in chain:
        exception.__traceback__ = None
        chain += [
            cause
            for cause in (exception.__cause__, exception.__context__)
            if cause and cause not in chain
        ]


class OptionError(SluicewayError, ValueError, code="invalid_option"):
    """An invalid argument, option or setting; the message says what is valid."""

    @property
    def summary(self) -> str:
        """What is wrong; the message may quote values, such as a record."""
        return super().summary or "an argument is invalid; the program's log says which"


class CommitBeyondRead(OptionError, code="commit_beyond_read", public=True):
    """A position to commit is past the returned records; nothing was committed."""


class CheckpointMismatch(SluicewayError, code="checkpoint_mismatch"):
    """A streaming query's checkpoint belongs to another or a recreated channel."""


class EndpointClosed(SluicewayError, code="endpoint_closed", public=True):
    """The gateway, writer or reader was closed, or has failed; open a new one."""


class SluicewayTimeout(SluicewayError, TimeoutError, code="timeout", public=True, retriable=True):
    """The wait timed out; nothing was undone."""


class CommitUnknown(SluicewayError, code="commit_unknown", public=True, retriable=True):
    """The gateway did not answer the commit of the batch `key`, so its state is unknown."""

    def __init__(self, *, channel: str, key: str) -> None:
        super().__init__(
            f"the gateway did not answer the commit of the batch {key!r} in the channel "
            f"{channel!r}, so its records may be visible or not. Call writer.resolve(), or retry "
            "with the same key: a committed batch is not written again"
        )
        self.channel, self.key = channel, key


class ReplayMismatch(SluicewayError, code="replay_mismatch", public=True):
    """A batch was committed before with a different number of records; nothing was written."""


class IncompleteBatch(SluicewayError, code="incomplete_batch", public=True):
    """Parts of a distributed job's batch are missing, so nothing was committed."""


class CounterpartError(SluicewayError, code="counterpart_error", public=True, retriable=True):
    """Endpoints on the other side of the channel did not finish; `endpoints` are their ids."""

    def __init__(self, message: str, *, endpoints: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.endpoints = endpoints


class WriterFailed(CounterpartError, code="writer_failed"):
    """A writer failed without a successor in time; its records were read."""


class WriterLost(CounterpartError, code="writer_lost"):
    """A writer stopped sending heartbeats; its known records were read."""


class GatewayError(SluicewayError, code="gateway_error", public=True):
    """The gateway refused a call, or failed.

    `status` is the HTTP status, or None without a response. `code` is the problem's code, and
    `errors` its list of `{"pointer", "message"}`.
    """

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

    @property
    def is_final(self) -> bool:
        """Whether the request is refused because of the channel's state or its own content.

        All others pass: outages, tokens and certificates that are replaced, faults of the gateway,
        and responses of proxies.
        """
        refused = isinstance(self, ChannelNotFound | Conflict | InvalidRequest)
        return refused and not self.retriable


class GatewayUnavailable(GatewayError, code="gateway_unavailable", retriable=True):
    """The gateway did not respond to any of the retries, or it or a proxy was overloaded."""


class GatewayAccessFailed(GatewayUnavailable, code="gateway_access_failed", retriable=False):
    """The gateway's certificate or protocol does not match; a retry does not help."""


class Unauthenticated(GatewayError, code="unauthenticated"):
    """The token is missing or unknown to the gateway."""


class Forbidden(GatewayError, code="forbidden"):
    """The token's scopes do not cover the call."""


class ChannelNotFound(GatewayError, code="channel_not_found"):
    """No channel has this name, or the opened channel was deleted."""


class ChannelNotReady(GatewayError, code="channel_not_ready", retriable=True):
    """The channel exists, but its topic does not exist yet; the message has the condition."""


class Conflict(GatewayError, code="conflict"):
    """The state of the channel does not allow the call; `code` is the reason."""


class ChannelClosed(Conflict, code="channel_closed"):
    """The channel was closed: it can still be read, but no longer written."""


class Fenced(Conflict, code="fenced"):
    """The endpoint lost its place to another instance, a dismissal or a resize, and must stop."""


class StaleGeneration(Conflict, code="stale_generation"):
    """The group was changed or reset since this endpoint attached; open a new one.

    A member of a dynamic group was lost; it stays usable, and continues at committed positions.
    """


class InvalidRequest(GatewayError, code="invalid_request"):
    """The content of a request is invalid; `errors` has the fields."""


class IncompatibleGateway(GatewayError, code="incompatible_gateway"):
    """The response is unknown to this version of the client."""


class KafkaFailure(SluicewayError, code="kafka_failure", public=True):
    """Kafka refused a request; subclasses name known causes."""


class KafkaUnavailable(KafkaFailure, code="kafka_unavailable", retriable=True):
    """No broker responded in time. Positions are unchanged: repeat the call."""


class KafkaAccessFailed(KafkaUnavailable, code="kafka_access_failed", retriable=False):
    """Brokers refuse the connection: credentials, certificates or protocol; do not retry."""


class DeliveryFailed(KafkaFailure, code="delivery_failed"):
    """Kafka did not acknowledge a message.

    `partition` is that of the first failure, if known, and `reason` Kafka's error. Of the records
    since the writer was opened, `written_records` were acknowledged, `failed_records` were not.
    After a timeout, a failed message may still be in the topic.
    """

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


class OffsetOutOfRange(KafkaFailure, code="offset_out_of_range"):
    """The offset is outside of the partition's range, `begin` to `end`; positions are unchanged."""

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


class RecordsLost(KafkaFailure, code="records_lost"):
    """A committed record is missing in Kafka, although retention did not remove it."""


class TopicGone(KafkaFailure, code="topic_gone"):
    """The channel's topic was deleted, or replaced by another of the same name."""


class CorruptMessage(SluicewayError, code="corrupt_message"):
    """The message at `offset` of `partition` cannot be decoded; the position stays before it."""

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


class ValidationFailed(SluicewayError, code="validation_failed"):
    """A record is not valid for the class of a reader's `as_`; the position stays before it.

    It is the record number `record`, from 0, of the message at `offset` of `partition`. `field` is
    a dotted path, empty if the class does not tell. `following` is the Position after the record:
    `reader.seek({error.partition: error.following})` skips it. `__cause__` is the class's own
    exception.
    """

    def __init__(
        self,
        *,
        channel: str,
        partition: int,
        offset: int,
        record: int,
        field: str,
        reason: str,
        class_name: str,
        following: Any,
    ) -> None:
        where = f"channel {channel!r}, partition {partition}, offset {offset}"
        where += f", record {record}" if record else ""
        what = f"the field {field!r}" if field else "it"
        super().__init__(
            f"{where}: {what} is not valid for {class_name}: {reason}. The position stays before "
            f"it; to skip it, call reader.seek({{{partition}: error.following}})"
        )
        self.channel, self.partition, self.offset, self.record = channel, partition, offset, record
        self.field, self.reason, self.following = field, reason, following
        self._summary = f"{where}: {what} is not valid for {class_name}"

    @property
    def summary(self) -> str:
        """The place and the field; the reason may quote the value."""
        return self._summary


class ValueOutOfRange(SluicewayError, code="value_out_of_range", public=True):
    """Python cannot represent a value; `batches()` returns it as an Arrow value."""


class PortError(SluicewayError, code="port_failed"):
    """Some channels of an output port failed; all were tried. `errors` are by channel."""

    def __init__(self, doing: str, *, errors: Mapping[str, SluicewayError], channels: int) -> None:
        failed = f"{doing} failed for {len(errors)} of the {channels} channels of an output port"
        super().__init__(f"{failed}: " + "; ".join(f"{name}: {e}" for name, e in errors.items()))
        self.errors = dict(errors)
        self.retriable = all(error.retriable for error in errors.values())
        self._failed = failed

    @property
    def is_final(self) -> bool:
        """Whether one of the errors is final."""
        return any(error.is_final for error in self.errors.values())

    @property
    def summary(self) -> str:
        """The number of failed channels, and the public cause of each."""
        causes = "; ".join(f"{name}: {cause_of(error)}" for name, error in self.errors.items())
        return f"{self._failed}: {causes}"


class RecordError(SluicewayError, code="record_error"):
    """A record was refused. No record of that write was sent."""


class InvalidRecord(RecordError, code="invalid_record"):
    """The record at `index` of the write does not fit the schema.

    `index` counts from 0 within the write; `field` is a dotted path, empty for the whole record.
    `schema_path` and `public_reason` are the path and the reason without values of the record;
    the reason is None if it is not public.
    """

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


class RecordTooLarge(RecordError, code="record_too_large", public=True):
    """The record at `index` of the write is larger than the topic's message limit."""

    def __init__(self, *, index: int, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"record {index} takes {size_bytes:,} bytes; the limit of this channel's messages is "
            f"{limit_bytes:,}. No record of this write was sent. Make the record smaller, or raise "
            "the channel's max.message.bytes"
        )
        self.index, self.size_bytes, self.limit_bytes = index, size_bytes, limit_bytes


def _where(index: int, field: str) -> str:
    return f"record {index}, field {field!r}" if field else f"record {index}"


class RegistryFailure(SluicewayError, code="registry_failure", public=True):
    """A schema registry refused a request, or answered otherwise than a registry."""


class RegistryUnavailable(RegistryFailure, code="registry_unavailable", retriable=True):
    """A schema registry does not answer; no message was skipped."""


class SchemaError(SluicewayError, code="schema_error"):
    """A schema or its source is unusable; `path` is the field's, empty for the whole schema."""

    path = ""


class InvalidSchema(SchemaError, code="invalid_schema"):
    """The schema is invalid for a channel; the message has the path and the reason."""


class SchemaMismatch(SchemaError, code="schema_mismatch"):
    """The schema does not fit the channel."""


class UnsupportedType(SchemaError, code="unsupported_type", public=True):
    """The field at `path` has a type that channels do not support."""

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
    *("RecordTooLarge", "RecordsLost", "RegistryFailure", "RegistryUnavailable"),
    *("ReplayMismatch", "SchemaError", "SchemaMismatch", "SluicewayError", "SluicewayTimeout"),
    *("StaleGeneration", "TopicGone", "Unauthenticated"),
    *("UnsupportedType", "ValidationFailed", "ValueOutOfRange", "WriterFailed", "WriterLost"),
    "cause_of",
]
