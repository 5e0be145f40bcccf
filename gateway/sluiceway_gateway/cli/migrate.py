"""`sluiceway migrate`: the database brought to this version."""

import click

from sluiceway_gateway.services.migration import migrate as migrate_database
from sluiceway_gateway.settings import Settings


@click.command()
def migrate() -> None:
    """Bring the database to this version; safe to repeat, and from several machines at once."""
    settings = Settings.load()
    revision = migrate_database(settings.database_url.get_secret_value())
    click.echo(f"the database is at revision {revision}")
