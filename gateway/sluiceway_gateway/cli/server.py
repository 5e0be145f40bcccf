"""The HTTP server of a command: bound socket, TLS, uvicorn."""

import asyncio
import gc
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import Any

import click
import uvicorn

from sluiceway_gateway.settings import Settings


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address; a port of 0 takes a free one. Raises OSError.

    asyncio sends what there is at once (TCP_NODELAY) only where a socket names its protocol. On
    one that leaves it at 0, the body of an answer would wait for the client's kernel to
    acknowledge its head: 40 ms for each request.
    """
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    with ExitStack() as unless_bound:
        bound = unless_bound.enter_context(
            socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        )
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        unless_bound.pop_all()
    return bound


#: What a request that is running may take when the process is asked to end.
_GRACE_S = 10
_HANDSHAKE_S = 5
_TURN_S = 0.0005


class _Server(uvicorn.Server):
    """Says when it serves, and lets waiting requests go before it waits for them to end."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        on_started: Callable[[], None],
        on_stopping: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._on_started = on_started
        self._on_stopping = on_stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop: Any = asyncio.get_running_loop()
        if self.config.is_ssl:
            # uvicorn has no option for it, and connections are counted after the handshake only.
            loop.create_server = partial(loop.create_server, ssl_handshake_timeout=_HANDSHAKE_S)
        await super().startup(sockets)
        if self.started:
            self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stopping()
        await super().shutdown(sockets)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address; a port of 0 takes a free one.

    Raises ClickException saying what stands against it.
    """
    try:
        return bound_socket(host, port)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {host} port {port} ({error.strerror}): "
            "give another with --port, or --port 0 for a free one"
        ) from error


def url(bound: socket.socket, settings: Settings) -> str:
    """Return the URL that a client on this machine uses."""
    scheme = "https" if settings.tls_certificate_file is not None else "http"
    host, port = bound.getsockname()[:2]
    address = ip_address(host)
    if address.is_unspecified:
        host = "::1" if isinstance(address, IPv6Address) else "127.0.0.1"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def serve(settings: Settings, bound: socket.socket, on_started: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM, then end what is running; raises ClickException otherwise."""
    # To import it takes longer than all that may refuse to serve before, which tells at once.
    from sluiceway_gateway.app import create_app
    from sluiceway_gateway.http.server import (
        ConnectionLimits,
        allowed_connections,
        limited_protocol,
    )

    options = _tls_options(settings)
    limits = ConnectionLimits(
        connections=allowed_connections(settings),
        client_timeout_s=settings.client_timeout_ms / 1000,
    )
    app = create_app(settings)
    server = _Server(
        uvicorn.Config(
            app,
            http=limited_protocol(limits),
            # An upgraded connection would leave the limits behind.
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            # Whom a forwarded header names is the proxy's word, and no leave depends on it.
            proxy_headers=False,
            lifespan="on",
            timeout_graceful_shutdown=_GRACE_S,
            **options,
        ),
        on_started=on_started,
        on_stopping=app.state.parts.watch.close,
    )
    with _tuned():
        server.run(sockets=[bound])
    if not server.started:
        raise click.ClickException("the gateway did not start; its log says why")


@contextmanager
def _tuned() -> Iterator[None]:
    """Have one thread's long work hold up the requests of others less, while the block runs.

    A thread that is at work gives the others their turn after half a millisecond, not after five,
    which each request waits for several times; garbage is looked for among what requests leave,
    and not again and again in all that was imported.
    """
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(_TURN_S)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(interval_s)


def _tls_options(settings: Settings) -> dict[str, Any]:
    """Return what uvicorn needs for TLS; raises ClickException for files that do not serve."""
    certificate, key = settings.tls_certificate_file, settings.tls_key_file
    if certificate is None:
        return {}
    try:
        # With a password at hand, an encrypted key is an error and no question to the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="-")  # noqa: S106
    except OSError as error:
        raise click.ClickException(
            f"cannot serve HTTPS with the certificate {certificate} and the key {key} ({error}): "
            "give a PEM file that holds the certificate and those above it, and one with its key, "
            "not encrypted"
        ) from error
    return {"ssl_certfile": certificate, "ssl_keyfile": key}


__all__ = ["bound_socket"]
