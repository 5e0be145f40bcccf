"""Record accumulator: turns validated batches into messages with a partition."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.api.models import Connection
from sluiceway.codecs import Codec, Encoded, codec
from sluiceway.errors import InvalidRecord, RecordTooLarge
from sluiceway.kafka.messages import Messages, Numbers
from sluiceway.kafka.partitioner import Partitioning
from sluiceway.schema import Schema, protobuf
from sluiceway.schema.types import Record, walk

__all__ = ["RecordAccumulator", "certain_row_bytes", "row_check"]

_FRAMING_BYTES = 128
"""Kafka's overhead of a single message: the 61-byte batch header and the record header."""
_ENVELOPE_BYTES = 64
"""An upper bound of an Arrow message's header."""
_COLUMN_BYTES = 512
"""An upper bound of an Arrow message's overhead per column."""


class RecordAccumulator(ABC):
    """Turns a writer's batches into messages. A call that raises changes nothing.

    Not thread-safe.
    """

    def __init__(self, codec: Codec, partitioning: Partitioning, limit_bytes: int) -> None:
        self._codec = codec
        self._partitioning = partitioning
        self._limit_bytes = limit_bytes

    def fits(self, key: bytes) -> bool:
        """Return whether a message that deletes this key is within the size limit."""
        return len(key) <= self._limit_bytes

    @staticmethod
    def of(
        connection: Connection, schema: Schema, partitioning: Partitioning, *, batch_records: int
    ) -> "RecordAccumulator":
        """Return the accumulator for the connection's format, and records of `schema`."""
        encoder = codec(connection.format, schema, connection.schema_id)
        limit_bytes = connection.max_message_bytes - _FRAMING_BYTES
        if connection.format == "arrow":
            if not (connection.compacted and partitioning.has_keys):
                return _BatchMessages(encoder, partitioning, limit_bytes, batch_records)
            # Compaction keeps the last message of a key.
            encoder = _SingleRecords(encoder)
        return _RecordMessages(encoder, partitioning, limit_bytes)

    @abstractmethod
    def add(self, batches: Sequence[pa.RecordBatch | list[bytes]]) -> Messages:
        """Encode one write and return the messages that are full; a list has deleted keys.

        Raises RecordTooLarge, InvalidRecord and OptionError with record numbers of the write.
        """

    def drain(self) -> Messages:
        """Return the messages of all accumulated records."""
        return Messages(values=pa.chunked_array([], pa.binary()), partitions=np.empty(0, np.int32))

    def _resolved(self, targets: Sequence[Numbers]) -> Numbers:
        """Join targets, and replace _NEXT by the next partitions of the round robin."""
        partitions = np.concatenate(targets) if targets else np.empty(0, np.int32)
        missing = partitions == _NEXT
        partitions[missing] = self._partitioning.next_partitions(int(np.count_nonzero(missing)))
        return partitions


def certain_row_bytes(connection: Connection, schema: Schema) -> int:
    """Return the size up to which an encoded row, with a key, certainly fits into a message."""
    overhead_bytes = _FRAMING_BYTES + _ENVELOPE_BYTES
    if connection.format == "arrow":
        overhead_bytes += _COLUMN_BYTES * sum(1 for _ in walk(schema.record))
    # Half of the rest, because a key is also a field of the row.
    row_bytes = (connection.max_message_bytes - overhead_bytes) // 2
    if connection.format == "protobuf":
        # A value has 16 bytes besides the content of a text; a timestamp with its tags has 23.
        return row_bytes // 2
    return row_bytes // _json_expansion(schema) if connection.format == "json" else row_bytes


def row_check(connection: Connection, schema: Schema) -> Callable[[Sequence[Any]], bool] | None:
    """Return a check that the format has a record with valid values; None: it has all records."""
    return protobuf.row_check(schema.record) if connection.format == "protobuf" else None


def _json_expansion(schema: Schema) -> int:
    """Return how many times as long as its upper bound in a `RowBuffer` a row may be in JSON.

    There, a value has 16 bytes besides the content of a text. In JSON it has its field's name, and
    up to 40 letters for numbers, times and punctuation; a control character has six letters.
    """
    records = (type_ for type_ in walk(schema.record) if isinstance(type_, Record))
    longest_name = max(len(field.name) for record in records for field in record.fields)
    return max(6, -(-(longest_name + 40) // 16))


class _RecordMessages(RecordAccumulator):
    """One message per record."""

    def add(self, batches: Sequence[pa.RecordBatch | list[bytes]]) -> Messages:
        values: list[pa.Array] = []
        keys: list[pa.Array] = []
        targets: list[Numbers] = []
        first = 0
        for batch in batches:
            if isinstance(batch, list):
                assigned = self._partitioning.assign_keys(batch)
                keys.append(pa.array(batch, pa.binary()))
                targets.append(_as_targets(assigned.partitions, len(batch)))
                values.append(pa.array([None] * len(batch), pa.binary()))
                first += len(batch)
                continue
            assigned = self._partitioning.assign(batch, first)
            limit_bytes = self._limit_bytes
            if assigned.keys is not None:
                limit_bytes -= max((len(key) for key in assigned.keys if key), default=0)
                keys.append(pa.array(assigned.keys, pa.binary()))
            targets.append(_as_targets(assigned.partitions, batch.num_rows))
            numbers = range(first, first + batch.num_rows)
            values += _encoded(self._codec, batch, limit_bytes, numbers).values.chunks
            first += batch.num_rows
        return Messages(
            values=pa.chunked_array(values, pa.binary()),
            keys=pa.chunked_array(keys, pa.binary()) if keys else None,
            partitions=self._resolved(targets),
        )


class _SingleRecords:
    """A codec whose messages have one record each."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.decoded_schema = codec.decoded_schema
        self.decode = codec.decode

    def encode(self, batch: pa.RecordBatch, *, limit_bytes: int) -> Encoded:
        values: list[pa.Array] = []
        for row in range(batch.num_rows):
            one = batch.slice(row, 1)
            values += _encoded(self._codec, one, limit_bytes, [row]).values.chunks
        return Encoded(values=pa.chunked_array(values, pa.binary()))


@dataclass(frozen=True, kw_only=True)
class _Pending:
    """Rows of one partition, too few to fill a message; each fits into one."""

    batches: Sequence[pa.RecordBatch] = ()
    rows: int = 0
    size_bytes: int = 0

    def extended(self, batches: Sequence[pa.RecordBatch]) -> "_Pending":
        return _Pending(
            batches=[*self.batches, *batches],
            rows=self.rows + sum(batch.num_rows for batch in batches),
            size_bytes=self.size_bytes
            + sum(batch.nbytes + _COLUMN_BYTES * batch.num_columns for batch in batches),
        )


class _BatchMessages(RecordAccumulator):
    """Messages of up to `batch_records` rows of one partition.

    The partition None stands for the next one of the round robin.
    """

    def __init__(
        self, codec: Codec, partitioning: Partitioning, limit_bytes: int, batch_records: int
    ) -> None:
        super().__init__(codec, partitioning, limit_bytes)
        self._batch_records = batch_records
        self._pending: dict[int | None, _Pending] = {}

    def add(self, batches: Sequence[pa.RecordBatch | list[bytes]]) -> Messages:
        added: dict[int | None, list[tuple[pa.RecordBatch, Sequence[int]]]] = {}
        first = 0
        for batch in batches:
            assert isinstance(batch, pa.RecordBatch)  # noqa: S101 - such writers refuse deletes
            for target, part, row_numbers in self._partitioning.split(batch, first):
                added.setdefault(target, []).append((part, row_numbers))
            first += batch.num_rows
        encoded: list[tuple[int | None, Encoded]] = []
        pending = dict(self._pending)
        for target, parts in added.items():
            before = pending.pop(target, _Pending())
            new = [part for part, _ in parts]
            rows = before.extended(new)
            if self._may_wait(rows):
                pending[target] = replace(rows, batches=[*before.batches, *map(_copied, new)])
                continue
            # Rows of earlier writes fit into a message, so their numbers are placeholders.
            numbers: list[Sequence[int]] = [
                range(-before.rows, 0),
                *(part_numbers for _, part_numbers in parts),
            ]
            done = 0
            for piece in _pieces(rows.batches, self._batch_records):
                rest = _Pending().extended([piece])
                if self._may_wait(rest):
                    pending[target] = replace(rest, batches=[_copied(piece)])
                    continue
                flat = itertools.islice(itertools.chain(*numbers), done, None)
                encoded.append((target, _encoded(self._codec, piece, self._limit_bytes, flat)))
                done += piece.num_rows
        messages = self._messages(encoded)
        self._pending = pending
        return messages

    def drain(self) -> Messages:
        encoded = [
            (target, self._codec.encode(piece, limit_bytes=self._limit_bytes))
            for target, pending in self._pending.items()
            for piece in _pieces(pending.batches, self._batch_records)
        ]
        messages = self._messages(encoded)
        self._pending = {}
        return messages

    def _may_wait(self, rows: _Pending) -> bool:
        return rows.rows < self._batch_records and rows.size_bytes < self._limit_bytes

    def _messages(self, encoded: Sequence[tuple[int | None, Encoded]]) -> Messages:
        targets = [
            np.full(len(part.values), _NEXT if target is None else target, np.int32)
            for target, part in encoded
        ]
        counts = [count for _, part in encoded for count in part.counts or ()]
        return Messages(
            values=pa.chunked_array(
                [chunk for _, part in encoded for chunk in part.values.chunks], pa.binary()
            ),
            partitions=self._resolved(targets),
            counts=np.array(counts, np.int64),
        )


_NEXT: Final = -1
"""The target of a message that goes to the next partition of the round robin."""


def _as_targets(partitions: Sequence[int | None] | None, rows: int) -> Numbers:
    if partitions is None:
        return np.full(rows, _NEXT, np.int32)
    return np.array([_NEXT if p is None else p for p in partitions], np.int32)


def _encoded(
    codec: Codec, batch: pa.RecordBatch, limit_bytes: int, numbers: Iterable[int]
) -> Encoded:
    """Encode a batch; `numbers` are its rows' numbers in the write, for the errors of records."""
    try:
        return codec.encode(batch, limit_bytes=limit_bytes)
    except RecordTooLarge as error:
        raise RecordTooLarge(
            index=next(itertools.islice(numbers, error.index, None)),
            size_bytes=error.size_bytes,
            limit_bytes=error.limit_bytes,
        ) from None
    except InvalidRecord as error:
        raise InvalidRecord(
            index=next(itertools.islice(numbers, error.index, None)),
            field=error.field,
            reason=error.reason,
            schema_path=error.schema_path,
            public_reason=error.public_reason,
        ) from None


def _pieces(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Split batches into pieces of `rows` rows, the last one shorter; copy only to join."""
    table = pa.Table.from_batches(batches)
    for start in range(0, table.num_rows, rows):
        piece = table.slice(start, rows)
        parts = piece.to_batches()
        # pyarrow.concat_batches would need pyarrow 19.
        yield parts[0] if len(parts) == 1 else piece.combine_chunks().to_batches()[0]


def _copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy a batch: its memory may be that of a NumPy array, which the caller may change."""
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)
