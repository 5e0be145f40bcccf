"""The slow way that knows every type: one message at a time, by fastavro."""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING

import fastavro
import pyarrow as pa

from sluiceway.records.rows import to_records
from sluiceway.schema.arrow import to_arrow
from sluiceway.schema.labels import relabelled
from sluiceway.schema.rendering import definition
from sluiceway.schema.types import Record

if TYPE_CHECKING:
    from collections.abc import Sequence


class Rowwise:
    """Messages of the plain schema `record`, the five bytes of magic and schema id included."""

    def __init__(self, record: Record, schema_id: int) -> None:
        self._record = record
        self._schema = to_arrow(record)
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

    def decode(self, values: list[bytes]) -> pa.RecordBatch:
        """Read one row from each value, leniently; raise ValueError if one cannot be read at all.

        Lenient: bytes left over and the prefix are not looked at.
        """
        read, parsed, start = fastavro.schemaless_reader, self._parsed, len(self._prefix)
        rows = []
        try:
            for value in values:
                source = io.BytesIO(value)
                source.seek(start)
                rows.append(read(source, parsed))
        except Exception as error:
            # What fastavro raises for garbage is anything from IndexError to UnicodeDecodeError.
            raise ValueError(str(error)) from error
        return of_rows(rows, self._schema)

    def unlike(self, batch: pa.RecordBatch, values: list[bytes]) -> Sequence[int]:
        """Find the values that are not what `encode` makes of the row at their place."""
        again = self.encode(batch)
        return [i for i, (old, new) in enumerate(zip(values, again, strict=True)) if old != new]


def of_rows(rows: list[dict[str, object]], schema: pa.Schema) -> pa.RecordBatch:
    """Make a batch of the plain `schema` from rows as an Avro reader gives them; ValueError."""
    try:
        array = pa.array(rows, pa.struct(list(schema)))
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        return relabelled(pa.RecordBatch.from_struct_array(array), schema)
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        raise ValueError(str(error)) from error
