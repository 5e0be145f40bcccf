"""Strict JSON request bodies, and rendered responses kept for repeats."""

import json
import math
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, NoReturn

from fastapi import Response

from sluiceway_gateway.errors import InvalidRequest

MAX_DEPTH = 100
_MAX_DIGITS = 40
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def loads(body: bytes) -> Any:
    """Return the value that `body` holds.

    Raises InvalidRequest for what is not JSON in UTF-8, and for names that occur
    twice in an object, NaN and infinities, numbers of more than 40 digits, text
    with U+0000 or lone surrogates, and nesting deeper than 100.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest("The body is not UTF-8; send JSON in UTF-8.") from None
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_float,
            parse_int=_int,
        )
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"The body is not JSON: {error.msg} (line {error.lineno}, column {error.colno})."
        ) from None
    except RecursionError:
        _refuse_depth()
    _check(value, escapes="\\u" in text or "\x00" in text)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise InvalidRequest(
                    f"The name {name[:100]!r} occurs twice in an object of the body."
                )
            seen.add(name)
    return value


def _constant(text: str) -> NoReturn:
    raise InvalidRequest(f"The body holds {text}, which is not JSON.")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InvalidRequest(f"The number {text[:100]} is too large.")
    return value


def _int(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise InvalidRequest(f"A number of {len(text)} digits is too large.")
    return int(text)


def _refuse_depth() -> NoReturn:
    raise InvalidRequest(f"The body is nested deeper than {MAX_DEPTH} levels.") from None


def _check(value: Any, *, escapes: bool) -> None:
    """Look at every part of the value, without recursion."""
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            _refuse_depth()
        following: list[Any] = []
        for part in level:
            if isinstance(part, dict):
                following.extend(part.values())
                if escapes:
                    following.extend(part)
            elif isinstance(part, list):
                following.extend(part)
            elif escapes and isinstance(part, str) and _UNSTORABLE.search(part):
                raise InvalidRequest(
                    "A text of the body holds U+0000 or half of a surrogate pair, "
                    "which cannot be stored; leave it out."
                )
        level, depth = following, depth + 1


class ResponseCache:
    """The last answers by what was asked for, each with its state's tag; bounded by their size."""

    def __init__(self, limit_bytes: int = 64 * 1024 * 1024) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._answers: OrderedDict[str, tuple[str, bytes]] = OrderedDict()
        self._turn = threading.Lock()

    def get(self, key: str, tag: str) -> bytes | None:
        """Return the answer, if it is kept and of this state."""
        with self._turn:
            kept = self._answers.get(key)
            if kept is None or kept[0] != tag:
                return None
            self._answers.move_to_end(key)
            return kept[1]

    def put(self, key: str, tag: str, answer: bytes) -> None:
        """Keep an answer in the place of the one before; what was asked for longest ago goes."""
        with self._turn:
            before = self._answers.pop(key, None)
            self._bytes += len(answer) - (len(before[1]) if before else 0)
            self._answers[key] = (tag, answer)
            while self._bytes > self._limit_bytes:
                _, (_, gone) = self._answers.popitem(last=False)
                self._bytes -= len(gone)


class JsonCache:
    """The last text of each part, with what it was made of; at most `most` of them."""

    def __init__(self, most: int = 20_000) -> None:
        self._most = most
        self._kept: dict[Hashable, tuple[tuple[object, ...], str]] = {}

    def of(self, key: Hashable, made_of: tuple[object, ...], make: Callable[[], Any]) -> str:
        """Return the JSON of what `make` gives; that of before, if it was made of the same."""
        kept = self._kept.get(key)
        if kept is None or kept[0] != made_of:
            if len(self._kept) >= self._most:
                self._kept = {}
            kept = self._kept[key] = (made_of, text_of(make()))
        return kept[1]


def text_of(value: Any) -> str:
    """Return JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


def json_response(body: Any, status: int = 200) -> Response:
    """Return a response with compact JSON."""
    return Response(text_of(body), status, media_type="application/json")


def list_of(items: Any) -> str:
    """Return the JSON of a list of what is JSON already."""
    return f"[{','.join(items)}]"
