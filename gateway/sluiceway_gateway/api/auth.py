"""Authentication and authorization of requests.

A route declares its access once, in its endpoint's signature; a route that declares none is closed.
"""

from base64 import b64decode
from dataclasses import dataclass
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from anyio import to_thread
from fastapi import Depends, Request
from starlette.datastructures import Headers

from sluiceway_gateway.core.auth.model import Action, Principal
from sluiceway_gateway.core.auth.service import Tokens, is_loopback, is_loopback_authority
from sluiceway_gateway.core.errors import DatabaseUnavailable, Forbidden, Unauthenticated

HEALTH = frozenset({"/livez", "/readyz"})
"""Paths of the health endpoints, whose responses name failing parts, but no addresses."""
PUBLIC = HEALTH | {
    *("/", "/ui/{file:path}", "/openapi.json", "/docs", "/docs/errors", "/docs/{file}")
}
"""Routes without authentication: health, and files of the dashboard and the documentation."""

REGISTRY: Final = "/registry"
"""The paths that take the token as the password of basic authentication too."""

PRINCIPAL = "sluiceway.principal"
"""Key of an authorized request's principal in its ASGI scope."""
_OUTAGE_S = 86_400.0
_PROXY_HEADERS = {"forwarded", "via", "x-real-ip"}


async def authenticate(
    request: Request,
    tokens: Tokens,
    *,
    recent: bool = False,
    basic: bool = False,
    in_outages: bool = False,
) -> Principal:
    """Return the principal of a request; raises Unauthenticated and Forbidden.

    Reads the database on a worker thread. With `recent`, credentials that were valid within the
    last seconds are accepted without a read. With `basic`, the token may also be the password of
    basic authentication, with any user. With `in_outages`, credentials that were last valid are
    accepted for a day while the database is unavailable.
    """
    token = _token(request.headers, basic=basic)
    principal = tokens.recall(token) if recent else None
    if principal is None:
        try:
            principal = await to_thread.run_sync(tokens.authenticate, token)
        except DatabaseUnavailable:
            principal = tokens.recall(token, within_s=_OUTAGE_S) if in_outages else None
            if principal is None:
                raise
    if token is None:
        _require_local(request)
    return principal


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


def _require_local(request: Request) -> None:
    """Without tokens, serve this machine only, no proxy and no page from another origin."""
    client, headers = request.client, request.headers
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


def is_of_registry(path: str) -> bool:
    """Whether this is a path of the registry."""
    return path == REGISTRY or path.startswith(f"{REGISTRY}/")


@dataclass(frozen=True, kw_only=True)
class Access:
    """What a route requires: a valid token, and `action` on the path's channel if there is one.

    `rechecked`: the service authenticates the principal once more in the transaction of the
    request, so credentials that were valid within the last seconds are enough to get there.
    `basic`: the token may be the password of basic authentication.
    `in_outages`: credentials that were last valid are enough while the database is unavailable.
    """

    action: Action | None = None
    rechecked: bool = False
    basic: bool = False
    in_outages: bool = False

    async def authorize(self, request: Request, tokens: Tokens) -> None:
        """Raise Unauthenticated or Forbidden unless the request may go on; reads no body."""
        principal = await authenticate(
            request,
            tokens,
            recent=self.rechecked,
            basic=self.basic,
            in_outages=self.in_outages,
        )
        if self.action is not None:
            principal.require(self.action, request.path_params.get("name"))
        request.scope[PRINCIPAL] = principal

    def __call__(self, request: Request) -> Principal:
        """Return the authorized principal."""
        principal: Principal = request.scope[PRINCIPAL]
        return principal


def access(action: Action | None, *, rechecked: bool = False) -> Any:
    """Return the dependency that authorizes a route and gives its principal.

    The channel is the path's `name`. None requires a valid token only: for routes that show no
    channel, or whose service authorizes.
    """
    return Depends(Access(action=action, rechecked=rechecked))


Anybody = Annotated[Principal, access(None)]
Viewer = Annotated[Principal, access(Action.VIEW)]
Reader = Annotated[Principal, access(Action.READ)]
Writer = Annotated[Principal, access(Action.WRITE)]
Manager = Annotated[Principal, access(Action.MANAGE)]
Administrator = Annotated[Principal, access(Action.ADMIN)]
RegistryClient = Annotated[Principal, Depends(Access(basic=True))]
Scraper = Annotated[Principal, Depends(Access(in_outages=True))]
