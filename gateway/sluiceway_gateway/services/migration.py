"""Bringing a database to the revision that this version works on."""

from sluiceway_gateway.settings import Settings
from sluiceway_gateway.store import revision
from sluiceway_gateway.store.engine import Database


def open_database(settings: Settings) -> Database:
    """Return the database that the settings name; no connection is made yet."""
    return Database(
        settings.database_url.get_secret_value(),
        pool_size=settings.database_pool_size,
        wait_ms=settings.database_wait_ms,
    )


def migrate(settings: Settings) -> str:
    """Bring the database to this version's revision, and return it.

    Repeats change nothing; of several at once one does the work. Raises
    WrongRevision where a newer version migrated it, DatabaseUnavailable where
    it cannot be reached.
    """
    database = open_database(settings)
    try:
        return revision.upgrade(database)
    finally:
        database.close()
