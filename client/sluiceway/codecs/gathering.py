"""Records of messages that were decoded in groups, put back into the order of the messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from sluiceway.codecs.base import Corrupt, Decoded

if TYPE_CHECKING:
    from sluiceway.codecs.resolution import Resolution


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Whole messages of one batch, with how many rows each has: a message may have millions."""

    batch: pa.RecordBatch
    messages: np.ndarray[Any, Any]
    rows: np.ndarray[Any, Any]


class Gathering:
    """What became of so many messages, whose records are batches of `schema` at the end."""

    def __init__(self, schema: pa.Schema, *, messages: int) -> None:
        self._schema = schema
        self._counts: np.ndarray[Any, Any] = np.zeros(messages, np.int64)
        self._corrupt: dict[int, Corrupt] = {}
        self._batches: list[pa.RecordBatch] = []
        self._parts: list[_Part] = []

    def reject(self, index: int, reason: str, *, skippable: bool = True) -> None:
        """Take no record of the message `index`; the first reason given stays."""
        corrupt = Corrupt(index=index, reason=reason, skippable=skippable)
        self._corrupt.setdefault(index, corrupt)

    def add(self, decoded: Decoded, indices: Sequence[int], resolution: Resolution | None) -> None:
        """Take what was decoded of the messages `indices`; None: no records are among it."""
        for corrupt in decoded.corrupt:
            self.reject(indices[corrupt.index], corrupt.reason)
        if resolution is None:
            return
        messages = np.asarray(indices)
        rows = np.ones(len(messages), np.int64) if decoded.counts is None else decoded.counts
        rows = np.asarray(rows, np.int64)
        messages, rows = messages[rows > 0], rows[rows > 0]
        ends = np.cumsum(rows)
        first = end = 0
        for batch in filter(len, decoded.batches):
            end += batch.num_rows
            last = int(np.searchsorted(ends, end)) + 1
            part = _Part(batch=batch, messages=messages[first:last], rows=rows[first:last])
            first = last
            self._resolve(part, resolution)

    def _resolve(self, part: _Part, resolution: Resolution) -> None:
        batch, unresolvable = resolution.sift(part.batch)
        messages, rows = part.messages, part.rows
        if unresolvable:
            of = np.repeat(messages, rows)
            for position, reason in unresolvable.items():
                self.reject(int(of[position]), reason)
            corrupt = list(self._corrupt)
            of = np.delete(of, list(unresolvable))
            batch = batch.filter(pa.array(~np.isin(of, corrupt)))
            whole = ~np.isin(messages, corrupt)
            messages, rows = messages[whole], rows[whole]
        if len(messages):
            self._parts.append(_Part(batch=batch, messages=messages, rows=rows))

    def settle(self) -> None:
        """Put the records added since the last time into the order of their messages."""
        parts, self._parts = self._parts, []
        if not parts:
            return
        messages = np.concatenate([part.messages for part in parts])
        rows = np.concatenate([part.rows for part in parts])
        self._counts[messages] = rows
        if np.all(messages[1:] >= messages[:-1]):
            self._batches += [part.batch for part in parts]
        elif all(len(part.messages) == 1 for part in parts):
            parts.sort(key=lambda part: int(part.messages[0]))
            self._batches += [part.batch for part in parts]
        else:
            order = pa.array(np.argsort(np.repeat(messages, rows), kind="stable"))
            table = pa.Table.from_batches([part.batch for part in parts], self._schema)
            self._batches += table.take(order).combine_chunks().to_batches()

    def decoded(self, *, one_each: bool) -> Decoded:
        """Give all that was settled; `one_each`: a message that is not corrupt has one record."""
        corrupt = [self._corrupt[index] for index in sorted(self._corrupt)]
        counts = None if one_each and not corrupt else self._counts.tolist()
        return Decoded(batches=self._batches, counts=counts, corrupt=corrupt)
