"""Conversion between logical types and the physical types of Avro, in columns.

Most logical types differ from their physical type only by name, in Avro and in Arrow alike: a date
is an int, the text of a UUID a string. Such columns get another type without a copy. Decimals and
enums, also nested ones, are converted a whole column at a time; other columns stay unchanged.

No value raises an exception. A physical value without a logical one becomes a value that
`sluiceway.records.validation` rejects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluiceway.records.from_python import scatter
from sluiceway.records.tables import with_schema
from sluiceway.schema import types as t
from sluiceway.schema.arrow import arrow_type, to_arrow

Converts: TypeAlias = Callable[[t.Leaf], bool]
Conversion: TypeAlias = Callable[[pa.Array, t.Leaf], pa.Array]


class BatchTransform:
    """Conversion of batches of `record` to the Arrow `schema`, which differs in some leaves.

    `convert` is called for the arrays of the leaves that `converts` accepts. These are whole
    arrays, with items that no list refers to and values below null records.
    """

    def __init__(
        self, record: t.Record, schema: pa.Schema, converts: Converts, convert: Conversion
    ) -> None:
        self._schema = schema
        self._converts = converts
        self._convert = convert
        self._columns = {
            number: field.type
            for number, field in enumerate(record.fields)
            if self._applies_to(field.type)
        }

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert `batch`; columns that stay the same are not copied."""
        if self._columns:
            columns = list(batch.columns)
            for number, type_ in self._columns.items():
                columns[number] = self._array(columns[number], type_)
            batch = pa.RecordBatch.from_arrays(columns, names=self._schema.names)
        return with_schema(batch, self._schema)

    def _applies_to(self, type_: t.Type) -> bool:
        return any(
            isinstance(nested, t.Leaf) and self._converts(nested) for nested in t.walk(type_)
        )

    def _array(self, array: pa.Array, type_: t.Type) -> pa.Array:
        if not self._applies_to(type_):
            return array
        match t.present(type_):
            case t.Record(fields=fields):
                return self._struct(array, [field.type for field in fields])
            case t.Array(items=item):
                values = self._array(array.values, item)
                return with_items(array, values, pa.list_(values.type))
            case t.Union(branches=branches):
                # Enums are not converted.
                return self._struct(array, [None if isinstance(b, t.Enum) else b for b in branches])
            case t.Map(values=item):
                items = self._array(array.items, item)
                return with_items(array, items, pa.map_(array.type.key_type, items.type))
            case leaf:
                return self._convert(array, leaf)

    def _struct(self, array: pa.Array, types: Sequence[t.Type | None]) -> pa.Array:
        # `flatten` makes fields null below a null record; there, values may be anything.
        children = [
            child if type_ is None else self._array(child, type_)
            for child, type_ in zip(array.flatten(), types, strict=True)
        ]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, [f.name for f in array.type], mask=mask)


def with_items(array: pa.Array, items: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return the list or map `array` as a `type_` with other items."""
    if pa.types.is_map(type_):
        fields = [type_.key_field, type_.item_field]
        items = pa.StructArray.from_arrays([array.keys, items], fields=fields)
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(
        type_, len(array), buffers, array.null_count, array.offset, children=[items]
    )


class PhysicalForm:
    """Conversion of batches of `logical` to batches of `record`, and back."""

    def __init__(
        self,
        logical: t.Record,
        record: t.Record,
        converts: Converts,
        to_physical: Conversion,
        from_physical: Conversion,
    ) -> None:
        self.record = record
        self.arrow = to_arrow(record)
        self.to_physical = BatchTransform(logical, self.arrow, converts, to_physical).apply
        self.from_physical = BatchTransform(
            logical, to_arrow(logical), converts, from_physical
        ).apply


def avro_form(record: t.Record) -> PhysicalForm:
    """Return the form in which Avro stores `record`: no logical types and no defaults.

    An enum is an int, the number of its symbol, unless it is a branch of a union. Each named type
    has a unique name.
    """
    names = (f"r{number}" for number in count())

    def stored(leaf: t.Leaf) -> t.Branch:
        match t.physical(leaf):
            case t.Fixed(size=size):
                return t.Fixed(name=next(names), size=size)
            case kind:
                return t.Scalar(kind=kind)

    physical = t.map_leaves(record, stored, lambda _: next(names))
    return PhysicalForm(record, physical, _is_converted, _to_physical, _from_physical)


def _is_converted(leaf: t.Leaf) -> bool:
    return isinstance(leaf, t.Decimal | t.Enum)


_NO_SYMBOL: Final = ""
"""The value of a symbol number out of range."""


def _to_physical(array: pa.Array, leaf: t.Leaf) -> pa.Array:
    match leaf:
        case t.Enum(symbols=symbols):
            return pc.index_in(array, value_set=pa.array(symbols))
        case t.Decimal(fixed=t.Fixed(size=size)):
            return _decimals_to_fixed(array, size)
        case t.Decimal():
            return decimals_to_bytes(array)
    raise AssertionError(leaf)


def _from_physical(array: pa.Array, leaf: t.Leaf) -> pa.Array:
    match leaf:
        case t.Enum(symbols=symbols):
            numbers: Any = pc.fill_null(array, 0).to_numpy()
            valid = (numbers >= 0) & (numbers < len(symbols))
            indices = np.where(valid, numbers, len(symbols))
            mask = np.asarray(array.is_null()) if array.null_count else None
            return pa.array([*symbols, _NO_SYMBOL]).take(pa.array(indices, mask=mask))
        case t.Decimal(fixed=None):
            return decimals_from_bytes(array, leaf)
        case t.Decimal():
            return _decimals_from_fixed(array, leaf)
    raise AssertionError(leaf)


# Decimals: Avro has big-endian bytes, Arrow 16 or 32 little-endian ones.
_Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def decimals_to_bytes(array: pa.Array) -> pa.Array:
    """Encode each decimal in the fewest bytes, at least one."""
    rows = _rows(array)
    width = rows.shape[1]
    sign = _signs(rows)
    other = rows != sign[:, None]
    # The first byte that is not sign extension, or else the last one.
    first = np.where(other.any(axis=1), other.argmax(axis=1), width - 1)
    top = np.take_along_axis(rows, first[:, None], axis=1)[:, 0]
    first -= (top ^ sign) >> 7  # one sign byte more if the top bit has the other sign
    kept = np.arange(width) >= first[:, None]
    if array.null_count:
        kept &= np.asarray(array.is_valid())[:, None]
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(kept.sum(axis=1), out=offsets[1:])
    data = np.ascontiguousarray(rows[kept])
    return array_like(pa.binary(), array, [pa.py_buffer(offsets), pa.py_buffer(data)])


def _decimals_to_fixed(array: pa.Array, size: int) -> pa.Array:
    """Encode each decimal in `size` bytes, which are enough."""
    rows = _resized(_rows(array), size)
    return array_like(pa.binary(size), array, [pa.py_buffer(np.ascontiguousarray(rows))])


def decimals_from_bytes(array: pa.Array, leaf: t.Decimal) -> pa.Array:
    """Decode binaries; empty and too long ones become a number with too many digits."""
    type_ = arrow_type(leaf)
    width = type_.byte_width
    count = len(array)
    if not count:
        return pa.array([], type_)
    _, offsets_buffer, data_buffer = array.buffers()
    bounds = np.frombuffer(offsets_buffer, np.int32, count + 1, array.offset * 4).astype(np.int64)
    lengths = np.diff(bounds)
    if array.null_count:
        lengths[np.asarray(array.is_null())] = 0
    readable = (lengths > 0) & (lengths <= width)
    lengths = np.where(readable, lengths, 0)
    data = np.frombuffer(data_buffer or b"\0", np.uint8)
    starts = bounds[:-1]
    top = data[np.where(readable, starts, 0)] if len(data) else np.zeros(count, np.uint8)
    sign = np.where(readable & (top > 0x7F), 0xFF, 0).astype(np.uint8)
    rows = np.repeat(sign[:, None], width, axis=1)
    # By byte position from the right, so the steps are as many as the longest number has bytes.
    for position in range(int(lengths.max(initial=0))):
        has = lengths > position
        rows[has, width - 1 - position] = data[starts[has] + lengths[has] - 1 - position]
    return _decimals(rows, ~readable, array, leaf)


def _decimals_from_fixed(array: pa.Array, leaf: t.Decimal) -> pa.Array:
    """Decode binaries of one size; too large a number becomes one with too many digits."""
    rows = bytes_of(array)
    size, width = array.type.byte_width, arrow_type(leaf).byte_width
    resized = _resized(rows, width)
    too_large = np.zeros(len(rows), np.bool_)
    if size > width:
        too_large = (rows[:, : size - width] != _signs(resized)[:, None]).any(axis=1)
    return _decimals(resized, too_large, array, leaf)


def _decimals(rows: _Bytes, invalid: Any, array: pa.Array, leaf: t.Decimal) -> pa.Array:
    """Return decimals; `invalid` rows become a number with too many digits for `leaf`."""
    type_ = arrow_type(leaf)
    if invalid.any():
        too_large = (10**leaf.precision).to_bytes(type_.byte_width, signed=True)
        rows = rows.copy()  # may be a view of the buffer of `array`
        rows[invalid] = np.frombuffer(too_large, np.uint8)
    return array_like(type_, array, [pa.py_buffer(np.ascontiguousarray(rows[:, ::-1]))])


def _rows(array: pa.Array) -> _Bytes:
    """Return the unscaled numbers of a decimal array as rows of big-endian bytes."""
    return bytes_of(array)[:, ::-1]


def bytes_of(array: pa.Array) -> _Bytes:
    """Return the values of an array whose type has a fixed width as rows of bytes."""
    width = array.type.byte_width
    data = np.frombuffer(array.buffers()[1], np.uint8, len(array) * width, array.offset * width)
    return data.reshape(-1, width)


def _signs(rows: _Bytes) -> _Bytes:
    """Return the byte of each number's sign extension."""
    return np.where(rows[:, 0] > 0x7F, 0xFF, 0).astype(np.uint8)


def _resized(rows: _Bytes, size: int) -> _Bytes:
    """Truncate or sign-extend numbers to `size` bytes."""
    width = rows.shape[1]
    if size <= width:
        return rows[:, width - size :]
    longer = np.repeat(_signs(rows)[:, None], size, axis=1)
    longer[:, size - width :] = rows
    return longer


def array_like(type_: pa.DataType, like: pa.Array, buffers: list[pa.Buffer]) -> pa.Array:
    """Return an array of these buffers with the validity of `like`."""
    mask = pa.array(like.is_valid()).buffers()[1] if like.null_count else None
    return pa.Array.from_buffers(type_, len(like), [mask, *buffers], like.null_count)


def convert_valid(array: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Convert the values of `array` that are not null."""
    if not array.null_count:
        return convert(array)
    places = np.flatnonzero(array.is_valid())
    return scatter(convert(array.take(pa.array(places))), places.tolist(), len(array))
