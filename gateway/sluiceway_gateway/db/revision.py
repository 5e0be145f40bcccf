"""The schema revision of a database: upgrade to ours, refuse another one."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from sluiceway_gateway.db.engine import Database, is_locked, translated
from sluiceway_gateway.db.postgresql import wait_without_limit
from sluiceway_gateway.errors import DatabaseUnavailable, WrongRevision

# Any number that nothing else in the database takes an advisory lock on.
_LOCK = 0x51C3_3A7
# Requests queue behind a migration that waits for a table.
_TABLE_WAIT_MS = 10_000


def migrations_path() -> Path:
    """Return where the migrations lie: inside a wheel, or at the repository's top."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parents[1] / "migrations"


@cache
def head() -> str:
    """Return the revision that this version of the gateway works on."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    if revision is None:
        raise WrongRevision("this installation has no migrations; install it anew")
    return revision


def current(database: Database) -> str | None:
    """Return the revision that the database is at; None before the first migration."""
    with database.read() as tx:
        return MigrationContext.configure(tx.connection).get_current_revision()


def upgrade(database: Database, *, wait_s: float = 60.0) -> str:
    """Bring the database to our revision, in one transaction, one process at a time.

    Of several processes one does the work; the others wait up to `wait_s` seconds, and then find
    nothing to do. Returns the revision. Raises WrongRevision for a database that a newer version
    has migrated, DatabaseUnavailable where it is away or locked for too long; either way nothing
    was changed.
    """
    with translated(), database.engine.connect() as connection:
        # What is set on it below is not for the pool's next user.
        connection.detach()
        connection = connection.execution_options(sluiceway_writes=True)
        if database.dialect == "sqlite":
            _prepare_sqlite(connection, wait_s)
        try:
            with connection.begin():
                if database.dialect == "postgresql":
                    _lock_postgresql(connection, wait_s)
                _migrate(connection)
        except (OperationalError, sqlite3.OperationalError) as error:
            if not is_locked(error):
                raise
            raise DatabaseUnavailable(
                "the database is locked: another migration is at work, or a long transaction "
                "holds its tables. Nothing was changed: run `sluiceway migrate` again"
            ) from error
    return head()


def check_revision(database: Database) -> None:
    """Raise WrongRevision unless the database is at our revision."""
    found, expected = current(database), head()
    if found == expected:
        return
    _refuse_unknown(_config(), found)
    state = "has no tables yet" if found is None else f"is at revision {found}"
    raise WrongRevision(
        f"the database {state}, this gateway needs {expected}: run `sluiceway migrate`"
    )


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations_path()).replace("%", "%%"))
    return config


def _prepare_sqlite(connection: Connection, wait_s: float) -> None:
    """Set, outside any transaction, how long to wait for it and what a migration may do in it."""
    cursor = connection.connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {round(wait_s * 1000)}")
    # SQLite alters a table by making it anew, and dropping the old one would delete, row by row,
    # whatever refers to it.
    cursor.execute("PRAGMA foreign_keys = OFF")
    cursor.close()


def _lock_postgresql(connection: Connection, wait_s: float) -> None:
    """Wait for our turn; after that, for other transactions no longer than requests can bear."""
    bound = text("SELECT set_config('lock_timeout', :ms, true)")
    wait_without_limit(connection)
    connection.execute(text("SET LOCAL statement_timeout = 0"))
    connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
    connection.execute(bound.bindparams(ms=str(round(wait_s * 1000))))
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)").bindparams(lock=_LOCK))
    connection.execute(bound.bindparams(ms=str(_TABLE_WAIT_MS)))


def _migrate(connection: Connection) -> None:
    config = _config()
    _refuse_unknown(config, MigrationContext.configure(connection).get_current_revision())
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _refuse_unknown(config: Config, found: str | None) -> None:
    known = {each.revision for each in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise WrongRevision(
            f"the database is at revision {found}, which this gateway does not know: "
            "a newer version has migrated it; run that version, or restore a backup"
        )


def migrate(url: str) -> str:
    """Bring the database to this version's revision, and return it.

    Repeats change nothing; of several at once one does the work. Raises
    InvalidSettings for a URL that names no database, WrongRevision where a newer
    version migrated it, DatabaseUnavailable where it cannot be reached.
    """
    database = Database(url)
    try:
        return upgrade(database)
    finally:
        database.close()


def require_current(database: Database) -> None:
    """Raise WrongRevision unless the database is at this version's revision."""
    check_revision(database)


@contextmanager
def open_database(url: str) -> Iterator[Database]:
    """Open a database that is at this version's revision, and close it after the block.

    Raises InvalidSettings, WrongRevision and DatabaseUnavailable.
    """
    database = Database(url)
    try:
        require_current(database)
        yield database
    finally:
        database.close()
