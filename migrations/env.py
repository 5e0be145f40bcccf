"""Alembic's entry point.

The gateway passes its own connection; the `alembic` command uses the database
at `SLUICEWAY_DATABASE_URL`.
"""

from alembic import context
from sqlalchemy import Connection

from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.settings import Settings
from sluiceway_gateway.tables import metadata


def run(connection: Connection) -> None:
    """Run the requested migrations on this connection."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        compare_type=True,
        compare_server_default=True,
        render_as_batch=connection.dialect.name == "sqlite",
    )
    with context.begin_transaction():
        context.run_migrations()


def main() -> None:
    """Run on the given connection, or else on a new one."""
    given = context.config.attributes.get("connection")
    if given is not None:
        run(given)
        return
    database = Database(Settings.load().database_url.get_secret_value())
    with database.engine.connect() as connection, connection.begin():
        run(connection)
    database.close()


main()
