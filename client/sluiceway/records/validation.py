"""Constraints beyond Arrow's types: nulls, duplicate keys, values out of range."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal as Number
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluiceway.errors import InvalidRecord
from sluiceway.schema.arrow import arrow_type
from sluiceway.schema.types import (
    LOGICAL,
    TICKS,
    TIMES,
    UUID_TEXT,
    Array,
    Decimal,
    Enum,
    Fixed,
    Kind,
    Map,
    Nullable,
    Record,
    Scalar,
    Type,
    Uuid,
    below,
)

_SHOWN: Final = 60
_SYMBOLS: Final = 20
_WANTED: Final = {
    Kind.BOOLEAN: "True or False",
    Kind.INT: "an integer of 32 bits",
    Kind.LONG: "an integer of 64 bits",
    Kind.FLOAT: "a number that a 32-bit float can hold",
    Kind.DOUBLE: "a number that a 64-bit float can hold",
    Kind.STRING: "a str of whole characters",
    Kind.BYTES: "bytes",
    Kind.DATE: "a datetime.date (of a datetime, take .date())",
    Kind.TIME_MILLIS: "a datetime.time without a time zone, in whole milliseconds",
    Kind.TIME: "a datetime.time without a time zone",
    Kind.TIMESTAMP_MILLIS: "a datetime.datetime with a time zone, in whole milliseconds",
    Kind.TIMESTAMP: "a datetime.datetime with a time zone, in whole microseconds",
    Kind.TIMESTAMP_NANOS: "a datetime.datetime with a time zone, of the years 1678 to 2261",
    Kind.LOCAL_TIMESTAMP_MILLIS: "a datetime.datetime without a time zone, in whole milliseconds",
    Kind.LOCAL_TIMESTAMP: "a datetime.datetime without a time zone, in whole microseconds",
    Kind.LOCAL_TIMESTAMP_NANOS: (
        "a datetime.datetime without a time zone, of the years 1678 to 2261"
    ),
}


class ValueMismatch(Exception):
    """The value at `position` of a column does not fit: `path` names the field, `reason` says why.

    Raised with positions within the column at hand; each level above turns them into its own.
    `public_reason` holds no value (without one, the reason holds none), and `schema_path` no name
    that the schema does not have, as keys of a map are.
    """

    def __init__(
        self,
        position: int,
        path: str,
        reason: str,
        *,
        public_reason: str | None = None,
        schema_path: str | None = None,
    ) -> None:
        super().__init__(position, path, reason)
        self.position = position
        self.path = path
        self.reason = reason
        self.public_reason = reason if public_reason is None else public_reason
        self.schema_path = path if schema_path is None else schema_path

    @classmethod
    def of_value(cls, position: int, path: str, wanted: str, value: object) -> ValueMismatch:
        """Return it for a value that is not what is wanted; its type alone is public."""
        must = f"it must be {wanted}, and is"
        public = f"{must} {type(value).__name__}"
        return cls(position, path, f"{must} {shown(value)}", public_reason=public)

    def moved(self, position: int, path: str | None = None) -> ValueMismatch:
        """Return the same for the level above: the value's position there, and its path."""
        return ValueMismatch(
            position,
            self.path if path is None else path,
            self.reason,
            public_reason=self.public_reason,
            schema_path=self.schema_path,
        )

    def in_write(self, start: int = 0) -> InvalidRecord:
        """Return what to raise to the user; the records of the column begin at `start`."""
        return InvalidRecord(
            index=start + self.position,
            field=self.path,
            reason=self.reason,
            schema_path=self.schema_path,
            public_reason=self.public_reason,
        )


class ArrayOverflow(Exception):
    """So much text or so many bytes that one Arrow array cannot hold them: halve the records."""


NULL: Final = "it is null, and the schema allows no null there"


def shown(value: object) -> str:
    """Write `value` for a message: its type and the beginning of what it looks like."""
    text = repr(value)
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return f"{type(value).__name__} {text}"


def wanted(type_: Type) -> str:
    """Say what a value of `type_` must be."""
    match type_:
        case Nullable(item=item):
            return wanted(item)
        case Scalar(kind=kind):
            return _WANTED[kind]
        case Fixed(size=size):
            return f"bytes, {size} of them"
        case Decimal(precision=precision, scale=scale):
            return f"a decimal.Decimal of at most {precision} digits, {scale} behind the point"
        case Uuid():
            return "a uuid.UUID, or the text of one"
        case Enum(symbols=symbols):
            more = ", …" if len(symbols) > _SYMBOLS else ""
            return f"one of the symbols {', '.join(symbols[:_SYMBOLS])}{more}"
        case Array():
            return "a list"
        case Map():
            return "a dict with str keys"
        case Record():
            return "a dict or a dataclass"


_NOWHERE: Final = np.empty(0, np.int64)


def check_column(array: pa.Array, type_: Type, path: str) -> None:
    """Raise Unfit, with a position in `array`, unless it holds values of `type_` only.

    `array` is of the Arrow type of `type_` (or of its plain form), and valid as Arrow sees it.
    """
    for positions, child, child_type, child_path in _walk(array, type_, path):
        if child.null_count and not isinstance(child_type, Nullable):
            first = int(np.flatnonzero(child.is_null())[0])
            raise ValueMismatch(_outer(positions, first), child_path, NULL)
        if _is_map(child_type) and len(rows := _rows_with_duplicates(child)):
            reason = "a key is there twice; keep one"
            raise ValueMismatch(_outer(positions, int(rows[0])), child_path, reason)
        if len(rows := senseless(child, child_type)):
            first = int(rows[0])
            value = child[first].as_py()
            raise ValueMismatch.of_value(
                _outer(positions, first), child_path, wanted(child_type), value
            )


def misfits(batch: pa.RecordBatch, record: Record) -> set[int]:
    """Find the rows of `batch` that are none of `record`; forbidden nulls are not looked for."""
    found: set[int] = set()
    for array, field in zip(batch.columns, record.fields, strict=True):
        if _free(field.type):
            continue
        for positions, child, type_, _ in _walk(array, field.type, field.name):
            rows = _rows_with_duplicates(child) if _is_map(type_) else senseless(child, type_)
            found.update(_outer(positions, row) for row in rows.tolist())
    return found


def senseless(array: pa.Array, type_: Type) -> np.ndarray[Any, Any]:
    """Find where a leaf's array holds what Arrow's type can say and `type_` cannot."""
    match type_.item if isinstance(type_, Nullable) else type_:
        case Enum(symbols=symbols):
            good = pc.is_in(array, value_set=pa.array(symbols))
        case Uuid(fixed=None):
            good = pc.match_substring_regex(array, rf"\A{UUID_TEXT}\z")
        case Decimal(precision=precision, scale=scale):
            most = pa.scalar(Number(f"{10**precision - 1}E-{scale}"), array.type)
            least = pa.scalar(Number(f"{1 - 10**precision}E-{scale}"), array.type)
            good = pc.and_(pc.less_equal(array, most), pc.greater_equal(array, least))
        case Scalar(kind=kind) if kind in TIMES:
            ticks = array.view(arrow_type(Scalar(kind=LOGICAL[kind])))
            end = 86_400 * TICKS[kind]
            good = pc.and_(pc.greater_equal(ticks, 0), pc.less(ticks, end))
        case _:
            return _NOWHERE
    good = pc.or_kleene(good, array.is_null())
    return _NOWHERE if pc.all(good).as_py() else np.flatnonzero(pc.invert(good))


_Walk = Iterator[tuple[Any, pa.Array, Type, str]]


def _walk(array: pa.Array, type_: Type, path: str, positions: Any = None) -> _Walk:
    """Visit `array` and all below it: where its values lie in the first array, type and path.

    Below a null nothing is visited, and nothing outside of what lists and maps refer to.
    """
    yield positions, array, type_, path
    present = type_.item if isinstance(type_, Nullable) else type_
    if not isinstance(present, Record | Array | Map):
        return
    if array.null_count:
        valid = np.flatnonzero(array.is_valid())
        array = array.take(pa.array(valid))
        positions = valid if positions is None else positions[valid]
    match present:
        case Record(fields=fields):
            for number, field in enumerate(fields):
                child = array.field(number)
                yield from _walk(child, field.type, below(path, field.name), positions)
        case Array(items=items) if not (isinstance(items, Nullable) and _free(items)):
            offsets, (values,) = contents(array)
            rows = _repeated(offsets, positions)
            yield from _walk(values, items, f"{path}[]", rows)
        case Map(values=items):
            offsets, (_, values) = contents(array)
            rows = _repeated(offsets, positions)
            yield from _walk(values, items, f"{path}{{}}", rows)


def contents(array: pa.Array) -> tuple[np.ndarray[Any, Any], list[pa.Array]]:
    """Give the offsets of a list or map array without nulls, from 0, and its values.

    The values are those the offsets refer to: one array for a list, keys and items for a map.
    """
    parts = [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]
    if not len(array):  # Arrow does not validate the one offset that an empty array has
        return np.zeros(1, np.int32), [part.slice(0, 0) for part in parts]
    offsets = array.offsets.to_numpy()
    begin, end = int(offsets[0]), int(offsets[-1])
    return offsets - begin, [part.slice(begin, end - begin) for part in parts]


def _rows_with_duplicates(array: pa.Array) -> np.ndarray[Any, Any]:
    valid = None
    if array.null_count:
        valid = np.flatnonzero(array.is_valid())
        array = array.take(pa.array(valid))
    offsets, (keys, _) = contents(array)
    rows = _repeated(offsets, None)
    if len(rows) == len(array) and len(np.unique(rows)) == len(rows):
        return _NOWHERE  # one key each
    codes = keys.dictionary_encode()
    pairs = rows * max(1, len(codes.dictionary)) + codes.indices.to_numpy()
    _, first = np.unique(pairs, return_index=True)
    if len(first) == len(pairs):
        return _NOWHERE
    again = np.ones(len(pairs), np.bool_)
    again[first] = False
    found = np.unique(rows[again])
    return found if valid is None else valid[found]


def _repeated(offsets: np.ndarray[Any, Any], positions: Any) -> np.ndarray[Any, Any]:
    """Give the position of its row for every value that `offsets` divide."""
    rows = np.arange(len(offsets) - 1) if positions is None else positions
    return np.repeat(rows, np.diff(offsets))


def _outer(positions: Any, row: int) -> int:
    return row if positions is None else int(positions[row])


def _is_map(type_: Type) -> bool:
    return isinstance(type_.item if isinstance(type_, Nullable) else type_, Map)


def _free(type_: Type) -> bool:
    """Tell whether every valid array of the type's Arrow form fits it, but for nulls."""
    match type_:
        case Nullable(item=item) | Array(items=item):
            return _free(item)
        case Record(fields=fields):
            return all(_free(field.type) for field in fields)
        case Scalar(kind=kind):
            return kind not in TIMES
        case Fixed() | Uuid(fixed=Fixed()):
            return True
        case _:
            return False
