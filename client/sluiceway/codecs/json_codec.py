"""The format `json`: one JSON object a message.

Messages are written without a schema id, and read by the names of their fields, whether or not they
begin with the 5-byte prefix of schema registries. pyarrow reads many at once. Those that it does
not read as the strict reader does are read one by one, so both accept the same messages and return
the same values.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import pyarrow as pa

from sluiceway.codecs import json_columnar as columnar
from sluiceway.codecs.base import Decoded, Encoded, encoded_in_columns
from sluiceway.codecs.json_columnar import ColumnarJsonReader
from sluiceway.codecs.json_strict import StrictJsonReader
from sluiceway.codecs.json_text import objects
from sluiceway.codecs.record_messages import RecordMessages
from sluiceway.errors import UnsupportedType
from sluiceway.records.tables import with_schema
from sluiceway.schema import Schema
from sluiceway.schema import types as t


class JsonCodec:
    """The codec of the format `json`; see `Codec` for its contract.

    Only `columns` are decoded (None: all). Raises UnsupportedType for a union of several types.
    """

    few_messages: Final = 32
    """The most messages that are decoded one by one, which is faster than in columns."""

    def __init__(self, schema: Schema, columns: Collection[str] | None = None) -> None:
        if path := t.find_union(schema.record):
            raise UnsupportedType(path=path, type_name="union of several types", hint=_NO_UNIONS)
        self._schema = schema
        self.decoded_schema = schema if columns is None else schema.select(columns)
        record = self.decoded_schema.record
        self._strict = StrictJsonReader(record)
        self._columnar = (
            ColumnarJsonReader(record, self.decoded_schema.arrow)
            if columnar.supports(record)
            else None
        )

    def encode(self, batch: pa.RecordBatch, *, limit_bytes: int) -> Encoded:
        """Encode `batch`, one value a record.

        Raises also InvalidRecord for a date or timestamp outside of the years 1 to 9999.
        """
        record = self._schema.record
        return encoded_in_columns(batch, lambda part: objects(part, record), limit_bytes)

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Decode values of one record each."""
        messages = RecordMessages(
            strict=self._strict,
            to_batch=self._batch_of,
            together=None if self._columnar is None else self._columnar.decode,
            few=self.few_messages,
        )
        return messages.decode(values)

    def _batch_of(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        arrow = self.decoded_schema.arrow
        return with_schema(
            pa.RecordBatch.from_struct_array(pa.array(rows, pa.struct(list(arrow)))), arrow
        )


_NO_UNIONS: Final = (
    "of the formats only avro has it: make it a record with a nullable field for each type"
)
