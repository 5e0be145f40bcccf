"""Records of messages that were decoded in groups, put back into the order of the messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from sluiceway.codecs.codec import Corrupt, Decoded

if TYPE_CHECKING:
    from sluiceway.schema.resolution import Resolution


class Gathering:
    """What became of so many messages, whose records are batches of `schema` at the end."""

    def __init__(self, schema: pa.Schema, *, messages: int) -> None:
        self._schema = schema
        self._counts: np.ndarray[Any, Any] = np.zeros(messages, np.int64)
        self._corrupt: dict[int, Corrupt] = {}
        self._batches: list[pa.RecordBatch] = []
        # The batches since the last settling, each with the message of every row.
        self._parts: list[tuple[pa.RecordBatch, np.ndarray[Any, Any]]] = []

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
        if decoded.counts is not None:
            messages = np.repeat(messages, decoded.counts)
        start = 0
        for batch in decoded.batches:
            of = messages[start : start + batch.num_rows]
            start += batch.num_rows
            resolved, unresolvable = resolution.sift(batch)
            if unresolvable:
                for position, reason in unresolvable.items():
                    self.reject(int(of[position]), reason)
                of = np.delete(of, list(unresolvable))
                whole = ~np.isin(of, list(self._corrupt))
                resolved, of = resolved.filter(pa.array(whole)), of[whole]
            if len(of):
                self._parts.append((resolved, of))

    def settle(self) -> None:
        """Put the records added since the last time into the order of their messages."""
        parts, self._parts = self._parts, []
        if not parts:
            return
        messages = np.concatenate([of for _, of in parts])
        self._counts += np.bincount(messages, minlength=len(self._counts))
        if np.all(messages[1:] >= messages[:-1]):
            self._batches += [batch for batch, _ in parts]
        elif all(of[0] == of[-1] for _, of in parts):
            self._batches += [batch for batch, _ in sorted(parts, key=lambda part: part[1][0])]
        else:
            order = pa.array(np.argsort(messages, kind="stable"))
            table = pa.Table.from_batches([batch for batch, _ in parts], self._schema)
            self._batches += table.take(order).combine_chunks().to_batches()

    def decoded(self, *, one_each: bool) -> Decoded:
        """Give all that was settled; `one_each`: a message that is not corrupt has one record."""
        corrupt = [self._corrupt[index] for index in sorted(self._corrupt)]
        counts = None if one_each and not corrupt else self._counts.tolist()
        return Decoded(batches=self._batches, counts=counts, corrupt=corrupt)
