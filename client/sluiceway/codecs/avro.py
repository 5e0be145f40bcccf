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
import pyarrow as pa

from sluiceway.codecs import avro_columnar as columnar
from sluiceway.codecs.avro_columnar import ColumnarCodec
from sluiceway.codecs.avro_strict import BUDGET_PER_BYTE, StrictReader, expansion
from sluiceway.codecs.base import RUN_BYTES, Decoded, Encoded, require_short, runs
from sluiceway.codecs.physical import avro_form
from sluiceway.codecs.record_messages import NotDecodable, RecordMessages
from sluiceway.records.tables import with_schema
from sluiceway.records.to_python import to_records
from sluiceway.records.validation import invalid_rows
from sluiceway.schema import Schema
from sluiceway.schema import types as t
from sluiceway.schema.avro import definition


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
        messages = RecordMessages(
            strict=self._strict,
            to_batch=self._batch_of,
            together=self._decode_together if self.columnar is not None and self._bounded else None,
            few=self.few_records,
        )
        return messages.decode(values)

    def _batch_of(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        array = pa.array(rows, pa.struct(list(self._form.arrow)))
        stored = with_schema(pa.RecordBatch.from_struct_array(array), self._form.arrow)
        return self._form.from_physical(stored)

    def _decode_together(self, values: Sequence[bytes | None]) -> tuple[pa.RecordBatch, list[int]]:
        """Decode all `values` at once; return also the rows that need the strict reader."""
        columnar = self.columnar
        present = [value for value in values if value is not None]
        if columnar is None or len(present) < len(values) or sum(map(len, present)) > RUN_BYTES:
            raise NotDecodable
        try:
            stored = columnar.decode(present)
        except ValueError as error:
            raise NotDecodable from error
        batch = self._form.from_physical(stored)
        mismatches = set(columnar.mismatches(stored, present))
        return batch, sorted(mismatches | invalid_rows(batch, self._schema.record))


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
