"""Fast path of the most frequent requests, before FastAPI.

Each short way belongs to a route, which is what is documented and answers whatever is not
well-formed. What is goes from here straight into the transaction that does it, which also looks at
the token: nothing is done twice, and no thread is asked before that one.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluiceway_gateway.auth.service import Credentials
from sluiceway_gateway.channels.etag import Precondition
from sluiceway_gateway.channels.model import check_name
from sluiceway_gateway.endpoints import heartbeat_routes
from sluiceway_gateway.endpoints import routes as endpoints_routes
from sluiceway_gateway.endpoints.attach_batch import AttachRequest, AttachSpec
from sluiceway_gateway.endpoints.heartbeat_routes import HeartbeatPost
from sluiceway_gateway.endpoints.wire import CLIENT_LENGTH, AttachPost
from sluiceway_gateway.errors import InvalidRequest, SluicewayGatewayError
from sluiceway_gateway.groups.model import check_group
from sluiceway_gateway.http.auth import check_local, credentials_of
from sluiceway_gateway.http.deps import Services
from sluiceway_gateway.http.json import loads
from sluiceway_gateway.http.problems import problem_response
from sluiceway_gateway.offsets import routes as offsets_routes
from sluiceway_gateway.offsets.model import Commit
from sluiceway_gateway.offsets.routes import CommitPut
from sluiceway_gateway.status import routes as status_routes
from sluiceway_gateway.status.views import ChannelView

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


def short_ways(parts: Services) -> Sequence[ShortWay]:
    """Return the short ways of a gateway."""
    return (_commits(parts), _beats(parts), _attaching(parts), _statuses(parts))


def _commits(parts: Services) -> ShortWay:
    def read(request: Request) -> Commit:
        name, group = check_name(request.path["name"]), check_group(request.path["group"])
        return offsets_routes.commit_of(name, group, CommitPut.model_validate(request.body))

    async def answer(commit: Commit, by: Credentials) -> Response:
        done = parts.offsets.commit_soon(commit, by=by)
        return offsets_routes.committed(await asyncio.wrap_future(done))

    return ShortWay(route=_route(offsets_routes.router, "commit"), read=read, answer=answer)


def _beats(parts: Services) -> ShortWay:
    def read(request: Request) -> tuple[HeartbeatPost, str]:
        return HeartbeatPost.model_validate(request.body), _client(request)

    async def answer(asked: tuple[HeartbeatPost, str], by: Credentials) -> Response:
        body, client = asked
        return await run_in_threadpool(
            heartbeat_routes.heard, parts.beats, body, by=by, client=client
        )

    return ShortWay(route=_route(heartbeat_routes.router, "beat"), read=read, answer=answer)


def _attaching(parts: Services) -> ShortWay:
    def read(request: Request) -> tuple[str, str, AttachSpec]:
        # There may be several to reach Kafka by, and none for those who name none.
        parts.settings.listeners.reached_by(None)
        name, body = check_name(request.path["name"]), AttachPost.model_validate(request.body)
        return name, body.uid, endpoints_routes.asked_of(body, client=_client(request))

    async def answer(given: tuple[str, str, AttachSpec], by: Credentials) -> Response:
        name, uid, asked = given
        coming = AttachRequest(channel=name, channel_uid=uid, spec=asked, asker=by)
        done = parts.attachment.submit(coming)
        return endpoints_routes.attached(parts, await asyncio.wrap_future(done), listener=None)

    return ShortWay(route=_route(endpoints_routes.router, "attach"), read=read, answer=answer)


def _statuses(parts: Services) -> ShortWay:
    def read(request: Request) -> tuple[str, Precondition]:
        seen = request.headers.get("if-none-match")
        precondition = Precondition.of(if_match=None, if_none_match=seen)
        return check_name(request.path["name"]), precondition

    async def answer(asked: tuple[str, Precondition], by: Credentials) -> Response:
        name, precondition = asked
        view = ChannelView(parts, name, by=by)
        return await status_routes.told(view, await view.look(), precondition)

    return ShortWay(route=_route(status_routes.router, "get_status"), read=read, answer=answer)


def _client(request: Request) -> str:
    return request.headers.get("user-agent", "")[:CLIENT_LENGTH]


def _route(router: APIRouter, name: str) -> APIRoute:
    route: Any = next(each for each in router.routes if getattr(each, "name", None) == name)
    assert isinstance(route, APIRoute)  # noqa: S101
    return route
