"""Metadata columns: headers, partition, offset, timestamp, key; filters on them."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from sluiceway.errors import SchemaMismatch
from sluiceway.spark.offsets import OffsetRange
from sluiceway.spark.options import ReadOptions
from sluiceway.spark.types import struct_of

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
        """Return `struct` without these columns. Raises SchemaMismatch for a wrong type."""
        own = struct_of(pa.schema(self._fields))
        types = {field.name: field.dataType for field in own.fields}
        for field in struct.fields:
            if field.dataType != types.get(field.name, field.dataType):
                raise SchemaMismatch(
                    f"the column {field.name!r} of a read of {channel!r} is "
                    f"{types[field.name].simpleString()}, not {field.dataType.simpleString()}"
                )
        return StructType([field for field in struct.fields if field.name not in types])

    def append_to(
        self,
        batches: Sequence[pa.RecordBatch],
        messages: Sequence[Message],
        counts: Sequence[int] | None,
    ) -> Iterator[pa.RecordBatch]:
        """Append these columns to decoded batches.

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
        found and [{"key": key, "value": value} for key, value in found]
        for found in (message.headers() for message in messages)
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


OffsetsForTime = Callable[[int, Collection[int]], Mapping[int, int]]
"""Maps a Unix time in ms, and partitions, to the first offset in each that is not older."""

_MAX: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class OffsetFilter:
    """Bounds from the filters of a query: a superset of the offsets that pass.

    Bounds are inclusive. There is no last timestamp: writers may set any timestamp, so an older
    message may follow a newer one.
    """

    partitions: frozenset[int] | None = None
    first_partition: int = 0
    last_partition: int = _MAX
    first_offset: int = 0
    last_offset: int = _MAX
    first_timestamp_ms: int = 0

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> "OffsetFilter":
        """Return the bounds from the conjunction of `filters`."""
        found = cls()
        for each in filters:
            found = found._and(each)
        return found

    def narrow(
        self, ranges: Sequence[OffsetRange], offsets_for_time: OffsetsForTime
    ) -> tuple[OffsetRange, ...]:
        """Return the parts of `ranges` with records that may pass."""
        kept = [each for each in ranges if self._has_partition(each.partition)]
        starts: Mapping[int, int] = {}
        if kept and self.first_timestamp_ms > 0:
            starts = offsets_for_time(self.first_timestamp_ms, [each.partition for each in kept])
        narrowed = (
            replace(
                each,
                start=max(each.start, self.first_offset, starts.get(each.partition, 0)),
                end=min(each.end, self.last_offset + 1),
            )
            for each in kept
        )
        return tuple(each for each in narrowed if each.start < each.end)

    def _has_partition(self, partition: int) -> bool:
        return self.first_partition <= partition <= self.last_partition and (
            self.partitions is None or partition in self.partitions
        )

    def _and(self, condition: Filter) -> "OffsetFilter":
        path: tuple[str, ...] = getattr(condition, "attribute", ())
        bounds = _bounds(condition)
        if bounds is None or len(path) != 2 or path[0] != METADATA:
            return self
        first, last = bounds
        match path[1]:
            case "partition":
                values = self.partitions
                if isinstance(condition, In):
                    named = frozenset(condition.value)
                    values = named if values is None else values & named
                return replace(
                    self,
                    partitions=values,
                    first_partition=max(self.first_partition, first),
                    last_partition=min(self.last_partition, last),
                )
            case "offset":
                return replace(
                    self,
                    first_offset=max(self.first_offset, first),
                    last_offset=min(self.last_offset, last),
                )
            case "timestamp":
                # Rounded up to the messages' milliseconds.
                first_ms = max(self.first_timestamp_ms, -(-first // 1000))
                return replace(self, first_timestamp_ms=first_ms)
        return self


def _bounds(condition: Filter) -> tuple[int, int] | None:
    """Return the first and the last number that pass `condition`; None: unknown.

    The number of a timestamp is that of its microseconds since 1970.
    """
    match condition:
        case EqualTo(value=value) | EqualNullSafe(value=value):
            number = _number(value)
            return None if number is None else (number, number)
        case GreaterThan(value=value) if (number := _number(value)) is not None:
            return number + 1, _MAX
        case GreaterThanOrEqual(value=value) if (number := _number(value)) is not None:
            return number, _MAX
        case LessThan(value=value) if (number := _number(value)) is not None:
            return 0, number - 1
        case LessThanOrEqual(value=value) if (number := _number(value)) is not None:
            return 0, number
        case In(value=values):
            numbers = [number for value in values if (number := _number(value)) is not None]
            return (min(numbers), max(numbers)) if len(numbers) == len(values) > 0 else None
    return None


def _number(value: Any) -> int | None:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return (value - _EPOCH) // timedelta(microseconds=1)
    return value if type(value) is int else None
