"""The format `arrow`: one record batch a message, under a head of its own (`envelope`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from sluiceway.codecs.base import Corrupt, Decoded, Encoded
from sluiceway.codecs.envelope import Envelope, NotAnEnvelope
from sluiceway.codecs.ipc import BatchReader, Unacceptable
from sluiceway.errors import RecordTooLarge
from sluiceway.records.offsets import with_offsets
from sluiceway.records.unfit import Unfit
from sluiceway.records.validation import check_column

if TYPE_CHECKING:
    from sluiceway.schema import Schema

_MOST_RECORDS: Final = 2**31 - 1


class ArrowCodec:
    """The codec of the format `arrow`; see `Codec` for what it promises."""

    def __init__(self, schema: Schema, schema_id: int) -> None:
        self._schema = schema
        self._schema_id = schema_id
        self._reader = BatchReader(schema.arrow)

    def encode(self, batch: pa.RecordBatch, *, limit_bytes: int) -> Encoded:
        """Encode `batch` as one value if it fits under the limit, else as several, by halves."""
        values: list[bytes] = []
        counts: list[int] = []
        for piece in self._pieces(batch, 0, limit_bytes):
            head = Envelope(schema_id=self._schema_id, records=piece.num_rows).pack()
            values.append(b"".join((head, piece.serialize())))
            counts.append(piece.num_rows)
        return Encoded(values=values, counts=counts)

    def _pieces(
        self, batch: pa.RecordBatch, start: int, limit_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        if not batch.num_rows:
            return
        head_bytes = Envelope(schema_id=self._schema_id, records=batch.num_rows).size_bytes
        size_bytes = head_bytes + pa.ipc.get_record_batch_size(batch)
        if size_bytes <= limit_bytes:
            yield batch
        elif batch.num_rows == 1:
            raise RecordTooLarge(index=start, size_bytes=size_bytes, limit_bytes=limit_bytes)
        else:
            half = batch.num_rows // 2
            yield from self._pieces(batch.slice(0, half), start, limit_bytes)
            yield from self._pieces(batch.slice(half), start + half, limit_bytes)

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Decode values of any number of records each; the batches refer to the values' memory."""
        batches: list[pa.RecordBatch] = []
        counts: list[int] = []
        corrupt: list[Corrupt] = []
        for index, value in enumerate(values):
            try:
                batch = self._batch(value)
            except (NotAnEnvelope, Unacceptable) as error:
                corrupt.append(Corrupt(index=index, reason=str(error)))
                counts.append(0)
                continue
            counts.append(batch.num_rows)
            if batch.num_rows:
                batches.append(batch)
        return Decoded(batches=batches, counts=counts, corrupt=corrupt)

    def _batch(self, value: bytes | None) -> pa.RecordBatch:
        if value is None:
            raise Unacceptable("it has no value (a tombstone), and so no records")
        envelope = Envelope.unpack(value)
        if envelope.schema_id != self._schema_id:
            raise Unacceptable(
                f"it was written with the schema id {envelope.schema_id}, "
                f"the channel's is {self._schema_id}"
            )
        batch = self._reader.read(value, envelope.size_bytes)
        columns = [with_offsets(column) for column in batch.columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema.arrow)
        if batch.num_rows != envelope.records or batch.num_rows > _MOST_RECORDS:
            raise Unacceptable(
                f"it holds {batch.num_rows} records, and says it holds {envelope.records}"
            )
        try:
            for array, field in zip(batch.columns, self._schema.record.fields, strict=True):
                check_column(array, field.type, field.name)
        except Unfit as error:
            raise Unacceptable(
                f"record {error.position}, field {error.path!r} is not the schema's: {error.reason}"
            ) from error
        return batch
