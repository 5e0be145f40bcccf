"""JSON of responses and its caches."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from fastapi import Response
from pydantic import BaseModel
from pydantic_core import to_json


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


def fields_json(value: object) -> dict[str, Any]:
    """Return the fields of a value that responses have as it is, with its times as text."""
    return _with_texts(vars(value))


def body_of(model: type[BaseModel], source: object, **others: Any) -> dict[str, Any]:
    """Return the body that a response model describes: each field from `others`, or `source`.

    `source` has attributes of the same names. The body is for `to_json`: its times are text, and
    other values may be dataclasses.
    """
    return _with_texts(
        {
            name: others[name] if name in others else getattr(source, name)
            for name in model.model_fields
        }
    )


def _with_texts(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: time_json(value) if isinstance(value, datetime) else value
        for name, value in fields.items()
    }


def list_of(items: Iterable[str]) -> str:
    """Return the JSON of a list whose items are JSON."""
    return f"[{','.join(items)}]"


def time_json(moment: datetime) -> str:
    """Return the JSON of a time: ISO 8601 in UTC with milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
