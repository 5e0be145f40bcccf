"""The format `protobuf`: one Protobuf message a record, after the prefix of schema registries.

A value is the byte 0, the schema id as four bytes (big-endian), the place of the message in its
file, and the message. Numbers and types of the fields are those of `sluiceway.schema.protobuf`.

Messages are written, and most of them read, in columns. Those that are not as Protobuf's libraries
write them are read one by one with `google.protobuf`, so both readers accept the same messages and
return the same values.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from typing import Any, Final

import pyarrow as pa

from sluiceway.codecs import protobuf_columnar as columnar
from sluiceway.codecs.base import Decoded, Encoded, encoded_in_columns
from sluiceway.codecs.physical import avro_form
from sluiceway.codecs.protobuf_columnar import ColumnarProtobufReader, varint, wire_fields
from sluiceway.codecs.protobuf_strict import StrictProtobufReader
from sluiceway.codecs.protobuf_writer import messages
from sluiceway.codecs.record_messages import RecordMessages
from sluiceway.records.tables import with_schema
from sluiceway.schema import Schema
from sluiceway.schema.protobuf import message_place

__all__ = ["ProtobufCodec"]

_PREFIX: Final = struct.Struct(">BI")
_FIRST: Final = b"\0"
"""The place of the first message of a file; any other is a list of zigzag varints."""


class ProtobufCodec:
    """The codec of the format `protobuf`; see `Codec` for its contract.

    Only `columns` are decoded (None: all). Raises UnsupportedType and InvalidSchema for a schema
    that Protobuf does not have, or that is not numbered, and OptionError without `google.protobuf`.
    """

    few_messages: Final = 64
    """The most messages that are decoded one by one, which is faster than in columns."""

    def __init__(
        self, schema: Schema, schema_id: int, columns: Collection[str] | None = None
    ) -> None:
        self.decoded_schema = schema if columns is None else schema.select(columns)
        decoded = self.decoded_schema.record
        self._fields = wire_fields(schema.record)
        self._read = avro_form(decoded)
        indexes = [*message_place(schema)] or [0]
        self._strict = StrictProtobufReader(schema, schema_id, indexes, decoded)
        prefix = _PREFIX.pack(0, schema_id)
        self._head = prefix + _FIRST
        place = b"".join(varint(2 * number) for number in (len(indexes), *indexes))
        self._columnar = (
            ColumnarProtobufReader(self._fields, (self._head, prefix + place), decoded)
            if columnar.supports(schema.record)
            else None
        )

    def encode(self, batch: pa.RecordBatch, *, limit_bytes: int) -> Encoded:
        """Encode `batch`, one value a record.

        Raises also InvalidRecord for a number outside of an unsigned type, a date or timestamp
        outside of the years 1 to 9999, and for two members of a oneof.
        """
        fields, head = self._fields, self._head
        return encoded_in_columns(batch, lambda part: messages(part, fields, head), limit_bytes)

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Decode values of one record each."""
        return RecordMessages(
            strict=self._strict,
            to_batch=self._batch_of,
            together=None if self._columnar is None else self._columnar.decode,
            few=self.few_messages,
        ).decode(values)

    def _batch_of(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        array = pa.array(rows, pa.struct(list(self._read.arrow)))
        stored = with_schema(pa.RecordBatch.from_struct_array(array), self._read.arrow)
        return self._read.from_physical(stored)
