"""The short way for what is asked most often: well-formed requests are answered before the guard.

Each short way belongs to a route, which is what is documented and answers whatever is not
well-formed. What is goes from here straight into the transaction that does it, which also looks at
the token: nothing is done twice, and no thread is asked before that one.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluiceway_gateway.auth.service import Credentials
from sluiceway_gateway.domain.errors import InvalidRequest, SluicewayGatewayError
from sluiceway_gateway.http.auth import check_local, credentials_of
from sluiceway_gateway.http.json import loads
from sluiceway_gateway.http.problems import problem_response

_FIELD = re.compile(r"{(\w+)}")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a request says, but for who asks."""

    path: Mapping[str, str]
    headers: Headers
    body: Any
    """Of strict JSON; None for a route that takes none."""


@dataclass(frozen=True, kw_only=True)
class ShortWay:
    """How requests to a route are answered, by somebody who may not be allowed to ask."""

    route: APIRoute
    """It has one method."""
    read: Callable[[Request], Any]
    """Gives what is asked for; raises InvalidRequest or ValueError if it is not well-formed."""
    answer: Callable[[Any, Credentials], Awaitable[Response]]
    """Looks at the credentials, does it and tells what came of it; raises what stands against."""

    @property
    def takes_body(self) -> bool:
        """Whether there is to be JSON."""
        return self.route.body_field is not None


class Shortcut:
    """ASGI middleware before the guard: answers what has a short way, and passes on the rest."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        ways: Sequence[ShortWay],
        recognizes: Callable[[Credentials], bool],
        limit_bytes: int,
    ) -> None:
        """`recognizes` says at once whether credentials were valid a moment ago."""
        self._app = app
        self._recognizes = recognizes
        self._limit_bytes = limit_bytes
        self._ways = {
            method: [
                (re.compile(_FIELD.sub(r"(?P<\1>[^/]+)", each.route.path) + r"\Z"), each)
                for each in ways
                if method in (each.route.methods or ())
            ]
            for way in ways
            for method in way.route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        found = self._way(scope)
        headers = Headers(scope=scope) if found else None
        if found is None or headers is None or not self._is_plain(scope, headers, found[1]):
            await self._app(scope, receive, send)
            return
        path, way = found
        credentials = _credentials(scope, headers)
        # The body of somebody unknown is left unread until the guard has asked the database.
        if credentials is None or (way.takes_body and not self._recognizes(credentials)):
            await self._app(scope, receive, send)
            return
        sent = await _received(receive) if way.takes_body else None
        try:
            # Without a body, the client went away: not JSON either.
            body = None if sent is None else loads(sent.get("body", b""))
            asked = way.read(Request(path=path, headers=headers, body=body))
        except (InvalidRequest, ValidationError, ValueError):
            # For the ordinary way to say what is wrong with it.
            await self._app(scope, _again(sent, receive), send)
            return
        scope["route"], scope["path_params"] = way.route, path
        try:
            response = await way.answer(asked, credentials)
        except SluicewayGatewayError as error:
            response = problem_response(error)
        await response(scope, receive, send)

    def _way(self, scope: Scope) -> tuple[Mapping[str, str], ShortWay] | None:
        if scope["type"] != "http":
            return None
        for pattern, way in self._ways.get(scope["method"], ()):
            path = pattern.match(scope["path"])
            if path is not None:
                return path.groupdict(), way
        return None

    def _is_plain(self, scope: Scope, headers: Headers, way: ShortWay) -> bool:
        """Whether there is nothing about the request that the ordinary way has to look at."""
        if scope["query_string"]:
            return False
        length = headers.get("content-length")
        if not way.takes_body:
            return length is None and "transfer-encoding" not in headers
        return (
            headers.get("content-type") == "application/json"
            and re.fullmatch("[0-9]{1,9}", length or "") is not None
            and int(length or "") <= self._limit_bytes
        )


def _credentials(scope: Scope, headers: Headers) -> Credentials | None:
    """Return what the request says of who asks; None if the ordinary way has to look at it."""
    try:
        credentials = credentials_of(headers)
        if credentials.text is None:
            check_local(scope, headers)
    except SluicewayGatewayError:
        return None
    return credentials


async def _received(receive: Receive) -> Message:
    """Return the whole body as one message; or that the client went away."""
    pieces, more = [], True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return message
        pieces.append(message.get("body", b""))
        more = message.get("more_body", False)
    return {"type": "http.request", "body": b"".join(pieces), "more_body": False}


def _again(message: Message | None, receive: Receive) -> Receive:
    """Return a `receive` that begins with what was received before."""
    waiting = [] if message is None else [message]

    async def replayed() -> Message:
        return waiting.pop() if waiting else await receive()

    return replayed
