"""The slow way that knows every type: one record at a time, written by fastavro."""

from __future__ import annotations

import io
import struct
from typing import Any

import fastavro
import pyarrow as pa

from sluiceway.records.to_python import to_records
from sluiceway.schema.labels import relabelled
from sluiceway.schema.rendering import definition
from sluiceway.schema.types import Record


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
