"""Validation beyond Arrow's types: nulls, duplicate keys, values out of range."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from datetime import date, datetime, time
from decimal import Decimal as Number
from itertools import chain
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluiceway.errors import InvalidRecord
from sluiceway.schema import types as t
from sluiceway.schema.arrow import arrow_type

_SHOWN: Final = 60
_SYMBOLS: Final = 20
_EXPECTED: Final[dict[type, str]] = {
    bool: "True or False",
    int: "a {bits}-bit integer",
    float: "a number in the range of a {bits}-bit float",
    str: "a str without lone surrogates",
    bytes: "bytes",
    date: "a datetime.date (of a datetime, take .date())",
    time: "a datetime.time without a time zone",
    datetime: "a datetime.datetime {zone} a time zone",
}
_PRECISIONS: Final = {
    "ms": "in whole milliseconds",
    "us": "in whole microseconds",
    "ns": "of the years 1678 to 2261",
}


INTEGERS: Final = (int, np.integer)
"""The Python types of integers."""
_ACCEPTED: Final[dict[type, tuple[type, ...]]] = {
    bool: (bool, np.bool_),
    int: INTEGERS,
    float: (float, np.floating, *INTEGERS),
    bytes: (bytes, bytearray, memoryview),
    Number: (Number, *INTEGERS),
    UUID: (UUID, str),
}
_REFUSED: Final[dict[type, tuple[type, ...]]] = {int: (bool,), date: (datetime,)}
"""Subclasses of accepted types that are not accepted."""


def accepts(kind: type, leaf: t.Leaf) -> bool:
    """Return whether Python values of the type `kind` may fit `leaf`."""
    accepted = _ACCEPTED.get(leaf.python, (leaf.python,))
    if isinstance(leaf, t.Enum):
        accepted = (str, enum.Enum)
    refused = tuple(chain.from_iterable(_REFUSED.get(type_, ()) for type_ in accepted))
    return issubclass(kind, accepted) and not issubclass(kind, refused)


class ValueMismatch(Exception):
    """The value at `position` of a column does not fit the field at `path`, for this `reason`.

    The position is within the column; each level above translates it. `public_reason` contains no
    values; without one, neither does the reason. `schema_path` contains only names of the schema,
    and no keys of maps.
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
    def of_value(cls, position: int, path: str, expected: str, value: object) -> ValueMismatch:
        """Return the exception for a value that is not as expected; only its type is public."""
        must = f"it must be {expected}; it is"
        public = f"{must} {type(value).__name__}"
        return cls(position, path, f"{must} {describe(value)}", public_reason=public)

    def at_position(self, position: int, path: str | None = None) -> ValueMismatch:
        """Return the exception with the position, and the path, at the level above."""
        return ValueMismatch(
            position,
            self.path if path is None else path,
            self.reason,
            public_reason=self.public_reason,
            schema_path=self.schema_path,
        )

    def to_invalid_record(self, start: int = 0) -> InvalidRecord:
        """Return the exception for the user; the column's first record has the index `start`."""
        return InvalidRecord(
            index=start + self.position,
            field=self.path,
            reason=self.reason,
            schema_path=self.schema_path,
            public_reason=self.public_reason,
        )


class ArrayOverflow(Exception):
    """Too much data for one Arrow array."""


NULL: Final = "it is null, but the field is not nullable"
_TOO_LARGE: Final = "it is larger than 2 GiB, the limit of a message; make it smaller"


def in_batches(
    convert: Callable[[int, int], pa.RecordBatch], begin: int, end: int
) -> list[pa.RecordBatch]:
    """Return `convert(begin, end)`, or of halves of it that fit into Arrow's arrays.

    The arguments are indices of records. Raises InvalidRecord.
    """
    try:
        return [convert(begin, end)]
    except ValueMismatch as error:
        raise error.to_invalid_record(begin) from error
    except ArrayOverflow:
        if end - begin <= 1:
            raise ValueMismatch(0, "", _TOO_LARGE).to_invalid_record(begin) from None
    half = (begin + end) // 2
    return in_batches(convert, begin, half) + in_batches(convert, half, end)


def describe(value: object) -> str:
    """Return the type of `value` and the beginning of its `repr`, for a message."""
    text = repr(value)
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return f"{type(value).__name__} {text}"


def expected(type_: t.Type) -> str:
    """Describe the values of `type_`."""
    match type_:
        case t.Nullable(item=item):
            return expected(item)
        case t.Scalar(kind=kind):
            return _expected(kind)
        case t.Fixed(size=size):
            return f"bytes of length {size}"
        case t.Decimal(precision=precision, scale=scale):
            return f"a decimal.Decimal of at most {precision} digits, {scale} behind the point"
        case t.Uuid():
            return "a uuid.UUID, or the text of one"
        case t.Enum(symbols=symbols):
            more = ", …" if len(symbols) > _SYMBOLS else ""
            return f"one of the symbols {', '.join(symbols[:_SYMBOLS])}{more}"
        case t.Array():
            return "a list"
        case t.Map():
            return "a dict with str keys"
        case t.Union():
            return f"a value of one of the union's branches {t.branch_names(type_)}"
        case t.Record():
            return "a dict, or an instance of a record class"


def _expected(kind: t.Kind) -> str:
    traits = kind.traits
    zone = "with" if traits.instant else "without"
    words = _EXPECTED[traits.python].format(bits=traits.bits, zone=zone)
    if not traits.units or (traits.python is time and kind.ticks >= t.MICROSECONDS):
        return words
    return f"{words}, {_PRECISIONS[traits.units[0]]}"


def arrow_mismatch(batch: pa.RecordBatch | pa.Table, error: pa.ArrowInvalid) -> ValueMismatch:
    """Describe the first invalid column of a batch that Arrow's validation refused with `error`.

    The position is that of the first invalid value. Arrow validates all items of a nested array,
    so there it is 0.
    """
    position, name = 0, ""
    for column_name, array in zip(batch.schema.names, batch.columns, strict=True):
        if not _is_valid(array):
            position, name = _invalid_position(array), column_name
            break
    public = "the Arrow data is invalid"
    if "UTF8" in str(error):
        public = (
            "a text is not valid UTF-8: replace its invalid bytes, in Spark by make_valid_utf8(), "
            "or write it as bytes"
        )
    return ValueMismatch(position, name, f"{public} ({error})", public_reason=public)


def _is_valid(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _invalid_position(array: pa.Array | pa.ChunkedArray) -> int:
    """Return the position of the first invalid value of an invalid array, if it is not nested."""
    if pa.types.is_nested(array.type):
        return 0
    return first_failing(len(array), lambda begin, count: _is_valid(array.slice(begin, count)))


def first_failing(length: int, passes: Callable[[int, int], bool]) -> int:
    """Return the first position that fails, if not all pass.

    `passes(begin, count)` tells whether all of `count` positions from `begin` on pass.
    """
    begin, end = 0, length
    while end - begin > 1:
        half = (begin + end) // 2
        if passes(begin, half - begin):
            begin = half
        else:
            end = half
    return begin


_NOWHERE: Final = np.empty(0, np.int64)


def check_column(array: pa.Array, type_: t.Type, path: str) -> None:
    """Raise ValueMismatch, with a position in `array`, unless all values are valid for `type_`.

    `array` has the Arrow type of `type_`, or its physical type, and passed Arrow's validation.
    """
    for positions, child, child_type, child_path in _walk_arrays(array, type_, path):
        if child.null_count and not isinstance(child_type, t.Nullable):
            first = int(np.flatnonzero(child.is_null())[0])
            raise ValueMismatch(_outer(positions, first), child_path, NULL)
        if _is_map(child_type) and len(rows := _rows_with_duplicates(child)):
            reason = "it has a duplicate key; keep one"
            raise ValueMismatch(_outer(positions, int(rows[0])), child_path, reason)
        if len(rows := invalid_values(child, child_type)):
            first = int(rows[0])
            value = child[first].as_py()
            raise ValueMismatch.of_value(
                _outer(positions, first), child_path, expected(child_type), value
            )


def invalid_rows(batch: pa.RecordBatch, record: t.Record) -> set[int]:
    """Return the rows of `batch` that are not valid for `record`; nulls are not checked."""
    invalid: set[int] = set()
    for array, field in zip(batch.columns, record.fields, strict=True):
        if _is_unconstrained(field.type):
            continue
        for positions, child, type_, _ in _walk_arrays(array, field.type, field.name):
            rows = _rows_with_duplicates(child) if _is_map(type_) else invalid_values(child, type_)
            invalid.update(_outer(positions, row) for row in rows.tolist())
    return invalid


def invalid_values(array: pa.Array, type_: t.Type) -> np.ndarray[Any, Any]:
    """Return the positions of values that the Arrow type of a leaf allows, but `type_` does not."""
    match t.present(type_):
        case t.Enum(symbols=symbols):
            good = pc.is_in(array, value_set=pa.array(symbols))
        case t.Uuid(fixed=None):
            good = pc.match_substring_regex(array, rf"\A{t.UUID_TEXT}\z")
        case t.Decimal(precision=precision, scale=scale):
            high = pa.scalar(Number(f"{10**precision - 1}E-{scale}"), array.type)
            low = pa.scalar(Number(f"{1 - 10**precision}E-{scale}"), array.type)
            good = pc.and_(pc.less_equal(array, high), pc.greater_equal(array, low))
        case t.Scalar(kind=kind, python=python) if python is time:
            ticks = array.view(arrow_type(t.Scalar(kind=kind.physical)))
            low, high = kind.range
            good = pc.and_(pc.greater_equal(ticks, low), pc.less_equal(ticks, high))
        case _:
            return _NOWHERE
    good = pc.or_kleene(good, array.is_null())
    return _NOWHERE if pc.all(good).as_py() else np.flatnonzero(pc.invert(good))


_ArrayWalk = Iterator[tuple[Any, pa.Array, t.Type, str]]


def _walk_arrays(array: pa.Array, type_: t.Type, path: str, positions: Any = None) -> _ArrayWalk:
    """Yield `array` and all arrays within: positions in the outer array, array, type and path.

    Values below nulls, and items that no list or map refers to, are left out.
    """
    yield positions, array, type_, path
    present = t.present(type_)
    if not isinstance(present, t.Record | t.Array | t.Map):
        return
    if array.null_count:
        valid = np.flatnonzero(array.is_valid())
        array = array.take(pa.array(valid))
        positions = valid if positions is None else positions[valid]
    match present:
        case t.Record(fields=fields):
            for number, field in enumerate(fields):
                child = array.field(number)
                yield from _walk_arrays(child, field.type, t.join_path(path, field.name), positions)
        case t.Array(items=items) if not (
            isinstance(items, t.Nullable) and _is_unconstrained(items)
        ):
            offsets, (values,) = list_contents(array)
            rows = _repeated(offsets, positions)
            yield from _walk_arrays(values, items, f"{path}[]", rows)
        case t.Map(values=items):
            offsets, (_, values) = list_contents(array)
            rows = _repeated(offsets, positions)
            yield from _walk_arrays(values, items, f"{path}{{}}", rows)


def list_contents(array: pa.Array) -> tuple[np.ndarray[Any, Any], list[pa.Array]]:
    """Return the offsets of a list or map array without nulls, from 0, and its contents.

    The contents are one array for a list, and keys and items for a map.
    """
    parts = [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]
    if not len(array):  # Arrow does not validate the offset of an empty array
        return np.zeros(1, np.int32), [part.slice(0, 0) for part in parts]
    offsets = array.offsets.to_numpy()
    begin, end = int(offsets[0]), int(offsets[-1])
    return offsets - begin, [part.slice(begin, end - begin) for part in parts]


def _rows_with_duplicates(array: pa.Array) -> np.ndarray[Any, Any]:
    valid = None
    if array.null_count:
        valid = np.flatnonzero(array.is_valid())
        array = array.take(pa.array(valid))
    offsets, (keys, _) = list_contents(array)
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
    duplicates = np.unique(rows[again])
    return duplicates if valid is None else valid[duplicates]


def _repeated(offsets: np.ndarray[Any, Any], positions: Any) -> np.ndarray[Any, Any]:
    """Return the row position of every value in the lists that `offsets` describe."""
    rows = np.arange(len(offsets) - 1) if positions is None else positions
    return np.repeat(rows, np.diff(offsets))


def _outer(positions: Any, row: int) -> int:
    return row if positions is None else int(positions[row])


def _is_map(type_: t.Type) -> bool:
    return isinstance(t.present(type_), t.Map)


def _is_unconstrained(type_: t.Type) -> bool:
    """Return whether every array of the Arrow type is valid for `type_`, except for nulls."""
    return not any(
        isinstance(nested, t.Map | t.Enum | t.Decimal)
        or nested == t.Uuid()
        or (isinstance(nested, t.Scalar) and nested.python is time)
        for nested in t.walk(type_)
    )
