"""Lossless casts of Arrow arrays to the types of a schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sluiceway.errors import SchemaMismatch
from sluiceway.records.from_python import scatter
from sluiceway.records.validation import (
    NULL,
    ArrayOverflow,
    ValueMismatch,
    check_column,
    describe,
    list_contents,
)
from sluiceway.schema import types as t
from sluiceway.schema.arrow import any_of, arrow_type, is_list

_FLOAT: Final = t.Scalar(kind=t.Kind.FLOAT)


_is_text: Final = any_of(types.is_string, types.is_large_string, types.is_string_view)
_is_bytes: Final = any_of(
    types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary
)
_is_number: Final = any_of(types.is_integer, types.is_floating)


def _is_instant(type_: pa.DataType) -> bool:
    return bool(types.is_timestamp(type_) and type_.tz is not None)


def _is_local(type_: pa.DataType) -> bool:
    return bool(types.is_timestamp(type_) and type_.tz is None)


_SOURCES: Final[dict[t.Kind, Callable[[pa.DataType], bool]]] = {
    t.Kind.BOOLEAN: types.is_boolean,
    **dict.fromkeys((t.Kind.INT, t.Kind.LONG, t.Kind.FLOAT, t.Kind.DOUBLE), _is_number),
    t.Kind.STRING: _is_text,
    t.Kind.BYTES: _is_bytes,
    t.Kind.DATE: types.is_date,
    **dict.fromkeys(t.TIMES, types.is_time),
    **dict.fromkeys(t.INSTANTS, _is_instant),
    **dict.fromkeys(t.LOCALS, _is_local),
}


def _accepts(leaf: t.Leaf, type_: pa.DataType) -> bool:
    match leaf:
        case t.Scalar(kind=kind):
            return _SOURCES[kind](type_)
        case t.Fixed():
            return _is_bytes(type_)
        case t.Decimal():
            return bool(types.is_decimal(type_) or types.is_integer(type_))
        case t.Uuid():
            return _is_text(type_) or _is_bytes(type_)
        case t.Enum():
            return _is_text(type_)


def _advice(type_: t.Present) -> str:
    if isinstance(type_, t.Scalar) and type_.kind in t.INSTANTS:
        return "attach their time zone (pyarrow.compute.assume_timezone)"
    if isinstance(type_, t.Scalar) and type_.kind in t.LOCALS:
        return f"cast to {arrow_type(type_)} without a time zone"
    return "cast it"


def cast(array: pa.Array, type_: t.Type, path: str) -> pa.Array:
    """Cast a valid `array` to the Arrow type of `type_` without loss, and check its values.

    Numbers may have another width or kind, text and bytes other offsets, times and timestamps
    another unit, decimals other digits; dictionaries are decoded. Names and nullability of nested
    types may still differ from the schema's. Raises
    SchemaMismatch for an array of another type, ValueMismatch for a value that does not fit, and
    ArrayOverflow.
    """
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    present = type_.item if isinstance(type_, t.Nullable) else type_
    target = arrow_type(present)
    if array.type.equals(target):
        check_column(array, type_, path)
        return array
    if array.null_count and not isinstance(type_, t.Nullable):
        raise ValueMismatch(int(np.flatnonzero(array.is_null())[0]), path, NULL)
    if types.is_null(array.type):
        return pa.nulls(len(array), target)
    if not isinstance(present, t.Record | t.Array | t.Map | t.Union):
        return _leaves(array, present, path)
    if not array.null_count:
        return _nested(array, present, path)
    valid = np.flatnonzero(array.is_valid())
    places = valid.tolist()
    try:
        return scatter(_nested(array.take(pa.array(valid)), present, path), places, len(array))
    except ValueMismatch as error:
        raise error.at_position(places[error.position]) from error


def _leaves(array: pa.Array, leaf: t.Leaf, path: str) -> pa.Array:
    if not _accepts(leaf, array.type):
        raise _mismatch(path, array.type, leaf)
    target = arrow_type(leaf)
    if isinstance(leaf, t.Decimal) and types.is_integer(array.type):
        array = array.cast(pa.decimal128(20, 0))  # 64 bits have up to 20 digits
    try:
        cast_array = _uuids(array, leaf, path) if isinstance(leaf, t.Uuid) else array.cast(target)
    except pa.ArrowInvalid as error:
        position, why = _find_failure(array, pa.binary(16) if isinstance(leaf, t.Uuid) else target)
        public = f"it cannot be converted to {target}"
        raise ValueMismatch(position, path, f"{public}: {why}", public_reason=public) from error
    if isinstance(cast_array, pa.ChunkedArray):
        raise ArrayOverflow
    if leaf == _FLOAT and pc.any(pc.is_inf(cast_array)).as_py():
        finite = pc.is_finite(array.cast(pa.float64()))
        lost = pc.fill_null(pc.and_(pc.is_inf(cast_array), finite), False)
        for position in np.flatnonzero(lost).tolist():
            problem = "is too large for a float"
            reason = f"{describe(array[position].as_py())} {problem}"
            raise ValueMismatch(position, path, reason, public_reason=f"it {problem}")
    check_column(cast_array, t.Nullable(item=leaf), path)
    return cast_array


def _uuids(array: pa.Array, leaf: t.Uuid, path: str) -> pa.Array:
    """Convert text to bytes or bytes to text, the storage type of `leaf`."""
    target = arrow_type(leaf)
    if _is_text(array.type) is _is_text(target):
        return array.cast(target)
    if _is_text(array.type):
        text = array.cast(pa.string())
        check_column(text, t.Nullable(item=t.Uuid()), path)
        return pa.array([v and UUID(v).bytes for v in text.to_pylist()], target)
    found = array.cast(pa.binary(16)).to_pylist()
    return pa.array([v and str(UUID(bytes=v)) for v in found], target)


def _find_failure(array: pa.Array, target: pa.DataType) -> tuple[int, str]:
    """Return the position of a value that cannot be cast to `target`, and the reason.

    Raises ArrayOverflow if each value can be cast, but together they are too large.
    """
    begin, end = 0, len(array)
    while end - begin > 1:
        half = (begin + end) // 2
        try:
            array.slice(begin, half - begin).cast(target)
            begin = half
        except pa.ArrowInvalid:
            end = half
    try:
        array.slice(begin, 1).cast(target)
    except pa.ArrowInvalid as error:
        return begin, str(error)
    raise ArrayOverflow


def _nested(array: pa.Array, type_: t.Present, path: str) -> pa.Array:
    """Cast a nested array without nulls."""
    match type_:
        case t.Record() if types.is_struct(array.type):
            return _structs(array, type_, path)
        case t.Array(items=items) if is_list(array.type):
            offsets, (values,) = _contents_of_any_list(array)
            made = _inside(values, items, f"{path}[]", offsets)
            return pa.ListArray.from_arrays(_narrow(offsets), made)
        case t.Map(values=items) if types.is_map(array.type):
            offsets, (keys, values) = list_contents(array)
            key_array = _inside(keys, t.Scalar(kind=t.Kind.STRING), f"{path}{{}}", offsets)
            made = _inside(values, items, f"{path}{{}}", offsets)
            maps = pa.MapArray.from_arrays(_narrow(offsets), key_array, made)
            check_column(maps, type_, path)
            return maps
    raise _mismatch(path, array.type, type_)


def _contents_of_any_list(array: pa.Array) -> tuple[Any, list[pa.Array]]:
    """Return the `list_contents` of any of Arrow's list types."""
    if types.is_list(array.type):
        return list_contents(array)
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(pc.list_value_length(array).to_numpy(), out=offsets[1:])
    return offsets, [pc.list_flatten(array)]


def _structs(array: pa.Array, record: t.Record, path: str) -> pa.Array:
    there = [field.name for field in array.type]
    wanted = [field.name for field in record.fields]
    if sorted(there) != sorted(wanted):
        raise SchemaMismatch(
            f"the field {path!r} has the fields {', '.join(there)}, but the schema has "
            f"{', '.join(wanted)}"
        )
    made = [
        cast(array.field(there.index(field.name)), field.type, t.join_path(path, field.name))
        for field in record.fields
    ]
    return pa.StructArray.from_arrays(made, names=wanted)


def _inside(values: pa.Array, type_: t.Type, path: str, offsets: Any) -> pa.Array:
    try:
        return cast(values, type_, path)
    except ValueMismatch as error:
        row = int(np.searchsorted(offsets, error.position, side="right")) - 1
        raise error.at_position(row) from error


def _narrow(offsets: Any) -> pa.Array:
    if offsets[-1] > 2**31 - 1:
        raise ArrayOverflow
    return pa.array(offsets.astype(np.int32))


def _mismatch(path: str, found: pa.DataType, wanted: t.Present) -> SchemaMismatch:
    return SchemaMismatch(
        f"the field {path!r} is {found}, but the schema has {arrow_type(wanted)}; {_advice(wanted)}"
    )
