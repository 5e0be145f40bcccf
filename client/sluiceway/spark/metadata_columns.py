"""Metadata columns: headers, partition, offset, timestamp, key, deletes; and rows of deletes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message
from pyspark.sql.types import StructField, StructType

from sluiceway.errors import SchemaMismatch
from sluiceway.spark.options import ReadOptions
from sluiceway.spark.types import require_same_type, struct_of
from sluiceway.spi import KeyField

HEADERS: Final = "headers"
METADATA: Final = "_metadata"
DELETED: Final = "_deleted"

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


_DELETED_FIELD: Final = pa.field(DELETED, pa.bool_(), nullable=False)
_OPTIONS: Final = {
    HEADERS: "includeHeaders",
    METADATA: "includeMetadata",
    DELETED: "includeDeletes",
}


class MetadataColumns:
    """The metadata columns of a read. The records of one message share their values."""

    def __init__(self, options: ReadOptions) -> None:
        self._deletes = options.include_deletes
        self._fields: list[pa.Field] = []
        if options.include_headers:
            self._fields.append(_HEADERS_FIELD)
        if options.include_metadata:
            self._fields.append(_METADATA_FIELD)
        if options.include_deletes:
            self._fields.append(_DELETED_FIELD)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._fields)

    def add_to(self, struct: StructType, channel: str) -> StructType:
        """Return a channel's columns and these; columns that deletes lack are nullable.

        Raises SchemaMismatch for a duplicate name.
        """
        for field in self._fields:
            if field.name in struct.names:
                raise SchemaMismatch(
                    f"the channel {channel!r} has its own column {field.name!r}: read it "
                    f"without {_OPTIONS[field.name]}"
                )
        columns = struct.fields
        if self._deletes:
            columns = [StructField(field.name, field.dataType) for field in columns]
        return StructType([*columns, *struct_of(pa.schema(self._fields)).fields])

    def remove_from(self, struct: StructType, channel: str) -> StructType:
        """Return `struct` without these columns. Raises SchemaMismatch for another type."""
        own = struct_of(pa.schema(self._fields))
        for field in struct.fields:
            if field.name in own.names:
                require_same_type(field, own[field.name], channel)
            elif self._deletes and not field.nullable:
                raise SchemaMismatch(
                    f"the column {field.name!r} is null in deletes of the channel {channel!r}: "
                    "make it nullable in .schema(...), or read without includeDeletes"
                )
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


def _deleted(messages: Sequence[Message]) -> pa.Array:
    return pa.array([message.value() is None for message in messages], pa.bool_())


_VALUES: Final = {HEADERS: _headers, METADATA: _metadata, DELETED: _deleted}


class DeletedRows:
    """Rows of deletes among the records of a read, of which `empty` is a batch without rows.

    They are null, but for the column of the `key`.
    """

    def __init__(self, empty: pa.RecordBatch, key: KeyField | None) -> None:
        self._schema = pa.schema([field.with_nullable(True) for field in empty.schema])
        self._key = key if key is not None and key.name in empty.schema.names else None

    def insert(
        self,
        batches: Sequence[pa.RecordBatch],
        counts: Sequence[int] | None,
        keys: Mapping[int, Any],
    ) -> tuple[Sequence[pa.RecordBatch], Sequence[int] | None]:
        """Return batches with a row for each of the `keys` by message, and their `counts`."""
        if not keys or counts is None:
            return batches, counts
        deletes = np.zeros(len(counts), np.bool_)
        deletes[[*keys]] = True
        counts = np.where(deletes, 1, counts).tolist()
        mask = np.repeat(deletes, counts)
        rows = pa.array(np.cumsum(~mask) - 1, mask=mask)
        records = [batch.cast(self._schema) for batch in batches]
        table = pa.Table.from_batches(records, self._schema).take(rows).combine_chunks()
        if self._key is not None:
            place = table.schema.get_field_index(self._key.name)
            values = pa.array(
                [keys[index] for index in sorted(keys)], table.schema.field(place).type
            )
            column = table.column(place).combine_chunks()
            filled = pc.replace_with_mask(column, pa.array(mask), values)
            table = table.set_column(place, self._schema.field(place), filled)
        return table.to_batches(), counts
