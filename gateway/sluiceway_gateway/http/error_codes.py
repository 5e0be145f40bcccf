"""The page /docs/errors: every code of an error response, its status, and what to do."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape

from fastapi import APIRouter, Response

from sluiceway_gateway.errors import SluicewayGatewayError, StartupRefused
from sluiceway_gateway.http.openapi import page
from sluiceway_gateway.http.problems import status_of
from sluiceway_gateway.http.route import GatewayRoute

router = APIRouter(route_class=GatewayRoute)

_SEE = "see `detail`"
ADVICE: Mapping[str, str] = {
    "batch_aborted": "run the job again; a new instance opens the key anew",
    "batch_committed": "nothing; what is committed stays",
    "batch_fenced": "stop; the newer instance goes on",
    "batch_key_taken": "give each job keys of its own",
    "batch_not_found": "open the batch's key again",
    "batch_open": "wait until the batch ends, or stop the job that has it open",
    "beyond_watermark": "repeat the commit; if it lasts, abort the batch",
    "body_too_large": "send less, or raise SLUICEWAY_MAX_BODY_BYTES",
    "channel_adopted": "change the topic in Kafka; the channel follows it",
    "channel_closed": "write to another channel",
    "channel_deleting": "repeat it when the channel is gone",
    "channel_not_found": "check the name; create the channel",
    "channel_not_ready": "wait; the channel's conditions say for what",
    "channel_pinned": "leave the partitions as they are, or set `pinned` to false",
    "client_outdated": "upgrade sluiceway in the program",
    "concurrent_change": "read the channel and repeat the change",
    "config_not_allowed": "leave the setting out; `errors` names it",
    "conflict": _SEE,
    "database_unavailable": "repeat it; the gateway's log has the cause",
    "endpoint_id_reused": "attach with a new id for every instance",
    "endpoint_not_found": "check the id; attach again",
    "endpoints_live": "wait for them, close the channel, or use `force`",
    "fenced": "stop; a new instance attaches with a new id",
    "forbidden": "use a token with the scope that `detail` names",
    "goes_back": "nothing, or a reset of the group",
    "group_larger_than_pinned": "make the group smaller, or unpin the channel",
    "group_mode": "attach with the mode of the living members",
    "group_not_found": "check the name; a group begins with its first reader",
    "group_size": "attach with the size of the living members, or resize the group",
    "headers_too_large": "send fewer or shorter headers",
    "idempotency_key_reused": "use a new key for every change",
    "illegal_transition": "see `detail` for the endpoint's state",
    "immutable_field": "leave the field as it is, or create another channel",
    "internal_error": "report it with its request id, under which the log has the cause",
    "invalid_manifest": "list the offsets that delivery reports named, once and sorted",
    "invalid_request": "correct the fields that `errors` names",
    "invalid_schema": "correct the schema as `detail` says",
    "kafka_unavailable": "repeat it; /readyz and the gateway's log have the cause",
    "ledger_halted": "see `detail`; an operator must repair the channel",
    "malformed_http": "use an HTTP/1.1 client",
    "malformed_json": "correct the body at the position that `detail` names",
    "manifest_conflict": "abort the batch and write it again",
    "members_open": "wait until the other members have closed",
    "method_not_allowed": "use a method that the header Allow names",
    "no_group": "attach with a group",
    "no_ledger": "write and read the channel without batches",
    "not_assigned": "commit only the endpoint's own partitions",
    "not_found": "see /docs for the paths",
    "partitions_shrink": "ask for as many partitions as there are, or more",
    "patience_out_of_bounds": "request less, or raise `spec.heartbeat`",
    "position_moved": "read the positions; continue there, or stop",
    "precondition_failed": "read the channel and decide again",
    "replication_exceeds_brokers": "ask for fewer replicas, or add brokers",
    "request_timeout": "send the whole request at once, and again",
    "schema_incompatible": "change the fields that `errors` names, or `compatibility`",
    "snapshot_not_found": "take a number that the list of commits names",
    "stale_batch": "start the query with a new checkpoint",
    "stale_generation": "attach a new instance; in a dynamic group, sync",
    "too_many_connections": "repeat it, or raise SLUICEWAY_MAX_CONNECTIONS",
    "too_many_schemas": "use an earlier schema, or create another channel",
    "too_many_waiters": "repeat it, or leave `wait` out",
    "topic_changed": "reset the group to positions of the present topic",
    "topic_not_found": "check the topic's name",
    "topic_taken": "use the channel that has the topic",
    "uid_mismatch": "read the channel: it was recreated",
    "unauthenticated": "send Authorization: Bearer TOKEN; `sluiceway token create` makes one",
    "unavailable": "repeat it after Retry-After",
    "unknown_partition": "use the partitions that the batch was opened with",
    "unread_data": "read it, reset the group, keep the topic, or use `force`",
    "unsupported_media_type": "send JSON with the header Content-Type: application/json",
    "url_too_long": "send a shorter URL",
}
"""What to do about each code."""


@dataclass(frozen=True, kw_only=True)
class ErrorCode:
    """A code of the HTTP interface."""

    code: str
    status: int
    retriable: bool
    meaning: str
    advice: str


def error_codes() -> list[ErrorCode]:
    """Return every code that a response can have, by name."""
    kinds = {each.code: each for each in _tree(SluicewayGatewayError)}
    return [
        ErrorCode(
            code=code,
            status=status_of(kind("")),
            retriable=kind.retriable,
            meaning=kind.title,
            advice=ADVICE[code],
        )
        for code, kind in sorted(kinds.items())
    ]


def _tree(kind: type[SluicewayGatewayError]) -> Iterator[type[SluicewayGatewayError]]:
    """Yield the classes of errors of requests."""
    if not issubclass(kind, StartupRefused):
        yield kind
        for each in kind.__subclasses__():
            yield from _tree(each)


@router.get("/docs/errors", include_in_schema=False)
async def errors_page() -> Response:
    """Show the error codes."""
    rows = "".join(
        f'<tr id="{each.code}"><td><code>{each.code}</code></td><td>{each.status}</td>'
        f"<td>{'yes' if each.retriable else 'no'}</td>"
        f"<td>{escape(each.meaning)}</td><td>{escape(each.advice)}</td></tr>\n"
        for each in error_codes()
    )
    return page(
        "Error codes",
        "<p>An error response is <code>application/problem+json</code> (RFC 9457). Its "
        "<code>code</code> is stable. <code>retriable</code> means that the same request can "
        "succeed later. <code>detail</code> says what is wrong with this request and what to do."
        "</p>\n<table><tr><th>code</th><th>status</th><th>retriable</th><th>meaning</th>"
        f"<th>what to do</th></tr>\n{rows}</table>",
        up="../",
    )
