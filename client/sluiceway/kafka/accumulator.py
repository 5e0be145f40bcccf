"""Record accumulator: validated batches to messages with a partition."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from sluiceway.codecs import Codec, Envelope
from sluiceway.errors import RecordTooLarge
from sluiceway.kafka.partitioner import Partitioning
from sluiceway.rest.models import Connection

__all__ = ["Messages", "RecordAccumulator", "record_accumulator"]

_FRAMING_BYTES = 128
"""What Kafka adds to a lone message: the batch's header of 61 bytes and the record's own."""
_COLUMN_BYTES = 512
"""More than what an Arrow message spends on a column besides its data."""


@dataclass(frozen=True, kw_only=True)
class Messages:
    """Values in order, with one partition each, and one key and header each where there are some.

    A header is a name and a value.
    """

    values: Sequence[bytes | None] = ()
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[tuple[str, bytes]] | None = None
    partitions: Iterable[int] = ()
    records: int = 0


class RecordAccumulator(Protocol):
    """Makes messages of a writer's batches. A call that raises has changed nothing.

    Not thread-safe: rows wait here, and messages name the partitions in turn.
    """

    def add(self, batches: Sequence[pa.RecordBatch]) -> Messages:
        """Encode one write and return the messages to send now.

        Raises RecordTooLarge and OptionError with record numbers of the write.
        """

    def rest(self) -> Messages:
        """Return the messages of what waits."""

    def records_in(self, value: bytes | None) -> int:
        """Return how many records a message made here holds."""


def record_accumulator(
    codec: Codec, connection: Connection, placement: Partitioning, *, batch_records: int
) -> RecordAccumulator:
    """Return the maker of messages for the connection's format."""
    limit_bytes = connection.max_message_bytes - _FRAMING_BYTES
    if connection.format == "arrow":
        return _BatchMessages(codec, placement, limit_bytes, batch_records)
    return _RecordMessages(codec, placement, limit_bytes)


class _RecordMessages:
    """Each record is a message."""

    def __init__(self, codec: Codec, placement: Partitioning, limit_bytes: int) -> None:
        self._codec = codec
        self._placement = placement
        self._limit_bytes = limit_bytes

    def add(self, batches: Sequence[pa.RecordBatch]) -> Messages:
        values: list[bytes | None] = []
        keys: list[bytes | None] | None = None
        targets: list[int | None] | None = None
        for batch in batches:
            places = self._placement.places(batch, len(values))
            limit_bytes = self._limit_bytes
            if places.keys is not None:
                limit_bytes -= max((len(key) for key in places.keys if key), default=0)
                keys = [*(keys or ()), *places.keys]
            if places.partitions is not None:
                targets = [*(targets or ()), *places.partitions]
            values += _encoded(self._codec, batch, limit_bytes, range(len(values), 2**62))
        turns = self._placement.turns
        return Messages(
            values=values,
            keys=keys,
            partitions=turns if targets is None else _settled(targets, turns),
            records=len(values),
        )

    def rest(self) -> Messages:
        return Messages()

    def records_in(self, value: bytes | None) -> int:
        del value
        return 1


@dataclass(frozen=True, kw_only=True)
class _Waiting:
    """Rows of one target, fewer than a message holds, each known to fit into one."""

    batches: Sequence[pa.RecordBatch] = ()
    rows: int = 0
    size_bytes: int = 0

    def joined_by(self, batches: Sequence[pa.RecordBatch]) -> "_Waiting":
        return _Waiting(
            batches=[*self.batches, *batches],
            rows=self.rows + sum(each.num_rows for each in batches),
            size_bytes=self.size_bytes
            + sum(each.nbytes + _COLUMN_BYTES * each.num_columns for each in batches),
        )


class _BatchMessages:
    """Rows of one partition share messages of up to `batch_records` rows.

    `None` as a target stands for whichever partition is next.
    """

    def __init__(
        self, codec: Codec, placement: Partitioning, limit_bytes: int, batch_records: int
    ) -> None:
        self._codec = codec
        self._placement = placement
        self._limit_bytes = limit_bytes
        self._batch_records = batch_records
        self._waiting: dict[int | None, _Waiting] = {}

    def add(self, batches: Sequence[pa.RecordBatch]) -> Messages:
        added: dict[int | None, list[tuple[pa.RecordBatch, Sequence[int]]]] = {}
        first = 0
        for batch in batches:
            for target, part, given in self._placement.groups(batch, first):
                added.setdefault(target, []).append((part, given))
            first += batch.num_rows
        values: list[bytes | None] = []
        targets: list[int | None] = []
        waiting = dict(self._waiting)
        for target, parts in added.items():
            before = waiting.pop(target, _Waiting())
            together = before.joined_by([part for part, _ in parts])
            if self._may_wait(together):
                waiting[target] = together
                continue
            # Rows that wait from earlier writes fit: their numbers are never asked for.
            numbers: list[Sequence[int]] = [range(-before.rows, 0), *(given for _, given in parts)]
            done = 0
            for piece in _pieces(together.batches, self._batch_records):
                rest = _Waiting().joined_by([piece])
                if self._may_wait(rest):
                    waiting[target] = rest
                    continue
                flat = itertools.islice(itertools.chain(*numbers), done, None)
                encoded = _encoded(self._codec, piece, self._limit_bytes, flat)
                values += encoded
                targets += [target] * len(encoded)
                done += piece.num_rows
        self._waiting = waiting
        return self._messages(values, targets)

    def rest(self) -> Messages:
        values: list[bytes | None] = []
        targets: list[int | None] = []
        for target, waiting in self._waiting.items():
            for piece in _pieces(waiting.batches, self._batch_records):
                encoded = self._codec.encode(piece, limit_bytes=self._limit_bytes).values
                values += encoded
                targets += [target] * len(encoded)
        self._waiting = {}
        return self._messages(values, targets)

    def records_in(self, value: bytes | None) -> int:
        records: int = Envelope.unpack(value or b"").records
        return records

    def _may_wait(self, rows: _Waiting) -> bool:
        return rows.rows < self._batch_records and rows.size_bytes < self._limit_bytes

    def _messages(self, values: list[bytes | None], targets: list[int | None]) -> Messages:
        turns = self._placement.turns
        return Messages(
            values=values,
            partitions=_settled(targets, turns),
            records=sum(map(self.records_in, values)),
        )


def _settled(targets: Iterable[int | None], turns: Iterator[int]) -> list[int]:
    """Return the targets, with the next partition in turn for each that is None."""
    return [next(turns) if target is None else target for target in targets]


def _encoded(
    codec: Codec, batch: pa.RecordBatch, limit_bytes: int, numbers: Iterable[int]
) -> Sequence[bytes | None]:
    """Encode a batch whose rows have these numbers in the write."""
    try:
        return codec.encode(batch, limit_bytes=limit_bytes).values
    except RecordTooLarge as error:
        raise RecordTooLarge(
            index=next(itertools.islice(numbers, error.index, None)),
            size_bytes=error.size_bytes,
            limit_bytes=error.limit_bytes,
        ) from None


def _pieces(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Cut batches into pieces of `rows` rows, the last one shorter; copy only to join."""
    gathered: list[pa.RecordBatch] = []
    missing = rows
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, missing)
            gathered.append(part)
            start += part.num_rows
            missing -= part.num_rows
            if not missing:
                yield _joined(gathered)
                gathered, missing = [], rows
    if gathered:
        yield _joined(gathered)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    # pyarrow.concat_batches would need pyarrow 19.
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
