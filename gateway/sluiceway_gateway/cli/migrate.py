"""`sluiceway migrate`: the database."""

import click

from sluiceway_gateway.cli.entry import waiting_for
from sluiceway_gateway.core.logs import configure_logs
from sluiceway_gateway.core.settings import Settings
from sluiceway_gateway.migration import migrate as migrate_database


@click.command()
def migrate() -> None:
    """Migrate the database to this version.

    Can be repeated, and run by several processes at once.
    """
    settings = Settings.load()
    configure_logs(level="error", format="console")
    with waiting_for("the database"):
        revision = migrate_database(settings.database_url.get_secret_value())
    click.echo(f"the database is at revision {revision}")
