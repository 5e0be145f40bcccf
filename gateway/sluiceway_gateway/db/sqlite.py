"""SQLite: connection setup and the single writer of a process."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError

_PAUSE_S = 0.01


def set_up(engine: Engine) -> None:
    """Install the setup of connections and transactions on an engine."""
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)


def _prepare(connection: Any, _record: object) -> None:
    # _begin and SqliteWriter begin transactions instead of the driver.
    connection.isolation_level = None
    with closing(connection.cursor()) as cursor:
        _enable_wal(cursor)
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")


def _enable_wal(cursor: sqlite3.Cursor) -> None:
    """Switch the file to a write-ahead log.

    Only one of several processes that open a new file at once can do so. SQLite's busy timeout
    does not cover this, so wait here.
    """
    (timeout_ms,) = cursor.execute("PRAGMA busy_timeout").fetchone()
    deadline_s = time.monotonic() + timeout_ms / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline_s:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def _begin(connection: Connection) -> None:
    # SQLAlchemy's own way takes ten times as long. The writer has already begun a transaction.
    driver: Any = connection.connection.dbapi_connection
    if not driver.in_transaction:
        # Migrations use connections of their own instead of the writer.
        writes = connection.get_execution_options().get("sluiceway_writes", False)
        driver.execute("BEGIN IMMEDIATE" if writes else "BEGIN")


class SqliteWriter:
    """The connection for all writes of a process, one transaction at a time.

    It is kept open and uses the driver's transactions: the pool and SQLAlchemy's transactions cost
    as much as all statements of an offset commit.
    """

    def __init__(self, engine: Engine) -> None:
        """Open no connection yet."""
        self._engine = engine
        self._connection: Connection | None = None

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Begin a transaction, and commit it durably after the block.

        Callers serialize their calls. Raises the driver's errors.
        """
        if self._connection is None:
            self._connection = self._engine.connect()
            # A pooled connection would be missing for readers.
            self._connection.detach()
        driver: Any = self._connection.connection.dbapi_connection
        try:
            driver.execute("BEGIN IMMEDIATE")
            yield self._connection
            driver.commit()
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, sqlite3.Error | DBAPIError):
                driver.rollback()
            else:
                # The state of a connection that failed or was interrupted in a statement is
                # unknown, so the next transaction opens a new one.
                self.close()
                # SQLAlchemy drops an interrupted connection without closing it.
                driver.close()
            raise

    def try_lock(self) -> None:
        """Take and release the write lock on another connection; raises the driver's errors."""
        with self._engine.connect() as connection:
            connection.detach()
            with connection.execution_options(sluiceway_writes=True).begin():
                pass

    def close(self) -> None:
        """Close the connection, rolling back; the next transaction opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
