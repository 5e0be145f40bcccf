"""Error responses of the gateway as exceptions."""

import json
import re
from collections.abc import Mapping

import httpx

from sluiceway.errors import (
    ChannelClosed,
    ChannelNotFound,
    ChannelNotReady,
    Conflict,
    Fenced,
    Forbidden,
    GatewayError,
    GatewayUnavailable,
    IncompatibleGateway,
    InvalidRequest,
    StaleGeneration,
    Unauthenticated,
)

__all__ = ["BY_CODE", "problem"]

_CODES: Mapping[type[GatewayError], str] = {
    ChannelClosed: "channel_closed",
    ChannelNotFound: "channel_not_found",
    ChannelNotReady: "channel_not_ready",
    Conflict: """
        batch_aborted batch_committed batch_fenced batch_key_taken batch_not_found batch_open
        beyond_watermark channel_adopted channel_deleting channel_pinned client_outdated
        concurrent_change conflict
        endpoint_id_reused endpoint_not_found endpoints_live goes_back group_larger_than_pinned
        group_mode group_not_found group_size idempotency_key_reused illegal_transition
        immutable_field ledger_halted manifest_conflict members_open no_group no_ledger
        not_assigned partitions_shrink snapshot_not_found
        patience_out_of_bounds position_moved
        precondition_failed replication_exceeds_brokers schema_incompatible stale_batch
        too_many_schemas
        topic_changed topic_not_found topic_taken uid_mismatch unknown_partition unread_data
    """,
    Fenced: "fenced",
    Forbidden: "forbidden",
    GatewayError: "internal_error",
    GatewayUnavailable: """
        database_unavailable kafka_unavailable request_timeout too_many_connections
        too_many_waiters unavailable
    """,
    IncompatibleGateway: "method_not_allowed not_found",
    InvalidRequest: """
        body_too_large config_not_allowed headers_too_large invalid_manifest invalid_request
        invalid_schema
        malformed_http malformed_json unsupported_media_type
        url_too_long
    """,
    StaleGeneration: "stale_generation",
    Unauthenticated: "unauthenticated",
}
BY_CODE = {code: kind for kind, codes in _CODES.items() for code in codes.split()}
"""The exception for each code of this version's gateway. Newer codes go by their HTTP status."""

_BY_STATUS: Mapping[int, type[GatewayError]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: IncompatibleGateway,
    405: IncompatibleGateway,
    409: Conflict,
    412: Conflict,
    502: GatewayUnavailable,
    503: GatewayUnavailable,
    504: GatewayUnavailable,
}

_CHANNEL_PATH = re.compile(r"/v1/channels/([^/]+)")


def _how_to_create(response: httpx.Response) -> str:
    found = _CHANNEL_PATH.search(response.request.url.path)
    if found is None:
        return ""
    name = found[1]
    return (
        f" Create it with `sluiceway channels create {name} --schema FILE`, or in Python with "
        f"gateway.channel({name!r}, schema=…)"
    )


def problem(response: httpx.Response) -> GatewayError:
    """Return the exception for an error response."""
    status = response.status_code
    try:
        content = response.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        content = None
    if not isinstance(content, dict) or not isinstance(content.get("code"), str):
        # From a proxy, or another server.
        kind = _BY_STATUS.get(status, IncompatibleGateway)
        return kind(
            f"{response.request.url} answered {status} {response.reason_phrase}, but not in the "
            "form of a Sluiceway gateway. Check that the URL is the gateway's",
            status=status,
        )
    code = content["code"]
    kind = BY_CODE.get(code) or _BY_STATUS.get(
        status, InvalidRequest if status < 500 else GatewayError
    )
    errors = [
        {"pointer": str(each.get("pointer", "")), "message": str(each.get("message", ""))}
        for each in content.get("errors") or ()
        if isinstance(each, dict)
    ]
    fields = "".join(f"; {each['pointer']}: {each['message']}" for each in errors)
    advice = _how_to_create(response) if kind is ChannelNotFound else ""
    return kind(
        f"{content.get('detail') or content.get('title') or code}{fields}{advice}",
        status=status,
        code=code,
        retriable=content.get("retriable") is True,
        errors=errors,
    )
