"""Types that pyruhvro does not know, as types that it knows and that have the same bytes in Avro.

Bytes are written like a string, and eight bytes of a fixed like a double: pyruhvro moves both as
they are, whatever they hold. (That a string is none is found where Arrow validates it.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.codecs.remaking import Remaking
from sluiceway.schema.arrow import to_arrow
from sluiceway.schema.types import (
    Array,
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
)

_MOST_BYTES: Final = 64
_NUMBERS: Final = ((8, Kind.DOUBLE, np.float64), (4, Kind.FLOAT, np.float32))


def lookalike(record: Record) -> Record:
    """Give the plain `record` with everything that has a lookalike in its form."""
    return replace(record, fields=tuple(replace(f, type=_alike(f.type)) for f in record.fields))


def _alike(type_: Type) -> Type:
    if isinstance(type_, Nullable):
        return replace(type_, item=_present(type_.item))
    return _present(type_)


def _present(type_: Present) -> Present:
    match type_:
        case Scalar(kind=Kind.BYTES):
            return Scalar(kind=Kind.STRING)
        case Fixed(name=name, size=size) if _is_made(type_):  # as a record of numbers
            fields = (
                Field(name=f"b{begin}", type=Scalar(kind=kind)) for begin, _, kind, _ in _cut(size)
            )
            return Record(name=name, fields=tuple(fields))
        case Array(items=items):
            return Array(items=_alike(items))
        case Map(values=values):
            return Map(values=_alike(values))
        case Record():
            return lookalike(type_)
    return type_


def _cut(size: int) -> Iterator[tuple[int, int, Kind, Any]]:
    """Cut so many bytes into numbers: where each begins and ends, and what it is."""
    begin = 0
    for width, kind, number in _NUMBERS:
        while begin + width <= size:
            yield begin, begin + width, kind, number
            begin += width


class Lookalikes:
    """Batches of the plain `record` to batches of its lookalike, and back."""

    def __init__(self, record: Record) -> None:
        self.record = lookalike(record)
        self.put_on = Remaking(record, to_arrow(self.record), _is_made, _numbers).of
        self.take_off = Remaking(record, to_arrow(record), _is_made, _bytes).of


def _is_made(leaf: Leaf) -> bool:
    return isinstance(leaf, Fixed) and leaf.size % 4 == 0 and leaf.size <= _MOST_BYTES


def _numbers(array: pa.Array, leaf: Leaf) -> pa.Array:
    assert isinstance(leaf, Fixed)  # noqa: S101 - nothing else is made
    size = leaf.size
    rows = np.frombuffer(array.buffers()[1], np.uint8, len(array) * size, array.offset * size)
    rows = rows.reshape(-1, size)
    children = [
        pa.array(np.ascontiguousarray(rows[:, begin:end]).view(number).ravel())
        for begin, end, _, number in _cut(size)
    ]
    names = [f"b{begin}" for begin, *_ in _cut(size)]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, names, mask=mask)


def _bytes(array: pa.Array, leaf: Leaf) -> pa.Array:
    assert isinstance(leaf, Fixed)  # noqa: S101 - nothing else is made
    rows = np.empty((len(array), leaf.size), np.uint8)
    for place, (begin, end, _, _) in enumerate(_cut(leaf.size)):
        child = array.field(place)
        width = end - begin
        data = np.frombuffer(child.buffers()[1], np.uint8, len(child) * width, child.offset * width)
        rows[:, begin:end] = data.reshape(-1, width)
    mask = pa.array(array.is_valid()).buffers()[1] if array.null_count else None
    return pa.Array.from_buffers(
        pa.binary(leaf.size), len(array), [mask, pa.py_buffer(rows)], array.null_count
    )
