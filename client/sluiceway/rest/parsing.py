"""Parsing of responses: JSON into frozen dataclasses, problems into exceptions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Annotated, Any, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints

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

__all__ = ["BY_CODE", "JsonNode", "JsonPath", "Page", "incompatible", "parse", "problem"]

_T = TypeVar("_T")


class JsonNode:
    """A value within a JSON document, and its path.

    Error reporters render the locals of frames, and a response may hold passwords. So frames that
    raise have nodes in their local variables, not plain values.
    """

    def __init__(self, value: object, path: str = "$") -> None:
        self.value = value
        self.path = path

    def has(self, *keys: str) -> bool:
        """Whether the path `keys` exists below this value."""
        found: object = self.value
        for key in keys:
            if not isinstance(found, Mapping) or key not in found:
                return False
            found = found[key]
        return True

    def at(self, *keys: str) -> JsonNode:
        """Return the value at the path `keys`. Raises IncompatibleGateway if it is missing."""
        node = self
        for key in keys:
            path = f"{node.path}.{key}"
            if not isinstance(node.value, Mapping) or key not in node.value:
                raise incompatible(path, "is missing")
            node = JsonNode(node.value[key], path)
        return node

    def read(self, kind: type[_T], *keys: str) -> _T:
        """Return the value at the path `keys` as a `kind`, any type of a dataclass field."""
        return cast("_T", _reader(cast("Any", kind))(self.at(*keys)))

    def items(self, *keys: str) -> list[JsonNode]:
        """Return the items of the array at the path `keys`."""
        node = self.at(*keys)
        items: list[object] = _exactly(node, list)
        return [JsonNode(item, f"{node.path}[{index}]") for index, item in enumerate(items)]


class JsonPath:
    """The path of a field in the JSON object; without keys, the object itself.

    `read` replaces the parser of the field's type. A `required` key must be present, even if the
    field has a default.
    """

    def __init__(
        self, *keys: str, read: Callable[[JsonNode], Any] | None = None, required: bool = False
    ) -> None:
        self.keys = keys
        self.read = read
        self.required = required


def parse(kind: type[_T], node: JsonNode, **known: object) -> _T:
    """Read the JSON object `node` as the dataclass `kind`; the caller gives `known` fields.

    Raises IncompatibleGateway.
    """
    return cast("Callable[..., _T]", kind)(
        **known,
        **{
            name: read(node.at(*keys))
            for name, keys, read, optional in _fields(cast("Any", kind))
            if name not in known and not (optional and not node.has(*keys))
        },
    )


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page of a list; `next_cursor` is None on the last one."""

    items: tuple[JsonNode, ...]
    next_cursor: str | None


_Reader: TypeAlias = Callable[[JsonNode], Any]


@cache
def _fields(kind: type[Any]) -> tuple[tuple[str, tuple[str, ...], _Reader, bool], ...]:
    """Return the fields of a dataclass: name, path, reader, and whether it may be missing."""
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for field in fields(kind):
        hint, path = hints[field.name], JsonPath(field.name)
        if get_origin(hint) is Annotated:
            hint, path = get_args(hint)
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        optional = has_default and not path.required
        found.append((field.name, path.keys, path.read or _reader(hint), optional))
    return tuple(found)


@cache
def _reader(hint: Any) -> _Reader:
    origin, args = get_origin(hint), get_args(hint)
    if type(None) in args:
        (present,) = (arg for arg in args if arg is not type(None))
        return partial(_optional, _reader(present))
    if origin in (tuple, frozenset):
        read = _reader(args[0])
        return lambda node: origin(read(item) for item in node.items())
    if origin is Mapping:
        return partial(_mapping, *args)
    if hint in _SCALARS:
        return _SCALARS[hint]
    if is_dataclass(hint):
        return partial(parse, cast("type[Any]", hint))
    raise TypeError(f"no JSON value can be read as {hint}")


def _optional(read: _Reader, node: JsonNode) -> Any:
    return None if node.value is None else read(node)


def _mapping(key_type: type[Any], value_type: Any, node: JsonNode) -> Mapping[Any, Any]:
    if value_type is Any:
        return _exactly(node, dict)
    read = _reader(value_type)
    keys: list[str] = list(_exactly(node, dict))
    for key in keys:
        if key_type is int and not key.isdecimal():
            raise incompatible(f"{node.path}.{key}", "is not a partition number")
    return {key_type(key): read(node.at(key)) for key in keys}


def _number(node: JsonNode) -> float:
    return _exactly(node, int if type(node.value) is int else float)


def _time(node: JsonNode) -> datetime:
    text = _exactly(node, str)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise incompatible(node.path, f"is not an ISO 8601 time: {text!r}") from None


def _exactly(node: JsonNode, kind: type[_T]) -> _T:
    if type(node.value) is not kind:
        raise incompatible(node.path, f"is {type(node.value).__name__}, not {kind.__name__}")
    return node.value


_SCALARS: dict[Any, _Reader] = {
    **{kind: partial(_exactly, kind=kind) for kind in (str, int, bool)},
    float: _number,
    datetime: _time,
    timedelta: lambda node: timedelta(milliseconds=_exactly(node, int)),
    JsonNode: lambda node: node,
}


def incompatible(path: str, problem: str) -> IncompatibleGateway:
    """Return the error for a response whose value at `path` has a problem."""
    return IncompatibleGateway(
        f"this client does not understand the gateway's response: {path} {problem}. Use versions "
        "of client and gateway that are at most two minor versions apart"
    )


_CODES: Mapping[type[GatewayError], str] = {
    ChannelClosed: "channel_closed",
    ChannelNotFound: "channel_not_found",
    ChannelNotReady: "channel_not_ready",
    Conflict: """
        batch_aborted batch_committed batch_fenced batch_key_taken batch_not_found batch_open
        beyond_watermark channel_adopted channel_deleting channel_pinned client_outdated
        concurrent_change conflict endpoint_id_reused endpoint_not_found endpoints_live goes_back
        group_larger_than_pinned group_mode group_not_found group_size idempotency_key_reused
        illegal_transition immutable_field ledger_halted ledger_intact ledger_restored
        manifest_conflict members_open no_group no_ledger not_assigned partitions_shrink
        patience_out_of_bounds position_moved precondition_failed repair_changed
        replication_exceeds_brokers schema_incompatible snapshot_not_found stale_batch
        too_many_schemas topic_changed topic_not_found topic_taken uid_mismatch unknown_partition
        unread_data
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
        invalid_schema malformed_http malformed_json unsupported_media_type url_too_long
    """,
    StaleGeneration: "stale_generation",
    Unauthenticated: "unauthenticated",
}
BY_CODE = {code: kind for kind, codes in _CODES.items() for code in codes.split()}
"""The exception for each error code; unknown codes are mapped by their HTTP status."""

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


def problem(response: httpx.Response, *, via: str = "") -> GatewayError:
    """Return the exception for an error response; `via` names the proxy in use."""
    status = response.status_code
    try:
        content = response.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        content = None
    if not isinstance(content, dict) or not isinstance(content.get("code"), str):
        # The response of a proxy or another server.
        kind = _BY_STATUS.get(status, IncompatibleGateway)
        return kind(
            f"{response.request.url} answered {status} {response.reason_phrase}{via}, but is not a "
            f"Sluiceway gateway. Check the URL{' and the proxy' if via else ''}",
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
    detail = str(content.get("detail") or content.get("title") or code)
    additional = [each for each in errors if each["message"] not in detail]
    fields = "".join(f"; {each['pointer']}: {each['message']}" for each in additional)
    advice = _how_to_create(response) if kind is ChannelNotFound else ""
    return kind(
        f"{detail}{fields}{advice}",
        status=status,
        code=code,
        retriable=content.get("retriable") is True,
        errors=errors,
    )
