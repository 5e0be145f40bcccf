"""The migration of a database to this version."""

import sqlite3
from contextlib import closing

from alembic import command
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import OperationalError

from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.db.failures import is_locked, translated
from sluiceway_gateway.core.db.postgresql import wait_without_limit
from sluiceway_gateway.core.db.revision import alembic_config, head, refuse_unknown
from sluiceway_gateway.core.errors import DatabaseUnavailable, WrongRevision
from sluiceway_gateway.tables import metadata

#: Number of the advisory lock of PostgreSQL that a migration holds.
ADVISORY_LOCK = 0x51C3_3A7


def migrate(url: str) -> str:
    """Migrate the database at `url` as `upgrade` does, and return the revision.

    Also raises InvalidSettings for a URL that is not allowed.
    """
    with closing(Database(url)) as database:
        return upgrade(database)


def upgrade(database: Database, *, wait_s: float = 60.0, table_wait_s: float = 10.0) -> str:
    """Migrate the database in one transaction, and return the revision.

    Repeating this changes nothing. Of several processes one migrates; the others wait up to
    `wait_s` seconds. A migration waits for a table up to `table_wait_s`, because requests queue
    behind it. Raises WrongRevision if a newer version migrated the database, and
    DatabaseUnavailable if it does not answer or is locked for too long; then nothing has changed.
    """
    with translated(), database.engine.connect() as connection:
        # Not from the pool, because of the settings below.
        connection.detach()
        connection = connection.execution_options(sluiceway_writes=True)
        if database.dialect == "sqlite":
            _prepare_sqlite(connection, wait_s)
        try:
            with connection.begin():
                if database.dialect == "postgresql":
                    _lock_postgresql(connection, wait_s, table_wait_s)
                _migrate(connection)
        except (OperationalError, sqlite3.OperationalError) as error:
            if not is_locked(error):
                raise
            raise DatabaseUnavailable(
                "the database is locked: another migration is running, or a long transaction "
                "holds its tables. Nothing was changed: run `sluiceway migrate` again"
            ) from None
    return head()


def _prepare_sqlite(connection: Connection, wait_s: float) -> None:
    with closing(connection.connection.cursor()) as cursor:
        cursor.execute(f"PRAGMA busy_timeout = {round(wait_s * 1000)}")
        # SQLite alters a table by copying it. Dropping the original would delete the rows that
        # refer to it.
        cursor.execute("PRAGMA foreign_keys = OFF")


def _lock_postgresql(connection: Connection, wait_s: float, table_wait_s: float) -> None:
    """Wait `wait_s` for other migrations; afterwards let each statement wait `table_wait_s`."""
    lock_timeout = text("SELECT set_config('lock_timeout', :ms, true)")
    wait_without_limit(connection)
    connection.execute(text("SET LOCAL statement_timeout = 0"))
    connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
    connection.execute(lock_timeout.bindparams(ms=str(round(wait_s * 1000))))
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)").bindparams(lock=ADVISORY_LOCK))
    connection.execute(lock_timeout.bindparams(ms=str(round(table_wait_s * 1000))))


def _migrate(connection: Connection) -> None:
    config = alembic_config()
    revision = MigrationContext.configure(connection).get_current_revision()
    refuse_unknown(config, revision)
    others = sorted(metadata.tables.keys() & set(inspect(connection).get_table_names()))
    if revision is None and others:
        raise WrongRevision(
            f"the database has tables of another program ({', '.join(others)}): create a database "
            "for the gateway alone, and set SLUICEWAY_DATABASE_URL to it"
        )
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
