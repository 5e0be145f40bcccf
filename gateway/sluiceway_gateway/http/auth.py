"""Authentication and authorization of requests. Every route denies until told otherwise.

`Authentication` stands before the routes, so that it covers those that do not
exist as well, and reads no body. `access(...)` is the leave; a route that
declares none is refused, whoever asks.
"""

from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import urlsplit

from anyio import to_thread
from fastapi import Depends, Request
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from sluiceway_gateway.auth.bind import is_loopback, is_loopback_authority
from sluiceway_gateway.auth.model import Action, Principal
from sluiceway_gateway.auth.service import LOOPBACK, Credentials, Tokens
from sluiceway_gateway.errors import Forbidden, SluicewayGatewayError, Unauthenticated
from sluiceway_gateway.http.problems import problem_response

PUBLIC = frozenset({"/livez", "/readyz"})
"""The paths that anybody may ask for; they say yes, or no with a word for what is away."""

_STATE = "sluiceway.principal"


class Authentication:
    """ASGI middleware that lets a request through with its principal, or answers it."""

    def __init__(self, app: ASGIApp, *, tokens: Tokens) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve HTTP; nothing else is served but the lifespan."""
        if scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"] in PUBLIC):
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise NotImplementedError(f"a connection of the kind {scope['type']}")
        try:
            principal = await authenticated(self._tokens, scope)
        except SluicewayGatewayError as error:
            await problem_response(error)(scope, receive, send)
            return
        scope[_STATE] = principal
        await self._app(scope, receive, send)


async def authenticated(tokens: Tokens, scope: Scope) -> Principal:
    """Return who sends the request, as of now; raises Unauthenticated and Forbidden."""
    headers = Headers(scope=scope)
    credentials = credentials_of(headers)
    if credentials.text is not None:
        return await to_thread.run_sync(tokens.authenticate, credentials.text)
    await to_thread.run_sync(tokens.require_open)
    check_local(scope, headers)
    return LOOPBACK


def credentials_of(headers: Headers) -> Credentials:
    """Return the token that the request brings, if any; raises Unauthenticated for what is none."""
    given = headers.getlist("authorization")
    if not given:
        return Credentials(text=None)
    scheme, _, text = given[0].partition(" ")
    if len(given) > 1 or scheme.lower() != "bearer" or not text.strip():
        raise Unauthenticated("The credentials are not one `Authorization: Bearer TOKEN`.")
    return Credentials(text=text.strip())


def check_local(scope: Scope, headers: Headers) -> None:
    """Without tokens, serve this machine alone, and no page that a browser got elsewhere."""
    client = scope.get("client")
    origin = headers.get("origin")
    local = (
        client is not None
        and is_loopback(client[0])
        and is_loopback_authority(headers.get("host", ""))
        and (origin is None or is_loopback_authority(_authority(origin)))
    )
    if not local:
        raise Forbidden(
            "Without tokens this gateway serves its own machine only, under a loopback name "
            "such as 127.0.0.1; make a token with `sluiceway token create`."
        )


def _authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def principal_of(request: Request) -> Principal:
    """Return who asks; raises Forbidden where nobody checked."""
    principal = request.scope.get(_STATE)
    if not isinstance(principal, Principal):
        raise Forbidden("This path is not open to anybody.")
    return principal


class Access:
    """The leave that a route declares: what it does, to the channel of the path if there is one."""

    def __init__(self, action: Action | None) -> None:
        self.action = action

    # Asynchronous, as FastAPI would spend a thread on it otherwise.
    async def __call__(self, request: Request) -> Principal:
        """Return who asks; raises Forbidden if they may not."""
        principal = principal_of(request)
        if self.action is not None:
            principal.require(self.action, request.path_params.get("name"))
        return principal


def access(action: Action | None) -> Any:
    """Return the dependency that gives a route's principal, if it may do `action`.

    The channel is the path's `name`. None asks for a valid token alone: for what
    shows no channel, or decides by itself.
    """
    return Depends(Access(action))


Anybody = Annotated[Principal, access(None)]
Viewer = Annotated[Principal, access(Action.VIEW)]
Manager = Annotated[Principal, access(Action.MANAGE)]
Administrator = Annotated[Principal, access(Action.ADMIN)]


def has_access(route: APIRoute) -> bool:
    """Whether the route declares a leave."""
    waiting: list[Any] = [route.dependant]
    while waiting:
        dependant = waiting.pop()
        if isinstance(dependant.call, Access):
            return True
        waiting.extend(dependant.dependencies)
    return False


def guarded(route: APIRoute, path: str) -> Callable[[Request], None]:
    """Return a check that refuses every request to a route that declares no leave."""
    closed = path not in PUBLIC and not has_access(route)

    def check(_request: Request) -> None:
        if closed:
            raise Forbidden("This path is not open to anybody.")

    return check
