"""The codec contract: batches to message values, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from sluiceway.errors import InvalidRecord, RecordTooLarge
from sluiceway.records.validation import ValueMismatch, first_failing
from sluiceway.schema import Schema


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """Message values in the order of the records: binary values, of which null is a tombstone.

    `counts` are the numbers of records in each value; None: one each.
    """

    values: pa.ChunkedArray
    counts: list[int] | None = None


@dataclass(frozen=True, kw_only=True)
class Corrupt:
    """A value without records; `index` is its index among the decoded values.

    A `skippable` value is corrupt, or not a message of the channel. Any other value needs another
    schema, so a skip would lose its records.
    """

    index: int
    reason: str
    skippable: bool = True


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """Records in the order of their messages, and the values without records.

    `counts` are the numbers of records in each value, 0 for a corrupt one; None: one each.
    """

    batches: list[pa.RecordBatch]
    counts: list[int] | None
    corrupt: list[Corrupt]


class Codec(Protocol):
    """Encoder and decoder for the messages of one schema.

    `decoded_schema` is the schema of decoded batches: all fields, or the selected ones if the
    format can skip others.
    """

    decoded_schema: Schema

    def encode(self, batch: pa.RecordBatch, *, limit_bytes: int) -> Encoded:
        """Encode a valid `batch` of exactly the schema `Schema.arrow` as message values.

        Only values of the format `bytes` may be null. No value is longer than `limit_bytes`. Raises
        RecordTooLarge with the index in `batch` of the first record that does not fit, and
        InvalidRecord with that of a record which the format cannot represent.
        """

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Decode message values from any source.

        Never raises because of the bytes: each value that is not exactly a message of this schema
        is listed in `corrupt`. Batches have the schema `decoded_schema.arrow`, contain only valid
        records, and take memory in proportion to the values. Skipped fields are not checked.
        """


def require_short(values: pa.ChunkedArray, limit_bytes: int) -> None:
    """Raise RecordTooLarge for the first of the values of one record that is too long."""
    if values.nbytes <= limit_bytes:
        return
    lengths = pc.binary_length(values)
    if (pc.max(lengths).as_py() or 0) > limit_bytes:
        index = pc.index(pc.greater(lengths, limit_bytes), value=True).as_py()
        size_bytes = lengths[index].as_py()
        raise RecordTooLarge(index=index, size_bytes=size_bytes, limit_bytes=limit_bytes)


RUN_BYTES: Final = 256 << 20
"""The most bytes of messages in one batch: Arrow's offsets end at 2 GiB."""


def runs(values: Sequence[bytes | None]) -> Iterator[tuple[int, int]]:
    """Divide `values` into runs of up to RUN_BYTES, or of one value; yield their bounds."""
    start = size_bytes = 0
    for index, value in enumerate(values):
        length = len(value or b"")
        if index > start and size_bytes + length > RUN_BYTES:
            yield start, index
            start, size_bytes = index, 0
        size_bytes += length
    if values:
        yield start, len(values)


class NotRepresentable(ValueError):
    """A value of the field `path` that the format does not have, for this `reason`."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason


_ROWS: Final = 16_384
"""The most rows that are encoded together, so that they fit into the processor's caches."""
_PART_BYTES: Final = 8 << 20
"""The most bytes of several rows that are encoded together, which takes many times their memory."""
_LIMIT_BYTES: Final = 2**31 - 1


def encoded_in_columns(
    batch: pa.RecordBatch, encode: Callable[[pa.RecordBatch], pa.Array], limit_bytes: int
) -> Encoded:
    """Encode `batch`, one value a record, by a function for the columns of many rows.

    `encode` raises NotRepresentable, and pyarrow.ArrowCapacityError for more than 2 GiB. Raises
    InvalidRecord and RecordTooLarge.
    """
    parts = [
        part.view(pa.binary())
        for start in range(0, batch.num_rows, _ROWS)
        for part in _parts(batch.slice(start, _ROWS), start, encode)
    ]
    values = pa.chunked_array(parts, pa.binary())
    require_short(values, limit_bytes)
    return Encoded(values=values)


def _parts(
    batch: pa.RecordBatch, start: int, encode: Callable[[pa.RecordBatch], pa.Array]
) -> Iterator[pa.Array]:
    """Yield the values of `batch`, whose first row has the index `start`."""
    if batch.num_rows == 1 or batch.nbytes <= _PART_BYTES:
        try:
            yield encode(batch)
        except NotRepresentable as error:
            raise _invalid_record(batch, start, encode, error) from error
        except pa.ArrowCapacityError as error:
            if batch.num_rows == 1:
                raise RecordTooLarge(
                    index=start, size_bytes=_LIMIT_BYTES, limit_bytes=_LIMIT_BYTES
                ) from error
        else:
            return
    half = batch.num_rows // 2
    yield from _parts(batch.slice(0, half), start, encode)
    yield from _parts(batch.slice(half), start + half, encode)


def _invalid_record(
    batch: pa.RecordBatch,
    start: int,
    encode: Callable[[pa.RecordBatch], pa.Array],
    error: NotRepresentable,
) -> InvalidRecord:
    """Return the exception for the first row of `batch` that cannot be encoded."""

    def passes(begin: int, count: int) -> bool:
        nonlocal error
        try:
            encode(batch.slice(begin, count))
        except NotRepresentable as smaller:
            error = smaller
            return False
        return True

    position = first_failing(batch.num_rows, passes)
    return ValueMismatch(position, error.path, error.reason).to_invalid_record(start)
