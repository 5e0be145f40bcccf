"""The route class that calls the endpoints.

FastAPI parses an endpoint's signature once, for the OpenAPI document and its parameters.
`GatewayRoute` serves requests by the parsed signature, with one handler for all routes.
"""

from collections import Counter
from collections.abc import Callable, Collection
from inspect import iscoroutinefunction
from typing import Any, ClassVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from sluiceway_gateway.api.auth import PUBLIC, Access
from sluiceway_gateway.api.problems import malformed
from sluiceway_gateway.api.strict_json import NO_BODY, loads
from sluiceway_gateway.core.errors import (
    BodyTooLarge,
    Forbidden,
    InvalidRequest,
    MalformedJson,
    UnsupportedMediaType,
    Violation,
)


class GatewayRoute(APIRoute):
    """Serves requests in a fixed order; the first step that fails raises the error to respond with.

    1. The access that the endpoint's signature declares. A route without one is closed to
       all clients, unless its path is public.
    2. The query: unknown and repeated parameters are refused.
    3. The body: its size, its content type, then strict JSON. It is not read before.
    4. The values of all parameters, whose violations are reported together.
    5. The endpoint: a coroutine on the event loop, a plain function on a worker thread.

    A HEAD is served like a GET; the server sends the headers of the response and no body.
    """

    media_types: ClassVar[frozenset[str]] = frozenset({"application/json"})
    """Media types of JSON bodies."""
    strict_query: ClassVar[bool] = True
    """Whether unknown query parameters are refused."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.methods and "GET" in self.methods:
            self.methods.add("HEAD")
        # FastAPI's own ids repeat path and method.
        self.operation_id = self.operation_id or self.endpoint.__name__
        self.access: Access | None = next(
            (
                dependency.call
                for dependency in self.dependant.dependencies
                if isinstance(dependency.call, Access)
            ),
            None,
        )
        """The access that the endpoint declares."""
        self._is_async = iscoroutinefunction(self.endpoint)
        self._takes_body = bool(self.dependant.body_params)
        self._arguments = _Arguments(self.dependant)
        # Replaces FastAPI's handler, which takes three times as long.
        self.app = self._serve

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self.respond(Request(scope, receive, send))
        await response(scope, receive, send)

    async def respond(self, request: Request) -> Response:
        """Return the endpoint's response, or raise the error to respond with."""
        parts = request.app.state.parts
        if self.access is not None:
            await self.access.authorize(request, parts.tokens)
        elif self.path not in PUBLIC:
            raise Forbidden("This path is not accessible.")
        if self.strict_query and request.scope["query_string"]:
            _check_query(request, self._arguments.query_names)
        limit_bytes = parts.settings.max_body_bytes
        _check_length(request, limit_bytes)
        body = (
            await _read_json(request, limit_bytes, self.media_types) if self._takes_body else None
        )
        errors: list[Any] = []
        values = self._arguments.of(request, body, errors)
        if errors:
            raise malformed(errors)
        if self._is_async:
            response: Response = await self.endpoint(**values)
        else:
            response = await run_in_threadpool(self.endpoint, **values)
        return response


_Value = Callable[[Request, Any, list[Any]], Any]
"""Returns a value of a request with this JSON body, and adds its violations to the list."""


class _Arguments:
    """The arguments of an endpoint or a dependency, from the signature that FastAPI has parsed.

    Dependencies are plain functions of the request's values; they run on the event loop.
    """

    def __init__(self, dependant: Any) -> None:
        self.query_names = frozenset(field.alias for field in dependant.query_params)
        self._values: list[tuple[str, _Value]] = []
        for dependency in dependant.dependencies:
            arguments = _Arguments(dependency)
            self.query_names |= arguments.query_names
            self._values.append((dependency.name, _dependency(dependency.call, arguments)))
        for location in ("path", "query", "header"):
            fields = getattr(dependant, f"{location}_params")
            self._values += [(field.name, _parameter(field, location)) for field in fields]
        self._values += [(field.name, _body(field)) for field in dependant.body_params]
        if dependant.request_param_name:
            self._values.append((dependant.request_param_name, lambda request, *_: request))

    def of(self, request: Request, body: Any, errors: list[Any]) -> dict[str, Any]:
        """Return the arguments by name; adds violations to `errors`."""
        return {name: value(request, body, errors) for name, value in self._values}


def _dependency(call: Any, arguments: _Arguments) -> _Value:
    return lambda request, body, errors: call(**arguments.of(request, body, errors))


def _parameter(field: Any, location: str) -> _Value:
    source = {"path": "path_params", "query": "query_params", "header": "headers"}[location]
    alias = _header(field) if location == "header" else field.alias
    required = field.field_info.is_required()

    def value(request: Request, _body: Any, errors: list[Any]) -> Any:
        raw = getattr(request, source).get(alias)
        if raw is not None:
            return _validated(field, raw, (location, alias), errors)
        if required:
            errors.append(_missing(location, alias))
        return field.default

    return value


def _body(field: Any) -> _Value:
    def value(_request: Request, body: Any, errors: list[Any]) -> Any:
        if body is not None:
            return _validated(field, body, ("body",), errors)
        errors.append(_missing("body"))
        return None

    return value


def _validated(field: Any, raw: Any, loc: tuple[str, ...], errors: list[Any]) -> Any:
    value, field_errors = field.validate(raw, loc=loc)
    errors.extend(field_errors)
    return value


def _header(field: Any) -> str:
    """Return the header's name: an alias as it is, a parameter's name with hyphens."""
    return str(field.alias if field.alias != field.name else field.name.replace("_", "-"))


def _missing(*location: str) -> dict[str, Any]:
    return {"type": "missing", "loc": location, "msg": "Field required"}


def _check_query(request: Request, query_names: frozenset[str]) -> None:
    """Refuse unknown parameters, and those given twice."""
    times = Counter(name for name, _ in request.query_params.multi_items())
    taken = ", ".join(sorted(query_names)) or "none"
    violations = []
    for name, count in times.items():
        if name not in query_names:
            message = f"unknown parameter; this path takes {taken}"
            violations.append(Violation(pointer=f"query:{name[:100]}", message=message))
        elif count > 1:
            violations.append(Violation(pointer=f"query:{name}", message="given more than once"))
    if violations:
        raise InvalidRequest.malformed(violations)


def _check_length(request: Request, limit_bytes: int) -> None:
    """Refuse a body that is announced as too large."""
    # The server refuses a length that is not a number.
    announced = request.headers.get("content-length", "0")
    if len(announced) > 18 or int(announced) > limit_bytes:
        raise _too_large(limit_bytes)


async def _read_json(request: Request, limit_bytes: int, media_types: Collection[str]) -> Any:
    _check_media_type(request, media_types)
    body, more = b"", True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise InvalidRequest("The connection closed before the end of the body.")
        body += message.get("body", b"")
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes)
        more = message.get("more_body", False)
    return loads(body)


def _check_media_type(request: Request, media_types: Collection[str]) -> None:
    """Refuse a body that is announced as something other than JSON."""
    headers = request.headers
    media_type = headers.get("content-type", "").partition(";")[0].strip()
    if media_type.lower() not in media_types:
        if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
            raise MalformedJson(NO_BODY)
        sent = f"is {media_type[:100]}" if media_type else "is missing"
        raise UnsupportedMediaType(
            f"The Content-Type of the body {sent}; send JSON with the header "
            "Content-Type: application/json.",
            (Violation(pointer="header:Content-Type", message="expected application/json"),),
        )
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise UnsupportedMediaType(
            "The body is compressed; send it without Content-Encoding.",
            (Violation(pointer="header:Content-Encoding", message="expected identity"),),
        )


def _too_large(limit_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"A request body has at most {limit_bytes} bytes; send less.")
