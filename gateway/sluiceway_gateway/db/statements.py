"""Prepared and cached statements, upserts, and selectors as SQL.

SQLAlchemy still says what they are; what it makes of them for a database is kept as text, with
the order of its parameters and with what turns values into those of the driver and back.
"""

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Dialect, and_, not_, or_, true
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql import Delete, Insert, Select, Update

from sluiceway_gateway.channels.selector import Requirement, Selector

#: A statement has only so many parameters: 65,535 with PostgreSQL, 32,766 with SQLite.
KEYS_AT_ONCE = 500

Key = TypeVar("Key")


def chunks(keys: Sequence[Key], size: int | None = None) -> Iterator[Sequence[Key]]:
    """Cut keys into parts of `size`, in their order; without one, as many as a statement takes."""
    size = size or KEYS_AT_ONCE
    for start in range(0, len(keys), size):
        yield keys[start : start + size]


def starts_with(column: ColumnElement[str], prefix: str) -> ColumnElement[bool]:
    """Whether the text begins with `prefix`, as a range, which an index serves."""
    if not prefix:
        return true()
    return and_(column >= prefix, column < prefix[:-1] + chr(ord(prefix[-1]) + 1))


def matches(labels: ColumnElement[object], selector: Selector) -> list[ColumnElement[bool]]:
    """Whether the labels meet every part of the selector."""
    return [_met(labels, requirement) for requirement in selector.requirements]


def _met(labels: ColumnElement[object], requirement: Requirement) -> ColumnElement[bool]:
    value: ColumnElement[str] = labels[requirement.key].as_string()
    if requirement.operator == "exists":
        return value.is_not(None)
    if requirement.operator == "absent":
        return value.is_(None)
    if requirement.operator == "in":
        return value.in_(requirement.values)
    return or_(value.is_(None), not_(value.in_(requirement.values)))


_Convert = Callable[[Any], Any]
#: A key is of up to four values, and a statement has at most 32,766 parameters with SQLite.
_KEYS_AT_ONCE = 4096


@dataclass(frozen=True, kw_only=True)
class _Made:
    text: str
    order: tuple[str, ...]
    """The names of the parameters, in the order in which the text has them."""
    bound: Mapping[str, _Convert]
    row: Callable[..., Any]
    read: tuple[tuple[int, _Convert], ...]


class PreparedSelect:
    """A select by `column IN keys`, where a key is a value or a tuple of values."""

    def __init__(self, statement: Select[Any], *, keys: str) -> None:
        """`keys` is the name of the expanding parameter, the only one."""
        self._statement = statement
        self._keys = keys
        names = [str(each.key) for each in statement.selected_columns]
        row: Any = namedtuple("Row", names)  # type: ignore[misc]
        self._row = row
        self._made: dict[tuple[str, int], _Made] = {}

    def rows(self, connection: Connection, keys: Sequence[Any]) -> list[Any]:
        """Return what is found, with the columns by name."""
        return [_row(made, row) for made, row in self._found(connection, keys)]

    def _found(self, connection: Connection, keys: Sequence[Any]) -> Iterator[tuple[_Made, Any]]:
        if len(keys) > _KEYS_AT_ONCE:
            # In different statements one key would be found twice.
            keys = list(dict.fromkeys(keys))
        for part in chunks(keys, _KEYS_AT_ONCE):
            made, found = self._found_at_once(connection, part)
            yield from ((made, row) for row in found)

    def _found_at_once(
        self, connection: Connection, keys: Sequence[Any]
    ) -> tuple[_Made, list[Any]]:
        # Few different texts: keys are made up to a power of two by naming the last one again.
        count = 1 << (len(keys) - 1).bit_length()
        made = self._made.get((connection.dialect.name, count))
        if made is None:
            made = self._make(connection.dialect, [keys[0]] * count)
            self._made[connection.dialect.name, count] = made
        padded = [*keys, *[keys[-1]] * (count - len(keys))]
        values = list(chain.from_iterable(padded)) if isinstance(keys[0], tuple) else padded
        cursor = connection.connection.cursor()
        try:
            cursor.execute(made.text, values)
            return made, list(cursor.fetchall())
        finally:
            cursor.close()

    def _make(self, dialect: Dialect, keys: list[Any]) -> _Made:
        compiled = self._statement.params({self._keys: keys}).compile(
            dialect=_positional(dialect), compile_kwargs={"render_postcompile": True}
        )
        columns = self._statement.selected_columns
        found = [
            each.type.dialect_impl(dialect).result_processor(dialect, None) for each in columns
        ]
        return _Made(
            text=str(compiled),
            order=(),
            bound={},
            row=self._row._make,
            read=tuple((at, convert) for at, convert in enumerate(found) if convert is not None),
        )


class CachedSelect(PreparedSelect):
    """A lookup of rows that are mostly as they were: what is made of one is kept until it differs.

    Its first column tells one row from the others.
    """

    def __init__(
        self, statement: Select[Any], *, keys: str, make: Callable[[Any], Any], most: int
    ) -> None:
        """`make` is given a row; of at most `most` of them what it made is kept."""
        super().__init__(statement, keys=keys)
        self._make_of = make
        self._most = most
        self._kept: dict[Any, tuple[Any, Any]] = {}

    def rows(self, connection: Connection, keys: Sequence[Any]) -> list[Any]:
        """Return what was made of each row: the same object as before, if the row is the same."""
        found = list(self._found(connection, keys))
        if len(self._kept) + len(found) > self._most:
            self._kept = {}
        kept = self._kept
        results = []
        for made, row in found:
            before = kept.get(row[0])
            if before is None or before[0] != row:
                before = kept[row[0]] = (row, self._make_of(_row(made, row)))
            results.append(before[1])
        return results


class PreparedDml:
    """A statement that changes something, once for each of many rows of parameters."""

    def __init__(self, statement: Insert | Update | Delete, *, columns: Sequence[str] = ()) -> None:
        """`columns` are those that an insert gives values for."""
        self._statement = statement
        self._columns = list(columns)
        self._made: dict[str, _Made] = {}

    def run(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> int:
        """Run it for each row; return how many rows of the table were changed."""
        made = self._made.get(connection.dialect.name)
        if made is None:
            made = self._made[connection.dialect.name] = self._make(connection.dialect)
        values = [
            tuple(
                made.bound[name](row[name]) if name in made.bound else row[name]
                for name in made.order
            )
            for row in rows
        ]
        cursor = connection.connection.cursor()
        try:
            cursor.executemany(made.text, values)
            return int(cursor.rowcount)
        finally:
            cursor.close()

    def _make(self, dialect: Dialect) -> _Made:
        compiled = self._statement.compile(
            dialect=_positional(dialect), column_keys=self._columns or None
        )
        order = tuple(getattr(compiled, "positiontup", None) or ())
        binds = getattr(compiled, "binds", {})
        bound = {
            name: convert
            for name in order
            if (convert := binds[name].type.dialect_impl(dialect).bind_processor(dialect))
        }
        return _Made(text=str(compiled), order=order, bound=bound, row=tuple, read=())


def _positional(dialect: Dialect) -> Dialect:
    """Return the dialect with parameters by position."""
    if dialect.positional:
        return dialect
    made: Dialect = type(dialect)(paramstyle="format")  # type: ignore[call-arg]
    return made


def _row(made: _Made, row: Sequence[Any]) -> Any:
    """Return a row with its columns by name, converted where they have to be."""
    if not made.read:
        return made.row(row)
    values = list(row)
    for at, convert in made.read:
        values[at] = convert(values[at])
    return made.row(values)


def by_dialect(put_together: Callable[[Any], Any]) -> Mapping[str, Any]:
    """Return a statement for each database; `put_together` is given the `insert` that it has."""
    return {
        "sqlite": put_together(sqlite.insert),
        "postgresql": put_together(postgresql.insert),
    }
