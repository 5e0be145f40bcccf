"""Columnar Avro codec on pyruhvro, for the types that are tested with it.

pyruhvro gets bytes and fixed under other types: bytes as a string (Arrow's validation finds values
that are not text), and fixed as a record of doubles and floats.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.codecs.physical import PhysicalForm, array_like, bytes_of
from sluiceway.concurrency import Process, this_process
from sluiceway.records.tables import with_schema
from sluiceway.schema import types as t
from sluiceway.schema.arrow import to_arrow
from sluiceway.schema.avro import definition

try:
    import pyruhvro
except ImportError:  # no wheel for this platform
    pyruhvro = None

_KINDS: Final = frozenset(
    {t.Kind.BOOLEAN, t.Kind.INT, t.Kind.LONG, t.Kind.FLOAT, t.Kind.DOUBLE, t.Kind.STRING}
)
"""The kinds that are tested against fastavro; pyruhvro panics on others."""

_MAX_FIXED_BYTES: Final = 64
_NUMBERS: Final = ((8, t.Kind.DOUBLE, np.float64), (4, t.Kind.FLOAT, np.float32))

_PIECE_BYTES: Final = 128 << 20
"""The size of the pieces in which batches are encoded: pyruhvro's offsets end at 2 GiB."""

_RUN_BYTES: Final = 256 << 10

_runtime_owner: Process | None = None
"""The process in which pyruhvro started its threads, with its first encoding."""


def _stand_in(record: t.Record) -> t.Record:
    """Return the physical `record` with the leaf types that pyruhvro gets."""

    def convert(leaf: t.Leaf) -> t.Branch:
        if leaf == t.Scalar(kind=t.Kind.BYTES):
            return t.Scalar(kind=t.Kind.STRING)
        if isinstance(leaf, t.Fixed) and _is_converted(leaf):
            numbers = _split(leaf.size)
            fields = (
                t.Field(name=f"b{begin}", type=t.Scalar(kind=k)) for begin, _, k, _ in numbers
            )
            return t.Record(name=leaf.name, fields=tuple(fields))
        return leaf

    return t.map_leaves(record, convert)


def _is_converted(leaf: t.Leaf) -> bool:
    return isinstance(leaf, t.Fixed) and leaf.size % 4 == 0 and leaf.size <= _MAX_FIXED_BYTES


def _split(size: int) -> Iterator[tuple[int, int, t.Kind, Any]]:
    """Split `size` bytes into numbers: begin, end, kind and NumPy type of each."""
    begin = 0
    for width, kind, number in _NUMBERS:
        while begin + width <= size:
            yield begin, begin + width, kind, number
            begin += width


def _to_numbers(array: pa.Array, leaf: t.Leaf) -> pa.Array:
    assert isinstance(leaf, t.Fixed)  # noqa: S101 - by `_is_converted`
    rows = bytes_of(array)
    children = [
        pa.array(np.ascontiguousarray(rows[:, begin:end]).view(number).ravel())
        for begin, end, _, number in _split(leaf.size)
    ]
    names = [f"b{begin}" for begin, *_ in _split(leaf.size)]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, names, mask=mask)


def _from_numbers(array: pa.Array, leaf: t.Leaf) -> pa.Array:
    assert isinstance(leaf, t.Fixed)  # noqa: S101 - by `_is_converted`
    rows = np.empty((len(array), leaf.size), np.uint8)
    for index, (begin, end, _, _) in enumerate(_split(leaf.size)):
        rows[:, begin:end] = bytes_of(array.field(index))
    return array_like(pa.binary(leaf.size), array, [pa.py_buffer(rows)])


def supports(record: t.Record) -> bool:
    """Return whether the physical `record` has only types that are tested with pyruhvro."""
    if t.find_union(record) is not None:
        return False
    leaves = (type_ for type_ in t.walk(_stand_in(record)) if isinstance(type_, t.Leaf))
    return all(isinstance(leaf, t.Scalar) and leaf.kind in _KINDS for leaf in leaves)


def usable() -> bool:
    """Return whether pyruhvro is installed and works in this process.

    It encodes with threads, which a fork does not copy: in a child of a process that has encoded
    before, it would wait for them forever.
    """
    return pyruhvro is not None and not (_runtime_owner and _runtime_owner.forked)


class ColumnarCodec:
    """Codec for messages of the physical `record`, including the five bytes of the prefix.

    To pyruhvro, the prefix is two more fields: a boolean of one byte and a float of four. So no
    step is needed per message.
    """

    def __init__(self, record: t.Record, schema_id: int) -> None:
        self._form = PhysicalForm(
            record, _stand_in(record), _is_converted, _to_numbers, _from_numbers
        )
        record = self._form.record
        taken = {field.name for field in record.fields}
        names = (name for i in range(len(taken) + 2) if (name := f"prefix_{i}") not in taken)
        prefix = (
            t.Field(name=next(names), type=t.Scalar(kind=t.Kind.BOOLEAN)),
            t.Field(name=next(names), type=t.Scalar(kind=t.Kind.FLOAT)),
        )
        framed = t.Record(name=record.name, fields=prefix + record.fields)
        self._framed = to_arrow(framed)
        self._definition = json.dumps(definition(framed))
        self._prefix = struct.pack(">I", schema_id)

    def encode(self, batch: pa.RecordBatch) -> Iterator[pa.Array]:
        """Encode each row of `batch` as one message; yield the messages in parts."""
        return map(self._encoded, self._pieces(batch))

    def decode(self, values: list[bytes]) -> pa.RecordBatch:
        """Decode one row from each message; raise ValueError if one cannot be decoded at all.

        Lenient: the prefix, trailing bytes and overlong numbers are not checked.
        """
        try:
            framed = pyruhvro.deserialize_array(values, self._definition)
        except BaseException as error:
            # A Rust panic is not an Exception, and its class cannot be imported.
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                raise ValueError(str(error)) from error
            raise
        stand_in = with_schema(framed.select(range(2, framed.num_columns)), self._form.arrow)
        batch = self._form.from_physical(stand_in)
        try:
            batch.validate(full=True)  # pyruhvro accepts text that is not UTF-8
        except pa.ArrowInvalid as error:
            raise ValueError(str(error)) from error
        return batch

    def mismatches(self, batch: pa.RecordBatch, values: list[bytes]) -> Sequence[int]:
        """Return the indices of the values that differ from the encoding of their row."""
        start = 0
        for piece in self._pieces(batch):
            end = start + piece.num_rows
            if not _is_joined(self._encoded(piece), values[start:end]):
                again = pa.chunked_array(self.encode(batch)).to_pylist()
                pairs = enumerate(zip(values, again, strict=True))
                return [index for index, (old, new) in pairs if old != new]
            start = end
        return ()

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if batch.num_rows <= 1 or batch.nbytes <= _PIECE_BYTES:
            yield batch
        else:
            half = batch.num_rows // 2
            yield from self._pieces(batch.slice(0, half))
            yield from self._pieces(batch.slice(half))

    def _encoded(self, piece: pa.RecordBatch) -> pa.Array:
        global _runtime_owner
        _runtime_owner = _runtime_owner or this_process()
        rows = piece.num_rows
        prefix = [
            pa.array(np.zeros(rows, np.bool_)),
            pa.array(np.frombuffer(self._prefix * rows, np.float32)),
        ]
        columns = [*prefix, *map(_without_offset, self._form.to_physical(piece).columns)]
        framed = pa.RecordBatch.from_arrays(columns, names=self._framed.names)
        (encoded,) = pyruhvro.serialize_record_batch(
            with_schema(framed, self._framed), self._definition, 1
        )
        return encoded


def _without_offset(array: pa.Array) -> pa.Array:
    """Copy `array` if a struct in it has an offset: pyruhvro panics at those."""
    return array.take(pa.array(np.arange(len(array)))) if _has_offset(array) else array


def _has_offset(array: pa.Array) -> bool:
    if pa.types.is_struct(array.type):
        fields = range(array.type.num_fields)
        return array.offset > 0 or any(_has_offset(array.field(number)) for number in fields)
    if pa.types.is_list(array.type):
        return _has_offset(array.values)
    if pa.types.is_map(array.type):
        return array.keys.offset > 0 or _has_offset(array.items)
    return False


def _is_joined(encoded: pa.Array, values: list[bytes]) -> bool:
    """Return whether the bytes of `encoded`, a whole array, are those of `values` joined.

    No encoding is longer than its value, so then each value is equal.
    """
    _, offsets, data = encoded.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(values) + 1)
    if data is None or not values:
        return not values
    # In runs that stay in the processor's cache.
    step = max(1, len(values) * _RUN_BYTES // max(1, int(bounds[-1])))
    for start in range(0, len(values), step):
        joined = b"".join(values[start : start + step])
        begin, end = bounds[start], bounds[min(start + step, len(values))]
        if end - begin != len(joined) or not data.slice(begin, len(joined)).equals(
            pa.py_buffer(joined)
        ):
            return False
    return True
