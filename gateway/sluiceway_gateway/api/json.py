"""Strict JSON of request bodies; JSON of responses and its caches."""

import json
import math
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

from fastapi import Response
from pydantic import BaseModel
from pydantic_core import to_json

from sluiceway_gateway.core.errors import InvalidRequest, MalformedJson

MAX_DEPTH = 100
NO_BODY = "The request has no body; send JSON with the header Content-Type: application/json."
_MAX_DIGITS = 40
_CONSTANTS = re.compile(r'"(?:[^"\\]|\\.)*"|(-?Infinity|NaN)')
"""Strings, which are skipped, and what is not JSON outside of them."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_ZERO = re.compile("\x00")


def loads(body: bytes) -> Any:
    """Return the value of a JSON body.

    Raises MalformedJson for what is not JSON in UTF-8. Raises InvalidRequest for names
    that occur twice in an object, numbers of more than 40 digits, text with lone surrogates,
    nesting deeper than 100, and text with U+0000, except in schemas and records.
    """
    if not body.strip():
        raise MalformedJson(NO_BODY)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedJson(
            f"The body is not UTF-8 (at byte {error.start + 1}); send JSON in UTF-8."
        ) from None
    try:
        value = _DECODER.decode(text)
    except _NotJson as error:
        place = next((match.start(1) for match in _CONSTANTS.finditer(text) if match[1]), 0)
        raise _not_json(f"{error} is no number of JSON", text, place) from None
    except json.JSONDecodeError as error:
        raise _not_json(error.msg[:1].lower() + error.msg[1:], text, error.pos) from None
    except RecursionError:
        _refuse_depth()
    if "\\u" not in text:  # JSON has neither without an escape
        _check(value)
        return value
    _check(value, _SURROGATE, "a lone surrogate, which is not a character")
    _check(_without_documents(value), _ZERO, "U+0000, which the database cannot store")
    return value


def _not_json(reason: str, text: str, place: int) -> MalformedJson:
    line, column = text.count("\n", 0, place) + 1, place - text.rfind("\n", 0, place)
    return MalformedJson(
        f"The body is not JSON: {reason} (line {line}, column {column}). Correct it there."
    )


class _NotJson(Exception):
    """A constant of JavaScript that is not JSON; the message is its name."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise InvalidRequest(f"An object in the body has the name {twice[:100]!r} twice.")
    return value


def _constant(text: str) -> NoReturn:
    raise _NotJson(text)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InvalidRequest(f"The number {text[:100]} is too large.")
    return value


def _int(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise InvalidRequest(f"A number of {len(text)} digits is too large.")
    return int(text)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_constant, parse_float=_float, parse_int=_int
)


def _refuse_depth() -> NoReturn:
    raise InvalidRequest(f"The body is nested deeper than {MAX_DEPTH} levels.") from None


def _without_documents(value: Any) -> Any:
    """Return a body without its schema and its records.

    A schema is stored as JSON text, with escapes, and records are written to Kafka.
    """
    match value:
        case {"spec": {"schema": _, **spec}}:
            return {**value, "spec": spec}
        case {"records": _, **rest}:
            return rest
    return value


def _check(value: Any, refused: re.Pattern[str] | None = None, what: str = "") -> None:
    """Check the depth and, with a pattern of `what` is refused, every text, without recursion."""
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            _refuse_depth()
        following: list[Any] = []
        for part in level:
            if isinstance(part, dict):
                following.extend(part.values())
                if refused is not None:
                    following.extend(part)
            elif isinstance(part, list):
                following.extend(part)
            elif refused is not None and isinstance(part, str) and refused.search(part):
                raise InvalidRequest(f"A string in the body contains {what}; remove it.")
        level, depth = following, depth + 1


class ResponseCache:
    """The last response of each key, with the tag of its state.

    Bounded by size: the least recently used responses are evicted. Safe between threads.
    """

    def __init__(self, limit_bytes: int = 64 * 1024 * 1024) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._responses: OrderedDict[str, tuple[str, bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str, tag: str) -> bytes | None:
        """Return the key's response, if it has this tag."""
        with self._lock:
            cached = self._responses.get(key)
            if cached is None or cached[0] != tag:
                return None
            self._responses.move_to_end(key)
            return cached[1]

    def put(self, key: str, tag: str, response: bytes) -> None:
        """Replace the key's response."""
        with self._lock:
            previous = self._responses.pop(key, None)
            self._bytes += len(response) - (len(previous[1]) if previous else 0)
            self._responses[key] = (tag, response)
            while self._bytes > self._limit_bytes:
                _, (_, evicted) = self._responses.popitem(last=False)
                self._bytes -= len(evicted)


class JsonCache:
    """The last JSON of each key, with its source; evicts the least recently used of `limit`."""

    def __init__(self, limit: int = 20_000) -> None:
        self._limit = limit
        self._cached: OrderedDict[Hashable, tuple[tuple[object, ...], str]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, key: Hashable, source: tuple[object, ...], make: Callable[[], Any]) -> str:
        """Return the JSON of `make()`: the cached one while the key's `source` is equal."""
        cached = self._cached.get(key)
        text = cached[1] if cached is not None and cached[0] == source else text_of(make())
        with self._lock:
            self._cached[key] = (source, text)
            self._cached.move_to_end(key)
            if len(self._cached) > self._limit:
                self._cached.popitem(last=False)
        return text


def text_of(value: Any) -> str:
    """Return JSON without spaces."""
    return to_json(value).decode()


def json_response(
    body: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response with compact JSON."""
    return Response(to_json(body), status, headers=headers, media_type="application/json")


def body_of(model: type[BaseModel], source: object, **others: Any) -> dict[str, Any]:
    """Return the body that a response model describes: each field from `others`, or `source`.

    `source` has attributes of the same names. The body is for `to_json`: its times are text, and
    other values may be dataclasses.
    """
    body = {
        name: others[name] if name in others else getattr(source, name)
        for name in model.model_fields
    }
    return {n: time_json(e) if isinstance(e, datetime) else e for n, e in body.items()}


def list_of(items: Iterable[str]) -> str:
    """Return the JSON of a list whose items are JSON."""
    return f"[{','.join(items)}]"


def time_json(moment: datetime) -> str:
    """Return the JSON of a time: ISO 8601 in UTC with milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
