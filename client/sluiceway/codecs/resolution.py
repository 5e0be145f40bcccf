"""Avro schema resolution in columns: batches of one schema as batches of another."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluiceway.errors import SchemaMismatch
from sluiceway.records.columns import column
from sluiceway.schema.arrow import arrow_type
from sluiceway.schema.compatibility import incompatibilities
from sluiceway.schema.defaults import as_python
from sluiceway.schema.types import (
    Array,
    Enum,
    Field,
    Kind,
    Map,
    Nullable,
    Record,
    Scalar,
    Type,
    at,
    below,
)

if TYPE_CHECKING:
    from sluiceway.schema import Schema

_Column: TypeAlias = Callable[[pa.Array], pa.Array]


class Unresolvable(ValueError):
    """A value of the row at `position` is none that the reader's schema knows."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"record {position}: {reason}")
        self.position = position
        self.reason = reason


def resolve(batch: pa.RecordBatch, writer: Schema, reader: Schema) -> pa.RecordBatch:
    """Make `batch`, whose schema is `writer.arrow`, into one of `reader.arrow`, row by row.

    Raises SchemaMismatch where `incompatibilities` has something to say, and Unresolvable for
    bytes that are to be a string and are no UTF-8. An int or a long that becomes a float or a
    double is rounded to the nearest, as Avro has it.
    """
    resolved, unresolvable = Resolution(writer, reader).sift(batch)
    for position, reason in unresolvable.items():
        raise Unresolvable(position, reason)
    return resolved


class Resolution:
    """The way from batches of one schema to batches of another, found once for many batches."""

    def __init__(self, writer: Schema, reader: Schema) -> None:
        """Find the way; SchemaMismatch if there is none."""
        if reasons := incompatibilities(reader, writer):
            raise SchemaMismatch("; ".join(reasons))
        self._schema = reader.arrow
        self._columns = None
        if writer.record != reader.record:
            self._columns = _Columns(writer.record, reader.record, "")

    @property
    def identical(self) -> bool:
        """Whether there is nothing to do."""
        return self._columns is None

    def sift(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Give the rows of `batch` that can be had, and for each that cannot, the reason.

        The reasons are by position in `batch`, in order.
        """
        if self._columns is None:
            return batch, {}
        try:
            return self._resolved(batch), {}
        except _NotText:
            found = dict(self._unresolvable(batch, 0))
            left = np.delete(np.arange(batch.num_rows), list(found))
            return self._resolved(batch.take(pa.array(left))), found

    def _resolved(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        assert self._columns is not None  # noqa: S101 - `sift` has looked
        arrays = self._columns.of(batch.columns, batch.num_rows)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _unresolvable(self, batch: pa.RecordBatch, start: int) -> list[tuple[int, str]]:
        # Rows that are taken anew leave behind what a slice only hides.
        batch = batch.take(pa.array(np.arange(batch.num_rows)))
        try:
            self._resolved(batch)
        except _NotText as error:
            if batch.num_rows == 1:
                return [(start, str(error))]
            half = batch.num_rows // 2
            found = self._unresolvable(batch.slice(0, half), start)
            return found + self._unresolvable(batch.slice(half), start + half)
        return []


class _NotText(ValueError):
    """Some bytes that are to be a string are no UTF-8."""


class _Columns:
    """The columns of a record made of those of another."""

    def __init__(self, written: Record, read: Record, path: str) -> None:
        places = {field.name: place for place, field in enumerate(written.fields)}
        self._ways: list[tuple[int | None, _Column]] = []
        for field in read.fields:
            place = places.get(field.name)
            if place is None:
                self._ways.append((None, _default(field)))
            else:
                type_ = written.fields[place].type
                self._ways.append((place, _way(type_, field.type, below(path, field.name))))

    def of(self, arrays: list[pa.Array], rows: int) -> list[pa.Array]:
        """Make the columns; `arrays` are the writer's, of so many rows."""
        nothing = pa.nulls(rows)
        return [way(nothing if place is None else arrays[place]) for place, way in self._ways]


def _way(written: Type, read: Type, path: str) -> _Column:
    """Find the way from arrays of `written` to arrays of `read`, which can read it."""
    if written == read:
        return _as_it_is
    target = arrow_type(read)
    written = written.item if isinstance(written, Nullable) else written
    read = read.item if isinstance(read, Nullable) else read
    match written, read:
        case Record(), Record():
            return partial(_struct, columns=_Columns(written, read, path), target=target)
        case Array(), Array():
            return partial(_list, way=_way(written.items, read.items, f"{path}[]"), target=target)
        case Map(), Map():
            way = _way(written.values, read.values, f"{path}{{}}")
            return partial(_map, way=way, target=target)
        case Enum(), Enum() if read.default and not {*written.symbols} <= {*read.symbols}:
            return partial(_known, symbols=[*read.symbols, None], default=read.default)
        case Scalar(kind=Kind.BYTES), Scalar(kind=Kind.STRING):
            return partial(_text, path=path)
    return partial(_cast, target=target)


def _as_it_is(array: pa.Array) -> pa.Array:
    return array


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    return array.cast(target, safe=False)  # rounds; no promotion loses more than that


def _text(array: pa.Array, path: str) -> pa.Array:
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise _NotText(
            f"{at(path)} holds bytes that are no UTF-8, and is read as a string: read it as bytes"
        ) from error


def _known(array: pa.Array, symbols: list[str | None], default: str) -> pa.Array:
    known = pc.is_in(array, value_set=pa.array(symbols, pa.string()))
    return pc.if_else(known, array, pa.scalar(default))


def _struct(array: pa.Array, columns: _Columns, target: pa.DataType) -> pa.Array:
    mask = array.is_null() if array.null_count else None
    # Flattened, fields are null where the record is: what lies below a null may be anything.
    arrays = columns.of(array.flatten(), len(array))
    return pa.StructArray.from_arrays(arrays, fields=list(target), mask=mask)


def _list(array: pa.Array, way: _Column, target: pa.DataType) -> pa.Array:
    return _around(array, way(array.values), target)


def _map(array: pa.Array, way: _Column, target: pa.DataType) -> pa.Array:
    fields = [target.key_field, target.item_field]
    entries = pa.StructArray.from_arrays([array.keys, way(array.items)], fields=fields)
    return _around(array, entries, target)


def _around(array: pa.Array, child: pa.Array, target: pa.DataType) -> pa.Array:
    """Give a list or map like `array`, with other items."""
    bounds = array.buffers()[:2]
    return pa.Array.from_buffers(
        target, len(array), bounds, array.null_count, array.offset, [child]
    )


def _default(field: Field) -> _Column:
    """Find the column of a field that was not written: its default, as often as there are rows."""
    assert field.default is not None  # noqa: S101 - `incompatibilities` has looked
    value = column([as_python(json.loads(field.default), field.type)], field.type, field.name)
    return lambda nothing: value.take(pa.array(np.zeros(len(nothing), np.int64)))
