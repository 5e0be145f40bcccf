"""The one place where the gateway's problems (RFC 9457) become exceptions, by code."""

import json
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

BY_CODE: Mapping[str, type[GatewayError]] = {
    "body_too_large": InvalidRequest,
    "channel_adopted": Conflict,
    "channel_closed": ChannelClosed,
    "channel_deleting": Conflict,
    "channel_not_found": ChannelNotFound,
    "channel_not_ready": ChannelNotReady,
    "channel_pinned": Conflict,
    "concurrent_change": Conflict,
    "config_not_allowed": InvalidRequest,
    "conflict": Conflict,
    "database_unavailable": GatewayUnavailable,
    "endpoint_id_reused": Conflict,
    "endpoint_not_found": Conflict,
    "endpoints_live": Conflict,
    "fenced": Fenced,
    "forbidden": Forbidden,
    "goes_back": Conflict,
    "group_larger_than_pinned": Conflict,
    "group_mode": Conflict,
    "group_not_found": Conflict,
    "group_size": Conflict,
    "headers_too_large": InvalidRequest,
    "idempotency_key_reused": Conflict,
    "illegal_transition": Conflict,
    "immutable_field": Conflict,
    "internal_error": GatewayError,
    "invalid_request": InvalidRequest,
    "invalid_schema": InvalidRequest,
    "kafka_unavailable": GatewayUnavailable,
    "malformed_http": InvalidRequest,
    "members_open": Conflict,
    "method_not_allowed": IncompatibleGateway,
    "no_group": Conflict,
    "not_assigned": Conflict,
    "not_found": IncompatibleGateway,
    "partitions_shrink": Conflict,
    "position_moved": Conflict,
    "precondition_failed": Conflict,
    "replication_exceeds_brokers": Conflict,
    "request_timeout": GatewayUnavailable,
    "schema_incompatible": Conflict,
    "stale_generation": StaleGeneration,
    "too_many_connections": GatewayUnavailable,
    "too_many_schemas": Conflict,
    "topic_changed": Conflict,
    "topic_not_found": Conflict,
    "topic_taken": Conflict,
    "too_many_waiters": GatewayUnavailable,
    "unauthenticated": Unauthenticated,
    "unavailable": GatewayUnavailable,
    "uid_mismatch": Conflict,
    "unread_data": Conflict,
    "url_too_long": InvalidRequest,
}
"""Every code that a gateway of this version can answer; newer ones go by their status."""

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


def problem(answer: httpx.Response) -> GatewayError:
    """Return the exception for an answer that is not a success."""
    status = answer.status_code
    try:
        told = answer.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        told = None
    if not isinstance(told, dict) or not isinstance(told.get("code"), str):
        # Not the gateway's words: a proxy's, or another server's.
        kind = _BY_STATUS.get(status, IncompatibleGateway)
        return kind(
            f"{answer.request.url} answered {status} {answer.reason_phrase} and not as a gateway "
            "of Sluiceway does; is the URL the gateway's?",
            status=status,
        )
    code = told["code"]
    kind = BY_CODE.get(code) or _BY_STATUS.get(
        status, InvalidRequest if status < 500 else GatewayError
    )
    errors = [
        {"pointer": str(each.get("pointer", "")), "message": str(each.get("message", ""))}
        for each in told.get("errors") or ()
        if isinstance(each, dict)
    ]
    places = "".join(f"; {each['pointer']}: {each['message']}" for each in errors)
    return kind(
        f"{told.get('detail') or told.get('title') or code}{places}",
        status=status,
        code=code,
        retriable=told.get("retriable") is True,
        errors=errors,
    )
