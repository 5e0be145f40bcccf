"""Statements of all databases of a test run, compiled once.

SQLAlchemy keeps them by engine, which a gateway has one of. Each test has a gateway of its own, and
to compile what it asks takes longer than to answer.
"""

from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache


def share_compiled() -> None:
    """Have all engines of this process share them, those that a test makes later too."""
    compiled: LRUCache[Any, Any] = LRUCache(5000)

    @event.listens_for(Engine, "engine_connect")
    def _connected(connection: Connection) -> None:
        connection.execution_options(compiled_cache=compiled)

    # They are kept by dialect, of which each engine has its own, and all alike.
    for kind in (SQLiteDialect_pysqlite, PGDialect_psycopg):
        kind.__eq__ = lambda self, other: type(self) is type(other)  # type: ignore[method-assign]
        kind.__hash__ = lambda self: hash(type(self))  # type: ignore[method-assign]
