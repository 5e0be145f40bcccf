"""The one kind of route: guarded, and refusing whatever it does not know."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from sluiceway_gateway.errors import InvalidRequest, Violation
from sluiceway_gateway.http.auth import guarded
from sluiceway_gateway.http.json import loads

Handler = Callable[[Request], Awaitable[Response]]


class _ParsedRequest(Request):
    """A request whose body is read as strict JSON, once."""

    parsed: Any = None

    async def parse(self) -> None:
        """Read the body; raises InvalidRequest and BodyTooLarge."""
        self.parsed = loads(await self.body())

    async def json(self) -> Any:
        """Return the body that was read."""
        return self.parsed


class GatewayRoute(APIRoute):
    """Checks leave, parameters and body before FastAPI looks at them."""

    def get_route_handler(self) -> Any:
        """Return FastAPI's handler behind our checks."""
        handler = super().get_route_handler()
        check = guarded(self, self.path)
        known = frozenset(field.alias for field in self._query_fields())
        takes_body = self.body_field is not None

        async def strict(request: Request) -> Any:
            check(request)
            _check_query(request, known)
            if takes_body:
                _check_type(request)
                request = parsed = _ParsedRequest(request.scope, request.receive)
                # Here, where our errors pass; FastAPI would make an error 400 of them.
                try:
                    await parsed.parse()
                except ClientDisconnect:
                    raise InvalidRequest("The body was not sent to its end.") from None
            return await handler(request)

        return strict

    def _query_fields(self) -> list[Any]:
        fields: list[Any] = []
        waiting: list[Any] = [self.dependant]
        while waiting:
            dependant = waiting.pop()
            fields.extend(dependant.query_params)
            waiting.extend(dependant.dependencies)
        return fields


def _check_query(request: Request, known: frozenset[str]) -> None:
    """Refuse parameters that the route does not have, and those given twice."""
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


def _check_type(request: Request) -> None:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise InvalidRequest(
            "The body has to be JSON and say so: send Content-Type: application/json.",
            (Violation(pointer="header:Content-Type", message="expected application/json"),),
        )
