"""Schema revisions: migrate a database, refuse one at another revision."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import OperationalError

from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.db.failures import is_locked, translated
from sluiceway_gateway.core.db.postgresql import wait_without_limit
from sluiceway_gateway.core.db.schema import metadata
from sluiceway_gateway.core.errors import DatabaseUnavailable, WrongRevision

#: Number of the advisory lock of PostgreSQL that a migration holds.
ADVISORY_LOCK = 0x51C3_3A7


def migrations_path() -> Path:
    """Return the directory of migrations: in the installed package, or at the repository's root."""
    package = Path(__file__).resolve().parents[2]
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parents[1] / "migrations"


@cache
def head() -> str:
    """Return the revision that this version needs."""
    revision = ScriptDirectory.from_config(alembic_config()).get_current_head()
    if revision is None:
        raise WrongRevision("this installation has no migrations; install it again")
    return revision


def current(database: Database) -> str | None:
    """Return the revision of the database, None before the first migration."""
    with database.read() as tx:
        return MigrationContext.configure(tx.connection).get_current_revision()


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


def require_current(database: Database) -> None:
    """Raise WrongRevision unless the database is at this version's revision."""
    revision, expected = current(database), head()
    if revision == expected:
        return
    _refuse_unknown(alembic_config(), revision)
    state = "has no tables yet" if revision is None else f"is at revision {revision}"
    raise WrongRevision(
        f"the database {state}, this gateway needs {expected}: run `sluiceway migrate`"
    )


@contextmanager
def open_database(url: str) -> Iterator[Database]:
    """Open a database at this version's revision, and close it after the block.

    Raises InvalidSettings, WrongRevision and DatabaseUnavailable.
    """
    with closing(Database(url)) as database:
        file = database.file
        if file is not None and not file.exists():
            # Before the first connection, which would create it.
            raise WrongRevision(
                f"there is no database {file.absolute()}: correct SLUICEWAY_DATABASE_URL or the "
                "working directory; to create it, run `sluiceway migrate`"
            )
        require_current(database)
        yield database


def alembic_config() -> Config:
    """Return Alembic's configuration for the migrations of this version."""
    config = Config()
    config.set_main_option("script_location", str(migrations_path()).replace("%", "%%"))
    return config


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
    _refuse_unknown(config, revision)
    others = sorted(metadata.tables.keys() & set(inspect(connection).get_table_names()))
    if revision is None and others:
        raise WrongRevision(
            f"the database has tables of another program ({', '.join(others)}): create a database "
            "for the gateway alone, and set SLUICEWAY_DATABASE_URL to it"
        )
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _refuse_unknown(config: Config, revision: str | None) -> None:
    revisions = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if revision is not None and revision not in revisions:
        raise WrongRevision(
            f"the database is at revision {revision}, which this gateway does not know: "
            "a newer version has migrated it; run that version, or restore a backup. If it is of "
            "another program, set SLUICEWAY_DATABASE_URL to a database for the gateway alone"
        )
