"""The short way for commits, the most frequent of all calls but beats.

The route of commits in `offsets` is what is documented, and answers whatever is not well-formed.
What is goes from here straight into the transaction that it shares with others, which also looks
at its token: nothing is done twice, and no thread is asked before that one.
"""

import asyncio
import json
import re
from typing import Any

from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluiceway_gateway.domain.errors import InvalidRequest, SluicewayGatewayError
from sluiceway_gateway.domain.group import check_group
from sluiceway_gateway.domain.name import check_name
from sluiceway_gateway.domain.position import Commit
from sluiceway_gateway.http.guard import check_local, credentials_of
from sluiceway_gateway.http.offsets import CommitPut, commit_of, outcome_json, router
from sluiceway_gateway.http.problems import problem_response
from sluiceway_gateway.http.strict_json import loads
from sluiceway_gateway.services.offsets import Offsets
from sluiceway_gateway.services.tokens import Credentials

_PATH = re.compile(r"/v1/channels/([^/]+)/groups/([^/]+)/offsets\Z")
_ROUTE = next(each for each in router.routes if "PUT" in getattr(each, "methods", ()))


class CommitShortcut:
    """ASGI middleware before the guard: answers well-formed commits, and passes on the rest."""

    def __init__(self, app: ASGIApp, *, offsets: Offsets, limit_bytes: int) -> None:
        self._app = app
        self._offsets = offsets
        self._limit_bytes = limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http" or scope["method"] != "PUT":
            await self._app(scope, receive, send)
            return
        path = _PATH.match(scope["path"])
        headers = Headers(scope=scope)
        credentials = None if path is None else self._credentials(scope, headers)
        if path is None or credentials is None:
            await self._app(scope, receive, send)
            return
        messages: list[Message] = []
        commit = await _read(path, receive, messages)
        if commit is None:
            await self._app(scope, _again(messages, receive), send)
            return
        scope["route"], scope["path_params"] = _ROUTE, {"name": path[1], "group": path[2]}
        response = await self._committed(commit, credentials)
        await response(scope, receive, send)

    def _credentials(self, scope: Scope, headers: Headers) -> Credentials | None:
        """Return what the request says of who asks; None if the ordinary way has to look at it."""
        length = headers.get("content-length", "")
        plain = (
            not scope["query_string"]
            and headers.get("content-type") == "application/json"
            and re.fullmatch("[0-9]{1,9}", length) is not None
            and int(length) <= self._limit_bytes
        )
        if not plain:
            return None
        try:
            credentials = credentials_of(headers)
            if credentials.text is None:
                check_local(scope, headers)
        except SluicewayGatewayError:
            return None
        return credentials

    async def _committed(self, commit: Commit, credentials: Credentials) -> Response:
        try:
            done = await asyncio.wrap_future(self._offsets.commit_soon(commit, by=credentials))
        except SluicewayGatewayError as error:
            return problem_response(error)
        body = json.dumps(outcome_json(done), separators=(",", ":"))
        return Response(body, media_type="application/json")


async def _read(path: re.Match[str], receive: Receive, messages: list[Message]) -> Commit | None:
    """Return the commit, or None where it is for the ordinary way to say what is wrong with it."""
    body, more = b"", True
    while more:
        message = await receive()
        messages.append(message)
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        more = message.get("more_body", False)
    try:
        asked = CommitPut.model_validate(loads(body))
        return commit_of(check_name(path[1]), check_group(path[2]), asked)
    except (InvalidRequest, ValidationError, ValueError):
        return None


def _again(messages: list[Message], receive: Receive) -> Receive:
    """Return a `receive` that begins with what was received before."""
    waiting: list[Any] = list(messages)

    async def replayed() -> Message:
        return waiting.pop(0) if waiting else await receive()

    return replayed
