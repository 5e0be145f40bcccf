"""The database engine: read and write transactions, SQLite's single writer, failures."""

import math
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Self

import psycopg
from sqlalchemy import Connection, CursorResult, Engine, Executable, Row, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry

from sluiceway_gateway.core.db.failures import UNCONFIRMED, is_disk_full, is_locked, translated
from sluiceway_gateway.core.db.postgresql import (
    CircuitBreaker,
    Connector,
    check_parameters,
    connect_arguments,
)
from sluiceway_gateway.core.db.statements import PreparedDml, PreparedSelect, chunks
from sluiceway_gateway.core.errors import DatabaseUnavailable, InvalidSettings
from sluiceway_gateway.core.tracing import child_span, statement

#: Interval at which a wait for a pooled connection checks the breaker.
_CHECK_S = 0.2
#: Time for which writes count as impossible after one that did not fit on the disk. Loops of the
#: leading replica write more often.
FULL_S = 10.0
_ALLOW_PAUSES = text("SET LOCAL idle_in_transaction_session_timeout = 60000")
_READ_ONLY = text("SHOW transaction_read_only")


class ChangeKind(StrEnum):
    """Kind of a change, by the word that notifications to other replicas have."""

    CHANNEL = "channel"
    ENDPOINTS = "endpoints"
    SAMPLES = "samples"
    LEDGER = "ledger"
    GROUP = "group"
    """A group of readers, or its positions."""


class ChangeKey(NamedTuple):
    """A change that requests wait for."""

    kind: str
    uid: str
    """The uid of the channel; for a group followed by a slash and its name."""


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

    def allow_pauses(self) -> None:
        """Let the transaction pause for a minute between statements, as for work on large values.

        PostgreSQL ends others after some seconds, since a paused gateway must not keep locks.
        """
        if self.dialect == "postgresql":
            self._connection.execute(_ALLOW_PAUSES)

    def execute(
        self,
        statement: Executable,
        values: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    ) -> CursorResult[Any]:
        """Execute a statement with one set of parameters, or once per set of a sequence."""
        return self._connection.execute(statement, values)

    def in_parts(
        self,
        statement: Executable,
        values: Mapping[str, Any] | None = None,
        **keys: Sequence[Any],
    ) -> Iterator[Row[Any]]:
        """Yield the rows of a SELECT by `column IN keys`, executed for some hundred keys at a time.

        The keyword is the name of the expanding parameter.
        """
        ((name, every),) = keys.items()
        for part in chunks(every):
            yield from self.execute(statement, {**(values or {}), name: part})

    def look_up(self, statement: PreparedSelect, keys: Sequence[Any]) -> list[Any]:
        """Return the rows of these keys, which may be empty or contain duplicates."""
        return statement.rows(self._connection, keys) if keys else []


class WriteTransaction(ReadTransaction):
    """A transaction that may write."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.changes: set[ChangeKey] = set()

    def publish(self, kind: ChangeKind, uids: Iterable[str]) -> None:
        """Wake the requests that wait for these changes, once they are committed."""
        self.changes.update(ChangeKey(kind, uid) for uid in uids)

    def run_each(self, statement: PreparedDml, rows: Sequence[Mapping[str, Any]]) -> int:
        """Run a statement for each row of parameters; return the number of affected rows."""
        return statement.run(self._connection, rows) if rows else 0


class _TracedCursor(sqlite3.Cursor):
    """A cursor that creates a span per statement."""

    def execute(self, text: str, values: Any = ()) -> Self:
        with statement("sqlite", text):
            return super().execute(text, values)

    def executemany(self, text: str, rows: Any) -> Self:
        with statement("sqlite", text, sets=len(rows)):
            return super().executemany(text, rows)


class _TracedConnection(sqlite3.Connection):
    """A connection with such cursors."""

    def cursor(self, factory: Any = _TracedCursor) -> Any:
        return super().cursor(factory)


class SqliteWriter:
    """The connection for all writes of a process, one transaction at a time.

    It stays open and uses the driver's transactions: the pool and SQLAlchemy's transactions take as
    long as all statements of an offset commit.
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
            # Not from the pool, whose connections are for readers.
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


class _RolledBack(Exception):
    """Ends a transaction that must not be committed."""


class Database:
    """A database and its engine; thread-safe."""

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 20,
        wait_ms: int = 5000,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open no connection yet.

        `wait_ms` limits waits for a lock or a free connection. Raises InvalidSettings for a URL
        that is not allowed.
        """
        self._url = _parsed(url)
        self._wait_s = wait_ms / 1000
        self._monotonic = monotonic
        self.on_commit: Callable[[Collection[ChangeKey]], None] = lambda _changes: None
        """Called after each commit with the changes that its transaction has published."""
        self._connector: Connector | None = None
        """Opens connections to PostgreSQL."""
        self._writers = threading.Lock()
        self._full_s = -math.inf
        """When a write last did not fit on the disk."""
        arguments: dict[str, Any]
        if self.dialect == "sqlite":
            arguments = {
                "timeout": self._wait_s,
                "check_same_thread": False,
                "factory": _TracedConnection,
            }
        else:
            arguments = connect_arguments(self._url, wait_ms=wait_ms)
        self._engine = create_engine(
            self._url,
            connect_args=arguments,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=self._wait_s if self.dialect == "sqlite" else min(self._wait_s, _CHECK_S),
            pool_pre_ping=self.dialect == "postgresql",
            # The connection that was used last has its statements prepared and its caches warm.
            pool_use_lifo=True,
            hide_parameters=True,
        )
        self._reading = self._scanning = self._engine
        self._writer: SqliteWriter | None = None
        if self.dialect == "sqlite":
            event.listen(self._engine, "connect", _prepare)
            event.listen(self._engine, "begin", _begin)
            self._writer = SqliteWriter(self._engine)
            # For writes; reads need no lock.
            self._breaker = CircuitBreaker(self._writer.try_lock)
        else:
            self._connector = Connector(self._engine, wait_ms=wait_ms, max_concurrent=pool_size)
            self._breaker = self._connector.breaker
            # One snapshot per read transaction, as SQLite has by default.
            self._reading = self._engine.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
            self._scanning = self._engine.execution_options(isolation_level="AUTOCOMMIT")

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._url.get_backend_name()

    @property
    def file(self) -> Path | None:
        """The path of an SQLite database."""
        name = self._url.database
        return None if self.dialect != "sqlite" or name is None else Path(name)

    @property
    def engine(self) -> Engine:
        """The engine, for migrations."""
        return self._engine

    def __repr__(self) -> str:
        return f"Database({self._url.render_as_string(hide_password=True)!r})"

    def read(self) -> AbstractContextManager[ReadTransaction]:
        """Open a read transaction; raises DatabaseUnavailable."""
        return self._opened("read transaction", self._reading)

    def scan(self) -> AbstractContextManager[ReadTransaction]:
        """Open a connection for reading many rows; raises DatabaseUnavailable.

        On PostgreSQL each statement has its own snapshot and no transaction stays open between
        statements, so slow processing of the rows does not hit the idle timeout.
        """
        return self._opened("scan", self._scanning)

    @contextmanager
    def _opened(self, span: str, engine: Engine) -> Iterator[ReadTransaction]:
        with (
            child_span(span, {}, client=False),
            translated(),
            self._connected(engine) as connection,
            connection.begin(),
        ):
            yield ReadTransaction(connection)

    @contextmanager
    def write(self) -> Iterator[WriteTransaction]:
        """Open a write transaction that is committed after the block.

        Raises DatabaseUnavailable. After a failed commit the change may still have been made, so
        repeat it with the same idempotency key.
        """
        with (
            child_span("write transaction", {}, client=False),
            self._noting_full_disk(),
            translated(),
        ):
            if self._writer is not None:
                with self._locked(self._writer) as connection:
                    tx = WriteTransaction(connection)
                    yield tx
            else:
                with self._connected(self._engine) as connection, connection.begin() as begun:
                    tx = WriteTransaction(connection)
                    yield tx
                    with translated(UNCONFIRMED):
                        begun.commit()
        if tx.changes:
            self.on_commit(tx.changes)

    @contextmanager
    def rehearse(self) -> Iterator[WriteTransaction]:
        """Open a write transaction that is rolled back after the block.

        Raises DatabaseUnavailable.
        """
        with suppress(_RolledBack), self.write() as tx:
            yield tx
            raise _RolledBack

    def check(self) -> None:
        """Raise DatabaseUnavailable unless writes are possible.

        A transaction without a change also succeeds on a full disk, which is known from the last
        writes, and on a PostgreSQL that is a standby or read-only, which is asked.
        """
        if self._monotonic() - self._full_s < FULL_S:
            raise DatabaseUnavailable("The database's disk is full; free some of its space.")
        with self.write() as tx:
            if self.dialect == "postgresql" and tx.execute(_READ_ONLY).scalar_one() == "on":
                raise DatabaseUnavailable("The database is read-only; make it accept changes.")

    def connect(self) -> "psycopg.Connection[Any]":
        """Open a connection to PostgreSQL outside of the pool, which commits each statement.

        It fails if the server is silent for two seconds. Raises psycopg's errors.
        """
        assert self._connector is not None, "SQLite has no server"  # noqa: S101
        connection = self._connector.open()
        connection.autocommit = True
        return connection

    @contextmanager
    def _noting_full_disk(self) -> Iterator[None]:
        try:
            yield
        except DatabaseUnavailable as error:
            if is_disk_full(error.__cause__):
                self._full_s = self._monotonic()
            raise

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
            raise DatabaseUnavailable("The database is busy with other changes; try again.")
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


def _parsed(url_text: str) -> URL:
    """Return the URL with the supported driver."""
    expected = "sqlite:///PATH or postgresql://USER:PASSWORD@HOST/DATABASE"
    try:
        url = make_url(url_text)
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise InvalidSettings(f"SLUICEWAY_DATABASE_URL is not a URL; give {expected}") from None
    if url.drivername in {"postgresql", "postgres", "postgresql+psycopg"}:
        check_parameters(url)
        return url.set(drivername="postgresql+psycopg")
    if url.drivername != "sqlite":
        raise InvalidSettings(
            f"SLUICEWAY_DATABASE_URL has the dialect {url.drivername!r}; give {expected}"
        )
    if not url.database or url.database == ":memory:":
        raise InvalidSettings("a database in memory would be lost on exit; give sqlite:///PATH")
    if url.query:
        raise InvalidSettings(
            "SLUICEWAY_DATABASE_URL has parameters, but SQLite takes none; remove them"
        )
    return url


_PAUSE_S = 0.01


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
