"""Messages that were decoded together, and how far they have been handed out."""

import collections
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import Message

from sluiceway.codecs import Corrupt, Decoded
from sluiceway.errors import OptionError
from sluiceway.position import Position
from sluiceway.records import to_records

__all__ = ["Chunk"]


class Chunk:
    """Decoded messages of several partitions, in the order in which they came.

    Records are handed out from the front, one by one or by batches, and `settle` says what that
    means for the positions. With `skip`, messages that gave no records are passed over where that
    loses none; otherwise the chunk ends before the first of them, `failed_message`.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        decoded: Decoded,
        positions: Mapping[int, Position],
        *,
        skip: bool,
    ) -> None:
        counts = decoded.counts
        batches = decoded.batches
        self.skipped_messages = 0
        self.failed: Corrupt | None = None
        self.failed_message: Message | None = None
        for corrupt in decoded.corrupt:
            if skip and corrupt.skippable:
                self.skipped_messages += 1
                continue
            self.failed, self.failed_message = corrupt, messages[corrupt.index]
            messages = messages[: corrupt.index]
            counts = counts and counts[: corrupt.index]
            batches = _cut(batches, 0, sum(counts or ()))
            break
        self._messages = messages
        self._counts = counts
        self._partly: dict[int, int] = {}
        batches = self._resumed(batches, positions)
        self._rows: int = sum(batch.num_rows for batch in batches)
        self._batches = collections.deque(batch for batch in batches if batch.num_rows)
        self._batch: pa.RecordBatch | None = None
        self._records: Iterator[dict[str, Any]] = iter(())
        self._opened_rows: int = 0
        self._settled_messages = 0
        self._settled_rows = 0

    @classmethod
    def nothing(cls) -> "Chunk":
        """Return a chunk without messages."""
        return cls((), Decoded(batches=[], counts=None, corrupt=[]), {}, skip=False)

    @property
    def empty(self) -> bool:
        """Whether all its records have been handed out."""
        return self.handed_out == self._rows

    @property
    def handed_out(self) -> int:
        """How many of its records have been handed out."""
        return self._opened_rows - operator.length_hint(self._records)

    def records(self) -> Iterator[dict[str, Any]]:
        """Return an iterator over what is left of the current batch, or of the next.

        What is taken from it counts as handed out.
        """
        while not operator.length_hint(self._records) and not self.empty:
            # A batch that cannot be made into records stays where it is.
            self._records = iter(to_records(self._batches[0]))
            self._batch = self._open_next()
        return self._records

    def batch(self) -> pa.RecordBatch:
        """Hand out what is left of the current batch, or the next one; the chunk has records."""
        left = operator.length_hint(self._records)
        if left and self._batch is not None:
            self._drain()
            return self._batch.slice(self._batch.num_rows - left)
        return self._open_next()

    def abandon(self) -> None:
        """Hand out nothing more, not even by an iterator that was given away."""
        self._drain()
        self._batches.clear()
        self._opened_rows = self._rows

    def _open_next(self) -> pa.RecordBatch:
        batch = self._batches.popleft()
        self._opened_rows += batch.num_rows
        return batch

    def _drain(self) -> None:
        collections.deque(self._records, maxlen=0)

    def settle(self, positions: dict[int, Position]) -> None:
        """Move `positions` past what has been handed out."""
        handed_out = self.handed_out
        messages, counts = self._messages, self._counts
        start = index = self._settled_messages
        rows = self._settled_rows
        if counts is None:
            index = rows = handed_out
        else:
            while index < len(messages) and rows + counts[index] <= handed_out:
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
