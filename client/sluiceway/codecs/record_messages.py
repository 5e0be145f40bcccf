"""Decoding of messages of one record each: in columns, and one by one where that fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from sluiceway.codecs.base import RUN_BYTES, Corrupt, Decoded

_PARTS: Final = 16
"""The number of parts into which messages are divided that cannot be decoded together."""


class MalformedMessage(ValueError):
    """The bytes are not a record of the schema; the text has the field and the reason."""


class NotDecodable(Exception):
    """These messages cannot be decoded together."""


class StrictDecoder(Protocol):
    """Decoder that checks each byte, and returns the values that `to_batch` converts."""

    def read(self, value: bytes) -> dict[str, Any]:
        """Decode one message. Raises MalformedMessage."""


Together = Callable[[Sequence[bytes | None]], tuple[pa.RecordBatch, list[int]]]
"""Decodes messages at once, and returns the rows that need the strict decoder.

Raises NotDecodable.
"""


class RecordMessages:
    """Decoding of messages in the order of their values; used once.

    Up to `few` messages are decoded one by one, which is faster; without `together`, all are.
    """

    def __init__(
        self,
        *,
        strict: StrictDecoder,
        to_batch: Callable[[list[dict[str, Any]]], pa.RecordBatch],
        together: Together | None,
        few: int,
    ) -> None:
        self._strict = strict
        self._to_batch = to_batch
        self._together = together
        self._few = few
        self._batches: list[pa.RecordBatch] = []
        self._corrupt: list[Corrupt] = []
        self._rows: list[dict[str, Any]] = []
        self._rows_bytes = 0

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Return the records of all `values`."""
        if values:
            self._read(values, 0)
        self._flush()
        batches = self._batches
        if len(batches) > 1 and sum(batch.nbytes for batch in batches) <= RUN_BYTES:
            batches = pa.Table.from_batches(batches).combine_chunks().to_batches()
        counts = None
        if self._corrupt:
            counts = [1] * len(values)
            for corrupt in self._corrupt:
                counts[corrupt.index] = 0
        return Decoded(batches=batches, counts=counts, corrupt=self._corrupt)

    def _read(self, values: Sequence[bytes | None], start: int) -> None:
        """Decode `values`, the first of which has the index `start`."""
        if self._together is None or len(values) <= self._few:
            return self._read_strictly(values, start)
        try:
            batch, suspect = self._together(values)
        except NotDecodable:
            if len(values) == 1:
                return self._read_strictly(values, start)
            step = -(-len(values) // _PARTS)
            for begin in range(0, len(values), step):
                self._read(values[begin : begin + step], start + begin)
            return None
        if not suspect:
            self._add(batch)
            return None
        begin = 0
        for odd in suspect:
            self._add(_copied(batch, begin, odd))
            self._read_strictly(values[odd : odd + 1], start + odd)
            begin = odd + 1
        self._add(_copied(batch, begin, batch.num_rows))
        return None

    def _read_strictly(self, values: Sequence[bytes | None], start: int) -> None:
        for index, value in enumerate(values, start):
            if value is None:
                self._reject(index, "it is a tombstone, which is not a record")
                continue
            try:
                row = self._strict.read(value)
            except MalformedMessage as error:
                self._reject(index, str(error))
                continue
            if self._rows_bytes + len(value) > RUN_BYTES:
                self._flush()
            self._rows.append(row)
            self._rows_bytes += len(value)

    def _reject(self, index: int, reason: str) -> None:
        self._corrupt.append(Corrupt(index=index, reason=reason))

    def _add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._flush()
            self._batches.append(batch)

    def _flush(self) -> None:
        if self._rows:
            self._batches.append(self._to_batch(self._rows))
        self._rows, self._rows_bytes = [], 0


def _copied(batch: pa.RecordBatch, begin: int, end: int) -> pa.RecordBatch:
    """Copy rows: a slice would keep the invalid rows beside them in its buffers."""
    return batch.take(pa.array(np.arange(begin, end)))
