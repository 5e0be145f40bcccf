"""Logical types to the physical types that Avro stores, and back, in columns.

Most logical types are their plain ones under another label, in Avro and in Arrow alike: a date is
an int, the text of a UUID a string. Such columns are relabelled without a copy. Decimals and enums
are made anew, whole columns at a time, wherever in a column they are; the columns beside them are
left alone.

Nothing here raises for what the values are. A stored value that stands for none becomes one that
`sluiceway.records.validation` refuses.

Arrow holds it in 16 or 32 bytes, the lowest first. All of this works on whole arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluiceway.records.tables import relabelled
from sluiceway.schema.arrow import arrow_type, to_arrow
from sluiceway.schema.types import (
    LOGICAL,
    Array,
    Decimal,
    Enum,
    Field,
    Fixed,
    Kind,
    Leaf,
    Map,
    Nullable,
    Present,
    Record,
    Scalar,
    Type,
    Uuid,
)


def plain(record: Record) -> Record:
    """Make `record` plain: no logical types, no defaults, everything named under its own name.

    An enum is an int, the number of its symbol: that is what Avro writes.
    """
    names = (f"r{number}" for number in count())

    def present(type_: Present) -> Present:
        match type_:
            case Scalar(kind=kind):
                return Scalar(kind=LOGICAL.get(kind, kind))
            case Fixed(size=size) | Decimal(fixed=Fixed(size=size)) | Uuid(fixed=Fixed(size=size)):
                return Fixed(name=next(names), size=size)
            case Decimal():
                return Scalar(kind=Kind.BYTES)
            case Uuid():
                return Scalar(kind=Kind.STRING)
            case Enum():
                return Scalar(kind=Kind.INT)
            case Array(items=items):
                return Array(items=any_(items))
            case Map(values=values):
                return Map(values=any_(values))
            case Record(fields=fields):
                return root(fields)

    def any_(type_: Type) -> Type:
        if isinstance(type_, Nullable):
            return Nullable(item=present(type_.item), null_first=type_.null_first)
        return present(type_)

    def root(fields: tuple[Field, ...]) -> Record:
        name = next(names)
        return Record(
            name=name, fields=tuple(Field(name=f.name, type=any_(f.type)) for f in fields)
        )

    return root(record.fields)


IsMade: TypeAlias = Callable[[Leaf], bool]
Making: TypeAlias = Callable[[pa.Array, Leaf], pa.Array]


class BatchTransform:
    """Makes batches of `record` into batches of `schema`, which differ in some leaves.

    `making` gives the array of a leaf for which `is_made` another form. It is given whole arrays,
    those parts of them too that no list refers to and no record shows.
    """

    def __init__(self, record: Record, schema: pa.Schema, is_made: IsMade, making: Making) -> None:
        self._schema = schema
        self._making = making
        self._is_made = is_made
        self._columns = {
            number: field.type
            for number, field in enumerate(record.fields)
            if self._holds(field.type)
        }

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Make `batch` anew; what needs no change is not copied."""
        if self._columns:
            columns = list(batch.columns)
            for number, type_ in self._columns.items():
                columns[number] = self._array(columns[number], type_)
            batch = pa.RecordBatch.from_arrays(columns, names=self._schema.names)
        return relabelled(batch, self._schema)

    def _holds(self, type_: Type) -> bool:
        match type_:
            case Nullable(item=item) | Array(items=item) | Map(values=item):
                return self._holds(item)
            case Record(fields=fields):
                return any(self._holds(field.type) for field in fields)
            case leaf:
                return self._is_made(leaf)

    def _array(self, array: pa.Array, type_: Type) -> pa.Array:
        if not self._holds(type_):
            return array
        match type_.item if isinstance(type_, Nullable) else type_:
            case Record(fields=fields):
                # Below a null there is something all the same, which has to stand for nothing.
                children = [
                    self._array(child, field.type)
                    for child, field in zip(array.flatten(), fields, strict=True)
                ]
                mask = array.is_null() if array.null_count else None
                return pa.StructArray.from_arrays(children, [f.name for f in fields], mask=mask)
            case Array(items=item):
                values = self._array(array.values, item)
                return _around(values, array, pa.list_(values.type))
            case Map(values=item):
                items = self._array(array.items, item)
                entries = pa.StructArray.from_arrays([array.keys, items], ["key", "value"])
                return _around(entries, array, pa.map_(array.type.key_type, items.type))
            case leaf:
                return self._making(array, leaf)


def _around(child: pa.Array, array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Put `child` in the place of what is in the lists, or maps, of `array`."""
    bounds = array.buffers()[:2]
    return pa.Array.from_buffers(
        type_, len(array), bounds, array.null_count, array.offset, children=[child]
    )


_Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def shortest_of_decimals(array: pa.Array) -> pa.Array:
    """Write each decimal as the fewest bytes that hold it, at least one."""
    rows = _rows(array)
    width = rows.shape[1]
    sign = _signs(rows)
    other = rows != sign[:, None]
    # The first byte that is not mere sign; the last one counts in any case.
    first = np.where(other.any(axis=1), other.argmax(axis=1), width - 1)
    top = np.take_along_axis(rows, first[:, None], axis=1)[:, 0]
    first -= (top ^ sign) >> 7  # a byte of sign more, where the number's own top bit says another
    kept = np.arange(width) >= first[:, None]
    if array.null_count:
        kept &= np.asarray(array.is_valid())[:, None]
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(kept.sum(axis=1), out=offsets[1:])
    data = np.ascontiguousarray(rows[kept])
    return _array(pa.binary(), array, [pa.py_buffer(offsets), pa.py_buffer(data)])


def fixed_of_decimals(array: pa.Array, size: int) -> pa.Array:
    """Write each decimal as `size` bytes, which hold it."""
    rows = _resized(_rows(array), size)
    return _array(pa.binary(size), array, [pa.py_buffer(np.ascontiguousarray(rows))])


def decimals_of_bytes(array: pa.Array, leaf: Decimal) -> pa.Array:
    """Read binaries as decimals of `leaf`.

    No bytes at all, or more than Arrow's decimal has, are read as a number of too many digits.
    """
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
    # Byte by byte from the right: as many steps as the longest number has bytes.
    for place in range(int(lengths.max(initial=0))):
        has = lengths > place
        rows[has, width - 1 - place] = data[starts[has] + lengths[has] - 1 - place]
    return _decimals(rows, ~readable, array, leaf)


def decimals_of_fixed(array: pa.Array, leaf: Decimal) -> pa.Array:
    """Read binaries of one size as decimals of `leaf`; too large a one as too many digits."""
    size = array.type.byte_width
    width = arrow_type(leaf).byte_width
    buffer = array.buffers()[1]
    rows = np.frombuffer(buffer, np.uint8, len(array) * size, array.offset * size)
    rows = rows.reshape(-1, size)
    made = _resized(rows, width)
    lost = np.zeros(len(rows), np.bool_)
    if size > width:
        lost = (rows[:, : size - width] != _signs(made)[:, None]).any(axis=1)
    return _decimals(made, lost, array, leaf)


def _decimals(rows: _Bytes, lost: Any, array: pa.Array, leaf: Decimal) -> pa.Array:
    """Make an array of numbers, and of one too large for `leaf` where they are `lost`."""
    type_ = arrow_type(leaf)
    if lost.any():
        too_large = (10**leaf.precision).to_bytes(type_.byte_width, signed=True)
        rows = rows.copy()  # they may be the buffer of `array`
        rows[lost] = np.frombuffer(too_large, np.uint8)
    return _array(type_, array, [pa.py_buffer(np.ascontiguousarray(rows[:, ::-1]))])


def _rows(array: pa.Array) -> _Bytes:
    """Give the numbers of a decimal array as rows of bytes, the highest first."""
    width = array.type.byte_width
    data = np.frombuffer(array.buffers()[1], np.uint8, len(array) * width, array.offset * width)
    return data.reshape(-1, width)[:, ::-1]


def _signs(rows: _Bytes) -> _Bytes:
    """Give the byte that goes on forever to the left of each number."""
    return np.where(rows[:, 0] > 0x7F, 0xFF, 0).astype(np.uint8)


def _resized(rows: _Bytes, size: int) -> _Bytes:
    """Cut or lengthen numbers to `size` bytes, from the left."""
    width = rows.shape[1]
    if size <= width:
        return rows[:, width - size :]
    longer = np.repeat(_signs(rows)[:, None], size, axis=1)
    longer[:, size - width :] = rows
    return longer


def _array(type_: pa.DataType, like: pa.Array, buffers: list[pa.Buffer]) -> pa.Array:
    """Make an array with the nulls of `like`."""
    mask = pa.array(like.is_valid()).buffers()[1] if like.null_count else None
    return pa.Array.from_buffers(type_, len(like), [mask, *buffers], like.null_count)


NO_SYMBOL: Final = ""
"""What the number of no symbol is read as."""


class Storage:
    """Batches of `record` to batches of its plain form, and back."""

    def __init__(self, record: Record) -> None:
        self.record = plain(record)
        self.arrow = to_arrow(self.record)
        self._store = BatchTransform(record, self.arrow, _is_made, _stored)
        self._load = BatchTransform(record, to_arrow(record), _is_made, _loaded)

    def store(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Turn a batch of the record's Arrow form into one of the plain record's, `arrow`."""
        return self._store.of(batch)

    def load(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Turn a batch of the plain record into one of the record's form, not yet checked."""
        return self._load.of(batch)


def _is_made(leaf: Leaf) -> bool:
    return isinstance(leaf, Decimal | Enum)


def _stored(array: pa.Array, leaf: Leaf) -> pa.Array:
    match leaf:
        case Enum(symbols=symbols):
            return pc.index_in(array, value_set=pa.array(symbols))
        case Decimal(fixed=Fixed(size=size)):
            return fixed_of_decimals(array, size)
        case Decimal():
            return shortest_of_decimals(array)
    raise AssertionError(leaf)


def _loaded(array: pa.Array, leaf: Leaf) -> pa.Array:
    match leaf:
        case Enum(symbols=symbols):
            numbers: Any = pc.fill_null(array, 0).to_numpy()
            known = (numbers >= 0) & (numbers < len(symbols))
            places = np.where(known, numbers, len(symbols))
            mask = np.asarray(array.is_null()) if array.null_count else None
            return pa.array([*symbols, NO_SYMBOL]).take(pa.array(places, mask=mask))
        case Decimal(fixed=None):
            return decimals_of_bytes(array, leaf)
        case Decimal():
            return decimals_of_fixed(array, leaf)
    raise AssertionError(leaf)
