"""The database engine: read and write transactions, error translation.

SQLite runs in WAL mode with `synchronous=FULL`; writes begin with `BEGIN
IMMEDIATE`, and writers of one process queue up for it in turn. PostgreSQL is
reached through psycopg 3. A circuit breaker keeps calls from queueing up while the
database is silent or, with SQLite, while another process has it locked.
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


#: How often whoever waits for a connection of the pool looks whether the breaker was tripped.
_LOOK_S = 0.2


class ReadTransaction:
    """A transaction that sees one state of the database and changes nothing."""

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
        """Run one statement with `values` for its parameters, or once for each of many."""
        return self._connection.execute(statement, values)

    def look_up(self, lookup: PreparedSelect, keys: Sequence[Any]) -> list[Any]:
        """Return the rows of these keys, of which there may be none; a key may come twice."""
        return lookup.rows(self._connection, keys) if keys else []


class WriteTransaction(ReadTransaction):
    """A transaction that may change the database."""

    def run_each(self, each: PreparedDml, rows: Sequence[Mapping[str, Any]]) -> int:
        """Run a statement for each of these parameters; return how many rows it changed."""
        return each.run(self._connection, rows) if rows else 0


class Database:
    """One database and its one engine; may be used by many threads."""

    def __init__(self, url: str, *, pool_size: int = 20, wait_ms: int = 5000) -> None:
        """Open no connection yet.

        `wait_ms` is how long to wait for a lock or a free connection. Raises
        InvalidSettings for a URL that names no database that we can use.
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
            pool_timeout=self._wait_s if self.dialect == "sqlite" else min(self._wait_s, _LOOK_S),
            pool_pre_ping=self.dialect == "postgresql",
            hide_parameters=True,
        )
        # A reader sees one state of PostgreSQL throughout, as it does of SQLite anyway.
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
            # For changes: to read needs no lock.
            self._breaker = CircuitBreaker(self._writer.try_lock)
        else:
            connector = Connector(self._engine, wait_ms=wait_ms, most=pool_size)
            self._breaker = connector.breaker

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._url.get_backend_name()

    @property
    def engine(self) -> Engine:
        """The engine itself, for migrations."""
        return self._engine

    def __repr__(self) -> str:
        return f"Database({self._url.render_as_string(hide_password=True)!r})"

    @contextmanager
    def read(self) -> Iterator[ReadTransaction]:
        """Open a transaction for reading.

        Raises DatabaseUnavailable where the database cannot be used now.
        """
        with translated(), self._connected(self._reading) as connection, connection.begin():
            yield ReadTransaction(connection)

    @contextmanager
    def scan(self) -> Iterator[ReadTransaction]:
        """Open a connection to read many rows by; on PostgreSQL each statement sees its own state.

        No transaction is open between statements, so it may take its time to make something of the
        rows: PostgreSQL ends a session that does so within a transaction. Raises
        DatabaseUnavailable where the database cannot be used now.
        """
        with translated(), self._connected(self._scanning) as connection, connection.begin():
            yield ReadTransaction(connection)

    @contextmanager
    def write(self) -> Iterator[WriteTransaction]:
        """Open a transaction for writing; it is committed when the block ends well.

        Raises DatabaseUnavailable where the database cannot be used now. If that
        comes from the commit, it may have happened all the same: repeat with the
        same idempotency key.
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
        """Raise DatabaseUnavailable unless there could be changes now."""
        with self.write():
            pass

    def _connected(self, engine: Engine) -> Connection:
        """Return a connection that has just answered, or raise what stands against it."""
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
        """Begin a transaction on SQLite when this process's other writers, and others, are done."""
        self._breaker.check()
        with self._turn(), ExitStack() as held:
            # Whose turn it was before may have waited in vain.
            self._breaker.check()
            try:
                connection = held.enter_context(writer.transaction())
            except (sqlite3.OperationalError, OperationalError) as error:
                if is_locked(error):
                    self._breaker.trip()
                raise
            yield connection

    def close(self) -> None:
        """Close all connections, those that are in use when they are given back."""
        self._breaker.close()
        event.listen(self._engine, "checkin", _close)
        self._engine.dispose()
        if self._writer is not None and self._writers.acquire(blocking=False):
            try:
                self._writer.close()
            finally:
                self._writers.release()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait for this process's other writers, as SQLite takes one at a time."""
        if not self._writers.acquire(timeout=self._wait_s):
            raise DatabaseUnavailable(
                "The database is busy with other changes; send the request again."
            )
        try:
            yield
        finally:
            self._writers.release()


def _close(_connection: object, record: ConnectionPoolEntry) -> None:
    record.invalidate()


def _parsed(text: str) -> URL:
    """Return the URL with the driver that we use."""
    expected = "sqlite:///PATH or postgresql://USER:PASSWORD@HOST/DATABASE"
    try:
        url = make_url(text)
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise InvalidSettings(f"database_url is not a URL; give {expected}") from None
    if url.drivername in {"postgresql", "postgres", "postgresql+psycopg"}:
        return url.set(drivername="postgresql+psycopg")
    if url.drivername != "sqlite":
        raise InvalidSettings(f"database_url is of the kind {url.drivername!r}; give {expected}")
    if not url.database or url.database == ":memory:":
        raise InvalidSettings("a database in memory would be lost on exit; give sqlite:///PATH")
    return url
