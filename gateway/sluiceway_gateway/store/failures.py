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
_DETAIL = (
    "The database does not answer, is locked, or is not migrated; "
    "send the request again in a moment."
)


@contextmanager
def translated() -> Iterator[None]:
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
        raise DatabaseUnavailable(_DETAIL) from error
    except _RAW as error:
        missing_table = getattr(error, "sqlstate", None) == _UNDEFINED_TABLE
        if isinstance(error, _RAW_MISTAKES) and not missing_table:
            raise
        raise DatabaseUnavailable(_DETAIL) from error
