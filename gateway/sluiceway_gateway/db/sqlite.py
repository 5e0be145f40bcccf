"""SQLite: connection setup, and the one writer of a process."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError

_PAUSE_S = 0.01


def set_up(engine: Engine) -> None:
    """Have an engine's connections be set up, and their transactions begun, as is right here."""
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)


def _prepare(connection: Any, _record: object) -> None:
    # Transactions are begun by _begin and by the writer, not by the driver's own rules.
    connection.isolation_level = None
    cursor = connection.cursor()
    _keep_a_log(cursor)
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _keep_a_log(cursor: sqlite3.Cursor) -> None:
    """Have the file keep a write-ahead log, as it does from then on.

    Of several that open a new file at once one can set that. SQLite does not have the others wait
    as long as for other locks, so they do here.
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
    # Not by SQLAlchemy, whose way takes ten times as long as SQLite's; the writer has begun before.
    driver: Any = connection.connection.dbapi_connection
    if not driver.in_transaction:
        # Migrations have no writer, but connections and settings of their own.
        writes = connection.get_execution_options().get("sluiceway_writes", False)
        driver.execute("BEGIN IMMEDIATE" if writes else "BEGIN")


class SqliteWriter:
    """The connection that all of a process's changes are made by, one transaction at a time.

    It is kept, and its transactions are the driver's: to take one from a pool, and SQLAlchemy's
    transaction around SQLite's, cost as much as all statements of a commit.
    """

    def __init__(self, engine: Engine) -> None:
        """Open no connection yet."""
        self._engine = engine
        self._connection: Connection | None = None

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Begin a transaction that is committed, durably, when the block ends well.

        Whoever calls sees to it that there is one at a time. Raises what the driver raises.
        """
        if self._connection is None:
            self._connection = self._engine.connect()
            # None of the pool's, so that it takes no reader's place.
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
                # Failed or interrupted within a statement, who knows what it is good for: the next
                # one gets another.
                self.close()
                # SQLAlchemy forgets an interrupted one without closing it.
                driver.close()
            raise

    def try_lock(self) -> None:
        """Take the lock for changes and let it go, on another connection; raises as above."""
        with self._engine.connect() as connection:
            connection.detach()
            with connection.execution_options(sluiceway_writes=True).begin():
                pass

    def close(self) -> None:
        """Close the connection; what was not committed is undone. The next one opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
