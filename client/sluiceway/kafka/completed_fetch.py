"""A completed fetch: messages decoded together, and how far they were handed out."""

import bisect
import operator
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Message

from sluiceway.codecs import Corrupt, Decoded
from sluiceway.errors import OptionError
from sluiceway.records import to_records
from sluiceway.rest.endpoint_models import Position

__all__ = ["CompletedFetch"]

_ROWS: Final = 8192
"""Records are made of so many rows at once: a message of 1 MB may hold millions."""


class CompletedFetch:
    """Decoded messages of several partitions, in the order in which they came.

    Records are handed out from the front, one by one or by batches, and `settle` says what that
    means for the positions. With `skip`, messages that gave no records are passed over where that
    loses none. Otherwise the chunk pauses before the first of them, `failed`, and goes on behind
    it with what is decoded already once a seek has passed it.

    Thread-safe is only the iterator that `records` returns: what a thread takes from it is its own.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        decoded: Decoded,
        positions: Mapping[int, Position],
        *,
        skip: bool,
    ) -> None:
        skipped = [each for each in decoded.corrupt if skip and each.skippable]
        self._skipped = [each.index for each in skipped]
        self._failures = deque(each for each in decoded.corrupt if not (skip and each.skippable))
        self._messages = messages
        self._counts = decoded.counts
        self._partly: dict[int, int] = {}
        batches = self._resumed(decoded.batches, positions)
        self._batches = deque(batch for batch in batches if batch.num_rows)
        # Rows of the first batch that were opened already; it stays there while any are left.
        self._row = 0
        self._records: Iterator[dict[str, Any]] = iter(())
        self._opened_rows: int = 0
        self._settled_messages = 0
        self._settled_rows = 0
        # So many messages may be handed out, which have so many rows.
        self._limit = 0
        self._rows: int = 0
        self._extend()

    @classmethod
    def nothing(cls) -> "CompletedFetch":
        """Return a chunk without messages."""
        return cls((), Decoded(batches=[], counts=None, corrupt=[]), {}, skip=False)

    @property
    def empty(self) -> bool:
        """Whether all its records up to `failed` have been handed out."""
        return self.handed_out == self._rows

    @property
    def handed_out(self) -> int:
        """How many of its records have been handed out."""
        return self._opened_rows - operator.length_hint(self._records)

    @property
    def skipped_messages(self) -> int:
        """How many messages were passed over so far because they gave no records."""
        return bisect.bisect_left(self._skipped, self._limit)

    @property
    def failed(self) -> tuple[Message, Corrupt] | None:
        """The message that it pauses before, and why; None: there is none."""
        if not self._failures:
            return None
        return self._messages[self._limit], self._failures[0]

    def records(self) -> Iterator[dict[str, Any]]:
        """Return an iterator over some of what is left; what is taken from it is handed out."""
        while not operator.length_hint(self._records) and not self.empty:
            # Rows that cannot be made into records stay where they are.
            piece = self._next_rows(_ROWS)
            self._records = iter(to_records(piece))
            self._row += piece.num_rows
            self._opened_rows += piece.num_rows
        return self._records

    def batch(self) -> pa.RecordBatch:
        """Hand out what is left of the current batch, or the next one; the chunk has records."""
        self.take_back()
        rest = self._next_rows(self._rows)
        self._row += rest.num_rows
        self._opened_rows += rest.num_rows
        return rest

    def take_back(self) -> None:
        """Hand out nothing by iterators that were given away; `records` begins there again."""
        left = len(list(self._records))
        self._row -= left
        self._opened_rows -= left

    def pass_failed(self, positions: Mapping[int, Position]) -> bool:
        """Go on behind `failed`, if a seek to `positions` means that; False: nothing has changed.

        Everything before it was handed out and settled then.
        """
        if not self._failures or self._settled_messages < self._limit:
            return False
        message = self._messages[self._limit]
        if positions != {message.partition(): Position(offset=message.offset() + 1)}:
            return False
        self._failures.popleft()
        self._settled_messages += 1
        self._extend()
        return True

    def settle(self, positions: dict[int, Position]) -> None:
        """Move `positions` past what has been handed out."""
        handed_out = self.handed_out
        messages, counts = self._messages, self._counts
        start = index = self._settled_messages
        rows = self._settled_rows
        if counts is None:
            index = rows = handed_out
        else:
            while index < self._limit and rows + counts[index] <= handed_out:
                rows += counts[index]
                index += 1
        last = {message.partition(): message for message in messages[start:index]}
        for partition, message in last.items():
            positions[partition] = Position(offset=message.offset() + 1)
        if rows < handed_out:
            message = messages[index]
            done = self._partly.get(index, 0) + handed_out - rows
            positions[message.partition()] = Position(offset=message.offset(), records=done)
        self._settled_messages, self._settled_rows = index, rows

    def _extend(self) -> None:
        """Let everything be handed out up to the next message that failed."""
        before, counts = self._limit, self._counts
        self._limit = self._failures[0].index if self._failures else len(self._messages)
        self._rows += self._limit - before if counts is None else sum(counts[before : self._limit])

    def _next_rows(self, most: int) -> pa.RecordBatch:
        """Return up to `most` rows of the current batch, or of the next one, before `failed`."""
        if self._row == self._batches[0].num_rows:
            self._batches.popleft()
            self._row = 0
        return self._batches[0].slice(self._row, min(most, self._rows - self._opened_rows))

    def _resumed(
        self, batches: list[pa.RecordBatch], positions: Mapping[int, Position]
    ) -> list[pa.RecordBatch]:
        """Leave out the records that a position inside a message says are done."""
        inside = {p: position for p, position in positions.items() if position.records}
        for index, message in enumerate(self._messages if inside else ()):
            position = inside.pop(message.partition(), None)
            if position is None or message.offset() != position.offset:
                continue
            counts = self._counts or [1] * len(self._messages)
            if any(each.index == index for each in self._failures):
                continue
            if position.records > counts[index]:
                raise OptionError(
                    f"partition {message.partition()}: the position {position.offset} with "
                    f"{position.records} records done is past its message, which holds "
                    f"{counts[index]}. Seek to a position that a reader gave"
                )
            start = sum(counts[:index])
            batches = [
                *_cut(batches, 0, start),
                *_cut(batches, start + position.records, sum(counts)),
            ]
            counts = self._counts = list(counts)
            counts[index] -= position.records
            self._partly[index] = position.records
        return batches


def _cut(batches: Sequence[pa.RecordBatch], start: int, stop: int) -> list[pa.RecordBatch]:
    """Return the rows from `start` up to `stop` of what the batches hold together."""
    chosen = []
    for batch in batches:
        part = batch.slice(max(0, start), max(0, stop - max(0, start)))
        if part.num_rows:
            chosen.append(part)
        start -= batch.num_rows
        stop -= batch.num_rows
    return chosen
