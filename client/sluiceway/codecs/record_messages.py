"""Decoding of messages of one record each: in columns, and one by one where that fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from sluiceway.codecs.base import RUN_BYTES, Corrupt, Decoded

_PARTS: Final = 16
"""The number of parts into which messages are divided that cannot be decoded together."""
_OVERFLOWS: Final = (pa.ArrowInvalid, pa.ArrowCapacityError)
"""The errors of Arrow for arrays of more than 2 GiB, as of many long symbols of an enum."""


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
        self._indices: list[int] = []
        self._rows_bytes = 0

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Return the records of all `values`."""
        if values:
            self._read(values, 0)
        self._flush()
        self._corrupt.sort(key=lambda corrupt: corrupt.index)
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
        corrupt = len(self._corrupt)
        try:
            batch, suspect = self._together(values)
            if suspect:
                batch = self._corrected(batch, suspect, values, start)
        except (NotDecodable, *_OVERFLOWS):
            del self._corrupt[corrupt:]
            if len(values) == 1:
                return self._read_strictly(values, start)
            step = -(-len(values) // _PARTS)
            for begin in range(0, len(values), step):
                self._read(values[begin : begin + step], start + begin)
            return None
        self._add(batch)
        return None

    def _corrected(
        self,
        batch: pa.RecordBatch,
        suspect: Sequence[int],
        values: Sequence[bytes | None],
        start: int,
    ) -> pa.RecordBatch:
        """Return the rows of `batch` with the suspect ones as the strict decoder reads them.

        All are copied: a slice would keep the invalid rows in its buffers.
        """
        order = np.arange(batch.num_rows)
        rows: list[dict[str, Any]] = []
        for index in suspect:
            row = self._strict_row(values[index], start + index)
            order[index] = -1 if row is None else batch.num_rows + len(rows)
            if row is not None:
                rows.append(row)
        batches = [batch, self._to_batch(rows)] if rows else [batch]
        corrected = pa.Table.from_batches(batches).take(pa.array(order[order >= 0]))
        # A table without rows has no batch.
        return next(iter(corrected.combine_chunks().to_batches()), batch.slice(0, 0))

    def _read_strictly(self, values: Sequence[bytes | None], start: int) -> None:
        for index, value in enumerate(values, start):
            row = self._strict_row(value, index)
            if row is None or value is None:
                continue
            if self._rows_bytes + len(value) > RUN_BYTES:
                self._flush()
            self._rows.append(row)
            self._indices.append(index)
            self._rows_bytes += len(value)

    def _strict_row(self, value: bytes | None, index: int) -> dict[str, Any] | None:
        """Decode the message with this index; None if it is corrupt."""
        reason = "it is a tombstone, which is not a record; deletes=True returns it as a delete"
        if value is not None:
            try:
                return self._strict.read(value)
            except MalformedMessage as error:
                reason = str(error)
        self._corrupt.append(Corrupt(index=index, reason=reason))
        return None

    def _add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._flush()
            self._batches.append(batch)

    def _flush(self) -> None:
        if self._rows:
            self._add_rows(self._rows, self._indices)
        self._rows, self._indices, self._rows_bytes = [], [], 0

    def _add_rows(self, rows: list[dict[str, Any]], indices: list[int]) -> None:
        """Add the batches of `rows`, whose values have these `indices`."""
        try:
            self._batches.append(self._to_batch(rows))
        except _OVERFLOWS as error:
            if len(rows) == 1:
                reason = f"its record does not fit into Arrow's arrays of 2 GiB: {error}"
                self._corrupt.append(Corrupt(index=indices[0], reason=reason))
                return
            half = len(rows) // 2
            self._add_rows(rows[:half], indices[:half])
            self._add_rows(rows[half:], indices[half:])
