"""Conversion of Python records to validated record batches."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from itertools import chain, pairwise
from operator import attrgetter, itemgetter
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from sluiceway.records.scalars import scalars
from sluiceway.records.unions import LISTS, assign, branch_mismatch
from sluiceway.records.validation import NULL, ArrayOverflow, ValueMismatch, in_batches
from sluiceway.schema import Schema
from sluiceway.schema import types as t
from sluiceway.schema.arrow import arrow_type
from sluiceway.schema.classes import RecordClass, record_class
from sluiceway.schema.defaults import default_value

_RECORD: Final = "a dict, or an instance of a dataclass or another record class"
_ROWS: Final = 16_384
"""The rows of a batch, which fit into the processor's caches."""


def row_batches(rows: Sequence[Any], schema: Schema) -> list[pa.RecordBatch]:
    """Convert `rows`, mappings or instances of record classes, as `to_batches` does."""

    def convert(begin: int, end: int) -> pa.RecordBatch:
        part = rows[begin:end]
        kinds = set(map(type, part))
        _check_kinds(part, kinds, "", _RECORD, is_record)
        arrays = columns(part, kinds, schema.record, "")
        return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)

    bounds = (*range(0, len(rows), _ROWS), len(rows))
    return [b for begin, end in pairwise(bounds) for b in in_batches(convert, begin, end)]


def copies(records: Iterable[Any]) -> list[Any]:
    """Return copies of records, each made before the next one is requested.

    A generator may yield the same object again after it has changed it.
    """
    return [copied(record) for record in records]


_IMMUTABLE: Final = frozenset(
    (type(None), bool, int, float, str, bytes, date, datetime, time, Decimal, UUID)
)


def copied(value: Any) -> Any:
    """Copy a record or a value with everything in it that may change."""
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    if kind is dict and _IMMUTABLE.issuperset(map(type, value.values())):
        return value.copy()
    if issubclass(kind, dict) and kind is not dict:
        # The copy also has the class's defaults for missing keys.
        changed = copy.copy(value)
        changed |= {name: copied(item) for name, item in value.items()}
        return changed
    if issubclass(kind, Mapping):
        return {name: copied(item) for name, item in value.items()}
    if (cls := record_class(kind)) is not None:
        values = {name: getattr(value, name) for name in cls.attributes.values()}
        return cls.with_values(value, {name: copied(item) for name, item in values.items()})
    if issubclass(kind, tuple):
        return tuple(map(copied, value))
    if issubclass(kind, list):
        return list(map(copied, value))
    if issubclass(kind, np.ndarray):
        return copy.deepcopy(value)
    if issubclass(kind, bytearray | memoryview):
        return bytes(value)
    return value


_MISSING: Final = object()


def field_values(
    rows: Sequence[Any], kinds: set[type], record: t.Record, path: str
) -> list[list[Any]]:
    """Return the values of each field of `record` in `rows`.

    These are mappings or instances of record classes.

    Missing fields have their defaults. Raises ValueMismatch for a missing field without a default,
    and for an unknown field.
    """
    if len(kinds) == 1 and not issubclass(kind := next(iter(kinds)), Mapping):
        return _attributes(rows, _class_of(kind), record, path)
    if not all(issubclass(kind, Mapping) for kind in kinds):
        rows = [
            row if isinstance(row, Mapping) else _class_of(type(row)).values(row) for row in rows
        ]
    try:
        value_lists = [list(map(itemgetter(field.name), rows)) for field in record.fields]
    except KeyError:
        value_lists = [_with_default(rows, field, path) for field in record.fields]
    else:
        if set(map(len, rows)) <= {len(record.fields)}:
            return value_lists
    names = {field.name for field in record.fields}
    for position, row in enumerate(rows):
        if unknown := [name for name in row if name not in names]:
            raise _unknown_field(position, unknown[0], record, path)
    return value_lists


def _with_default(rows: Sequence[Any], field: t.Field, path: str) -> list[Any]:
    default = _MISSING if field.default is None else default_value(field)
    values = [row.get(field.name, default) for row in rows]
    if field.default is None:
        for position, value in enumerate(values):
            if value is _MISSING:
                raise _missing_field(position, t.join_path(path, field.name))
    return values


def _class_of(kind: type) -> RecordClass:
    cls = record_class(kind)
    assert cls is not None, kind  # noqa: S101 - `is_record` has told
    return cls


def _attributes(
    rows: Sequence[Any], cls: RecordClass, record: t.Record, path: str
) -> list[list[Any]]:
    there = cls.attributes
    names = {field.name for field in record.fields}
    for name in sorted(there.keys() - names):
        raise _unknown_field(0, name, record, path)
    value_lists = []
    for field in record.fields:
        if field.name in there:
            value_lists.append(list(map(attrgetter(there[field.name]), rows)))
        elif field.default is None:
            raise _missing_field(0, t.join_path(path, field.name))
        else:
            value_lists.append([default_value(field)] * len(rows))
    return value_lists


def _missing_field(position: int, path: str) -> ValueMismatch:
    return ValueMismatch(position, path, "it is missing, and has no default in the schema; add it")


def _unknown_field(position: int, name: object, record: t.Record, path: str) -> ValueMismatch:
    names = ", ".join(field.name for field in record.fields[:20])
    return ValueMismatch(
        position,
        t.join_path(path, str(name)),
        f"the schema has no such field; it has {names}",
        public_reason=f"it has a field that is not in the schema, which has {names}",
        schema_path=path,
    )


_OFFSET_MAX = 2**31 - 1


def column(values: Sequence[Any], type_: t.Type, path: str) -> pa.Array:
    """Convert `values` of the field at `path` to an array of `type_`.

    Raises ValueMismatch for a value that does not fit, and ArrayOverflow.
    """
    kinds = set(map(type, values))
    if type(None) in kinds:
        if not isinstance(type_, t.Nullable):
            raise ValueMismatch(next(i for i, v in enumerate(values) if v is None), path, NULL)
        kinds.discard(type(None))
    match t.present(type_):
        case t.Array() as array:
            return _lists(values, kinds, array, path)
        case t.Map() as map_:
            return _maps(values, kinds, map_, path)
        case t.Record() as record:
            return _records(values, kinds, record, path)
        case t.Union() as union:
            return _unions(values, union, path)
        case leaf:
            return scalars(values, kinds, leaf, path)


def columns(rows: Sequence[Any], kinds: set[type], record: t.Record, path: str) -> list[pa.Array]:
    """Convert `rows`, which have the types `kinds`, to one array for each field of `record`.

    Raises the errors of `column`, with positions in `rows`.
    """
    value_lists = field_values(rows, kinds, record, path)
    return [
        column(values, field.type, t.join_path(path, field.name))
        for values, field in zip(value_lists, record.fields, strict=True)
    ]


def _records(values: Sequence[Any], kinds: set[type], record: t.Record, path: str) -> pa.Array:
    _check_kinds(values, kinds, path, _RECORD, is_record)
    members = list(arrow_type(record))
    places = [place for place, value in enumerate(values) if value is not None]
    if len(places) == len(values):
        arrays = columns(values, kinds, record, path)
        return pa.StructArray.from_arrays(arrays, fields=members)
    try:
        arrays = columns([values[place] for place in places], kinds, record, path)
    except ValueMismatch as error:
        raise error.at_position(places[error.position]) from error
    return scatter(pa.StructArray.from_arrays(arrays, fields=members), places, len(values))


def _unions(values: Sequence[Any], union: t.Union, path: str) -> pa.Array:
    """Convert values of a union to its Arrow form: see `sluiceway.schema.arrow.UNION`."""
    arrays = []
    assigned = assign(values, union, path, column)
    for branch, (places, taken) in zip(union.branches, assigned, strict=True):
        try:
            array = column(taken, branch, path)
        except ValueMismatch as error:
            raise branch_mismatch(error, places[error.position], union, path) from error
        arrays.append(scatter(array, places, len(values)))
    mask = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(arrays, fields=list(arrow_type(union)), mask=mask)


def scatter(array: pa.Array, positions: Sequence[int], length: int) -> pa.Array:
    """Return an array of `length` with the values of `array` at `positions`, else null."""
    indices = np.zeros(length, np.int64)
    absent = np.ones(length, np.bool_)
    indices[positions] = np.arange(len(positions))
    absent[positions] = False
    return array.take(pa.array(indices, mask=absent))


def _lists(values: Sequence[Any], kinds: set[type], type_: t.Array, path: str) -> pa.Array:
    _check_kinds(values, kinds, path, "a list", lambda kind: issubclass(kind, LISTS))
    offsets = list_offsets(values)
    flat: list[Any] = list(chain.from_iterable(value for value in values if value is not None))
    try:
        items = column(flat, type_.items, f"{path}[]")
    except ValueMismatch as error:
        row = row_of(offsets, error.position)
        inside = f"{path}[{error.position - offsets[row]}]"
        raise error.at_position(row, inside + error.path[len(path) + 2 :]) from error
    bounds = _with_nulls(offsets, values)
    return pa.ListArray.from_arrays(bounds, items, type=arrow_type(type_))


def _maps(values: Sequence[Any], kinds: set[type], type_: t.Map, path: str) -> pa.Array:
    _check_kinds(values, kinds, path, "a dict with str keys", _is_mapping)
    offsets = list_offsets(values)
    present = [value for value in values if value is not None]
    keys: list[Any] = list(chain.from_iterable(present))
    flat: list[Any] = list(chain.from_iterable(value.values() for value in present))
    try:
        key_array = column(keys, t.Scalar(kind=t.Kind.STRING), f"{path}{{}}")
        items = column(flat, type_.values, f"{path}{{}}")
    except ValueMismatch as error:
        inside = f"{path}[{keys[error.position]!r}]" + error.path[len(path) + 2 :]
        raise error.at_position(row_of(offsets, error.position), inside) from error
    bounds = _with_nulls(offsets, values)
    return pa.MapArray.from_arrays(bounds, key_array, items, type=arrow_type(type_))


def list_offsets(values: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the offsets of `values`, with 0 for the length of None. Raises ArrayOverflow."""
    try:
        lengths = list(map(len, values))
    except TypeError:
        lengths = [0 if value is None else len(value) for value in values]
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > _OFFSET_MAX:
        raise ArrayOverflow
    return offsets


def _with_nulls(offsets: np.ndarray[Any, Any], values: Sequence[Any]) -> pa.Array:
    absent = np.zeros(len(offsets), np.bool_)
    absent[:-1] = [value is None for value in values]
    return pa.array(offsets.astype(np.int32), mask=absent)


def row_of(offsets: np.ndarray[Any, Any], position: int) -> int:
    """Return the row whose list contains the item at a position."""
    return int(np.searchsorted(offsets, position, side="right")) - 1


def _check_kinds(
    values: Sequence[Any], kinds: set[type], path: str, wanted: str, allowed: Any
) -> None:
    for kind in kinds:
        if not allowed(kind):
            position = next(i for i, value in enumerate(values) if type(value) is kind)
            if allowed is is_record and _holds_many(kind):
                name = kind.__name__
                reason = f"it is a {name}, which holds many values: write tables one by one"
                raise ValueMismatch(position, path, reason)
            raise ValueMismatch.of_value(position, path, wanted, values[position])


def _holds_many(kind: type) -> bool:
    """Return whether values of a type are tables or columns, such as pandas' and polars'."""
    return hasattr(kind, "__arrow_c_stream__") or hasattr(kind, "__arrow_c_array__")


def _is_mapping(kind: type) -> bool:
    return issubclass(kind, Mapping)


def is_record(kind: type) -> bool:
    """Return whether values of a type are records: mappings, or instances of a record class."""
    return issubclass(kind, Mapping) or record_class(kind) is not None
