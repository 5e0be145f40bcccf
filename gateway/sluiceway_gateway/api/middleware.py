"""Access log, metrics and ids of requests; the limit of bodies; long polls, and their end."""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Collection, Coroutine
from typing import Any, TypeVar

import structlog
from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluiceway.tracing import request_ids
from sluiceway_gateway.api.auth import Caller, authenticate_again
from sluiceway_gateway.core.auth.ownership import Ownership
from sluiceway_gateway.core.changes import Changes
from sluiceway_gateway.core.db.engine import ChangeKey
from sluiceway_gateway.core.db.failures import cause_of
from sluiceway_gateway.core.errors import BodyTooLarge, SluicewayGatewayError
from sluiceway_gateway.core.preconditions import Precondition
from sluiceway_gateway.core.telemetry import Metrics
from sluiceway_gateway.core.tracing import continued

_log = structlog.stdlib.get_logger("sluiceway_gateway.http")
_lines = logging.getLogger("sluiceway_gateway.http")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:=+/@-]{1,128}")
#: Changes that are as frequent as reads, and logged like them.
_FREQUENT = {"/v1/heartbeats", "/v1/channels/{name}/groups/{group}/offsets"}

Respond = Callable[[Request, SluicewayGatewayError], Response]
"""Returns the response to a request that failed with this error."""


class Observation:
    """Logs and counts requests, gives each an id, and responds to unexpected errors.

    `request.state` has the `request_id` and the `method` that was sent: a HEAD is served like a
    GET, and the server sends the headers of the response and no body.
    """

    def __init__(
        self, app: ASGIApp, *, metrics: Metrics, ownership: Ownership, respond: Respond
    ) -> None:
        self._app = app
        self._ownership = ownership
        self._metrics = metrics
        self._respond = respond
        self._request_ids = request_ids()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve HTTP requests and the lifespan only."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise NotImplementedError(f"a connection of the kind {scope['type']}")
        request_id = _given_id(scope) or next(self._request_ids)
        method, begun, status = scope["method"], time.perf_counter(), 0
        if method == "HEAD":
            # The server has to see the method that was sent.
            scope = {**scope, "method": "GET"}
        scope.setdefault("state", {}).update(request_id=request_id, method=method)

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id.encode()),
                ]
            await send(message)

        with (
            continued(scope.get("headers", ())),
            structlog.contextvars.bound_contextvars(request_id=request_id),
        ):
            try:
                await self._app(scope, receive, observed)
            except Exception:
                _log.exception("request failed", method=method)
                if status:
                    # A part of the response was sent; the server closes the connection.
                    raise
                response = self._respond(Request(scope), _internal(request_id))
                await response(scope, receive, observed)
            finally:
                self._record(scope, method, status, time.perf_counter() - begun)
                if self._ownership.pending:
                    await run_in_threadpool(self._ownership.write_pending)

    def _record(self, scope: Scope, method: str, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path_format", "unmatched")
        self._metrics.count_request(route=route, method=method, status=status, seconds=seconds)
        usual = status < 500 if method in {"GET", "HEAD"} else status < 400 and route in _FREQUENT
        level = logging.DEBUG if usual else logging.INFO
        if not _lines.isEnabledFor(level):
            # structlog's own check comes only after it has built the entry.
            return
        caller, failure = scope.get("user"), scope["state"].get("error")
        _log.log(
            level,
            "request",
            method=method,
            route=route,
            channel=scope.get("path_params", {}).get("name"),
            by=caller.display_name if isinstance(caller, Caller) else None,
            status=status,
            ms=round(seconds * 1000, 1),
            **({} if failure is None else _fields_of(failure)),
        )


class BodyLimit:
    """Refuses bodies with more bytes than the limit, announced or not."""

    def __init__(self, app: ASGIApp, *, limit_bytes: int, respond: Respond) -> None:
        self._app = app
        self._limit_bytes = limit_bytes
        self._respond = respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request with a limited body."""
        received = 0
        too_large = f"A request body has at most {self._limit_bytes} bytes; send less."

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit_bytes:
                # FastAPI passes on no other error from its own read of a body.
                raise HTTPException(413, too_large)
            return message

        # The server refuses a length that is not a number.
        announced = dict(scope.get("headers", ())).get(b"content-length", b"0")
        if len(announced) > 18 or int(announced) > self._limit_bytes:
            response = self._respond(Request(scope), BodyTooLarge(too_large))
            await response(scope, receive, send)
        else:
            await self._app(scope, limited, send)


def _fields_of(failure: SluicewayGatewayError) -> dict[str, str]:
    """Return the log's fields for an error: its code, and the database's own message."""
    cause = cause_of(failure)
    return {"code": failure.code} | ({} if cause is None else {"cause": cause})


def _given_id(scope: Scope) -> str | None:
    """Return the request's X-Request-Id; None if it is missing, malformed, or given twice."""
    ids = [value for name, value in scope.get("headers", ()) if name == b"x-request-id"]
    return ids[0].decode() if len(ids) == 1 and _REQUEST_ID.fullmatch(ids[0]) else None


def _internal(request_id: str) -> SluicewayGatewayError:
    return SluicewayGatewayError(
        f"The gateway failed on this request; its log has the cause, with the request id "
        f"{request_id}."
    )


T = TypeVar("T")


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `work`; None if the client disconnects first, which cancels it."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_departure(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for future in (task, gone):
            future.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def long_poll(
    request: Request,
    precondition: Precondition,
    wait_s: float,
    *,
    changes: Changes,
    awaited: Collection[ChangeKey] | Callable[[], Collection[ChangeKey]],
    read: Callable[[], T],
    tag: Callable[[T], str],
    authenticates: bool = False,
) -> tuple[T, Response | None]:
    """Return the state and None, or, if it has the tag of `If-None-Match` for `wait_s`, a 304 too.

    `awaited` are the changes after which the state may differ, or a function that reads them. Such
    a function and `read` run on a worker thread. Unless `read` authenticates the request, it is
    authenticated again after each wait.
    """
    until_s = time.monotonic() + wait_s
    waits = wait_s > 0 and precondition.if_none_match is not None
    if not waits:
        awaited = ()
    elif callable(awaited):
        awaited = await run_in_threadpool(awaited)
    with changes.subscribe(awaited) as subscription:
        state = await run_in_threadpool(read)
        # A change may concern another page, or channels that this token does not see.
        while precondition.names(tag(state)):
            if not waits or not await unless_disconnected(
                request, changes.wait(subscription, until_s=until_s)
            ):
                return state, Response(status_code=304, headers={"ETag": tag(state)})
            if not authenticates:
                await authenticate_again(request)
            state = await run_in_threadpool(read)
    return state, None


async def _departure(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
