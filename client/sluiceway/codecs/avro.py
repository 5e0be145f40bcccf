"""The format `avro`: one record per message after the 5-byte schema-id prefix.

A value is the byte 0, the schema id as four bytes (big-endian), and the record in Avro's binary
form. Writing is done by pyruhvro, for schemas on its tested list, or else by fastavro.

Reading trusts nobody. pyruhvro reads many messages at once, but leniently, so a message is taken as
read only if writing its record again gives the same bytes. All others (damaged, foreign, written in
one of Avro's rarer forms, or of schemas off the list) are read one by one by the strict reader,
which alone decides about them. So both ways accept the same messages and give the same values.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import fastavro
import numpy as np
import pyarrow as pa

from sluiceway.codecs import avro_columnar as columnar
from sluiceway.codecs.avro_columnar import Columnar
from sluiceway.codecs.avro_strict import BUDGET_PER_BYTE, Malformed, StrictReader, expansion
from sluiceway.codecs.base import Corrupt, Decoded, Encoded
from sluiceway.codecs.physical import Storage
from sluiceway.errors import RecordTooLarge
from sluiceway.records.tables import relabelled
from sluiceway.records.to_python import to_records
from sluiceway.records.validation import misfits
from sluiceway.schema.rendering import definition
from sluiceway.schema.types import Record

if TYPE_CHECKING:
    from sluiceway.schema import Schema


class RowWriter:
    """Writes messages of the plain schema `record`, with the five bytes of magic and schema id."""

    def __init__(self, record: Record, schema_id: int) -> None:
        self._parsed = fastavro.parse_schema(definition(record))
        self._prefix = struct.pack(">BI", 0, schema_id)

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        """Write each row of `batch` (of the plain schema) as one message value."""
        rows = to_records(batch)
        write, parsed, prefix = fastavro.schemaless_writer, self._parsed, self._prefix
        values = []
        for row in rows:
            sink = io.BytesIO(prefix)
            sink.seek(len(prefix))
            write(sink, parsed, row)
            values.append(sink.getvalue())
        return values


def of_rows(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Make a batch of the plain `schema` from rows as `StrictReader.read` gives them."""
    array = pa.array(rows, pa.struct(list(schema)))
    return relabelled(pa.RecordBatch.from_struct_array(array), schema)


_FEW: Final = 8
"""So few messages are read one by one rather than halved again in search of a bad one."""

_RUN_BYTES: Final = 256 << 20
"""So many bytes of messages are read at once: Arrow's offsets end at 2 GiB."""


class _OneByOne(Exception):
    """These messages cannot be read at once."""


class AvroCodec:
    """The codec of the format `avro`; see `Codec` for what it promises."""

    def __init__(self, schema: Schema, schema_id: int) -> None:
        self._schema = schema
        self._storage = Storage(schema.record)
        record = self._storage.record
        self._strict = StrictReader(schema.record, schema_id)
        self._rows = RowWriter(record, schema_id)
        self._columnar = Columnar(record, schema_id) if columnar.supports(record) else None
        # A null item of one byte can stand for a wide record: such messages are counted as read.
        self._bounded = expansion(record) <= BUDGET_PER_BYTE

    @property
    def columnar(self) -> Columnar | None:
        """What reads and writes whole columns; None: this schema or process cannot have it."""
        return self._columnar if columnar.usable() else None

    def encode(self, batch: pa.RecordBatch, *, limit_bytes: int) -> Encoded:
        """Encode `batch`, one value a record."""
        if not batch.num_rows:
            return Encoded(values=[], counts=None)
        writer = self.columnar or self._rows
        values = writer.encode(self._storage.store(batch))
        if max(map(len, values)) > limit_bytes:
            index = next(i for i, value in enumerate(values) if len(value) > limit_bytes)
            raise RecordTooLarge(
                index=index, size_bytes=len(values[index]), limit_bytes=limit_bytes
            )
        return Encoded(values=values, counts=None)

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Decode values of one record each."""
        reading = _Reading(self._storage)
        if values:
            self._read(values, 0, reading)
        reading.finish()
        counts = None
        if reading.corrupt:
            counts = [1] * len(values)
            for corrupt in reading.corrupt:
                counts[corrupt.index] = 0
        return Decoded(batches=reading.batches, counts=counts, corrupt=reading.corrupt)

    def _read(self, values: Sequence[bytes | None], start: int, reading: _Reading) -> None:
        """Read `values`, the first of which is number `start`."""
        if self.columnar is None or not self._bounded:
            return self._read_strictly(values, start, reading)
        try:
            batch, unlike = self._together(self.columnar, values)
        except _OneByOne:
            if len(values) <= _FEW:
                return self._read_strictly(values, start, reading)
            half = len(values) // 2
            self._read(values[:half], start, reading)
            return self._read(values[half:], start + half, reading)
        if not unlike:
            reading.batch(batch)
            return None
        begin = 0
        for odd in unlike:
            reading.batch(_apart(batch, begin, odd))
            self._read_strictly(values[odd : odd + 1], start + odd, reading)
            begin = odd + 1
        reading.batch(_apart(batch, begin, batch.num_rows))
        return None

    def _together(
        self, reader: Columnar, values: Sequence[bytes | None]
    ) -> tuple[pa.RecordBatch, list[int]]:
        """Read all of `values` at once; the numbers are of those that need the strict reader."""
        present = [value for value in values if value is not None]
        if len(present) < len(values) or sum(map(len, present)) > _RUN_BYTES:
            raise _OneByOne
        try:
            stored = reader.decode(present)
        except ValueError as error:
            raise _OneByOne from error
        batch = self._storage.load(stored)
        unlike = set(reader.unlike(stored, present))
        return batch, sorted(unlike | misfits(batch, self._schema.record))

    def _read_strictly(self, values: Sequence[bytes | None], start: int, reading: _Reading) -> None:
        for index, value in enumerate(values, start):
            if value is None:
                reading.reject(index, "it has no value (a tombstone), and so no record")
                continue
            try:
                reading.row(self._strict.read(value), len(value))
            except Malformed as error:
                reading.reject(index, str(error))


def _apart(batch: pa.RecordBatch, begin: int, end: int) -> pa.RecordBatch:
    """Copy rows: a mere slice would keep what was wrong in the rows beside them, out of sight."""
    return batch.take(pa.array(np.arange(begin, end)))


class _Reading:
    """The batches read so far, in the order of their messages."""

    def __init__(self, storage: Storage) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.corrupt: list[Corrupt] = []
        self._storage = storage
        self._rows: list[dict[str, Any]] = []
        self._rows_bytes = 0

    def batch(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._flush()
            self.batches.append(batch)

    def row(self, row: dict[str, Any], size_bytes: int) -> None:
        if self._rows_bytes + size_bytes > _RUN_BYTES:
            self._flush()
        self._rows.append(row)
        self._rows_bytes += size_bytes

    def reject(self, index: int, reason: str) -> None:
        self.corrupt.append(Corrupt(index=index, reason=reason))

    def finish(self) -> None:
        self._flush()
        if len(self.batches) > 1 and sum(batch.nbytes for batch in self.batches) <= _RUN_BYTES:
            table = pa.Table.from_batches(self.batches).combine_chunks()
            self.batches = table.to_batches()

    def _flush(self) -> None:
        if self._rows:
            self.batches.append(self._storage.load(of_rows(self._rows, self._storage.arrow)))
        self._rows, self._rows_bytes = [], 0
