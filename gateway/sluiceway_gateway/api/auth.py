"""Authentication of requests, before anything else is read of them, and permissions of routes."""

from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import urlsplit

from anyio import to_thread
from fastapi import APIRouter, Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import iter_route_contexts
from starlette.authentication import (
    AuthCredentials,
    AuthenticationBackend,
    AuthenticationError,
    BaseUser,
)
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.routing import compile_path

from sluiceway_gateway.core.auth.model import Action, Principal
from sluiceway_gateway.core.auth.service import Tokens, is_loopback, is_loopback_authority
from sluiceway_gateway.core.errors import (
    DatabaseUnavailable,
    Forbidden,
    SluicewayGatewayError,
    Unauthenticated,
)

HEALTH = frozenset({"/livez", "/readyz"})
"""Paths of the health endpoints, whose responses name failing parts, but no addresses."""
PUBLIC = HEALTH | {
    *("/", "/ui/{file:path}", "/openapi.json", "/docs", "/docs/errors", "/docs/{file}")
}
"""Routes without authentication: health, and files of the dashboard and the documentation."""
METRICS: Final = "/metrics"
"""The path that takes credentials that were last valid while the database is unavailable."""
REGISTRY: Final = "/registry"
"""The paths that take the token as the password of basic authentication too."""

_PUBLIC_PATHS = [compile_path(path)[0] for path in sorted(PUBLIC)]
_OUTAGE_S = 86_400.0
_PROXY_HEADERS = {"forwarded", "via", "x-real-ip"}


class Caller(BaseUser):
    """`request.user`: the sender of a request, whose token is valid."""

    def __init__(self, principal: Principal, token: str | None, *, remembered: bool) -> None:
        self.principal = principal
        self.token = token
        self.remembered = remembered
        """Whether the token was valid within the last seconds, and the database not read since."""

    @property
    def is_authenticated(self) -> bool:
        """Always true."""
        return True

    @property
    def display_name(self) -> str:
        """The token's label; without tokens, the principal's id."""
        return self.principal.subject or self.principal.id

    @property
    def identity(self) -> str:
        """The principal's id."""
        return self.principal.id


class TokenBackend(AuthenticationBackend):
    """Authenticates requests by their token, for Starlette's AuthenticationMiddleware.

    Credentials that were valid within the last seconds are accepted without a read of the database:
    the route's Permission reads it, or the service in its transaction. Public routes are open.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        """Return the caller. Raises AuthenticationError, whose cause is the error to respond with.

        Reads the database on a worker thread.
        """
        path = conn.scope["path"]
        is_read = conn.scope["type"] == "http" and conn.scope["method"] == "GET"
        if is_read and any(public.match(path) for public in _PUBLIC_PATHS):
            return None
        try:
            return AuthCredentials(["authenticated"]), await self._caller(conn, path)
        except SluicewayGatewayError as error:
            raise AuthenticationError from error

    async def _caller(self, conn: HTTPConnection, path: str) -> Caller:
        token = _token(conn.headers, basic=is_of_registry(path))
        principal = None if path == METRICS else self._tokens.recall(token)
        remembered = principal is not None
        if principal is None:
            try:
                principal = await to_thread.run_sync(self._tokens.authenticate, token)
            except DatabaseUnavailable:
                if path == METRICS:
                    principal = self._tokens.recall(token, within_s=_OUTAGE_S)
                if principal is None:
                    raise
        if token is None:
            _require_local(conn)
        return Caller(principal, token, remembered=remembered)


def is_of_registry(path: str) -> bool:
    """Whether this is a path of the registry."""
    return path == REGISTRY or path.startswith(f"{REGISTRY}/")


async def authenticate_again(request: Request) -> Principal:
    """Return the principal of a request whose token is still valid; raises Unauthenticated.

    Reads the database on a worker thread.
    """
    tokens: Tokens = request.app.state.parts.tokens
    return await to_thread.run_sync(tokens.authenticate, request.user.token)


@dataclass(frozen=True)
class Permission:
    """The dependency of a route that gives its principal, if the token allows `action`.

    `channel` is the path parameter with the channel's name; None for actions on all channels.
    Without an action any valid token is enough: for routes that show no channel, or whose service
    authorizes. `authorized_in_transaction`: the service checks the token once more in its own
    transaction, so credentials that were valid within the last seconds are enough to get there.
    Equal ones are one dependency, also in `dependency_overrides`.
    """

    action: Action | None = None
    channel: str | None = None
    authorized_in_transaction: bool = False

    async def __call__(self, request: Request) -> Principal:
        """Return the principal; raises Unauthenticated or Forbidden."""
        caller: Caller = request.user
        principal = caller.principal
        if caller.remembered and not self.authorized_in_transaction:
            principal = await authenticate_again(request)
        if self.action is not None:
            channel = None if self.channel is None else request.path_params[self.channel]
            principal.require(self.action, channel)
        return principal


Anybody = Annotated[Principal, Depends(Permission())]
Viewer = Annotated[Principal, Depends(Permission(Action.VIEW, channel="name"))]
Reader = Annotated[Principal, Depends(Permission(Action.READ, channel="name"))]
Writer = Annotated[Principal, Depends(Permission(Action.WRITE, channel="name"))]
Manager = Annotated[Principal, Depends(Permission(Action.MANAGE, channel="name"))]
Administrator = Annotated[Principal, Depends(Permission(Action.ADMIN))]


def permissions(dependant: Dependant) -> Iterator[Permission]:
    """Yield the permissions in a route's signature."""
    for dependency in dependant.dependencies:
        if isinstance(dependency.call, Permission):
            yield dependency.call
        yield from permissions(dependency)


def require_permissions(router: APIRouter) -> None:
    """Raise RuntimeError if a route has no Permission in its signature, and is not public."""
    for route in iter_route_contexts(router.routes):
        if route.path not in PUBLIC and not any(permissions(route.dependant)):
            raise RuntimeError(f"the route {route.path} has no Permission in its signature")


def _token(headers: Headers, *, basic: bool) -> str | None:
    values = headers.getlist("authorization")
    if not values:
        return None
    scheme, _, text = values[0].partition(" ")
    if len(values) == 1 and text.strip():
        if scheme.lower() == "bearer":
            return text.strip()
        if scheme.lower() == "basic" and basic:
            return _password(text.strip())
    also = ", or basic authentication with the token as the password" if basic else ""
    raise Unauthenticated(
        f"The request needs exactly one header `Authorization: Bearer TOKEN`{also}."
    )


def _password(credentials: str) -> str:
    try:
        _user, colon, password = b64decode(credentials, validate=True).decode().partition(":")
    except ValueError:
        colon = password = ""
    if not colon or not password:
        raise Unauthenticated("Basic authentication needs USER:TOKEN in base64; any user will do.")
    return password


def _require_local(connection: HTTPConnection) -> None:
    """Without tokens, serve this machine only, no proxy and no page from another origin."""
    client, headers = connection.client, connection.headers
    forwarding = next(filter(_is_of_proxy, headers), None)
    if forwarding is not None:
        raise Forbidden(
            f"A proxy has forwarded this request, as its header {forwarding!r} shows, and without "
            "tokens this gateway serves its own machine only; create one with "
            "`sluiceway token create`."
        )
    origin = headers.get("origin")
    local = (
        client is not None
        and is_loopback(client.host)
        and is_loopback_authority(headers.get("host", ""))
        and (origin is None or is_loopback_authority(_authority(origin)))
    )
    if not local:
        raise Forbidden(
            "Without tokens this gateway serves its own machine only, under a loopback name "
            "such as 127.0.0.1; create one with `sluiceway token create`."
        )


def _is_of_proxy(header: str) -> bool:
    """Whether proxies add this header: a request from loopback may then come from any machine."""
    return header in _PROXY_HEADERS or header.startswith("x-forwarded-")


def _authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""
