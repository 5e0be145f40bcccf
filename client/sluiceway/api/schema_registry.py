"""Schemas of another registry, by the ids in messages: Confluent's interface, or a file."""

import json
import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from sluiceway.api.auth import Token
from sluiceway.api.tls import trusted
from sluiceway.api.transport import Backoff, proxy_of
from sluiceway.errors import (
    OptionError,
    RegistryFailure,
    RegistryUnavailable,
    SchemaError,
    SchemaMismatch,
    clear_tracebacks,
)
from sluiceway.schema import Schema

__all__ = ["SchemaRegistry"]

_MAX_BYTES: Final = 4 * 1024 * 1024
_MAX_KEPT: Final = 10_000
_MAX_MISSING: Final = 100
"""The most ids of one call that a registry may lack: garbage has any number, each a request."""
_NOT_REGISTERED: Final = 40403
_AUTH: Final = "SLUICEWAY_REGISTRY_AUTH"
_CA_FILE: Final = "SLUICEWAY_REGISTRY_CA_FILE"
_FORM: Final = "it must be http://HOST:PORT or https://HOST:PORT, or the path of a file"
_NO_USER: Final = f"schema_registry has an @: {_FORM}, without a user, which {_AUTH} has"

_Resolved = Schema | SchemaMismatch
_KEPT: dict[tuple[str, int], _Resolved] = {}
"""Schemas that this process has requested; an id's schema never changes."""


@dataclass(frozen=True)
class SchemaRegistry:
    """A registry at the URL `source`, or the file `source` with its `definitions` by id.

    It may be pickled; credentials are read from the environment of the process that requests. The
    request for an id is repeated for `timeout_s`.
    """

    source: str
    definitions: Mapping[int, str] | None = None
    timeout_s: float = 15.0

    @classmethod
    def open(cls, source: "str | os.PathLike[str] | SchemaRegistry") -> "SchemaRegistry":
        """Check a URL, or read a file: a JSON object of Avro schemas by id. Raises OptionError."""
        if isinstance(source, SchemaRegistry):
            return source
        if not isinstance(source, str | os.PathLike):
            raise OptionError(
                f"schema_registry is of the type {type(source).__name__}; it takes a URL, or the "
                "path of a file"
            )
        name = os.fspath(source)
        if isinstance(source, str) and "@" in name and not Path(name).is_file():
            # Before any other message: it may have a password.
            raise OptionError(_NO_USER)
        if isinstance(source, str) and re.match("[A-Za-z][A-Za-z0-9+.-]+://", source):
            return cls(_checked_url(source))
        try:
            content = json.loads(Path(name).read_bytes())
            definitions = {
                _checked_id(id_): text if isinstance(text, str) else json.dumps(text)
                for id_, text in content.items()
            }
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            raise OptionError(
                f"schema_registry is {name!r}, which is no URL and no readable file with a JSON "
                f'object of schemas by id, such as {{"7": {{"type": "record", ...}}}}: {error}'
            ) from error
        return cls(name, definitions)

    def __str__(self) -> str:
        return f"the {'registry' if self.definitions is None else 'file'} {self.source}"

    def require_usable(self, channel: str, format_: str, *, adopted: bool) -> None:
        """Raise OptionError for a channel whose messages have no ids of a registry."""
        if format_ != "avro":
            raise OptionError(
                f"the channel {channel!r} has the format {format_}, whose messages are read "
                "without schemas of a registry: leave schema_registry out"
            )
        if not adopted:
            raise OptionError(
                f"the channel {channel!r} owns its topic, whose messages have ids of the gateway: "
                "leave schema_registry out, or adopt the other producers' topic by a channel"
            )

    def look_up(self, ids: Collection[int]) -> dict[int, _Resolved]:
        """Return the schemas of these ids; unknown ids are left out.

        A schema that cannot be used is a SchemaMismatch. Raises RegistryFailure,
        RegistryUnavailable, OptionError.
        """
        if self.definitions is not None:
            definitions = self.definitions
            return {id_: _parsed(definitions[id_]) for id_ in ids if id_ in definitions}
        kept = {id_: _KEPT.get((self.source, id_)) for id_ in ids}
        resolved = {id_: schema for id_, schema in kept.items() if schema is not None}
        if wanted := [id_ for id_ in ids if id_ not in resolved]:
            missing = 0
            url = httpx.URL(self.source)
            verify = trusted(self.source, os.environ.get(_CA_FILE))
            with httpx.Client(
                auth=_auth(), verify=verify, proxy=proxy_of(url), trust_env=False
            ) as client:
                for id_ in wanted:
                    if missing == _MAX_MISSING:
                        raise RegistryFailure(
                            f"{self} has none of {_MAX_MISSING} schema ids of messages, the next "
                            f"is {id_}: it is not the registry of this topic, or other messages "
                            "are in it"
                        )
                    schema = self._request(client, id_)
                    if schema is None:
                        missing += 1
                    else:
                        resolved[id_] = schema
        return resolved

    def _request(self, client: httpx.Client, id_: int) -> _Resolved | None:
        answer = self._get(client, id_)
        if answer is None:
            return None
        kind = answer.get("schemaType") or "AVRO"
        resolved: _Resolved
        if kind != "AVRO":
            resolved = SchemaMismatch(
                f"it is of the type {str(kind)[:50]}, not AVRO: read it by a channel of the format "
                f"{'json' if kind == 'JSON' else 'bytes'}"
            )
        elif answer.get("references"):
            resolved = SchemaMismatch(
                "it refers to schemas of other subjects: give a file with the whole schema as "
                "schema_registry"
            )
        else:
            resolved = _parsed(answer.get("schema"))
        if len(_KEPT) >= _MAX_KEPT:
            _KEPT.clear()
        _KEPT[self.source, id_] = resolved
        return resolved

    def _get(self, client: httpx.Client, id_: int) -> dict[str, Any] | None:
        """Return the registry's answer for an id; None if it does not have it."""
        backoff = Backoff(self.timeout_s)
        while True:
            cause: Exception | None = None
            try:
                status, body = _read(client, f"{self.source}/schemas/ids/{id_}", backoff.left_s)
            except httpx.RequestError as error:
                # Its frames have the credentials.
                clear_tracebacks(error)
                reason, cause = str(error) or type(error).__name__, error
            else:
                if status == httpx.codes.OK or status == httpx.codes.NOT_FOUND:
                    return self._answer(id_, status, body)
                reason = f"HTTP {status}"
                if status < 500 and status != httpx.codes.TOO_MANY_REQUESTS:
                    advice = (
                        f"set {_AUTH} or {_AUTH}_FILE to USER:PASSWORD or a token"
                        if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)
                        else "check its URL"
                    )
                    raise RegistryFailure(
                        f"{self} refused the request for the schema id {id_}: {reason}; {advice}"
                    )
            if not backoff.wait():
                raise RegistryUnavailable(
                    f"{self} did not return the schema id {id_} within {self.timeout_s:g} s: "
                    f"{reason}. No message was skipped: call again when it answers"
                ) from cause

    def _answer(self, id_: int, status: int, body: bytes) -> dict[str, Any] | None:
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if isinstance(answer, dict):
            if status == httpx.codes.OK:
                return answer
            if answer.get("error_code") == _NOT_REGISTERED:
                return None
        raise RegistryFailure(
            f"{self} did not answer the request for the schema id {id_} as a registry does (HTTP "
            f"{status}): check its URL, such as http://registry:8081"
        )


def _parsed(definition: object) -> _Resolved:
    try:
        return Schema.parse(definition if isinstance(definition, str) else "")
    except SchemaError as error:
        return SchemaMismatch(f"it cannot be used: {error}")


def _read(client: httpx.Client, url: str, timeout_s: float) -> tuple[int, bytes]:
    """Return status and body. Raises httpx.RequestError, RegistryFailure."""
    body = bytearray()
    deadline_s = time.monotonic() + max(1.0, timeout_s)
    with client.stream("GET", url, timeout=max(1.0, timeout_s)) as response:
        for part in response.iter_bytes():
            body += part
            if time.monotonic() > deadline_s:
                raise httpx.ReadTimeout("the answer takes too long")
            if len(body) > _MAX_BYTES:
                raise RegistryFailure(f"{url} returned more than {_MAX_BYTES:,} bytes")
    return response.status_code, bytes(body)


def _checked_id(text: str) -> int:
    number = int(text)
    if not 0 <= number < 2**32:
        raise ValueError(f"{text} is no schema id")
    return number


def _checked_url(text: str) -> str:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise OptionError(f"schema_registry is no valid URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
        shown = url.copy_with(query=None, fragment=None)
        raise OptionError(f"schema_registry is '{shown}'; {_FORM}")
    return text.rstrip("/")


def _auth() -> httpx.Auth | Callable[[httpx.Request], httpx.Request] | None:
    """Return the credentials of the environment. Raises OptionError."""
    text, path = os.environ.get(_AUTH), os.environ.get(f"{_AUTH}_FILE")
    if not text and path:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"the file {path} in {_AUTH}_FILE cannot be read: {error}") from error
    if not text:
        return None
    user, colon, password = text.strip().partition(":")
    return httpx.BasicAuth(user, password) if colon else Token(text).checked(_AUTH).authorize
