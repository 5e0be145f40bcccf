"""Completed fetch: messages decoded together, and the records returned from them."""

import bisect
import operator
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa

from sluiceway.api.endpoints import Position
from sluiceway.codecs import Corrupt, Decoded
from sluiceway.errors import OptionError
from sluiceway.kafka.keys import Deleted
from sluiceway.records import to_records
from sluiceway.records.instances import Instances

__all__ = ["CompletedFetch"]

_MAX_ROWS: Final = 8192
"""Rows converted at once: a message of 1 MB may hold millions."""


@dataclass(frozen=True)
class _Deletes:
    """The keys of consecutive deletes, in the place of a batch."""

    keys: list[Any]

    @property
    def num_rows(self) -> int:
        return len(self.keys)

    def slice(self, start: int, length: int) -> "_Deletes":
        return _Deletes(self.keys[start : start + length])


class CompletedFetch:
    """Decoded messages of several partitions, in the order in which they were fetched.

    `chunks` are the partitions and offsets of consecutive messages of one partition.

    Records are returned from the front, one by one or in batches; `advance` moves the positions
    accordingly. With `skip`, corrupt messages are skipped; messages with an unreadable schema never
    are. Otherwise the fetch stops before the first undecodable message, `failed`, and continues
    after it once a seek has skipped it.

    `deletes` has the keys of deletes by the indices of their messages; each is returned as Deleted.

    `instances` makes the records instances of a class. Those of `records` then end before one that
    is invalid, and the next call raises ValidationFailed.

    Only the iterator of `records` is thread-safe.
    """

    def __init__(
        self,
        chunks: Sequence[tuple[int, Sequence[int]]],
        decoded: Decoded,
        positions: Mapping[int, Position],
        *,
        skip: bool,
        instances: Instances | None = None,
        deletes: Mapping[int, Any] | None = None,
    ) -> None:
        self._instances = instances
        self._corrupt = [corrupt for corrupt in decoded.corrupt if skip and corrupt.skippable]
        self._skipped = [corrupt.index for corrupt in self._corrupt]
        self._failures = deque(
            corrupt for corrupt in decoded.corrupt if not (skip and corrupt.skippable)
        )
        self._chunks = [chunk for chunk in chunks if chunk[1]]
        # The index of the first message of each chunk, and the number of all messages.
        self._starts = [*accumulate((len(offsets) for _, offsets in self._chunks), initial=0)]
        self._counts = decoded.counts
        self._records_done: dict[int, int] = {}
        batches: Sequence[pa.RecordBatch | _Deletes]
        batches = self._resumed(decoded.batches, positions)
        if deletes:
            batches = self._with_deletes(batches, deletes)
        self._batches = deque(batch for batch in batches if batch.num_rows)
        # Converted rows of the first batch, which stays in the queue until all are converted.
        self._row = 0
        self._records: Iterator[Any] = iter(())
        self._converted_rows: int = 0
        # Records taken back from iterators, but not into the queue yet.
        self._reclaimed: list[Any] = []
        self._advanced_messages = 0
        self._advanced_rows = 0
        # The number of messages before `failed`, and their rows.
        self._limit = 0
        self._rows: int = 0
        self._extend()

    @classmethod
    def empty(cls) -> "CompletedFetch":
        """Return a fetch without messages."""
        return cls((), Decoded(batches=[], counts=None, corrupt=[]), {}, skip=False)

    @property
    def exhausted(self) -> bool:
        """Whether all records before `failed` have been returned."""
        return self.returned_records == self._rows

    @property
    def returned_records(self) -> int:
        """The number of returned records."""
        left = operator.length_hint(self._records) + len(self._reclaimed)
        return self._converted_rows - left

    @property
    def skipped_messages(self) -> int:
        """The number of undecodable messages skipped so far."""
        return bisect.bisect_left(self._skipped, self._limit)

    @property
    def skipped(self) -> list[tuple[int, int, Corrupt]]:
        """Partition and offset of each message that is skipped, and the reason."""
        return [(*self._place(corrupt.index), corrupt) for corrupt in self._corrupt]

    @property
    def failed(self) -> tuple[int, int, Corrupt] | None:
        """Partition and offset of the message before which the fetch stops, and the reason."""
        if not self._failures:
            return None
        return *self._place(self._limit), self._failures[0]

    def records(self) -> Iterator[Any]:
        """Return an iterator over some of the remaining records; each counts when it is taken."""
        if self._reclaimed:
            self.reclaim()
        while not operator.length_hint(self._records) and not self.exhausted:
            # If the conversion raises, these rows stay in the queue.
            records = self._convert(self._next_rows(_MAX_ROWS))
            self._records = iter(records)
            self._row += len(records)
            self._converted_rows += len(records)
        return self._records

    def _convert(self, rows: "pa.RecordBatch | _Deletes") -> list[Any]:
        """Return rows as records up to an invalid one. If it is first, raises ValidationFailed."""
        if isinstance(rows, _Deletes):
            return [Deleted(key=key) for key in rows.keys]
        if self._instances is None:
            return to_records(rows)
        records, invalid = self._instances.of(rows)
        if invalid is not None and not records:
            raise self._instances.error(invalid, **self._place_of_row(self._converted_rows))
        return records

    def _place_of_row(self, row: int) -> dict[str, Any]:
        """Return partition, offset and record of a row, and the position after it."""
        index, first, counts = self._advanced_messages, self._advanced_rows, self._counts
        if counts is None:
            index, rows = row, 1
        else:
            while first + counts[index] <= row:
                first += counts[index]
                index += 1
            rows = first + counts[index] - row
        partition, offset = self._place(index)
        done = 0 if counts is None else self._records_done.get(index, 0) + row - first
        following = Position(offset=offset + 1)
        if rows > 1:
            following = Position(offset=offset, records=done + 1)
        return {"partition": partition, "offset": offset, "record": done, "following": following}

    def batch(self) -> pa.RecordBatch:
        """Return the rest of the current batch, or the next one; not if `exhausted`."""
        self.reclaim()
        rest = self._next_rows(self._rows)
        self._row += rest.num_rows
        self._converted_rows += rest.num_rows
        return rest

    def reclaim(self) -> None:
        """Take the remaining records back from the iterators of `records`, for later calls."""
        # Interrupts come at calls. There is none between two states that count the same records.
        self._reclaimed += [*self._records]
        left = len(self._reclaimed)
        self._row -= left
        self._converted_rows -= left
        self._reclaimed = []

    def skip_failed(self, positions: Mapping[int, Position]) -> bool:
        """Continue after `failed` if a seek to `positions` skips just that message.

        Otherwise, and unless everything before it was returned, nothing changes.
        """
        if not self._failures or self._advanced_messages < self._limit:
            return False
        partition, offset = self._place(self._limit)
        if positions != {partition: Position(offset=offset + 1)}:
            return False
        self._failures.popleft()
        self._advanced_messages += 1
        self._extend()
        return True

    def advance(self, positions: dict[int, Position], returned_records: int | None = None) -> None:
        """Move `positions` past the returned records, or past the first of them."""
        if returned_records is None:
            returned_records = self.returned_records
        counts = self._counts
        start = index = self._advanced_messages
        rows = self._advanced_rows
        if counts is None:
            index = rows = returned_records
        else:
            while index < self._limit and rows + counts[index] <= returned_records:
                rows += counts[index]
                index += 1
        number = self._chunk_of(start)
        while start < index:
            partition, offsets = self._chunks[number]
            first, number = self._starts[number], number + 1
            start = min(index, self._starts[number])
            positions[partition] = Position(offset=offsets[start - first - 1] + 1)
        if rows < returned_records:
            partition, offset = self._place(index)
            done = self._records_done.get(index, 0) + returned_records - rows
            positions[partition] = Position(offset=offset, records=done)
        self._advanced_messages, self._advanced_rows = index, rows

    def _chunk_of(self, index: int) -> int:
        """Return the number of the chunk with a message."""
        return bisect.bisect_right(self._starts, index) - 1

    def _place(self, index: int) -> tuple[int, int]:
        """Return the partition and offset of a message."""
        number = self._chunk_of(index)
        partition, offsets = self._chunks[number]
        return partition, offsets[index - self._starts[number]]

    def _extend(self) -> None:
        """Extend the available records up to the next failed message."""
        before, counts = self._limit, self._counts
        self._limit = self._failures[0].index if self._failures else self._starts[-1]
        self._rows += self._limit - before if counts is None else sum(counts[before : self._limit])

    def _next_rows(self, limit: int) -> "pa.RecordBatch | _Deletes":
        """Return up to `limit` rows of the current or the next batch, before `failed`."""
        if self._row == self._batches[0].num_rows:
            self._batches.popleft()
            self._row = 0
        return self._batches[0].slice(self._row, min(limit, self._rows - self._converted_rows))

    def _with_deletes(
        self, batches: Sequence[pa.RecordBatch], deletes: Mapping[int, Any]
    ) -> "list[pa.RecordBatch | _Deletes]":
        """Insert deletes between the records before and after them, and count them."""
        counts = self._counts = list(self._counts or [1] * self._starts[-1])
        rows_before = [0, *accumulate(counts)]
        merged: list[pa.RecordBatch | _Deletes] = []
        rest, first = deque(batches), 0
        for index, key in sorted(deletes.items()):
            counts[index] = 1
            while rest and first < rows_before[index]:
                batch = rest.popleft()
                part = batch.slice(0, rows_before[index] - first)
                merged.append(part)
                first += part.num_rows
                if part.num_rows < batch.num_rows:
                    rest.appendleft(batch.slice(part.num_rows))
            if merged and isinstance(merged[-1], _Deletes):
                merged[-1].keys.append(key)
            else:
                merged.append(_Deletes([key]))
        return [*merged, *rest]

    def _resumed(
        self, batches: list[pa.RecordBatch], positions: Mapping[int, Position]
    ) -> Sequence[pa.RecordBatch]:
        """Remove records that a position within a message counts as done."""
        inside = {p: position for p, position in positions.items() if position.records}
        for (partition, offsets), index in zip(self._chunks, self._starts, strict=False):
            position = inside.pop(partition, None)
            if position is None or offsets[0] != position.offset:
                continue
            counts = self._counts or [1] * self._starts[-1]
            if any(failure.index == index for failure in self._failures):
                continue
            if position.records > counts[index]:
                raise OptionError(
                    f"partition {partition}: the position {position.offset} with "
                    f"{position.records} records done is past its message, which holds "
                    f"{counts[index]}. Seek to a position returned by a reader"
                )
            start = sum(counts[:index])
            table = pa.Table.from_batches(batches)
            rest = table.slice(start + position.records)
            batches = [*table.slice(0, start).to_batches(), *rest.to_batches()]
            counts = self._counts = list(counts)
            counts[index] -= position.records
            self._records_done[index] = position.records
        return batches
