"""Columnar Avro codec on pyruhvro, for the schemas that it is tested with.

Bytes are written like a string, and eight bytes of a fixed like a double: pyruhvro moves both as
they are, whatever they hold. (That a string is none is found where Arrow validates it.)
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.codecs.physical import BatchTransform
from sluiceway.records.tables import relabelled
from sluiceway.schema.arrow import to_arrow
from sluiceway.schema.rendering import definition
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

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
        self.put_on = BatchTransform(record, to_arrow(self.record), _is_made, _numbers).of
        self.take_off = BatchTransform(record, to_arrow(record), _is_made, _bytes).of


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


try:
    import pyruhvro
except ImportError:  # no wheel for this platform
    pyruhvro = None

_KINDS: Final = frozenset({Kind.BOOLEAN, Kind.INT, Kind.LONG, Kind.FLOAT, Kind.DOUBLE, Kind.STRING})
"""The plain kinds for which tests hold pyruhvro against fastavro; it panics on others."""

_PIECE_BYTES: Final = 128 << 20
"""Batches are written in pieces of so many bytes: pyruhvro's offsets end at 2 GiB."""

_runtime_owner: int | None = None
"""The process in which pyruhvro's threads run, from the first time that it wrote."""


def supports(record: Record) -> bool:
    """Tell whether the plain `record`, or its lookalike, has tested kinds only."""
    return _is_tested(lookalike(record))


def _is_tested(type_: Type) -> bool:
    match type_:
        case Scalar(kind=kind):
            return kind in _KINDS
        case Nullable(item=item) | Array(items=item) | Map(values=item):
            return _is_tested(item)
        case Record(fields=fields):
            return all(_is_tested(field.type) for field in fields)
        case _:
            return False


def usable() -> bool:
    """Tell whether pyruhvro is there and works in this process.

    It writes with threads, which a fork does not copy: a child of a process that has written
    would wait for them for ever.
    """
    return pyruhvro is not None and _runtime_owner in (None, os.getpid())


class Columnar:
    """Messages of the plain schema `record`, the five bytes of magic and schema id included.

    To pyruhvro these five bytes are two more fields: a boolean, which is one byte, and a float,
    which is four. So nothing has to be cut off or put in front, message by message.
    """

    def __init__(self, record: Record, schema_id: int) -> None:
        self._alike = Lookalikes(record)
        record = self._alike.record
        names = _unused({field.name for field in record.fields})
        prefix = (
            Field(name=next(names), type=Scalar(kind=Kind.BOOLEAN)),
            Field(name=next(names), type=Scalar(kind=Kind.FLOAT)),
        )
        framed = Record(name=record.name, fields=prefix + record.fields)
        self._schema = to_arrow(record)
        self._framed = to_arrow(framed)
        self._definition = json.dumps(definition(framed))
        self._prefix = struct.pack(">I", schema_id)

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        """Write each row of `batch` (of the plain schema) as one message value."""
        values: list[bytes] = []
        for piece in self._pieces(batch):
            values += self._written(piece).to_numpy(zero_copy_only=False).tolist()
        return values

    def decode(self, values: list[bytes]) -> pa.RecordBatch:
        """Read one row from each value, leniently; raise ValueError if one cannot be read at all.

        Lenient: bytes left over, numbers too large and the prefix are not looked at.
        """
        try:
            framed = pyruhvro.deserialize_array(values, self._definition)
        except BaseException as error:
            # A panic in Rust is no Exception, and its class cannot be imported.
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                raise ValueError(str(error)) from error
            raise
        alike = relabelled(framed.select(range(2, framed.num_columns)), self._schema)
        batch = self._alike.take_off(alike)
        try:
            batch.validate(full=True)  # pyruhvro lets text through that is not UTF-8
        except pa.ArrowInvalid as error:
            raise ValueError(str(error)) from error
        return batch

    def unlike(self, batch: pa.RecordBatch, values: list[bytes]) -> Sequence[int]:
        """Find the values that are not what `encode` makes of the row at their place."""
        joined = pa.py_buffer(b"".join(values))
        pieces = list(self._pieces(batch))
        if len(pieces) == 1:
            written = self._written(batch)
            data = written.buffers()[2]
            # A row is never written longer than it was read, so equal bytes mean equal bounds.
            if data is not None and data.slice(0, _end(written)).equals(joined):
                return ()
        again = self.encode(batch)
        return [i for i, (old, new) in enumerate(zip(values, again, strict=True)) if old != new]

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if batch.num_rows <= 1 or batch.nbytes <= _PIECE_BYTES:
            yield batch
        else:
            half = batch.num_rows // 2
            yield from self._pieces(batch.slice(0, half))
            yield from self._pieces(batch.slice(half))

    def _written(self, piece: pa.RecordBatch) -> pa.Array:
        global _runtime_owner
        _runtime_owner = os.getpid()
        rows = piece.num_rows
        prefix = [
            pa.array(np.zeros(rows, np.bool_)),
            pa.array(np.frombuffer(self._prefix * rows, np.float32)),
        ]
        columns = [*prefix, *map(_unshifted, self._alike.put_on(piece).columns)]
        framed = pa.RecordBatch.from_arrays(columns, names=self._framed.names)
        (written,) = pyruhvro.serialize_record_batch(
            relabelled(framed, self._framed), self._definition, 1
        )
        return written


def _unshifted(array: pa.Array) -> pa.Array:
    """Copy `array` if a struct within begins later than its buffers: pyruhvro panics at those."""
    return array.take(pa.array(np.arange(len(array)))) if _is_shifted(array) else array


def _is_shifted(array: pa.Array) -> bool:
    if pa.types.is_struct(array.type):
        fields = range(array.type.num_fields)
        return array.offset > 0 or any(_is_shifted(array.field(number)) for number in fields)
    if pa.types.is_list(array.type):
        return _is_shifted(array.values)
    if pa.types.is_map(array.type):
        return array.keys.offset > 0 or _is_shifted(array.items)
    return False


def _end(written: pa.Array) -> int:
    offsets = written.buffers()[1]
    return int(np.frombuffer(offsets, np.int32, written.offset + len(written) + 1)[-1])


def _unused(taken: set[str]) -> Iterator[str]:
    return (name for i in range(len(taken) + 2) if (name := f"prefix_{i}") not in taken)
