"""Access log, metrics and ids of requests; the limit of bodies; long polls, and their end."""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import structlog
from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluiceway.tracing import request_ids
from sluiceway_gateway.api.auth import PRINCIPAL, authenticate
from sluiceway_gateway.api.problems import problem_response, unrouted
from sluiceway_gateway.core.auth.model import Principal
from sluiceway_gateway.core.auth.ownership import Ownership
from sluiceway_gateway.core.auth.service import Tokens
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
    """The outermost middleware: logs and counts requests, responds to errors with problems."""

    def __init__(
        self, app: ASGIApp, *, metrics: Metrics, tokens: Tokens, ownership: Ownership
    ) -> None:
        self._app = app
        self._ownership = ownership
        self._metrics = metrics
        self._tokens = tokens
        self._request_ids = request_ids()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve HTTP requests and the lifespan only."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise NotImplementedError(f"a connection of the kind {scope['type']}")
        request_id = _given_id(scope) or next(self._request_ids)
        begun, status = time.perf_counter(), 0
        failure: SluicewayGatewayError | None = None

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
                try:
                    await self._app(scope, receive, observed)
                except (HTTPException, SluicewayGatewayError) as error:
                    if status:
                        raise
                    headers: Mapping[str, str] = {}
                    if isinstance(error, HTTPException):
                        failure, headers = await unrouted(error, Request(scope), self._tokens)
                    else:
                        failure = error
                    response = problem_response(failure, headers, request_id=request_id)
                    await response(scope, receive, observed)
            except Exception:
                _log.exception("request failed", method=scope["method"])
                if status:
                    # A part of the response was sent; the server closes the connection.
                    raise
                failure = _internal(request_id)
                response = problem_response(failure, request_id=request_id)
                await response(scope, receive, observed)
            finally:
                self._record(scope, status, time.perf_counter() - begun, failure)
                if self._ownership.pending:
                    await run_in_threadpool(self._ownership.write_pending)

    def _record(
        self, scope: Scope, status: int, seconds: float, failure: SluicewayGatewayError | None
    ) -> None:
        route = getattr(scope.get("route"), "path_format", "unmatched")
        method = scope["method"]
        self._metrics.count_request(route=route, method=method, status=status, seconds=seconds)
        usual = status < 500 if method in {"GET", "HEAD"} else status < 400 and route in _FREQUENT
        level = logging.DEBUG if usual else logging.INFO
        if not _lines.isEnabledFor(level):
            # structlog's own check comes only after it has built the entry.
            return
        principal: Principal | None = scope.get(PRINCIPAL)
        _log.log(
            level,
            "request",
            method=method,
            route=route,
            channel=scope.get("path_params", {}).get("name"),
            by=None if principal is None else principal.subject or principal.id,
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
    read: Callable[[], T],
    tag: Callable[[T], str],
    changed: Callable[..., Coroutine[Any, Any, bool]],
    authenticates: bool = False,
) -> tuple[T, Response | None]:
    """Return the state and None, or, if it has the tag of `If-None-Match` for `wait_s`, a 304 too.

    `read` runs on a worker thread; `changed` waits until the state may differ from its argument,
    and gives False after its `timeout_s`. Unless `read` authenticates the request, it is
    authenticated again after each wait.
    """
    deadline_s = time.monotonic() + wait_s
    state = await run_in_threadpool(read)
    # A change may concern another page, or channels that this token does not see.
    while precondition.names(tag(state)):
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not await unless_disconnected(request, changed(state, timeout_s=left_s)):
            return state, Response(status_code=304, headers={"ETag": tag(state)})
        if not authenticates:
            await authenticate(request, request.app.state.parts.tokens)
        state = await run_in_threadpool(read)
    return state, None


async def _departure(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
