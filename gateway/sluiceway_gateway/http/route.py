"""The services that endpoints get, and the route class that calls the endpoints.

FastAPI reads an endpoint's signature once, for the OpenAPI document and for its parameters.
`GatewayRoute` serves requests from what FastAPI read, with one handler for all routes.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Annotated, Any

from anyio import CapacityLimiter
from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from sluiceway_gateway.auth.service import Tokens
from sluiceway_gateway.channels.service import Channels
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.endpoints.attach import AttachService
from sluiceway_gateway.endpoints.heartbeats import HeartbeatService
from sluiceway_gateway.endpoints.service import Endpoints
from sluiceway_gateway.errors import BodyTooLarge, Forbidden, InvalidRequest, Violation
from sluiceway_gateway.groups.service import GroupService
from sluiceway_gateway.http.auth import PUBLIC, Access
from sluiceway_gateway.http.json import JsonCache, ResponseCache, loads
from sluiceway_gateway.http.problems import malformed
from sluiceway_gateway.kafka.admin import KafkaAdmin
from sluiceway_gateway.longpoll import Watch
from sluiceway_gateway.metrics import Metrics
from sluiceway_gateway.offsets.ack import Acknowledgements
from sluiceway_gateway.offsets.service import Offsets
from sluiceway_gateway.settings import Settings
from sluiceway_gateway.status.service import Statuses


@dataclass(frozen=True, kw_only=True)
class Services:
    """The services of one gateway."""

    settings: Settings
    tokens: Tokens
    channels: Channels
    attach: AttachService
    endpoints: Endpoints
    heartbeats: HeartbeatService
    offsets: Offsets
    acknowledgements: Acknowledgements
    statuses: Statuses
    rendered: ResponseCache
    fragments: JsonCache
    groups: GroupService
    watch: Watch
    metrics: Metrics
    database: Database
    """For its readiness; everything else goes through a service."""
    kafka: KafkaAdmin
    failing_loops: Callable[[], Mapping[str, str]]
    probe_threads: CapacityLimiter


def services_of(request: Request) -> Services:
    """Return the services of the application that serves this request."""
    parts = request.app.state.parts
    assert isinstance(parts, Services)  # noqa: S101
    return parts


Gateway = Annotated[Services, Depends(services_of)]


Handler = Callable[[Request], Awaitable[Response]]


class GatewayRoute(APIRoute):
    """Serves requests in a fixed order; the first step that fails answers.

    1. The access that the endpoint's signature declares. A route without one is closed to
       everybody, unless its path is public.
    2. The query: unknown and repeated parameters are refused.
    3. The body: its size, its content type, then strict JSON. It is not read before.
    4. The values of all parameters, whose violations are reported together.
    5. The endpoint: a coroutine on the event loop, a plain function on a worker thread.
    """

    @property
    def access(self) -> Access | None:
        """The access that the endpoint declares, if any."""
        return next(
            (each.call for each in self.dependant.dependencies if isinstance(each.call, Access)),
            None,
        )

    @property
    def is_frequent(self) -> bool:
        """Whether its service checks the principal once more, as the most frequent ones do."""
        return self.access is not None and self.access.rechecked

    def get_route_handler(self) -> Any:
        """Return the handler of this route."""
        access, is_public = self.access, self.path in PUBLIC
        arguments = _Arguments(self.dependant)
        takes_body = bool(self.dependant.body_params)
        endpoint = self.endpoint
        is_async = iscoroutinefunction(endpoint)

        async def handle(request: Request) -> Response:
            if access is not None:
                await access.authorize(request, services_of(request).tokens)
            elif not is_public:
                raise Forbidden("This path is not open to anybody.")
            if request.scope["query_string"]:
                _check_query(request, arguments.query_names)
            limit_bytes = services_of(request).settings.max_body_bytes
            _check_length(request, limit_bytes)
            body = await _read_json(request, limit_bytes) if takes_body else None
            errors: list[Any] = []
            values = arguments.of(request, body, errors)
            if errors:
                raise malformed(errors)
            if is_async:
                response: Response = await endpoint(**values)
            else:
                response = await run_in_threadpool(endpoint, **values)
            return response

        return handle


@dataclass(frozen=True, kw_only=True)
class _Parameter:
    """A value of the path, the query or a header."""

    name: str
    alias: str
    location: str
    required: bool
    default: Any
    validate: Callable[..., tuple[Any, Sequence[Any]]]


class _Arguments:
    """The arguments of an endpoint, or of a dependency, as FastAPI read its signature.

    Dependencies are plain functions of the request's values; they run on the event loop.
    """

    def __init__(self, dependant: Any) -> None:
        self._parameters = [
            *(_parameter(each, "path", each.alias) for each in dependant.path_params),
            *(_parameter(each, "query", each.alias) for each in dependant.query_params),
            *(_parameter(each, "header", _header(each)) for each in dependant.header_params),
        ]
        self._body = next(iter(dependant.body_params), None)
        self._request_name = dependant.request_param_name
        self._dependencies = [
            (each.name, each.call, _Arguments(each)) for each in dependant.dependencies
        ]
        self.query_names: frozenset[str] = frozenset(
            each.alias for each in self._parameters if each.location == "query"
        ).union(*(each.query_names for _, _, each in self._dependencies))

    def of(self, request: Request, body: Any, errors: list[Any]) -> dict[str, Any]:
        """Return the arguments by name; adds to `errors` what is wrong with the request."""
        values: dict[str, Any] = {}
        for name, call, arguments in self._dependencies:
            values[name] = call(**arguments.of(request, body, errors))
        for each in self._parameters:
            location = each.location
            if location == "path":
                value = request.path_params.get(each.alias)
            elif location == "query":
                value = request.query_params.get(each.alias)
            else:
                value = request.headers.get(each.alias)
            if value is not None:
                values[each.name], found = each.validate(value, loc=(location, each.alias))
                errors.extend(found)
            elif each.required:
                errors.append(_missing(location, each.alias))
            else:
                values[each.name] = each.default
        if self._body is not None:
            if body is None:
                errors.append(_missing("body"))
            else:
                values[self._body.name], found = self._body.validate(body, loc=("body",))
                errors.extend(found)
        if self._request_name is not None:
            values[self._request_name] = request
        return values


def _parameter(field: Any, location: str, alias: str) -> _Parameter:
    required = field.field_info.is_required()
    return _Parameter(
        name=field.name,
        alias=alias,
        location=location,
        required=required,
        default=None if required else field.default,
        validate=field.validate,
    )


def _header(field: Any) -> str:
    """Return the header's name: an alias as it is, a parameter's name with hyphens."""
    return str(field.alias if field.alias != field.name else field.name.replace("_", "-"))


def _missing(*location: str) -> dict[str, Any]:
    return {"type": "missing", "loc": location, "msg": "Field required"}


def _check_query(request: Request, known: frozenset[str]) -> None:
    """Refuse unknown parameters, and those given twice."""
    times = Counter(name for name, _ in request.query_params.multi_items())
    taken = ", ".join(sorted(known)) or "none"
    violations = []
    for name, given in times.items():
        if name not in known:
            message = f"unknown parameter; this path takes {taken}"
            violations.append(Violation(pointer=f"query:{name[:100]}", message=message))
        elif given > 1:
            violations.append(Violation(pointer=f"query:{name}", message="given more than once"))
    if violations:
        raise InvalidRequest.malformed(violations)


def _check_length(request: Request, limit_bytes: int) -> None:
    """Refuse a body that is announced as too large."""
    # The server refuses a length that is not a number.
    announced = request.headers.get("content-length", "0")
    if len(announced) > 18 or int(announced) > limit_bytes:
        raise _too_large(limit_bytes)


async def _read_json(request: Request, limit_bytes: int) -> Any:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise InvalidRequest(
            "The body must be JSON, with the header Content-Type: application/json.",
            (Violation(pointer="header:Content-Type", message="expected application/json"),),
        )
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


def _too_large(limit_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"A request body has at most {limit_bytes} bytes; send less.")
