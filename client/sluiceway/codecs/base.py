"""The codec contract: batches to message values, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from sluiceway.errors import RecordTooLarge
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
