"""The format `bytes`: a message's value is the one field of its record, and nothing is added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from sluiceway.codecs.base import Corrupt, Decoded, Encoded
from sluiceway.errors import OptionError, RecordTooLarge
from sluiceway.schema.plain_bytes import holds_messages
from sluiceway.schema.types import Nullable

if TYPE_CHECKING:
    from sluiceway.schema import Schema

_RUN_BYTES: Final = 256 << 20
"""So many bytes of messages share a batch: Arrow's offsets end at 2 GiB."""


class BytesCodec:
    """The codec of the format `bytes`; see `Codec` for what it promises.

    A record whose `value` is null is a message without a value, a tombstone. Such a message is a
    record only where the schema allows null.
    """

    def __init__(self, schema: Schema) -> None:
        if not holds_messages(schema):
            raise OptionError(
                "records of the format 'bytes' have one field, 'value', of the type bytes, or of "
                f"null and bytes; these have {', '.join(schema.arrow.names)}"
            )
        self._schema = schema.arrow
        self._nullable = isinstance(schema.record.fields[0].type, Nullable)

    def encode(self, batch: pa.RecordBatch, *, limit_bytes: int) -> Encoded:
        """Give the values of `batch`, one a record."""
        values: list[bytes | None] = batch.column(0).to_pylist()
        for index, value in enumerate(values):
            if value is not None and len(value) > limit_bytes:
                raise RecordTooLarge(index=index, size_bytes=len(value), limit_bytes=limit_bytes)
        return Encoded(values=values, counts=None)

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Take each value as a record."""
        corrupt: list[Corrupt] = []
        counts = None
        if not self._nullable and None in values:
            reason = "it has no value (a tombstone), and the schema allows no null"
            counts = [int(value is not None) for value in values]
            empty = [index for index, count in enumerate(counts) if not count]
            corrupt = [Corrupt(index=index, reason=reason) for index in empty]
            values = [value for value in values if value is not None]
        batches = [
            pa.RecordBatch.from_arrays([pa.array(run, pa.binary())], schema=self._schema)
            for run in _runs(values)
        ]
        return Decoded(batches=batches, counts=counts, corrupt=corrupt)


def _runs(values: Sequence[bytes | None]) -> Iterator[Sequence[bytes | None]]:
    start = size_bytes = 0
    for index, value in enumerate(values):
        length = len(value or b"")
        if index > start and size_bytes + length > _RUN_BYTES:
            yield values[start:index]
            start, size_bytes = index, 0
        size_bytes += length
    if start < len(values):
        yield values[start:]
