"""Avro schema resolution: converts batches of one schema to batches of another, in columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluiceway.codecs.physical import with_items
from sluiceway.errors import SchemaMismatch
from sluiceway.records.from_python import column
from sluiceway.schema import Schema
from sluiceway.schema import types as t
from sluiceway.schema.arrow import arrow_type
from sluiceway.schema.compatibility import branches_of, incompatibilities, matching_branch
from sluiceway.schema.defaults import default_value

_Conversion: TypeAlias = Callable[[pa.Array], pa.Array]


class Resolution:
    """Conversion of batches of the schema `writer` to batches of the schema `reader`.

    An int or long read as a float or double is rounded to the nearest value, as Avro specifies.
    """

    def __init__(self, writer: Schema, reader: Schema) -> None:
        """Prepare the conversion. Raises SchemaMismatch if the schemas are incompatible."""
        if reasons := incompatibilities(reader, writer):
            raise SchemaMismatch("; ".join(reasons))
        self._schema = reader.arrow
        self._columns = _Columns(writer.record, reader.record, "")

    def sift(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Return the converted rows, and the reasons of the rows that cannot be converted.

        The reasons are by position in `batch`, in order. Only rows with bytes that are read as a
        string and are not UTF-8 fail.
        """
        try:
            return self._resolved(batch), {}
        except _NotText:
            failed = dict(self._unresolvable(batch, 0))
            rest = np.delete(np.arange(batch.num_rows), list(failed))
            return self._resolved(batch.take(pa.array(rest))), failed

    def _resolved(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = self._columns.convert(batch.columns, batch.num_rows)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _unresolvable(self, batch: pa.RecordBatch, start: int) -> list[tuple[int, str]]:
        # A copy, because a slice would keep the values of other rows in its buffers.
        batch = batch.take(pa.array(np.arange(batch.num_rows)))
        try:
            self._resolved(batch)
        except _NotText as error:
            if batch.num_rows == 1:
                return [(start, str(error))]
            half = batch.num_rows // 2
            failures = self._unresolvable(batch.slice(0, half), start)
            return failures + self._unresolvable(batch.slice(half), start + half)
        return []


class _NotText(ValueError):
    """Some bytes to be read as a string are not UTF-8."""


class _Columns:
    """Conversion of the columns of one record to those of another."""

    def __init__(self, written: t.Record, read: t.Record, path: str) -> None:
        indices = {field.name: index for index, field in enumerate(written.fields)}
        self._conversions: list[tuple[int | None, _Conversion]] = []
        for field in read.fields:
            name = t.written_name(field, indices)
            if name is None:
                self._conversions.append((None, _default(field)))
            else:
                index = indices[name]
                convert = _conversion(
                    written.fields[index].type, field.type, t.join_path(path, field.name)
                )
                self._conversions.append((index, convert))

    def convert(self, arrays: list[pa.Array], rows: int) -> list[pa.Array]:
        """Return the reader's columns; `arrays` are the writer's."""
        nulls = pa.nulls(rows)
        return [
            convert(nulls if index is None else arrays[index])
            for index, convert in self._conversions
        ]


def _conversion(written: t.Type, read: t.Type, path: str) -> _Conversion:
    """Return the conversion of arrays of `written` to arrays of `read`, a compatible type."""
    if written == read:
        return lambda array: array
    target = arrow_type(read)
    written = t.present(written)
    read = t.present(read)
    match written, read:
        case (t.Union(), _) | (_, t.Union()):
            return _Branches(written, read, path, target).convert
        case t.Record(), t.Record():
            return partial(_struct, columns=_Columns(written, read, path), target=target)
        case t.Array(), t.Array():
            items = _conversion(written.items, read.items, f"{path}[]")
            return lambda array: with_items(array, items(array.values), target)
        case t.Map(), t.Map():
            values = _conversion(written.values, read.values, f"{path}{{}}")
            return lambda array: with_items(array, values(array.items), target)
        case t.Enum(), t.Enum() if read.default and not {*written.symbols} <= {*read.symbols}:
            symbols, default = pa.array([*read.symbols, None], pa.string()), pa.scalar(read.default)
            return lambda array: pc.if_else(pc.is_in(array, value_set=symbols), array, default)
        case t.Scalar(kind=t.Kind.BYTES), t.Scalar(kind=t.Kind.STRING):
            return partial(_text, path=path)
    # Rounds; no promotion loses more.
    return lambda array: array.cast(target, safe=False)


class _Branches:
    """Conversion of values of `written` to values of `read`, at least one of which is a union.

    The form of a union is that of `sluiceway.schema.arrow`.
    """

    def __init__(self, written: t.Present, read: t.Present, path: str, target: pa.DataType) -> None:
        self._from_union = isinstance(written, t.Union)
        self._to_union = isinstance(read, t.Union)
        self._target = target
        reads = branches_of(read)
        self._types = [arrow_type(branch) for branch in reads]
        self._conversions = []
        for branch in branches_of(written):
            number = matching_branch(read, branch, path)
            self._conversions.append((number, _conversion(branch, reads[number], path)))

    def convert(self, array: pa.Array) -> pa.Array:
        # `flatten` makes all branches null below a null.
        children = array.flatten() if self._from_union else [array]
        parts: list[list[pa.Array]] = [[] for _ in self._types]
        for child, (number, convert) in zip(children, self._conversions, strict=True):
            parts[number].append(convert(child))
        made = [
            _first_valid(arrays, len(array), type_)
            for arrays, type_ in zip(parts, self._types, strict=True)
        ]
        if not self._to_union:
            return made[0]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(made, fields=list(self._target), mask=mask)


def _first_valid(arrays: list[pa.Array], length: int, type_: pa.DataType) -> pa.Array:
    """Return the only value that is not null at each position, or null."""
    if not arrays:
        return pa.nulls(length, type_)
    if len(arrays) == 1:
        return arrays[0]
    places = np.arange(length)
    for number, array in enumerate(arrays[1:], 1):
        valid = np.asarray(array.is_valid())
        places[valid] = np.flatnonzero(valid) + number * length
    return pa.concat_arrays(arrays).take(pa.array(places))


def _text(array: pa.Array, path: str) -> pa.Array:
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise _NotText(
            f"{t.field_at(path)} contains bytes that are not UTF-8: read it as bytes"
        ) from error


def _struct(array: pa.Array, columns: _Columns, target: pa.DataType) -> pa.Array:
    mask = array.is_null() if array.null_count else None
    # `flatten` makes fields null below a null record; there, values may be anything.
    arrays = columns.convert(array.flatten(), len(array))
    return pa.StructArray.from_arrays(arrays, fields=list(target), mask=mask)


def _default(field: t.Field) -> _Conversion:
    """Return the conversion for a field that was not written: its default in every row."""
    assert field.default is not None  # noqa: S101 - checked by `incompatibilities`
    value = column([default_value(field)], field.type, field.name)
    return lambda nulls: value.take(pa.array(np.zeros(len(nulls), np.int64)))
