"""Metadata columns: headers, partition, offset, timestamp, key."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message
from pyspark.sql import types as spark

from sluiceway.errors import SchemaMismatch
from sluiceway.spark.options import SourceOptions

HEADERS: Final = "headers"
METADATA: Final = "_metadata"

_HEADERS_ARROW: Final = pa.list_(
    pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
)
_HEADERS_SPARK: Final = spark.ArrayType(
    spark.StructType().add("key", spark.StringType()).add("value", spark.BinaryType())
)
_METADATA_ARROW: Final = pa.struct(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("key", pa.binary()),
    ]
)
_METADATA_SPARK: Final = spark.StructType(
    [
        spark.StructField("partition", spark.IntegerType(), nullable=False),
        spark.StructField("offset", spark.LongType(), nullable=False),
        spark.StructField("timestamp", spark.TimestampType()),
        spark.StructField("key", spark.BinaryType()),
    ]
)


class MessageColumns:
    """The columns that a read asked for; the records of one message share their values."""

    def __init__(self, options: SourceOptions) -> None:
        self.fields: list[spark.StructField] = []
        if options.include_headers:
            self.fields.append(spark.StructField(HEADERS, _HEADERS_SPARK))
        if options.include_metadata:
            self.fields.append(spark.StructField(METADATA, _METADATA_SPARK, nullable=False))

    def added_to(self, struct: spark.StructType, channel: str) -> spark.StructType:
        """Return the columns of a channel and these. Raises SchemaMismatch for a double name."""
        for field in self.fields:
            if field.name in struct.names:
                option = "includeHeaders" if field.name == HEADERS else "includeMetadata"
                raise SchemaMismatch(
                    f"the channel {channel!r} has a column {field.name!r} of its own: read it "
                    f"without {option}"
                )
        return spark.StructType([*struct.fields, *self.fields])

    def taken_from(self, struct: spark.StructType, channel: str) -> spark.StructType:
        """Return the columns of `struct` that are the channel's. Raises SchemaMismatch."""
        own = {field.name: field.dataType for field in self.fields}
        for field in struct.fields:
            if field.name in own and field.dataType != own[field.name]:
                raise SchemaMismatch(
                    f"the column {field.name!r} of a read of {channel!r} is "
                    f"{own[field.name].simpleString()}, not {field.dataType.simpleString()}"
                )
        return spark.StructType([field for field in struct.fields if field.name not in own])

    def attached(
        self,
        batches: Sequence[pa.RecordBatch],
        messages: Sequence[Message],
        counts: Sequence[int] | None,
    ) -> Iterator[pa.RecordBatch]:
        """Give batches of records with these columns; `counts` are the records of each message."""
        if not self.fields:
            yield from batches
            return
        each = np.ones(len(messages), np.int64) if counts is None else np.array(counts, np.int64)
        owners = np.repeat(np.arange(len(messages)), each)
        columns = [
            (pa.field(field.name, column.type, nullable=field.nullable), column)
            for field in self.fields
            for column in [_COLUMNS[field.name](messages)]
        ]
        start = 0
        for batch in batches:
            chosen = pa.array(owners[start : start + batch.num_rows])
            for field, column in columns:
                batch = batch.append_column(field, column.take(chosen))
            yield batch
            start += batch.num_rows


def _headers(messages: Sequence[Message]) -> pa.Array:
    def of(message: Message) -> list[dict[str, Any]] | None:
        headers = message.headers()
        return headers and [{"key": key, "value": value} for key, value in headers]

    return pa.array([of(message) for message in messages], _HEADERS_ARROW)


def _metadata(messages: Sequence[Message]) -> pa.Array:
    def of(message: Message) -> dict[str, Any]:
        kind, timestamp_ms = message.timestamp()
        return {
            "partition": message.partition(),
            "offset": message.offset(),
            "timestamp": None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms * 1000,
            "key": message.key(),
        }

    return pa.array([of(message) for message in messages], _METADATA_ARROW)


_COLUMNS: Final = {HEADERS: _headers, METADATA: _metadata}
