"""`sluiceway serve`: the gateway beside a Kafka and a database."""

import click

from sluiceway_gateway.auth.bind import check_bind
from sluiceway_gateway.auth.service import Tokens
from sluiceway_gateway.cli import server
from sluiceway_gateway.cli.signals import ending_in_order
from sluiceway_gateway.logs import configure_logs
from sluiceway_gateway.services.migration import opened
from sluiceway_gateway.settings import Settings


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
    with opened(settings.database_url.get_secret_value()) as database:
        tokens = Tokens(database, settings.token_key)
        tokens.check_key()
        check_bind(settings.host, has_tokens=tokens.exist(), tls=settings.tls)
