"""HTTP/1.1 connections: uvicorn's httptools protocol, with limits on what a client may send.

uvicorn limits neither the size of a head, nor the time a request takes to arrive, nor the number of
connections. The limits apply before authentication, so they do not depend on the client.
"""

import asyncio
import logging
import resource
from typing import Any, ClassVar

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sluiceway_gateway.api.auth import HEALTH
from sluiceway_gateway.api.problems import problem_response
from sluiceway_gateway.core.errors import (
    HeadersTooLarge,
    MalformedHttp,
    RequestTimeout,
    SluicewayGatewayError,
    TooManyConnections,
    UrlTooLong,
)
from sluiceway_gateway.core.settings import Settings

MAX_URL_BYTES = 16 * 1024
MAX_HEAD_BYTES = 32 * 1024
"""Bytes of the URL and the headers, including trailers of a chunked body."""
MAX_HEADERS = 100
HEALTH_CONNECTIONS = 16
"""Connections beyond the limit, for the health endpoints only."""

_WARN_EVERY_S = 60.0

_log = logging.getLogger("sluiceway_gateway.http")


class LimitedProtocol(HttpToolsProtocol):
    """One connection.

    At the limit, the longest idle connection is closed for a new one. If all are busy, a new
    connection can request the health endpoints only.
    """

    max_connections: ClassVar[int]
    client_timeout_s: ClassVar[float]
    """Time for a request to arrive completely, and for a client to read more of a response."""
    idle: ClassVar[dict["LimitedProtocol", None]]
    """Connections of this server without a request, the longest idle first."""
    warned_s: ClassVar[float]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._arriving = False
        """Whether a request has begun and is not complete."""
        self._parsed = False
        """Whether the parser reported anything for the data just received."""
        self._unparsed_bytes = 0
        self._head_bytes = 0
        self._error: SluicewayGatewayError | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._health_only = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, closing an idle one if necessary, or refuse it."""
        super().connection_made(transport)
        over = len(self.connections) - self.max_connections
        if over > 0:
            self._warn()
            if self.idle:
                longest = next(iter(self.idle))
                del self.idle[longest]
                longest.transport.abort()
            elif over > HEALTH_CONNECTIONS:
                self._refuse(_too_many())
                return
            else:
                self._health_only = True
                self.app = _health_only(self.app)
        self.idle[self] = None
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection."""
        self.idle.pop(self, None)
        self._cancel_deadline()
        self._cancel_stalled()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received data, and start the timer for the rest of the request."""
        self._parsed = False
        super().data_received(data)
        if self.transport.is_closing():
            return
        # The parser buffers a part of a header without a callback.
        self._unparsed_bytes = 0 if self._parsed else self._unparsed_bytes + len(data)
        if self._unparsed_bytes > MAX_HEAD_BYTES:
            self._refuse(_headers_too_large())
        elif self._arriving or self.cycle is None or self.cycle.response_complete:
            self._expect()
        else:
            self._cancel_deadline()

    def on_message_begin(self) -> None:
        """Restart the timer for a new request."""
        super().on_message_begin()
        self._parsed = self._arriving = True
        self._head_bytes = 0
        self._cancel_deadline()

    def on_url(self, url: bytes) -> None:
        """Count a piece of the URL."""
        super().on_url(url)
        self._parsed = True
        self._head_bytes = len(self.url)
        if len(self.url) > MAX_URL_BYTES:
            self._error = UrlTooLong(f"A URL has at most {MAX_URL_BYTES} bytes.")
            raise self._error

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header or a trailer."""
        super().on_header(name, value)
        self._parsed = True
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            self._error = _headers_too_large()
            raise self._error

    def on_headers_complete(self) -> None:
        """Start the response."""
        super().on_headers_complete()
        self._parsed = True
        self.idle.pop(self, None)
        if self._health_only:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Receive a piece of the body."""
        super().on_body(body)
        self._parsed = True

    def on_message_complete(self) -> None:
        """Stop the timer: the request is complete."""
        super().on_message_complete()
        self._parsed, self._arriving = True, False

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._abort_if_stalled()
        elif self.cycle.response_complete:
            self.idle[self] = None

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """Respond to a request that the parser or one of its callbacks refused."""
        self._refuse(
            self._error or MalformedHttp("The request is not HTTP/1.1; use an HTTP client.")
        )

    def timeout_keep_alive_handler(self) -> None:
        """Close, even if the client has not read the last response."""
        super().timeout_keep_alive_handler()
        self._abort_if_stalled()

    def pause_writing(self) -> None:
        """Wait for the client to read more, up to the time limit."""
        super().pause_writing()
        self._abort_if_stalled()

    def resume_writing(self) -> None:
        """Stop the timer: the client has read, and new data will hide that it has."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._cancel_stalled()

    def _warn(self) -> None:
        own, now_s = type(self), self.loop.time()
        if now_s - own.warned_s >= _WARN_EVERY_S:
            own.warned_s = now_s
            _log.warning(
                "all %d connections are in use: idle ones are closed for new ones, and new ones "
                "refused if there are none; see SLUICEWAY_MAX_CONNECTIONS",
                self.max_connections,
            )

    def _expect(self) -> None:
        """Start the timer for the rest of a request."""
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.client_timeout_s, self._overdue)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cancel_stalled(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _overdue(self) -> None:
        self._deadline = None
        if self.flow.read_paused:
            # The application has paused reading, so the client may be waiting for it.
            self._expect()
        elif not self._arriving or (self.cycle and self.cycle.response_started):
            self.transport.close()
            self._abort_if_stalled()
        else:
            timeout = f"{self.client_timeout_s:g} s"
            self._refuse(
                RequestTimeout(f"The request did not arrive within {timeout}; send it again.")
            )

    def _refuse(self, error: SluicewayGatewayError) -> None:
        """Respond with a problem instead of any other response, and close."""
        response = problem_response(error, {"Connection": "close"})
        lines = [f"HTTP/1.1 {response.status_code} {error.title}".encode()]
        lines += [name + b": " + value for name, value in response.raw_headers]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(response.body)]))
        self.transport.close()
        self._abort_if_stalled()

    def _abort_if_stalled(self) -> None:
        """Close the connection if the client reads nothing of the pending data.

        Nothing may be written meanwhile: writing is paused, or the connection is closing.
        """
        waiting = self.transport.get_write_buffer_size()

        def check() -> None:
            self._stalled = None
            left = self.transport.get_write_buffer_size()
            if left and left >= waiting:
                self.transport.abort()
            elif left:
                self._abort_if_stalled()

        if waiting and self._stalled is None:
            self._stalled = self.loop.call_later(self.client_timeout_s, check)


def limited_protocol(settings: Settings) -> type[LimitedProtocol]:
    """Return the protocol class for one server, for uvicorn's option `http`."""

    class ServerProtocol(LimitedProtocol):
        max_connections = _allowed_connections(settings)
        client_timeout_s = settings.client_timeout_ms / 1000
        idle: ClassVar = {}
        warned_s = -_WARN_EVERY_S

    return ServerProtocol


def _allowed_connections(settings: Settings) -> int:
    """Return the number of connections that fit the process's limit of open files."""
    wanted = settings.max_connections
    # A connection to SQLite opens three; Kafka, logs and the event loop open some.
    others = 3 * settings.database_pool_size + 100 + HEALTH_CONNECTIONS
    files = _raised_file_limit(wanted + others)
    allowed = max(1, files - others)
    if allowed < wanted:
        _log.warning(
            "at most %d connections, not SLUICEWAY_MAX_CONNECTIONS=%d: this process may open %d "
            "files; raise its limit (ulimit -n)",
            allowed,
            wanted,
            files,
        )
    return min(allowed, wanted)


def _raised_file_limit(wanted: int) -> int:
    """Raise the process's limit of open files as far as allowed, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return raised


def _headers_too_large() -> HeadersTooLarge:
    return HeadersTooLarge(
        f"A request has at most {MAX_HEADERS} headers, of {MAX_HEAD_BYTES} bytes with the URL."
    )


def _too_many() -> TooManyConnections:
    return TooManyConnections(
        "All connections that this gateway allows are busy; ask again in a moment."
    )


def _health_only(app: ASGIApp) -> ASGIApp:
    async def response(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in HEALTH:
            await app(scope, receive, send)
        else:
            await problem_response(_too_many())(scope, receive, send)

    return response
