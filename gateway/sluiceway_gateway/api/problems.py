"""Errors as RFC 9457 problems: HTTP status, JSON, OpenAPI responses."""

import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

import fastapi
from fastapi import Request
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import Response
from starlette.routing import Match

from sluiceway_gateway.api.auth import is_of_registry
from sluiceway_gateway.core import errors
from sluiceway_gateway.core.errors import (
    MOST_VIOLATIONS,
    InvalidRequest,
    SluicewayGatewayError,
    Violation,
)

MEDIA_TYPE = "application/problem+json"
_Answer = Coroutine[Any, Any, Response]


class FieldError(BaseModel):
    """A violation of the request's rules."""

    pointer: str = Field(description="JSON pointer into the body, or path:, query: or header:NAME")
    message: str


class Problem(BaseModel):
    """The cause of the failure, and the solution."""

    model_config = ConfigDict(extra="forbid")

    type: str = Field(description="urn:sluiceway:problem:CODE")
    title: str
    status: int
    detail: str
    code: str = Field(description="Stable, for programs; /docs/errors lists them")
    retriable: bool = Field(description="Whether the same request can succeed later")
    request_id: str | None = Field(
        default=None, description="The request in the gateway's log, as in X-Request-Id"
    )
    errors: list[FieldError] | None = Field(
        default=None,
        description="Where it is malformed; the first 20, and `detail` counts the others",
    )


def problem_response(
    error: SluicewayGatewayError,
    headers: Mapping[str, str] = {},
    *,
    request_id: str | None = None,
) -> Response:
    """Return the response for an error."""
    body: dict[str, Any] = {
        "type": f"urn:sluiceway:problem:{error.code}",
        "title": error.title,
        "status": error.status,
        "detail": str(error),
        "code": error.code,
        "retriable": error.retriable,
    }
    if request_id is not None:
        body["request_id"] = request_id
    if error.violations:
        body["errors"] = [asdict(violation) for violation in error.violations]
    own = {**headers, **headers_of(error)}
    # Escaped as ASCII: messages quote text that may not be valid in UTF-8.
    return Response(json.dumps(body), error.status, headers=own, media_type=MEDIA_TYPE)


def headers_of(error: SluicewayGatewayError, *, scheme: str = "Bearer") -> dict[str, str]:
    """Return an error's headers; `scheme` is how the path takes tokens."""
    if isinstance(error, errors.Unauthenticated):
        return {"WWW-Authenticate": f'{scheme} realm="sluiceway"'}
    if isinstance(error, errors.Unavailable):
        return {"Retry-After": str(error.retry_after_s)}
    if isinstance(error, errors.UnsupportedMediaType):
        return {"Accept": "application/json"}
    if isinstance(error, errors.MethodNotAllowed):
        return {"Allow": ", ".join(error.allowed)}
    return {}


_POINTER_LENGTH = 300
_WORDS = {
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "not an object"),
    "extra_forbidden": "there is no such field; correct its name or leave it out",
    "missing": "needed, and not given",
}


def malformed(errors: Sequence[Mapping[str, Any]]) -> InvalidRequest:
    """Return the error for pydantic's violations, without values."""
    violations = [
        Violation(
            pointer=_pointer([str(part) for part in error["loc"]]),
            message=_WORDS.get(error["type"], str(error["msg"]).removeprefix("Value error, ")),
        )
        for error in errors[:MOST_VIOLATIONS]
    ]
    return InvalidRequest.malformed(violations, count=len(errors))


def _pointer(location: list[str]) -> str:
    where, path = location[0], location[1:]
    if where == "body":
        path = [f"/{part.replace('~', '~0').replace('/', '~1')}" for part in path]
        return _shortened("".join(path))
    return _shortened(":".join((where, *path)))


def _shortened(pointer: str) -> str:
    """Return the pointer, cut to a maximum length: its names come from the request."""
    return pointer if len(pointer) <= _POINTER_LENGTH else f"{pointer[:_POINTER_LENGTH]}…"


def problems(
    *statuses: Literal[404, 409, 412, 413, 422], also: Mapping[int | str, Any] | None = None
) -> dict[int | str, Any]:
    """Return a route's `responses`: these problems, and those of every route.

    Routes that take a body name 413, which adds 400 and 415.
    """
    bodies = {400, 415} if 413 in statuses else set()
    described = {
        400: "The body is not JSON",
        401: "No valid token",
        403: "The token's scopes do not cover the request",
        404: "Not found",
        409: "The state does not allow it; `code` says why",
        412: "The precondition does not hold",
        413: "The body is too large",
        414: "The URL is too long",
        415: "The body is not sent as application/json",
        422: "The request is malformed",
        500: "The gateway failed",
        503: "The database or Kafka is unavailable, or too many requests wait; see Retry-After",
    }
    responses: dict[int | str, Any] = {
        status: {
            "description": described[status],
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in sorted({401, 403, 414, 422, 500, 503, *statuses, *bodies})
    }
    return {**responses, **(also or {})}


class ErrorResponses:
    """Responses to errors: problems, and for the registry's paths its own format."""

    def __init__(self, *, of_registry: Callable[[SluicewayGatewayError], Response]) -> None:
        self._of_registry = of_registry

    def of(self, connection: HTTPConnection, error: SluicewayGatewayError) -> Response:
        """Return the response to a request that failed; its log will have the error."""
        connection.state.error = error
        if is_of_registry(connection.scope["path"]):
            return self._of_registry(error)
        return problem_response(error, request_id=getattr(connection.state, "request_id", None))

    def to_refusal(self, connection: HTTPConnection, error: Exception) -> Response:
        """Return the response to an AuthenticationError, whose cause is the gateway's error."""
        if not isinstance(error.__cause__, SluicewayGatewayError):
            raise error
        return self.of(connection, error.__cause__)

    @property
    def handlers(self) -> dict[int | type[Exception], Callable[[Request, Any], _Answer]]:
        """The exception handlers of the application."""

        async def on_error(request: Request, error: SluicewayGatewayError) -> Response:
            return self.of(request, error)

        async def on_invalid(request: Request, error: RequestValidationError) -> Response:
            return self.of(request, malformed(error.errors()))

        async def on_disconnect(request: Request, _error: ClientDisconnect) -> Response:
            closed = InvalidRequest("The connection closed before the end of the body.")
            return self.of(request, closed)

        async def on_http(request: Request, error: HTTPException) -> Response:
            refusal = None if isinstance(error, fastapi.HTTPException) else _refusal(request, error)
            if refusal is None:
                return await http_exception_handler(request, error)
            return self.of(request, refusal)

        return {
            SluicewayGatewayError: on_error,
            RequestValidationError: on_invalid,
            ClientDisconnect: on_disconnect,
            HTTPException: on_http,
        }


def _refusal(request: Request, error: HTTPException) -> SluicewayGatewayError | None:
    """Return the error for a refusal by the router or by BodyLimit; None for another one."""
    match error.status_code:
        case 404:
            return errors.NotFound("There is nothing here; the paths are at /docs.")
        case 405:
            allowed = _methods(request)
            message = f"{request.state.method} is not for this; use {', '.join(allowed)}."
            return errors.MethodNotAllowed(message, allowed)
        case 413:
            return errors.BodyTooLarge(error.detail)
    return None


def _methods(request: Request) -> list[str]:
    """Return all methods of the request's path; the router's error has those of one route."""
    methods: set[str] = set()
    for route in iter_route_contexts(request.app.routes):
        if route.methods and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods
    return sorted(methods | {"HEAD"} if "GET" in methods else methods)
