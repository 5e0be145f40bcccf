"""Limits for unauthenticated clients, on raw sockets."""

import asyncio
import itertools
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx
import pytest

from databases import Databases
from faults import at_call
from gateways import SCHEMA, Rig, running
from sluiceway_gateway.api.limits import (
    HEALTH_CONNECTIONS,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_URL_BYTES,
    LimitedProtocol,
)
from sluiceway_gateway.core.db.engine import Database
from waiting import until

CONNECTIONS = 4
TIMEOUT_S = 0.5
#: Total size of the socket's and server's buffers and the limits.
HELD = 4 * 1024 * 1024
PIECE = 16 * 1024
GET = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n"
BODY = (
    b"PUT /v1/channels/a HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9999\r\n"
    b"Content-Type: application/json\r\n\r\n"
)
LARGE = b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@contextmanager
def limited(databases: Databases, **settings: Any) -> Iterator[Rig]:
    url = databases.migrated()
    database = Database(url)
    with running(database, url, **settings) as rig:
        yield rig
    database.close()


@pytest.fixture(scope="module")
def impatient(sqlite: Databases) -> Iterator[Rig]:
    """A gateway with a short timeout for requests, whose responses do not fit into buffers."""

    def shrink(_: LimitedProtocol, transport: asyncio.Transport) -> None:
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)

    with (
        at_call(LimitedProtocol, "connection_made", shrink),
        limited(sqlite, client_timeout_ms=int(TIMEOUT_S * 1000)) as rig,
    ):
        yield rig


@pytest.fixture(scope="module")
def small(sqlite: Databases) -> Iterator[Rig]:
    """A gateway with few connections."""
    # The client of the fixture takes one of them.
    with limited(sqlite, max_connections=CONNECTIONS) as rig:
        rig.http.close()
        yield rig


class UnpausedTimers:
    """An event loop whose timers hardly count pauses of the process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def call_later(
        self, delay_s: float, call: Callable[..., object], *arguments: Any
    ) -> asyncio.Task[None]:
        async def ticks() -> None:
            for _ in range(20):
                await asyncio.sleep(delay_s / 20)
            call(*arguments)

        return self._loop.create_task(ticks())


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """New connections may be idle for a minute, and a pause of this process ends none."""
    accept = LimitedProtocol.connection_made

    def connection_made(self: LimitedProtocol, transport: asyncio.Transport) -> None:
        self.loop = UnpausedTimers(self.loop)
        self.client_timeout_s = 60.0  # type: ignore[misc]
        accept(self, transport)
        del self.client_timeout_s

    # A gateway has one timeout for new connections and for requests.
    monkeypatch.setattr(LimitedProtocol, "connection_made", connection_made)


def connected(rig: Rig, *, receive_buffer: int | None = None) -> socket.socket:
    url = httpx.URL(rig.url)
    made = socket.socket()
    if receive_buffer is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    made.settimeout(60)
    made.connect((url.host, url.port))
    return made


def answer_to(made: socket.socket, sent: bytes = b"") -> tuple[int, dict[str, str], Any]:
    """Send data, and return the status, the headers and the JSON of the response."""
    made.sendall(sent)
    with made.makefile("rb") as file:
        status = int(file.readline().split()[1])
        headers: dict[str, str] = {}
        while line := file.readline().strip():
            name, _, value = line.decode().partition(": ")
            headers[name] = value
        return status, headers, json.loads(file.read(int(headers["content-length"])))


def refusal(made: socket.socket, sent: bytes = b"") -> tuple[int, str]:
    """Return the status and code of a problem; assert that the connection is closed then."""
    status, headers, problem = answer_to(made, sent)
    assert headers["content-type"] == "application/problem+json"
    assert headers["connection"] == "close"
    assert problem["status"] == status
    assert made.recv(1) == b""
    return status, problem["code"]


def sent_until_refused(made: socket.socket, begin: bytes, pieces: Iterator[bytes]) -> int:
    """Send data until the gateway closes the connection, and return the number of bytes."""
    sent = 0
    try:
        made.sendall(begin)
        for piece in pieces:
            made.sendall(piece)
            sent += len(piece)
            assert sent < HELD
    except ConnectionError:
        return sent
    raise AssertionError("it has no end")


def is_cut(made: socket.socket, sent: bytes) -> bool:
    """Return whether the gateway has closed a connection, by sending more data."""
    try:
        made.sendall(sent)
    except ConnectionError:
        return True
    return False


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"GET /", b"a"),
        (b"GET /?", b"a"),
        (b"", b"\r\n"),
        (b"", b"A"),
        (GET, b"a"),
        (GET + b"a: ", b"a"),
        (GET, b"a: b\r\n"),
        (b"PUT /v1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n"),
        (b"PUT /v1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\na: ", b"b"),
        (b"PUT /v1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"b"),
    ],
    ids=[
        *("path", "query", "empty lines", "method", "header name", "header value", "headers"),
        *("trailers", "trailer", "chunk extension"),
    ],
)
def test_an_endless_request_is_refused_early(small: Rig, begin: bytes, piece: bytes) -> None:
    with connected(small) as made:
        sent_until_refused(made, begin, itertools.repeat(piece * (PIECE // len(piece))))
    with connected(small) as made:
        assert answer_to(made, GET + b"\r\n")[0] == 200


@pytest.mark.parametrize(
    ("sent", "refused"),
    [
        (b"GET /" + b"a" * MAX_URL_BYTES + b" ", (414, "url_too_long")),
        (GET + b"a: " + b"b" * MAX_HEAD_BYTES + b"\r\n\r\n", (431, "headers_too_large")),
        (GET + b"a: b\r\n" * MAX_HEADERS + b"\r\n", (431, "headers_too_large")),
        (b"hello\r\n\r\n", (400, "malformed_http")),
        (GET + b"Content-Length: x\r\n\r\n", (400, "malformed_http")),
        (
            GET + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
            (400, "malformed_http"),
        ),
        (b"GET http:// HTTP/1.1\r\n\r\n", (400, "malformed_http")),
        (b"CONNECT a HTTP/1.1\r\n\r\n", (400, "malformed_http")),
    ],
    ids=["url", "header", "headers", "words", "length", "lengths", "absolute", "connect"],
)
def test_a_refused_request_head_has_a_reason(
    small: Rig, sent: bytes, refused: tuple[int, str]
) -> None:
    with connected(small) as made:
        assert refusal(made, sent) == refused


def test_a_request_head_within_the_limits_is_accepted(small: Rig) -> None:
    headers = b"a: b\r\n" * (MAX_HEADERS - 2) + b"c: " + b"d" * 15_000 + b"\r\n"
    with connected(small) as made:
        status, _, problem = answer_to(
            made, b"GET /livez?" + b"a" * (MAX_URL_BYTES - 8) + b" HTTP/1.1\r\n" + headers + b"\r\n"
        )
        assert (status, problem["code"]) == (422, "invalid_request")
        # The limits start anew for the next request on the connection.
        assert answer_to(made, GET + headers + b"\r\n")[0] == 200


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("sent", [b"G", GET, BODY + b"{"], ids=["line", "head", "body"])
def test_a_slow_request_is_refused(impatient: Rig, sent: bytes) -> None:
    with connected(impatient) as made:
        started_s = time.monotonic()
        made.sendall(sent)
        assert refusal(made) == (408, "request_timeout")
        assert time.monotonic() - started_s > TIMEOUT_S * 0.9


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize(
    ("begin", "piece"),
    [(b"GET /", b"a"), (GET + b"a: ", b"b"), (BODY + b"{", b" ")],
    ids=["line", "head", "body"],
)
def test_a_trickling_request_is_cut(impatient: Rig, begin: bytes, piece: bytes) -> None:
    with connected(impatient) as made:
        made.sendall(begin)
        until(lambda: is_cut(made, piece), seconds=60)


@pytest.mark.parametrize(
    ("used", "sent"), [(False, b""), (False, b"\r\n"), (True, b"\r\n")], ids=str
)
def test_an_idle_new_connection_is_closed(
    impatient: Rig, sent: bytes, used: bool, request: pytest.FixtureRequest
) -> None:
    if used:
        request.getfixturevalue("unhurried")
    with connected(impatient) as made:
        if used:
            assert answer_to(made, GET + b"\r\n")[0] == 200
        # It may be closed already, and then the data are answered by a reset.
        with suppress(ConnectionError):
            made.sendall(sent)
            assert made.recv(1) == b""


@pytest.mark.usefixtures("unhurried")
def test_a_refused_body_is_awaited_for_a_limited_time(impatient: Rig) -> None:
    head = b"PUT /v1/channels/a HTTP/1.1\r\nHost: elsewhere\r\nContent-Length: 999999999\r\n\r\n"
    with connected(impatient) as made:
        status, _, problem = answer_to(made, head)
        assert (status, problem["code"]) == (403, "forbidden")
        until(lambda: is_cut(made, b" " * 1000), seconds=60)


@pytest.mark.usefixtures("unhurried")
def test_a_long_poll_is_not_cut_by_the_client_timeout(impatient: Rig) -> None:
    made = impatient.put("waited")
    tag = {"If-None-Match": made.headers["ETag"]}
    with connected(impatient) as raw:
        begun_s = time.monotonic()
        raw.sendall(
            b"GET /v1/channels/waited?wait=2 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            + f"If-None-Match: {tag['If-None-Match']}\r\n\r\n".encode()
        )
        assert raw.recv(12) == b"HTTP/1.1 304"
        assert time.monotonic() - begun_s > 2 * TIMEOUT_S


@pytest.mark.usefixtures("unhurried")
def test_a_client_that_reads_nothing_is_disconnected(impatient: Rig) -> None:
    with connected(impatient, receive_buffer=4096) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made.sendall(LARGE + b"\r\n")
        # Data after the start of the response is neither read nor refused.
        until(lambda: is_cut(made, b"\r\n"), seconds=60)


@pytest.mark.usefixtures("unhurried")
def test_a_slow_reader_gets_the_whole_response(impatient: Rig) -> None:
    with connected(impatient, receive_buffer=32 * 1024) as made:
        made.sendall(LARGE + b"Connection: close\r\n\r\n")
        size, started_s = 0, time.monotonic()
        while piece := made.recv(32 * 1024):
            size += len(piece)
            time.sleep(0.015)
        assert time.monotonic() - started_s > TIMEOUT_S
    whole = impatient.http.get("/docs/swagger-ui-bundle.js")
    assert size > len(whole.content)


def test_the_longest_idle_connection_is_closed_at_the_limit(small: Rig) -> None:
    with ExitStack() as open_ones:
        idle = [open_ones.enter_context(connected(small)) for _ in range(CONNECTIONS)]
        for connection in idle[1:]:
            assert answer_to(connection, GET + b"\r\n")[0] == 200
        with connected(small) as new:
            assert answer_to(new, GET + b"\r\n")[0] == 200
            assert idle[0].recv(1) == b""
        # The others stay.
        assert answer_to(idle[1], GET + b"\r\n")[0] == 200


@pytest.fixture
def all_busy(small: Rig) -> Iterator[None]:
    """All connections have a request that waits for a change."""
    with httpx.Client(base_url=small.url, timeout=60) as http:
        body = {"spec": {"schema": SCHEMA}}
        tag = http.put("/v1/channels/watched", json=body).headers["ETag"]
    with ExitStack() as open_ones:
        for _ in range(CONNECTIONS):
            made = open_ones.enter_context(connected(small))
            made.sendall(
                b"GET /v1/channels/watched?wait=60 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                + f"If-None-Match: {tag}\r\n\r\n".encode()
            )
        changes = small.app.state.parts.changes
        until(lambda: changes.waiting == CONNECTIONS)
        yield
    until(lambda: changes.waiting == 0)


@pytest.mark.usefixtures("all_busy")
def test_at_the_connection_limit_requests_are_refused_but_health_answers(small: Rig) -> None:
    list_ = b"GET /v1/channels HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    for _ in range(2):
        with connected(small) as new:
            assert refusal(new, list_) == (503, "too_many_connections")
        with connected(small) as new:
            status, headers, live = answer_to(new, GET + b"\r\n")
            assert (status, headers["connection"], live) == (200, "close", {"live": True})
            assert new.recv(1) == b""


@pytest.mark.usefixtures("all_busy")
def test_silent_connections_do_not_block_health_checks(small: Rig) -> None:
    with ExitStack() as open_ones:
        for _ in range(3 * HEALTH_CONNECTIONS):
            open_ones.enter_context(connected(small))
        with connected(small) as new:
            assert answer_to(new, GET + b"\r\n")[0] == 200
