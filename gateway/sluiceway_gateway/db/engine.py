"""The database engine: read and write transactions, error translation.

SQLite runs in WAL mode with `synchronous=FULL`. Writes begin with `BEGIN IMMEDIATE`, one at a time
per process. PostgreSQL is accessed through psycopg 3. A circuit breaker keeps calls from queueing
while the database does not answer or, with SQLite, while another process has it locked.
"""

import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
from sqlalchemy import Connection, CursorResult, Engine, Executable, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry

from sluiceway_gateway.db.breaker import CircuitBreaker
from sluiceway_gateway.db.postgresql import Connector, connect_arguments
from sluiceway_gateway.db.sqlite import SqliteWriter, set_up
from sluiceway_gateway.db.statements import PreparedDml, PreparedSelect
from sluiceway_gateway.errors import DatabaseUnavailable, InvalidSettings

# Errors of these kinds are bugs, not states of the database.
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
"""Detail of DatabaseUnavailable after a failed commit."""


@contextmanager
def translated(detail: str = _DETAIL) -> Iterator[None]:
    """Raise DatabaseUnavailable instead of errors that are states of the database."""
    try:
        yield
    except PoolTimeout as error:
        raise DatabaseUnavailable(
            "All connections to the database are in use; send the request again in a moment."
        ) from error
    except (DBAPIError, *_DRIVER_ERRORS) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        lost = isinstance(error, DBAPIError) and error.connection_invalidated
        missing_table = getattr(cause, "sqlstate", None) == _UNDEFINED_TABLE
        if isinstance(error, (*_BUGS, *_DRIVER_BUGS)) and not missing_table and not lost:
            raise
        raise DatabaseUnavailable(detail) from error


def is_locked(error: OperationalError | sqlite3.OperationalError) -> bool:
    """Return whether the wait for a lock timed out."""
    # SQLite's transactions bypass SQLAlchemy.
    cause = error.orig if isinstance(error, OperationalError) else error
    sqlite = getattr(cause, "sqlite_errorname", "")
    return getattr(cause, "sqlstate", None) == _LOCK_TIMEOUT or sqlite.startswith(_BUSY)


#: How often a wait for a pooled connection checks the breaker.
_CHECK_S = 0.2


class ReadTransaction:
    """A read-only transaction on one snapshot of the database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._connection.dialect.name

    @property
    def connection(self) -> Connection:
        """SQLAlchemy's connection, for Alembic."""
        return self._connection

    def execute(
        self,
        statement: Executable,
        values: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    ) -> CursorResult[Any]:
        """Execute a statement with one set of parameters, or once per set of a sequence."""
        return self._connection.execute(statement, values)

    def look_up(self, statement: PreparedSelect, keys: Sequence[Any]) -> list[Any]:
        """Return the rows of these keys, which may be empty or contain duplicates."""
        return statement.rows(self._connection, keys) if keys else []


class WriteTransaction(ReadTransaction):
    """A transaction that may write."""

    def run_each(self, statement: PreparedDml, rows: Sequence[Mapping[str, Any]]) -> int:
        """Run a statement for each row of parameters; return the number of affected rows."""
        return statement.run(self._connection, rows) if rows else 0


class Database:
    """A database and its engine; thread-safe."""

    def __init__(self, url: str, *, pool_size: int = 20, wait_ms: int = 5000) -> None:
        """Open no connection yet.

        `wait_ms` limits waits for a lock or a free connection. Raises InvalidSettings for a URL
        that is not allowed.
        """
        self._url = _parsed(url)
        self._wait_s = wait_ms / 1000
        self._writers = threading.Lock()
        arguments: dict[str, Any]
        if self.dialect == "sqlite":
            arguments = {"timeout": self._wait_s, "check_same_thread": False}
        else:
            arguments = connect_arguments(self._url, wait_ms=wait_ms)
        self._engine = create_engine(
            self._url,
            connect_args=arguments,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=self._wait_s if self.dialect == "sqlite" else min(self._wait_s, _CHECK_S),
            pool_pre_ping=self.dialect == "postgresql",
            hide_parameters=True,
        )
        # One snapshot per read transaction, as SQLite has by default.
        self._reading = (
            self._engine.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
            if self.dialect == "postgresql"
            else self._engine
        )
        self._scanning = (
            self._engine.execution_options(isolation_level="AUTOCOMMIT")
            if self.dialect == "postgresql"
            else self._engine
        )
        self._writer: SqliteWriter | None = None
        if self.dialect == "sqlite":
            set_up(self._engine)
            self._writer = SqliteWriter(self._engine)
            # For writes; reads need no lock.
            self._breaker = CircuitBreaker(self._writer.try_lock)
        else:
            connector = Connector(self._engine, wait_ms=wait_ms, max_concurrent=pool_size)
            self._breaker = connector.breaker

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._url.get_backend_name()

    @property
    def engine(self) -> Engine:
        """The engine, for migrations."""
        return self._engine

    def __repr__(self) -> str:
        return f"Database({self._url.render_as_string(hide_password=True)!r})"

    @contextmanager
    def read(self) -> Iterator[ReadTransaction]:
        """Open a read transaction; raises DatabaseUnavailable."""
        with translated(), self._connected(self._reading) as connection, connection.begin():
            yield ReadTransaction(connection)

    @contextmanager
    def scan(self) -> Iterator[ReadTransaction]:
        """Open a connection for reading many rows; raises DatabaseUnavailable.

        On PostgreSQL each statement has its own snapshot and no transaction stays open between
        statements, so slow processing of the rows does not hit the idle timeout.
        """
        with translated(), self._connected(self._scanning) as connection, connection.begin():
            yield ReadTransaction(connection)

    @contextmanager
    def write(self) -> Iterator[WriteTransaction]:
        """Open a write transaction that is committed after the block.

        Raises DatabaseUnavailable. After a failed commit the change may still have been made, so
        repeat it with the same idempotency key.
        """
        if self._writer is not None:
            with translated(), self._locked(self._writer) as connection:
                yield WriteTransaction(connection)
            return
        with translated(), self._connected(self._engine) as connection, connection.begin() as begun:
            yield WriteTransaction(connection)
            with translated(UNCONFIRMED):
                begun.commit()

    def check(self) -> None:
        """Raise DatabaseUnavailable unless writes are possible."""
        with self.write():
            pass

    def _connected(self, engine: Engine) -> Connection:
        """Return a live connection."""
        if self._writer is not None:
            return engine.connect()
        deadline_s = time.monotonic() + self._wait_s
        while True:
            self._breaker.check()
            try:
                return engine.connect()
            except PoolTimeout:
                if time.monotonic() > deadline_s:
                    raise

    @contextmanager
    def _locked(self, writer: SqliteWriter) -> Iterator[Connection]:
        """Begin a write transaction on SQLite once no other writer is active."""
        self._breaker.check()
        if not self._writers.acquire(timeout=self._wait_s):
            raise DatabaseUnavailable(
                "The database is busy with other changes; send the request again."
            )
        try:
            # The previous writer may have tripped it.
            self._breaker.check()
            with ExitStack() as held:
                try:
                    connection = held.enter_context(writer.transaction())
                except (sqlite3.OperationalError, OperationalError) as error:
                    if is_locked(error):
                        self._breaker.trip()
                    raise
                yield connection
        finally:
            self._writers.release()

    def close(self) -> None:
        """Close all connections; those in use close when they are returned."""
        self._breaker.close()
        event.listen(self._engine, "checkin", _close)
        self._engine.dispose()
        if self._writer is not None and self._writers.acquire(blocking=False):
            try:
                self._writer.close()
            finally:
                self._writers.release()


def _close(_connection: object, record: ConnectionPoolEntry) -> None:
    record.invalidate()


def _parsed(text: str) -> URL:
    """Return the URL with the supported driver."""
    expected = "sqlite:///PATH or postgresql://USER:PASSWORD@HOST/DATABASE"
    try:
        url = make_url(text)
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise InvalidSettings(f"database_url is not a URL; give {expected}") from None
    if url.drivername in {"postgresql", "postgres", "postgresql+psycopg"}:
        return url.set(drivername="postgresql+psycopg")
    if url.drivername != "sqlite":
        raise InvalidSettings(f"database_url has the dialect {url.drivername!r}; give {expected}")
    if not url.database or url.database == ":memory:":
        raise InvalidSettings("a database in memory would be lost on exit; give sqlite:///PATH")
    return url
