"""`sluiceway serve`: the gateway, on uvicorn."""

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

import click
import structlog
import uvicorn

from sluiceway.tracing import configure as configure_tracing
from sluiceway_gateway.cli.certificate import Certificate, tls_options
from sluiceway_gateway.cli.entry import waiting_for
from sluiceway_gateway.core.auth.service import Tokens, check_bind
from sluiceway_gateway.core.db.revision import open_database
from sluiceway_gateway.core.logs import configure_logs
from sluiceway_gateway.core.settings import Settings, unknown_variables

if TYPE_CHECKING:
    from fastapi import FastAPI

_log = structlog.get_logger(__name__)

#: Time for which requests may continue after SIGTERM.
_GRACE_S = 10
_HANDSHAKE_S = 5
#: Checks of the certificate's files, a minute apart, in uvicorn's ticks of a tenth of a second.
_TICKS_PER_CHECK = 600
_SWITCH_INTERVAL_S = 0.0005


class Interrupted(KeyboardInterrupt):
    """A signal to end arrived; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise Interrupted in the block on the first signal to end, and ignore later ones."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for handled in handlers:
            signal.signal(handled, signal.SIG_IGN)
        raise Interrupted(number)

    handlers = {number: signal.signal(number, interrupt) for number in _signals()}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _signals() -> Iterator[signal.Signals]:
    """Yield the signals to end: of Ctrl-C, of `kill`, and of a closed terminal without `nohup`."""
    yield from (signal.SIGINT, signal.SIGTERM)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        yield signal.SIGHUP


@click.command()
@click.option("--host", help="Address to listen on.  [default: SLUICEWAY_HOST, or 127.0.0.1]")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 chooses a free one.  [default: SLUICEWAY_PORT, or 8900]",
)
def serve(host: str | None, port: int | None) -> None:
    """Run the gateway, configured by SLUICEWAY_* variables."""
    settings = Settings.load(host=host, port=port)
    configure_logs(level=settings.log_level, format=settings.log_format)
    if unknown := unknown_variables():
        # Kubernetes sets such variables for its services, so they do not stop the start.
        _log.warning("variables that are no settings are ignored", variables=unknown)
    check(settings)
    with suppress(Interrupted), interruptible(), bind(settings.host, settings.port) as bound:
        address = url(bound, settings)
        run_server(settings, bound, lambda: click.echo(f"serving on {address}", err=True))


def check(settings: Settings) -> None:
    """Raise StartupRefused unless the database is ready and the address is safe to listen on."""
    with (
        waiting_for("the database"),
        open_database(settings.database_url.get_secret_value()) as database,
    ):
        tokens = Tokens(database, settings.token_key)
        tokens.check_key()
        check_bind(
            settings.host,
            has_tokens=tokens.exist(),
            tls=settings.tls,
            tls_by_proxy=settings.tls_by_proxy,
        )


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address; port 0 chooses a free one. Raises OSError.

    The socket names its protocol because asyncio sets TCP_NODELAY only then. Without it, the body
    of each response would wait up to 40 ms for the client to acknowledge the head.
    """
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    with ExitStack() as on_error:
        bound = on_error.enter_context(
            socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        )
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        on_error.pop_all()
    return bound


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address, or raise a ClickException that says what to do."""
    try:
        return bound_socket(host, port)
    except (OSError, UnicodeError) as error:
        raise _cannot_listen(host, port, error) from error


def _cannot_listen(host: str, port: int, error: OSError | UnicodeError) -> click.ClickException:
    # A name that is too long to look up is a UnicodeError.
    reason = error.strerror if isinstance(error, OSError) else "not a host name"
    return click.ClickException(
        f"cannot listen on {host} port {port} ({reason}): "
        "choose another with --port, or --port 0 for a free one"
    )


def url(bound: socket.socket, settings: Settings) -> str:
    """Return the URL for clients on this machine."""
    scheme = "https" if settings.tls_certificate_file is not None else "http"
    host, port = bound.getsockname()[:2]
    address = ip_address(host)
    if address.is_unspecified:
        host = "::1" if isinstance(address, IPv6Address) else "127.0.0.1"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


class OwnBroker(Protocol):
    """A Kafka broker that a gateway was started with."""

    log_path: Path

    def running(self) -> bool:
        """Whether its process runs."""


class Server(uvicorn.Server):
    """A uvicorn server that reports its start, and ends long polls before a shutdown."""

    on_started: Callable[[], None]
    on_stopping: Callable[[], None]
    certificate: Certificate | None = None
    broker: OwnBroker | None = None
    """The server stops when this broker ends."""
    broker_ended = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on the sockets, or on the configured address."""
        loop: Any = asyncio.get_running_loop()
        if self.config.is_ssl:
            # uvicorn has no option for this timeout. Connections count only after the handshake.
            loop.create_server = partial(loop.create_server, ssl_handshake_timeout=_HANDSHAKE_S)
        await super().startup(sockets)
        if self.started:
            self.on_started()

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop; called ten times a second."""
        if self.certificate is not None and counter % _TICKS_PER_CHECK == 0:
            self.certificate.reload()
        if self.broker is not None and not (self.should_exit or self.broker.running()):
            self.broker_ended = self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End long polls, then wait for open requests."""
        self.on_stopping()
        await super().shutdown(sockets)


def server_config(app: "FastAPI") -> uvicorn.Config:
    """Return the options with which uvicorn serves a gateway's application, by its settings.

    Raises ClickException if the files of the certificate cannot be used.
    """
    # Imported late, like the application.
    from sluiceway_gateway.api.limits import limited_protocol

    settings: Settings = app.state.parts.settings
    return uvicorn.Config(
        app,
        http=limited_protocol(settings),
        # The limits do not apply to an upgraded connection.
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        # Any client can send forwarded headers, and a request's address is that of its connection.
        proxy_headers=False,
        lifespan="on",
        timeout_graceful_shutdown=_GRACE_S,
        **tls_options(settings),
    )


def run_server(
    settings: Settings,
    bound: socket.socket,
    on_started: Callable[[], None],
    broker: OwnBroker | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, then finish running requests.

    Raises ClickException, also when `broker` has ended.
    """
    # Imported late because it takes long: refusals to start should come first.
    from sluiceway_gateway.app import create_app

    configure_tracing("sluiceway-gateway")
    app = create_app(settings)
    server = Server(server_config(app))
    server.on_started, server.broker = on_started, broker
    server.on_stopping = app.state.parts.changes.close
    if settings.tls_certificate_file is not None and settings.tls_key_file is not None:
        server.config.load()
        context = server.config.ssl
        assert context is not None  # noqa: S101 - it has a certificate
        server.certificate = Certificate(
            context, settings.tls_certificate_file, settings.tls_key_file
        )
    try:
        # Fails if another process has bound the address too, and was the first to listen. uvloop
        # would only log that.
        bound.listen(server.config.backlog)
    except OSError as error:
        raise _cannot_listen(settings.host, settings.port, error) from error
    if signal.SIGHUP in _signals():
        signal.signal(signal.SIGHUP, server.handle_exit)
    with tuned_interpreter():
        server.run(sockets=[bound])
    if not server.started:
        raise click.ClickException("the gateway did not start; its log says why")
    if broker is not None and server.broker_ended:
        raise click.ClickException(
            f"the Kafka broker has ended, and so has the gateway; {broker.log_path} may say why. "
            "The data are kept: run it again"
        )


@contextmanager
def tuned_interpreter() -> Iterator[None]:
    """Reduce the latency that threads and garbage collection add to requests, in the block.

    A request passes through several threads, and each busy thread delays it by a switch interval:
    half a millisecond instead of five. The collector skips everything that was imported.
    """
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(interval_s)
