"""Failures of the database: translation of drivers' errors, and their causes for the log."""

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

from sluiceway_gateway.core.errors import DatabaseUnavailable

# Errors of these types are bugs, not states of the database.
_BUGS = (DataError, IntegrityError, NotSupportedError, ProgrammingError)
# The same for statements that bypass SQLAlchemy.
_DRIVER_ERRORS = (sqlite3.Error, psycopg.Error)
_DRIVER_BUGS = tuple(
    kind
    for driver in (sqlite3, psycopg)
    for kind in (
        driver.DataError,
        driver.IntegrityError,
        driver.NotSupportedError,
        driver.ProgrammingError,
    )
)
# States of the database, although drivers report them as errors of the program: a missing table, a
# missing schema, a missing privilege.
_NOT_PREPARED = frozenset({"42P01", "3F000", "42501"})
_LOCK_TIMEOUT = "55P03"
_DISK_FULL = "53100"
_BUSY = "SQLITE_BUSY"
_DETAIL = (
    "The database does not answer, is locked, full, read-only or not migrated, or refuses access; "
    "try again in a moment."
)
UNCONFIRMED = (
    "The database did not confirm the change, which may or may not have been made; send the same "
    "request again, with the same Idempotency-Key if it had one."
)
"""Detail of DatabaseUnavailable after a failed commit."""


@contextmanager
def translated(detail: str = _DETAIL) -> Iterator[None]:
    """Raise DatabaseUnavailable instead of errors that are states of the database."""
    try:
        yield
    except PoolTimeout as error:
        raise DatabaseUnavailable(
            "All connections to the database are in use; try again in a moment."
        ) from error
    except (DBAPIError, *_DRIVER_ERRORS) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        lost = isinstance(error, DBAPIError) and error.connection_invalidated
        not_prepared = getattr(cause, "sqlstate", None) in _NOT_PREPARED
        if isinstance(error, (*_BUGS, *_DRIVER_BUGS)) and not not_prepared and not lost:
            raise
        raise DatabaseUnavailable(detail) from error


def is_disk_full(raised: BaseException | None) -> bool:
    """Return whether an error, of SQLAlchemy or of a driver, is that of a full disk."""
    cause = raised.orig if isinstance(raised, DBAPIError) else raised
    sqlite = getattr(cause, "sqlite_errorname", None)
    return sqlite == "SQLITE_FULL" or getattr(cause, "sqlstate", None) == _DISK_FULL


def is_locked(error: OperationalError | sqlite3.OperationalError) -> bool:
    """Return whether the wait for a lock timed out."""
    # SQLite's transactions bypass SQLAlchemy.
    cause = error.orig if isinstance(error, OperationalError) else error
    sqlite = getattr(cause, "sqlite_errorname", "")
    return getattr(cause, "sqlstate", None) == _LOCK_TIMEOUT or sqlite.startswith(_BUSY)


def cause_of(error: BaseException) -> str | None:
    """Return what the database or its driver says, on one line, for the log; None without that.

    Responses leave it out: it has addresses and names.
    """
    raised = error.__cause__ if isinstance(error, DatabaseUnavailable) else None
    if isinstance(raised, DBAPIError):
        raised = raised.orig
    if raised is None:
        return None
    # Without the statement that PostgreSQL quotes.
    primary = raised.diag.message_primary if isinstance(raised, psycopg.Error) else None
    return " ".join((primary or str(raised)).split())


def reason_of(error: BaseException) -> dict[str, str]:
    """Return the log's fields for an error: `reason`, and for the database `cause`."""
    cause = cause_of(error)
    return {"reason": str(error)} | ({} if cause is None else {"cause": cause})
