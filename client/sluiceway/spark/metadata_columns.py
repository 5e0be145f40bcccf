"""Metadata columns: headers, partition, offset, timestamp, key."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message
from pyspark.sql.types import StructType

from sluiceway.errors import SchemaMismatch
from sluiceway.spark.options import ReadOptions
from sluiceway.spark.types import require_same_type, struct_of

HEADERS: Final = "headers"
METADATA: Final = "_metadata"

_HEADERS_FIELD: Final = pa.field(
    HEADERS,
    pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))),
)
_METADATA_FIELD: Final = pa.field(
    METADATA,
    pa.struct(
        [
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", pa.timestamp("us", tz="UTC")),
            pa.field("key", pa.binary()),
        ]
    ),
    nullable=False,
)


class MetadataColumns:
    """The metadata columns of a read. The records of one message share their values."""

    def __init__(self, options: ReadOptions) -> None:
        self._fields: list[pa.Field] = []
        if options.include_headers:
            self._fields.append(_HEADERS_FIELD)
        if options.include_metadata:
            self._fields.append(_METADATA_FIELD)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._fields)

    def add_to(self, struct: StructType, channel: str) -> StructType:
        """Return a channel's columns and these. Raises SchemaMismatch for a duplicate name."""
        for field in self._fields:
            if field.name in struct.names:
                option = "includeHeaders" if field.name == HEADERS else "includeMetadata"
                raise SchemaMismatch(
                    f"the channel {channel!r} has its own column {field.name!r}: read it "
                    f"without {option}"
                )
        return StructType([*struct.fields, *struct_of(pa.schema(self._fields)).fields])

    def remove_from(self, struct: StructType, channel: str) -> StructType:
        """Return `struct` without these columns. Raises SchemaMismatch for another type."""
        own = struct_of(pa.schema(self._fields))
        for field in struct.fields:
            if field.name in own.names:
                require_same_type(field, own[field.name], channel)
        return StructType([field for field in struct.fields if field.name not in own.names])

    def append_to(
        self,
        batches: Sequence[pa.RecordBatch],
        messages: Sequence[Any],
        counts: Sequence[int] | None,
    ) -> Iterator[pa.RecordBatch]:
        """Append these columns to decoded batches, whose `messages` are not used without columns.

        `counts` has the number of records of each message; None: one each.
        """
        if not self._fields:
            yield from batches
            return
        rows = np.arange(len(messages))
        if counts is not None:
            rows = np.repeat(rows, np.asarray(counts, np.int64))
        columns = [(field, _VALUES[field.name](messages)) for field in self._fields]
        start = 0
        for batch in batches:
            indices = pa.array(rows[start : start + batch.num_rows])
            for field, column in columns:
                batch = batch.append_column(field, column.take(indices))
            yield batch
            start += batch.num_rows


def _headers(messages: Sequence[Message]) -> pa.Array:
    headers = [
        pairs and [{"key": key, "value": value} for key, value in pairs]
        for pairs in (message.headers() for message in messages)
    ]
    return pa.array(headers, _HEADERS_FIELD.type)


def _metadata(messages: Sequence[Message]) -> pa.Array:
    def row(message: Message) -> dict[str, Any]:
        kind, timestamp_ms = message.timestamp()
        return {
            "partition": message.partition(),
            "offset": message.offset(),
            "timestamp": None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms * 1000,
            "key": message.key(),
        }

    return pa.array([row(message) for message in messages], _METADATA_FIELD.type)


_VALUES: Final = {HEADERS: _headers, METADATA: _metadata}
