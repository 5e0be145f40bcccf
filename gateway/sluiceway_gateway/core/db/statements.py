"""Prepared and cached statements, and upserts.

Prepared statements avoid most of SQLAlchemy's work per execution: they keep the compiled text, the
order of its parameters and the converters of values. They are for what runs with each commit or
heartbeat, and for rows that are read again and again; all others are SQLAlchemy's own.
"""

import threading
from collections import namedtuple
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from itertools import chain
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Dialect, Table, and_, false, func, or_, true
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql import Delete, Insert, Select, Update

#: Keys per statement. PostgreSQL allows 65,535 parameters, SQLite 32,766.
KEYS_AT_ONCE = 500

#: The same for prepared statements, whose keys have up to four values.
_KEYS_AT_ONCE = 4096

#: Rows that are converted and sent at a time, which bounds memory and the pause before a statement.
_ROWS_AT_ONCE = 4096

Key = TypeVar("Key")
_Convert = Callable[[Any], Any]


def chunks(keys: Sequence[Key], size: int | None = None) -> Iterator[Sequence[Key]]:
    """Cut keys into parts of `size`, by default as many as one statement takes."""
    size = size or KEYS_AT_ONCE
    for start in range(0, len(keys), size):
        yield keys[start : start + size]


def starts_with(column: ColumnElement[str], prefixes: Iterable[str]) -> ColumnElement[bool]:
    """Return the condition that a text starts with a prefix, as ranges that an index serves."""
    ranges = (
        and_(column >= prefix, column < prefix[:-1] + chr(ord(prefix[-1]) + 1))
        if prefix
        else true()
        for prefix in prefixes
    )
    return or_(false(), *ranges)


def by_dialect(build: Callable[[Any], Any]) -> Mapping[str, Any]:
    """Return a statement per dialect; `build` gets the dialect's own `insert`."""
    return {"sqlite": build(sqlite.insert), "postgresql": build(postgresql.insert)}


class PreparedSelect:
    """A SELECT by `column IN keys`; a key is a value or a tuple of values."""

    def __init__(self, statement: Select[Any], *, keys: str) -> None:
        """`keys` names the expanding parameter, which is the only parameter."""
        self._statement = statement
        self._keys = keys
        names = [str(column.key) for column in statement.selected_columns]
        self._row: Any = namedtuple("Row", names)  # type: ignore[misc]
        self._texts: dict[tuple[str, int], str] = {}
        self._converters: dict[str, list[tuple[int, _Convert]]] = {}

    def rows(self, connection: Connection, keys: Sequence[Any]) -> list[Any]:
        """Return the rows of these keys as named tuples."""
        return [self._named(connection.dialect, row) for row in self._fetch(connection, keys)]

    def _fetch(self, connection: Connection, keys: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """Yield rows as the driver returns them."""
        if len(keys) > _KEYS_AT_ONCE:
            # Duplicates in separate statements would yield a row twice.
            keys = list(dict.fromkeys(keys))
        for part in chunks(keys, _KEYS_AT_ONCE):
            # Repeating the last key up to a power of two keeps the number of texts small.
            count = 1 << (len(part) - 1).bit_length()
            padded = [*part, *[part[-1]] * (count - len(part))]
            values = list(chain.from_iterable(padded)) if isinstance(part[0], tuple) else padded
            with closing(connection.connection.cursor()) as cursor:
                cursor.execute(self._text(connection.dialect, padded), values)
                yield from cursor.fetchall()

    def _text(self, dialect: Dialect, keys: list[Any]) -> str:
        text = self._texts.get((dialect.name, len(keys)))
        if text is None:
            compiled = self._statement.params({self._keys: keys}).compile(
                dialect=_positional(dialect), compile_kwargs={"render_postcompile": True}
            )
            text = self._texts[dialect.name, len(keys)] = str(compiled)
        return text

    def _named(self, dialect: Dialect, row: Sequence[Any]) -> Any:
        """Return a named tuple with values converted to the columns' Python types."""
        converters = self._converters.get(dialect.name)
        if converters is None:
            processors = (
                column.type.dialect_impl(dialect).result_processor(dialect, None)
                for column in self._statement.selected_columns
            )
            converters = [
                (at, convert) for at, convert in enumerate(processors) if convert is not None
            ]
            self._converters[dialect.name] = converters
        if not converters:
            return self._row._make(row)
        values = list(row)
        for at, convert in converters:
            values[at] = convert(values[at])
        return self._row._make(values)


class CachedSelect(PreparedSelect):
    """A prepared SELECT that converts a row only when it differs from the cached one.

    The first column is the cache key. The least recently used entries are evicted.
    """

    def __init__(
        self, statement: Select[Any], *, keys: str, make: Callable[[Any], Any], max_entries: int
    ) -> None:
        """`make` converts a named tuple to the value that is cached and returned."""
        super().__init__(statement, keys=keys)
        self._make = make
        self._max_entries = max_entries
        self._cache: dict[Any, tuple[Any, Any]] = {}
        self._lock = threading.Lock()

    def rows(self, connection: Connection, keys: Sequence[Any]) -> list[Any]:
        """Return the converted rows; an unchanged row yields the same object again."""
        rows = list(self._fetch(connection, keys))
        results = []
        with self._lock:
            for row in rows:
                entry = self._cache.pop(row[0], None)
                if entry is None or entry[0] != row:
                    entry = (row, self._make(self._named(connection.dialect, row)))
                self._cache[row[0]] = entry
                results.append(entry[1])
            while len(self._cache) > self._max_entries:
                del self._cache[next(iter(self._cache))]
        return results


class PreparedDml:
    """An INSERT, UPDATE or DELETE that runs once per row of parameters."""

    def __init__(
        self,
        statement: Insert | Update | Delete | Mapping[str, Insert],
        *,
        columns: Sequence[str] = (),
    ) -> None:
        """`statement` may be one per dialect; `columns` are the columns that an INSERT sets."""
        self._statement = statement
        self._columns = list(columns)
        self._compiled: dict[str, tuple[str, list[tuple[str, _Convert | None]]]] = {}

    def run(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> int:
        """Run the statement for each row; return the number of affected rows."""
        dialect = connection.dialect
        if dialect.name not in self._compiled:
            self._compiled[dialect.name] = self._compile(dialect)
        text, parameters = self._compiled[dialect.name]
        affected = 0
        with closing(connection.connection.cursor()) as cursor:
            for part in chunks(rows, _ROWS_AT_ONCE):
                values = [
                    [
                        row[name] if convert is None else convert(row[name])
                        for name, convert in parameters
                    ]
                    for row in part
                ]
                cursor.executemany(text, values)
                affected += int(cursor.rowcount)
        return affected

    def _compile(self, dialect: Dialect) -> tuple[str, list[tuple[str, _Convert | None]]]:
        """Return the text, and its parameters in order with their converters."""
        statement = self._statement
        if isinstance(statement, Mapping):
            statement = statement[dialect.name]
        compiled: Any = statement.compile(
            dialect=_positional(dialect), column_keys=self._columns or None
        )
        return str(compiled), [
            (name, compiled.binds[name].type.dialect_impl(dialect).bind_processor(dialect))
            for name in compiled.positiontup or ()
        ]


def upsert(
    table: Table,
    keys: Collection[str],
    *,
    where: Callable[[Any], ColumnElement[bool]] | None = None,
    kept: Collection[str] = (),
) -> Mapping[str, Insert]:
    """Return the INSERT of whole rows, which updates the row with the same `keys`, if there is one.

    It is one statement per dialect. Columns of `kept` are set where they are NULL, and keep their
    value otherwise. `where` gets the columns of the new row; where it is false, nothing changes,
    and the row does not count in the result's `rowcount`.
    """

    def build(insert: Any) -> Insert:
        statement = insert(table)
        new = statement.excluded
        updated: Insert = statement.on_conflict_do_update(
            index_elements=keys,
            set_={
                name: func.coalesce(table.c[name], new[name]) if name in kept else new[name]
                for name in table.columns.keys()  # noqa: SIM118 - it iterates over columns
                if name not in keys
            },
            where=None if where is None else where(new),
        )
        return updated.execution_options(preserve_rowcount=True)

    return by_dialect(build)


def columns_of(row: Any, kind: type) -> dict[str, Any]:
    """Return the columns of a row that have the name of a field of a dataclass."""
    return {field.name: getattr(row, field.name) for field in fields(kind)}


def _positional(dialect: Dialect) -> Dialect:
    """Return the dialect with positional parameters."""
    if dialect.positional:
        return dialect
    positional: Dialect = type(dialect)(paramstyle="format")  # type: ignore[call-arg]
    return positional
