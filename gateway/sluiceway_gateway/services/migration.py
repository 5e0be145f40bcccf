"""Databases at the revision that this version works on."""

from collections.abc import Iterator
from contextlib import contextmanager

from sluiceway_gateway.db import revision
from sluiceway_gateway.db.engine import Database


def migrate(url: str) -> str:
    """Bring the database to this version's revision, and return it.

    Repeats change nothing; of several at once one does the work. Raises
    InvalidSettings for a URL that names no database, WrongRevision where a newer
    version migrated it, DatabaseUnavailable where it cannot be reached.
    """
    database = Database(url)
    try:
        return revision.upgrade(database)
    finally:
        database.close()


def check(database: Database) -> None:
    """Raise WrongRevision unless the database is at this version's revision."""
    revision.check(database)


@contextmanager
def opened(url: str) -> Iterator[Database]:
    """Open a database that is at this version's revision, and close it after the block.

    Raises InvalidSettings, WrongRevision and DatabaseUnavailable.
    """
    database = Database(url)
    try:
        check(database)
        yield database
    finally:
        database.close()
