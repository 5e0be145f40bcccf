"""JSON of requests and responses as frozen dataclasses; problems as exceptions."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from functools import cache, partial
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

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

__all__ = [
    "BY_CODE",
    "LOCAL",
    "JsonNode",
    "JsonPath",
    "Page",
    "parse",
    "problem",
    "to_json",
]

_T = TypeVar("_T")

LOCAL: Final = object()
"""Marks a field of a dataclass that is not in the JSON: the caller gives it."""


class JsonNode:
    """A value within a JSON document, at `key` of its `parent`.

    Error reporters render the locals of frames, and a response may hold passwords. So frames that
    raise have nodes in their local variables, not plain values.
    """

    __slots__ = ("key", "parent", "value")

    def __init__(self, value: Any, parent: "JsonNode | None" = None, key: str | int = "$") -> None:
        self.value = value
        self.parent = parent
        self.key = key

    def __str__(self) -> str:
        """Return its path in the document."""
        if self.parent is None:
            return str(self.key)
        key = f"[{self.key}]" if isinstance(self.key, int) else f".{self.key}"
        return f"{self.parent}{key}"

    def find(self, *keys: str) -> "JsonNode | None":
        """Return the value at the path `keys`; None without one."""
        node = self
        for key in keys:
            if not isinstance(node.value, dict) or key not in node.value:
                return None
            node = JsonNode(node.value[key], node, key)
        return node

    def at(self, *keys: str) -> "JsonNode":
        """Return the value at the path `keys`. Raises IncompatibleGateway if it is missing."""
        node = self.find(*keys)
        if node is None:
            *parents, key = keys
            raise _incompatible(JsonNode(None, self.at(*parents), key), "is missing")
        return node

    def items(self) -> "list[JsonNode]":
        """Return the items of an array. Raises IncompatibleGateway for another value."""
        items: list[object] = _exactly(self, list)
        return [JsonNode(item, self, index) for index, item in enumerate(items)]


class JsonPath:
    """The path of a field in the JSON object; without keys, the object itself.

    A field with a default may be missing in a response, and is omitted from a request if it has
    that value, unless it is `required`. With `by`, the field is a mapping by that key of the
    objects in an array. `read` and `write` replace the conversions of the field's type.
    """

    def __init__(
        self,
        *keys: str,
        required: bool = False,
        by: str | None = None,
        read: Callable[[JsonNode], Any] | None = None,
        write: Callable[[Any], Any] | None = None,
    ) -> None:
        self.keys = keys
        self.required = required
        self.by = by
        self.read = read
        self.write = write


@dataclass(frozen=True, kw_only=True)
class Page(Generic[_T]):
    """One page of a list; `next_cursor` is None on the last one."""

    items: tuple[_T, ...]
    next_cursor: str | None
    etag: Annotated[str | None, LOCAL] = None


def parse(kind: type[_T], node: JsonNode, **local: object) -> _T:
    """Read a JSON object as the dataclass `kind`; fields that the JSON may add are ignored.

    `local` has the values of LOCAL fields, as far as `kind` has them. Raises IncompatibleGateway.
    """
    return cast("_T", _read_object(kind, node, **local))


def to_json(value: Any) -> dict[str, Any]:
    """Return a dataclass as a JSON object."""
    kind: Any = type(value)
    members = vars(value)
    document = {}
    for name, key, write, default in _writers(kind):
        item = members[name]
        if default is MISSING or (item is not default and item != default):
            document[key] = item if write is None or item is None else write(item)
    return document


_Convert: TypeAlias = Callable[[Any], Any]


@cache
def _fields(kind: Any) -> tuple[list[tuple[str, Any, JsonPath, object]], set[str]]:
    """Return name, type, path and default of a dataclass's fields, and the names of LOCAL ones."""
    described, local = [], set()
    plain = get_origin(kind) or kind
    hints = get_type_hints(plain, include_extras=True)
    for field in fields(plain):
        hint, path = hints[field.name], JsonPath(field.name)
        if get_origin(hint) is Annotated:
            hint, path = get_args(hint)
        if path is LOCAL:
            local.add(field.name)
            continue
        if getattr(hint, "__parameters__", ()):
            hint = hint[get_args(kind)]
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        described.append((field.name, hint, path, MISSING if path.required else default))
    return described, local


@cache
def _readers(kind: Any) -> list[tuple[str, tuple[str, ...], _Convert, bool]]:
    return [
        (name, path.keys, path.read or _reader(hint, path.by), default is not MISSING)
        for name, hint, path, default in _fields(kind)[0]
    ]


@cache
def _writers(kind: Any) -> list[tuple[str, str, _Convert | None, object]]:
    return [
        (name, path.keys[0], path.write or _writer(hint), default)
        for name, hint, path, default in _fields(kind)[0]
    ]


def _read_object(kind: Any, node: JsonNode, **local: object) -> Any:
    children = (
        (name, read, node.find(*keys) if optional else node.at(*keys))
        for name, keys, read, optional in _readers(kind)
    )
    # Without a variable of the values, which may hold passwords.
    return kind(
        **{name: value for name, value in local.items() if name in _fields(kind)[1]},
        **{name: read(child) for name, read, child in children if child is not None},
    )


@cache
def _reader(hint: Any, by: str | None = None) -> _Convert:
    origin, args = get_origin(hint), get_args(hint)
    if by is not None:
        read_key, read = map(_reader, args)
        return lambda node: {read_key(item.at(by)): read(item) for item in node.items()}
    if type(None) in args:
        read = _reader(args[0])
        return lambda node: None if node.value is None else read(node)
    if origin in (tuple, frozenset):
        read = _reader(args[0])
        return lambda node: origin(map(read, node.items()))
    if origin is Mapping:
        return partial(_mapping, *args)
    if hint in _SCALARS:
        return _SCALARS[hint]
    if is_dataclass(origin or hint):
        return partial(_read_object, hint)
    if issubclass(hint, tuple):
        return partial(_named_tuple, hint, list(get_type_hints(hint).values()))
    raise TypeError(f"no JSON value can be read as {hint}")


def _mapping(key_type: type[Any], value_type: Any, node: JsonNode) -> Mapping[Any, Any]:
    if value_type is Any:
        return _exactly(node, dict)
    read = _reader(value_type)
    for key in _exactly(node, dict) if key_type is int else ():
        if not key.isdecimal():
            raise _incompatible(node.at(key), "is not a partition number")
    return {key_type(key): read(node.at(key)) for key in _exactly(node, dict)}


def _named_tuple(kind: Any, types: list[type[Any]], node: JsonNode) -> Any:
    if type(node.value) is not list or list(map(type, node.value)) != types:
        raise _incompatible(node, f"is not [{', '.join(kind._fields)}]")
    return kind(*node.value)


def _number(node: JsonNode) -> float:
    return _exactly(node, int if type(node.value) is int else float)


def _time(node: JsonNode) -> datetime:
    text = _exactly(node, str)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise _incompatible(node, f"is not an ISO 8601 time: {text!r}") from None


def _exactly(node: JsonNode, kind: type[_T]) -> _T:
    if type(node.value) is not kind:
        raise _incompatible(node, f"is {type(node.value).__name__}, not {kind.__name__}")
    return node.value


_SCALARS: dict[Any, _Convert] = {
    **{kind: partial(_exactly, kind=kind) for kind in (str, int, bool)},
    float: _number,
    datetime: _time,
    timedelta: lambda node: timedelta(milliseconds=_exactly(node, int)),
}


@cache
def _writer(hint: Any) -> _Convert | None:
    """Return the conversion of a type; None for one that JSON has."""
    origin, args = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        return to_json
    if hint is datetime:
        return datetime.isoformat
    if type(None) in args:
        return _writer(args[0])
    if origin is Mapping:
        return dict
    if origin is tuple and (write := _writer(args[0])) is not None:
        return lambda items: list(map(write, items))
    return None


def _incompatible(node: JsonNode, problem: str) -> IncompatibleGateway:
    return IncompatibleGateway(
        f"this client does not understand the gateway's response: {node} {problem}. Use versions "
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
    match = _CHANNEL_PATH.search(response.request.url.path)
    if match is None:
        return ""
    name = match[1]
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
        overloaded = status == 429 or status >= 500
        kind = GatewayUnavailable if overloaded else _BY_STATUS.get(status, IncompatibleGateway)
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
        {"pointer": str(entry.get("pointer", "")), "message": str(entry.get("message", ""))}
        for entry in content.get("errors") or ()
        if isinstance(entry, dict)
    ]
    detail = str(content.get("detail") or content.get("title") or code)
    by_pointer: dict[str, list[str]] = {}
    for error in errors:
        if error["message"] not in detail:
            by_pointer.setdefault(error["pointer"], []).append(error["message"].rstrip("."))
    fields = "; ".join(f"{at}: {'; '.join(messages)}" for at, messages in by_pointer.items())
    if fields:
        # The detail may end as a sentence.
        detail = f"{detail} {fields}" if detail.endswith(".") else f"{detail}; {fields}"
    advice = _how_to_create(response) if kind is ChannelNotFound else ""
    return kind(
        f"{detail}{advice}",
        status=status,
        code=code,
        retriable=content.get("retriable") is True,
        errors=errors,
    )
