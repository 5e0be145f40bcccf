"""The gateway's errors, as one tree.

    SluicewayGatewayError
    ├── BodyTooLarge, MalformedJson, UnsupportedMediaType, MalformedHttp, UrlTooLong,
    │   HeadersTooLarge, RequestTimeout, Unauthenticated, Forbidden, MethodNotAllowed,
    │   PreconditionFailed
    ├── StartupRefused: InvalidSettings, BindRefused, WrongRevision, WrongEncoding
    ├── Unavailable: DatabaseUnavailable, KafkaUnavailable, TooManyConnections, TooManyWaiters
    ├── InvalidRequest: InvalidSchema, ConfigNotAllowed, InvalidManifest, RegistryError
    ├── NotFound: ChannelNotFound, EndpointNotFound, GroupNotFound, BatchNotFound, SnapshotNotFound
    └── Conflict: UidMismatch, PartitionsShrink, ChannelPinned, ImmutableField, SchemaIncompatible,
        TooManySchemas, ChannelAdopted, ChannelClosed, ChannelDeleting, ChannelNotReady,
        ClientOutdated, EndpointsLive, UnreadData, TopicNotFound, TopicTaken,
        ReplicationExceedsBrokers, IdempotencyKeyReused, ConcurrentChange, Fenced,
        IllegalTransition, EndpointIdReused, GroupSize, GroupMode, GroupLargerThanPinned,
        PatienceOutOfBounds, MembersOpen, NoGroup, NotAssigned, StaleGeneration, TopicChanged,
        GoesBack, PositionMoved, BatchKeyTaken, BatchOpen, BatchAborted, BatchCommitted,
        BatchFenced, StaleBatch, ManifestConflict, BeyondWatermark, UnknownPartition, LedgerHalted,
        LedgerIntact, LedgerRestored, RepairChanged, NoLedger

Each class names its `code` and its `advice`, which the page of error codes shows, and its `title`
and HTTP `status` unless its parent's will do. `code` is stable and part of the HTTP interface.
`retriable` is whether the same request can succeed later, unchanged. The message says what is wrong
and what to do about it, and never holds a secret.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Self


@dataclass(frozen=True, kw_only=True)
class Violation:
    """A violation in a request.

    `pointer` is a JSON pointer into the body ("/spec/partitions"), or "path:name", "query:limit",
    "header:If-Match".
    """

    pointer: str
    message: str


class SluicewayGatewayError(Exception):
    """Root of this package's errors; `violations` are the causes in the request."""

    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "The gateway failed"
    retriable: ClassVar[bool] = False
    status: ClassVar[int] = 500
    advice: ClassVar[str] = "report it with its request id; the log has the cause"

    def __init_subclass__(
        cls, *, code: str, title: str | None = None, retriable: bool = False
    ) -> None:
        super().__init_subclass__()
        cls.code = code
        cls.title = title or cls.title
        cls.retriable = retriable or cls.retriable

    def __init__(self, detail: str, violations: tuple[Violation, ...] = ()) -> None:
        super().__init__(detail)
        self.violations = violations


class StartupRefused(SluicewayGatewayError, code="startup_refused"):
    """The process must not start; an operator has to change the configuration."""


class InvalidSettings(StartupRefused, code="invalid_settings"):
    """A setting is missing, unknown or contradicts another."""


class BindRefused(StartupRefused, code="bind_refused"):
    """The address would expose the gateway without protection."""


class WrongRevision(StartupRefused, code="wrong_revision"):
    """The database's schema is of another version."""


class WrongEncoding(StartupRefused, code="wrong_encoding"):
    """The database's encoding is not UTF-8."""


class AccessProblem(StrEnum):
    """Kind of refusal. PROTOCOL: only one side uses TLS or a login, or the server is not Kafka."""

    CREDENTIALS = "credentials"
    CERTIFICATE = "certificate"
    PROTOCOL = "protocol"
    CLUSTER = "cluster"
    """Refused by the gateway: another cluster than the one that has the channels' topics."""


@dataclass(frozen=True, kw_only=True)
class AccessFailure:
    """`message` has the cause and the solution, and is constant while the cause lasts."""

    problem: AccessProblem
    message: str


class Unavailable(
    SluicewayGatewayError, code="unavailable", title="Not available at the moment", retriable=True
):
    """A service that the gateway needs is unavailable; retry after `retry_after_s`."""

    status = 503
    advice = "repeat it after Retry-After"
    retry_after_s: ClassVar[int] = 1


class DatabaseUnavailable(Unavailable, code="database_unavailable", title="The database is away"):
    """The database is locked, unreachable, full, not migrated, or refuses access."""

    advice = "repeat it; the gateway's log has the cause"


class KafkaUnavailable(Unavailable, code="kafka_unavailable", title="Kafka is not available"):
    """Kafka does not answer in time, or `access_failure` says why it cannot be used."""

    advice = "repeat it; /readyz and the gateway's log have the cause"
    retry_after_s = 2

    def __init__(self, detail: str, access_failure: AccessFailure | None = None) -> None:
        super().__init__(detail)
        self.access_failure = access_failure


class TooManyConnections(Unavailable, code="too_many_connections", title="Too many connections"):
    """All connections that this replica allows are busy."""

    advice = "repeat it, or raise SLUICEWAY_MAX_CONNECTIONS"


class TooManyWaiters(Unavailable, code="too_many_waiters", title="Too many waiting requests"):
    """All waits that this replica allows are taken."""

    advice = "repeat it, or leave `wait` out"


MOST_VIOLATIONS = 20
"""The largest number of violations in one error."""


class InvalidRequest(
    SluicewayGatewayError, code="invalid_request", title="The request is malformed"
):
    """The request is malformed."""

    status = 422
    advice = "correct the fields that `errors` names"

    @classmethod
    def at(cls, pointer: str, message: str) -> Self:
        """Return an error with one violation."""
        return cls.malformed([Violation(pointer=pointer, message=message)])

    @classmethod
    def malformed(cls, violations: Sequence[Violation], *, count: int = 0) -> Self:
        """Return an error that lists the first 20 violations and counts the rest of `count`."""
        listed = tuple(violations[:MOST_VIOLATIONS])
        text = "; ".join(
            f"{violation.pointer or 'the body'}: {violation.message}" for violation in listed
        )
        more = max(count, len(violations)) - len(listed)
        return cls(f"Malformed: {text}{f'; and {more:,} more' if more else ''}.", listed)


class InvalidSchema(InvalidRequest, code="invalid_schema", title="The schema cannot be used"):
    """A channel cannot have this schema."""

    advice = "correct the schema as `detail` says"


class RegistryError(InvalidRequest, code="registry_error", title="Refused by the registry"):
    """A response of the registry; `number` is its `error_code`, an HTTP status and two digits."""

    def __init__(self, detail: str, number: int = 42205) -> None:
        super().__init__(detail)
        self.number = number


class ConfigNotAllowed(InvalidRequest, code="config_not_allowed", title="Configuration refused"):
    """A topic setting that channels do not accept, or an invalid value."""

    advice = "leave the setting out; `errors` names it"


class InvalidManifest(InvalidRequest, code="invalid_manifest", title="A wrong manifest"):
    """The manifest's intervals, counts or digest contradict each other."""

    advice = "list the offsets of the delivery reports, sorted, each once"


class BodyTooLarge(SluicewayGatewayError, code="body_too_large", title="The body is too large"):
    """The request's body exceeds the limit."""

    status = 413
    advice = "send less, or raise SLUICEWAY_MAX_BODY_BYTES"


class MalformedJson(SluicewayGatewayError, code="malformed_json", title="The body is not JSON"):
    """The request's body is not JSON, or not in UTF-8."""

    status = 400
    advice = "correct the body at the position that `detail` names"


class UnsupportedMediaType(SluicewayGatewayError, code="unsupported_media_type", title="Not JSON"):
    """The request's body is not sent as JSON, or is compressed."""

    status = 415
    advice = "send JSON with the header Content-Type: application/json"


class MalformedHttp(SluicewayGatewayError, code="malformed_http", title="Not an HTTP request"):
    """The request is not HTTP/1.1."""

    status = 400
    advice = "use an HTTP/1.1 client"


class UrlTooLong(SluicewayGatewayError, code="url_too_long", title="The URL is too long"):
    """The request's URL exceeds the limit."""

    status = 414
    advice = "send a shorter URL"


class HeadersTooLarge(SluicewayGatewayError, code="headers_too_large", title="Headers too large"):
    """The request's headers exceed a limit."""

    status = 431
    advice = "send fewer or shorter headers"


class RequestTimeout(
    SluicewayGatewayError,
    code="request_timeout",
    title="The request did not arrive in time",
    retriable=True,
):
    """The request did not arrive in time."""

    status = 408
    advice = "send the request again, without pauses"


class Unauthenticated(SluicewayGatewayError, code="unauthenticated", title="A token is needed"):
    """A missing or invalid token."""

    status = 401
    advice = "send Authorization: Bearer TOKEN; `sluiceway token create` creates one"


class Forbidden(SluicewayGatewayError, code="forbidden", title="Not allowed"):
    """The token's scopes do not cover the request."""

    status = 403
    advice = (
        "use a token with the scope that `detail` names; `sluiceway token create --scope SCOPE "
        "LABEL` creates one"
    )


class NotFound(SluicewayGatewayError, code="not_found", title="Not found"):
    """The resource does not exist."""

    status = 404
    advice = "see /docs for the paths"


class ChannelNotFound(NotFound, code="channel_not_found", title="No such channel"):
    """No channel has this name, or this uid any more."""

    advice = (
        "check the name: `sluiceway channels list`; or create the channel: `sluiceway channels "
        "create NAME --schema FILE`"
    )


class MethodNotAllowed(SluicewayGatewayError, code="method_not_allowed", title="Wrong method"):
    """The resource does not have this method; `allowed` has those that it has."""

    status = 405
    advice = "use a method that the header Allow names"

    def __init__(self, detail: str, allowed: Sequence[str] = ()) -> None:
        super().__init__(detail)
        self.allowed = allowed


class PreconditionFailed(
    SluicewayGatewayError, code="precondition_failed", title="The precondition does not hold"
):
    """`If-Match` or `If-None-Match` does not hold."""

    status = 412
    advice = "read the channel and decide again"


class Conflict(
    SluicewayGatewayError, code="conflict", title="The channel's state does not allow this"
):
    """The request is well-formed, but the state does not allow it."""

    status = 409
    advice = "see `detail`"


class UidMismatch(Conflict, code="uid_mismatch", title="Another channel has this name now"):
    """The channel was deleted, and another one has its name."""

    advice = "read the channel: it was recreated"


class PartitionsShrink(Conflict, code="partitions_shrink", title="Partitions cannot shrink"):
    """Partitions cannot be removed, as their records would be lost."""

    advice = (
        "request at least the current number of partitions, which `sluiceway channels list` shows"
    )


class ChannelPinned(Conflict, code="channel_pinned", title="The channel's partitions are pinned"):
    """The channel's number of partitions is pinned."""

    advice = (
        "leave the partitions as they are, or let them change: `sluiceway channels update NAME "
        "--not-pinned`"
    )


class ImmutableField(Conflict, code="immutable_field", title="The field cannot be changed"):
    """The field is fixed at creation."""

    advice = "leave the field as it is, or create another channel"


class SchemaIncompatible(Conflict, code="schema_incompatible", title="The schema is incompatible"):
    """The schema is incompatible with the channel's versions; one violation for each rule."""

    advice = (
        "change the fields that `errors` names, or the rule: `sluiceway channels update NAME "
        "--compatibility none`"
    )


class TooManySchemas(Conflict, code="too_many_schemas", title="The channel keeps too many schemas"):
    """The channel has the largest number of schema versions."""

    advice = (
        "use an earlier schema, which `sluiceway channels schemas NAME` lists, or create another "
        "channel"
    )


class ChannelAdopted(Conflict, code="channel_adopted", title="The channel's topic is adopted"):
    """The channel's topic is adopted, and the gateway does not change it."""

    advice = "change the topic in Kafka; the channel follows it"


class ChannelClosed(Conflict, code="channel_closed", title="The channel is closed"):
    """The channel is closed for writers."""

    advice = "write to another channel"


class ChannelDeleting(
    Conflict, code="channel_deleting", title="The channel is being deleted", retriable=True
):
    """The channel is being deleted; its name is free afterwards."""

    advice = "repeat it when the channel is gone"


class ChannelNotReady(
    Conflict, code="channel_not_ready", title="The channel is not ready", retriable=True
):
    """The channel has no usable topic yet."""

    advice = "wait; the channel's conditions have the reason: `sluiceway channels show NAME`"


class ClientOutdated(Conflict, code="client_outdated", title="The client is too old"):
    """The client does not know the channel's delivery, and would break its guarantee."""

    advice = "upgrade sluiceway in the program"


class EndpointsLive(Conflict, code="endpoints_live", title="The channel is in use", retriable=True):
    """Writers or readers of the channel are alive."""

    advice = (
        "wait for them, close the channel (`sluiceway channels close NAME`), or use `force` "
        "(`sluiceway channels delete NAME --force`)"
    )


class UnreadData(Conflict, code="unread_data", title="Records were not read", retriable=True):
    """Groups have not read all of the channel's records."""

    advice = (
        "read it, skip it (`sluiceway channels reset NAME GROUP --to latest`), keep the topic "
        "(`sluiceway channels delete NAME --keep-topic`), or use `force`"
    )


class TopicNotFound(Conflict, code="topic_not_found", title="No such topic"):
    """The topic to adopt does not exist."""

    advice = "check the topic's name"


class TopicTaken(Conflict, code="topic_taken", title="The topic belongs to another channel"):
    """The topic to adopt belongs to another channel."""

    advice = "use the channel that has the topic"


class ReplicationExceedsBrokers(
    Conflict, code="replication_exceeds_brokers", title="Not enough brokers"
):
    """The replication factor exceeds the number of brokers."""

    advice = "request fewer replicas, or add brokers"


class IdempotencyKeyReused(Conflict, code="idempotency_key_reused", title="The key was reused"):
    """The idempotency key was used for another request."""

    advice = "use a new key for every change"


class ConcurrentChange(
    Conflict, code="concurrent_change", title="The channel was changed meanwhile", retriable=True
):
    """The channel was changed concurrently."""

    advice = "read the channel and repeat the change"


class EndpointNotFound(NotFound, code="endpoint_not_found", title="No such endpoint"):
    """No endpoint of this channel has this id."""

    advice = "check the id; attach again"


class GroupNotFound(NotFound, code="group_not_found", title="No such group"):
    """No reader has ever attached to this channel in this group."""

    advice = (
        "check the name: `sluiceway channels status NAME` lists the groups; one begins with its "
        "first reader"
    )


class Fenced(Conflict, code="fenced", title="The endpoint's place was taken"):
    """The endpoint's place was taken by another instance, or removed."""

    advice = "stop; a new instance attaches with a new id"


class IllegalTransition(Conflict, code="illegal_transition", title="Not in the endpoint's state"):
    """The endpoint's state does not allow this."""

    advice = "see `detail` for the endpoint's state"


class EndpointIdReused(Conflict, code="endpoint_id_reused", title="The id is in use"):
    """The id belongs to another endpoint."""

    advice = "attach with a new id for every instance"


class GroupSize(Conflict, code="group_size", title="The group has another size"):
    """The group has another size, and live members."""

    advice = (
        "attach with the size of the live members, or resize the group: `sluiceway channels "
        "resize NAME GROUP SIZE`"
    )


class GroupMode(Conflict, code="group_mode", title="The group has another mode"):
    """The group has another mode, and live members."""

    advice = "attach with the mode of the live members"


class PatienceOutOfBounds(
    Conflict, code="patience_out_of_bounds", title="The heartbeat is outside the channel's bounds"
):
    """An endpoint requested a heartbeat that its channel does not allow."""

    advice = (
        "request less, or raise the channel's: `sluiceway channels update NAME --patience SECONDS`"
    )


class GroupLargerThanPinned(Conflict, code="group_larger_than_pinned", title="Too large a group"):
    """The group has more members than the channel may have partitions."""

    advice = (
        "make the group smaller, or unpin the channel: `sluiceway channels update NAME "
        "--not-pinned`"
    )


class MembersOpen(
    Conflict, code="members_open", title="Other members of the group are open", retriable=True
):
    """Other members of the group are alive."""

    advice = "wait until the other members have closed; `sluiceway channels status NAME` lists them"


class NoGroup(Conflict, code="no_group", title="Only readers of a group commit"):
    """Only readers of a group have positions."""

    advice = "attach with a group"


class NotAssigned(Conflict, code="not_assigned", title="The partition is not the member's"):
    """The partition belongs to another member, or does not exist."""

    advice = "commit only the endpoint's own partitions"


class StaleGeneration(Conflict, code="stale_generation", title="The group's generation is later"):
    """The group was resized or reset."""

    advice = "attach a new instance; in a dynamic group, sync"


class TopicChanged(Conflict, code="topic_changed", title="The positions are of another topic"):
    """The positions are of another topic."""

    advice = (
        "reset the group to positions of the current topic: `sluiceway channels reset NAME GROUP "
        "--to earliest`"
    )


class GoesBack(Conflict, code="goes_back", title="A commit does not go back"):
    """Commits only go forward; a reset goes back."""

    advice = (
        "to read again on purpose, reset the group: `sluiceway channels reset NAME GROUP --to TIME`"
    )


class PositionMoved(Conflict, code="position_moved", title="The position was moved meanwhile"):
    """Another reader has moved the position."""

    advice = "read the positions; continue there, or stop"


class BatchKeyTaken(Conflict, code="batch_key_taken", title="The batch's key is taken"):
    """The key was used by another owner, or for another micro-batch, and stays its own."""

    advice = "use different keys for each job and micro-batch"


class BatchOpen(Conflict, code="batch_open", title="The batch is open elsewhere", retriable=True):
    """Another live instance has the batch open, until it ends or its lease does."""

    advice = (
        "wait until the batch ends, stop the job that has it open, or abort the batch: `sluiceway "
        "channels abort NAME KEY`"
    )


class BatchAborted(Conflict, code="batch_aborted", title="The batch was aborted"):
    """The batch was aborted; only another instance can open its key again."""

    advice = "run the job again; a new instance can open the key"


class BatchCommitted(Conflict, code="batch_committed", title="The batch is committed"):
    """The batch is committed, for good."""

    advice = "nothing; a committed batch is final"


class BatchFenced(Conflict, code="batch_fenced", title="Another instance writes in its place"):
    """The batch's instance was replaced by another one."""

    advice = "stop; the newer instance continues"


class StaleBatch(Conflict, code="stale_batch", title="A later batch is committed"):
    """The owner has committed a batch after this one."""

    advice = "start the query with a new checkpoint"


class ManifestConflict(Conflict, code="manifest_conflict", title="Offsets of another batch"):
    """The manifest lists offsets from before the batch, or committed ones.

    `disputed` has the lowest of them by partition. The client is at fault, or Kafka has lost
    committed records and uses their offsets again.
    """

    advice = "abort the batch and write it again"

    def __init__(self, detail: str, *, disputed: Mapping[int, int] | None = None) -> None:
        super().__init__(detail)
        self.disputed = disputed or {}


class BeyondWatermark(Conflict, code="beyond_watermark", title="Not in Kafka yet", retriable=True):
    """The manifest ends above a partition's watermark; a new leader's may trail for a moment."""

    advice = (
        "repeat the commit; if the error persists, abort the batch: `sluiceway channels abort NAME "
        "KEY`"
    )


class UnknownPartition(Conflict, code="unknown_partition", title="Not a partition of the batch"):
    """The channel does not have the partition, or the batch was opened without it."""

    advice = "use the partitions that the batch was opened with"


class LedgerHalted(Conflict, code="ledger_halted", title="The channel's offsets were reused"):
    """Kafka lost committed records and uses their offsets again; a repair gives them up."""

    advice = "`sluiceway channels repair NAME` shows what is lost, and repairs it"


class LedgerIntact(Conflict, code="ledger_intact", title="The channel is not halted"):
    """There is nothing to repair."""

    advice = "nothing; the channel works"


class LedgerRestored(Conflict, code="ledger_restored", title="The commit is not in the database"):
    """The database does not have a commit of the writer: it was restored to an earlier state."""

    advice = "write the records since that commit again, with a new writer"


class RepairChanged(Conflict, code="repair_changed", title="Other records are lost"):
    """The repair would give up other records than the request names."""

    advice = "read the repair's plan again, and decide again: `sluiceway channels repair NAME`"


class NoLedger(Conflict, code="no_ledger", title="The channel has no ledger"):
    """The channel has the delivery at_least_once, and no batches."""

    advice = "write and read the channel without batches"


class BatchNotFound(NotFound, code="batch_not_found", title="No such batch"):
    """The channel has no batch with this id."""

    advice = "open the batch's key again; `sluiceway channels commits NAME` lists open batches"


class SnapshotNotFound(NotFound, code="snapshot_not_found", title="No such snapshot"):
    """The channel has no commit with this number."""

    advice = (
        "use a number or a time that `detail` names; `sluiceway channels commits NAME` lists them"
    )


class EmbeddedError(Exception):
    """The embedded broker cannot run; the message has the cause and the solution."""
