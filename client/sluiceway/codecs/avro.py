"""The format `avro`: one record per message after the 5-byte schema-id prefix.

A value is the byte 0, the schema id as four bytes (big-endian), and the record in Avro's binary
form. pyruhvro encodes it if all types are tested with it, else fastavro.

Messages may come from any source. pyruhvro decodes many at once, but leniently, so a message is
accepted only if its decoded record encodes to the same bytes. All others (corrupt, foreign, in a
rare form of Avro, or of an untested type) are decoded one by one by the strict reader. So both
accept the same messages and return the same values.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import fastavro
import numpy as np
import pyarrow as pa

from sluiceway.codecs import avro_columnar as columnar
from sluiceway.codecs.avro_columnar import ColumnarCodec
from sluiceway.codecs.avro_strict import BUDGET_PER_BYTE, MalformedMessage, StrictReader, expansion
from sluiceway.codecs.base import RUN_BYTES, Corrupt, Decoded, Encoded, require_short, runs
from sluiceway.codecs.physical import PhysicalForm, avro_form
from sluiceway.records.tables import with_schema
from sluiceway.records.to_python import to_records
from sluiceway.records.validation import invalid_rows
from sluiceway.schema import Schema
from sluiceway.schema import types as t
from sluiceway.schema.avro import definition


class _NotDecodable(Exception):
    """These messages cannot be decoded together."""


class AvroCodec:
    """The codec of the format `avro`; see `Codec` for its contract."""

    few_records: ClassVar[int] = 16
    """The most records that are encoded or decoded one by one, which is faster than in columns."""

    def __init__(self, schema: Schema, schema_id: int) -> None:
        self._schema = self.decoded_schema = schema
        self._form = avro_form(schema.record)
        record = self._form.record
        self._strict = StrictReader(schema.record, schema_id)
        self._parsed = fastavro.parse_schema(definition(record))
        self._name_branches = _branch_naming(record)
        self._prefix = struct.pack(">BI", 0, schema_id)
        self._columnar = ColumnarCodec(record, schema_id) if columnar.supports(record) else None
        # A null item of one byte can expand to a wide record; the strict reader limits these.
        self._bounded = expansion(record) <= BUDGET_PER_BYTE

    @property
    def columnar(self) -> ColumnarCodec | None:
        """The columnar codec, or None if this schema or process cannot use it."""
        return self._columnar if columnar.usable() else None

    def encode(self, batch: pa.RecordBatch, *, limit_bytes: int) -> Encoded:
        """Encode `batch`, one value a record."""
        columnar = self.columnar
        if columnar is None or batch.num_rows <= self.few_records:
            encode = self._encode_rows
        else:
            encode = columnar.encode
        parts = encode(self._form.to_physical(batch)) if batch.num_rows else ()
        values = pa.chunked_array(parts, pa.binary())
        require_short(values, limit_bytes)
        return Encoded(values=values)

    def _encode_rows(self, batch: pa.RecordBatch) -> Iterator[pa.Array]:
        """Encode each row of the physical `batch` with fastavro."""
        write, parsed, prefix = fastavro.schemaless_writer, self._parsed, self._prefix
        values: list[bytes] = []
        name = self._name_branches
        for row in to_records(batch, with_branches=True):
            sink = io.BytesIO(prefix)
            sink.seek(len(prefix))
            write(sink, parsed, row if name is None else name(row))
            values.append(sink.getvalue())
        for start, stop in runs(values):
            yield pa.array(values[start:stop], pa.binary())

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Decode values of one record each."""
        output = _Output(self._form)
        if values:
            self._read(values, 0, output)
        output.finish()
        counts = None
        if output.corrupt:
            counts = [1] * len(values)
            for corrupt in output.corrupt:
                counts[corrupt.index] = 0
        return Decoded(batches=output.batches, counts=counts, corrupt=output.corrupt)

    def _read(self, values: Sequence[bytes | None], start: int, output: _Output) -> None:
        """Decode `values`, the first of which has the index `start`."""
        if self.columnar is None or not self._bounded or len(values) <= self.few_records:
            return self._read_strictly(values, start, output)
        try:
            batch, suspect = self._decode_together(self.columnar, values)
        except _NotDecodable:
            if len(values) == 1:
                return self._read_strictly(values, start, output)
            half = len(values) // 2
            self._read(values[:half], start, output)
            return self._read(values[half:], start + half, output)
        if not suspect:
            output.add_batch(batch)
            return None
        begin = 0
        for odd in suspect:
            output.add_batch(_copied(batch, begin, odd))
            self._read_strictly(values[odd : odd + 1], start + odd, output)
            begin = odd + 1
        output.add_batch(_copied(batch, begin, batch.num_rows))
        return None

    def _decode_together(
        self, columnar: ColumnarCodec, values: Sequence[bytes | None]
    ) -> tuple[pa.RecordBatch, list[int]]:
        """Decode all `values` at once; return also the rows that need the strict reader."""
        present = [value for value in values if value is not None]
        if len(present) < len(values) or sum(map(len, present)) > RUN_BYTES:
            raise _NotDecodable
        try:
            stored = columnar.decode(present)
        except ValueError as error:
            raise _NotDecodable from error
        batch = self._form.from_physical(stored)
        mismatches = set(columnar.mismatches(stored, present))
        return batch, sorted(mismatches | invalid_rows(batch, self._schema.record))

    def _read_strictly(self, values: Sequence[bytes | None], start: int, output: _Output) -> None:
        for index, value in enumerate(values, start):
            if value is None:
                output.reject(index, "it is a tombstone, which is not a record")
                continue
            try:
                output.add_row(self._strict.read(value), len(value))
            except MalformedMessage as error:
                output.reject(index, str(error))


def _branch_naming(type_: t.Type) -> Callable[[Any], Any] | None:
    """Return a conversion that names the branches of nullable values with unions; None if none has.

    fastavro looks for an unnamed branch by validating the value, which can fail for the names of
    branches within it.
    """
    match type_:
        case t.Nullable(item=item):
            convert = _branch_naming(item)
            if convert is None:
                return None
            if isinstance(item, t.Union):
                return lambda value: None if value is None else convert(value)
            name = t.branch_name(item)
            return lambda value: None if value is None else (name, convert(value))
        case t.Union(branches=branches):
            inner = {t.branch_name(branch): _branch_naming(branch) for branch in branches}
            return lambda value: (
                value if (c := inner[value[0]]) is None else (value[0], c(value[1]))
            )
        case t.Array(items=items):
            item_of = _branch_naming(items)
            return item_of and (lambda value: list(map(item_of, value)))
        case t.Map(values=values):
            value_of = _branch_naming(values)
            return value_of and (
                lambda value: {key: value_of(entry) for key, entry in value.items()}
            )
        case t.Record(fields=fields):
            conversions = {field.name: _branch_naming(field.type) for field in fields}
            needed = {name: convert for name, convert in conversions.items() if convert is not None}
            return (lambda row: row | {n: c(row[n]) for n, c in needed.items()}) if needed else None
        case _:
            return None


def _copied(batch: pa.RecordBatch, begin: int, end: int) -> pa.RecordBatch:
    """Copy rows: a slice would keep the invalid rows beside them in its buffers."""
    return batch.take(pa.array(np.arange(begin, end)))


class _Output:
    """The batches decoded so far, in the order of their messages."""

    def __init__(self, form: PhysicalForm) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.corrupt: list[Corrupt] = []
        self._form = form
        self._rows: list[dict[str, Any]] = []
        self._rows_bytes = 0

    def add_batch(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._flush()
            self.batches.append(batch)

    def add_row(self, row: dict[str, Any], size_bytes: int) -> None:
        if self._rows_bytes + size_bytes > RUN_BYTES:
            self._flush()
        self._rows.append(row)
        self._rows_bytes += size_bytes

    def reject(self, index: int, reason: str) -> None:
        self.corrupt.append(Corrupt(index=index, reason=reason))

    def finish(self) -> None:
        self._flush()
        if len(self.batches) > 1 and sum(batch.nbytes for batch in self.batches) <= RUN_BYTES:
            table = pa.Table.from_batches(self.batches).combine_chunks()
            self.batches = table.to_batches()

    def _flush(self) -> None:
        if self._rows:
            array = pa.array(self._rows, pa.struct(list(self._form.arrow)))
            stored = with_schema(pa.RecordBatch.from_struct_array(array), self._form.arrow)
            self.batches.append(self._form.from_physical(stored))
        self._rows, self._rows_bytes = [], 0
