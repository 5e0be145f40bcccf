"""The one place where the database's errors become ours."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from sluiceway_gateway.domain.errors import DatabaseUnavailable

# Errors of these kinds are mistakes of ours, not the database's state.
_MISTAKES = (DataError, IntegrityError, NotSupportedError, ProgrammingError)
# The same, where a driver was asked without SQLAlchemy.
_RAW = (sqlite3.Error, psycopg.Error)
_RAW_MISTAKES = tuple(
    kind
    for driver in (sqlite3, psycopg)
    for kind in (
        driver.DataError,
        driver.IntegrityError,
        driver.NotSupportedError,
        driver.ProgrammingError,
    )
)
_UNDEFINED_TABLE = "42P01"
_LOCK_TIMEOUT = "55P03"
_BUSY = "SQLITE_BUSY"
_DETAIL = (
    "The database does not answer, is locked, or is not migrated; "
    "send the request again in a moment."
)
UNCONFIRMED = (
    "The database did not confirm the change, which may or may not have been made; send the same "
    "request again, with the same Idempotency-Key if it had one."
)
"""What is said of a commit that failed."""


@contextmanager
def translated(detail: str = _DETAIL) -> Iterator[None]:
    """Raise DatabaseUnavailable in place of what the driver raises for a state of its own."""
    try:
        yield
    except PoolTimeout as error:
        raise DatabaseUnavailable(
            "All connections to the database are in use; send the request again in a moment."
        ) from error
    except DBAPIError as error:
        missing_table = getattr(error.orig, "sqlstate", None) == _UNDEFINED_TABLE
        if isinstance(error, _MISTAKES) and not missing_table and not error.connection_invalidated:
            raise
        raise DatabaseUnavailable(detail) from error
    except _RAW as error:
        missing_table = getattr(error, "sqlstate", None) == _UNDEFINED_TABLE
        if isinstance(error, _RAW_MISTAKES) and not missing_table:
            raise
        raise DatabaseUnavailable(detail) from error


def is_locked(error: OperationalError | sqlite3.OperationalError) -> bool:
    """Tell whether somebody else held a lock for longer than it is waited for."""
    # Transactions on SQLite begin without SQLAlchemy.
    cause = error.orig if isinstance(error, OperationalError) else error
    sqlite = getattr(cause, "sqlite_errorname", "")
    return getattr(cause, "sqlstate", None) == _LOCK_TIMEOUT or sqlite.startswith(_BUSY)
