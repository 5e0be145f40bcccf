"""`sluiceway serve` and `sluiceway migrate`."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from sluiceway_gateway.auth.bind import check_bind
from sluiceway_gateway.auth.service import Tokens
from sluiceway_gateway.cli import server
from sluiceway_gateway.db.revision import migrate as migrate_database
from sluiceway_gateway.db.revision import open_database
from sluiceway_gateway.logs import configure_logs
from sluiceway_gateway.settings import Settings


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Have SIGINT and SIGTERM unwind the block, once, and end it without an error."""

    def end(_number: int, _frame: FrameType | None) -> None:
        for number in handlers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    handlers = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@click.command()
@click.option("--host", help="The address to listen on (SLUICEWAY_HOST).")
@click.option("--port", type=click.IntRange(0, 65535), help="The port; 0: a free one.")
def serve(host: str | None, port: int | None) -> None:
    """Serve the gateway; SLUICEWAY_* variables say with which database and Kafka."""
    settings = Settings.load(host=host, port=port)
    check(settings)
    with ending_in_order(), server.bind(settings.host, settings.port) as bound:
        configure_logs(level=settings.log_level, format=settings.log_format)
        address = server.url(bound, settings)
        server.serve(settings, bound, lambda: click.echo(f"serving on {address}", err=True))


def check(settings: Settings) -> None:
    """Raise StartupRefused where the database or the address does not allow to serve."""
    with open_database(settings.database_url.get_secret_value()) as database:
        tokens = Tokens(database, settings.token_key)
        tokens.check_key()
        check_bind(settings.host, has_tokens=tokens.exist(), tls=settings.tls)


@click.command()
def migrate() -> None:
    """Bring the database to this version; safe to repeat, and from several machines at once."""
    settings = Settings.load()
    revision = migrate_database(settings.database_url.get_secret_value())
    click.echo(f"the database is at revision {revision}")
