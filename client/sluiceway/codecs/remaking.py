"""Batches in which some leaves are made anew, wherever they are nested; the rest is relabelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

from sluiceway.schema.labels import relabelled
from sluiceway.schema.types import Array, Leaf, Map, Nullable, Record, Type

IsMade: TypeAlias = Callable[[Leaf], bool]
Making: TypeAlias = Callable[[pa.Array, Leaf], pa.Array]


class Remaking:
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
