"""Partitioners: round robin, by key (murmur2), fixed, or the caller's own."""

import itertools
import secrets
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa

from sluiceway.errors import OptionError
from sluiceway.records import to_records
from sluiceway.schema import Schema

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_SEED = 0x9747B28C
_POSITIVE = 0x7FFFFFFF
_FEW = 16
"""Fewer keys of one length are hashed one at a time: a numpy call costs as much as a few keys."""
_STRIDE = 8192
"""Keys hashed together; more would not fit into the processor's cache."""


def murmur2(data: bytes) -> int:
    """Return the 32-bit murmur2 hash of `data`, unsigned."""
    words = [word for (word,) in struct.iter_unpack("<I", _padded(data))]
    hashed: int = _hashed(words, len(data))
    return hashed


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key, the one that Kafka's default partitioner chooses."""
    return (murmur2(key) & _POSITIVE) % partitions


def partitions_of(keys: Sequence[bytes | None], partitions: int) -> list[int | None]:
    """Return `partition_of` each key, None for None; keys of one length are hashed together."""
    found: list[int | None] = [None] * len(keys)
    for first in range(0, len(keys), _STRIDE):
        by_length: defaultdict[int, list[int]] = defaultdict(list)
        for index, key in enumerate(keys[first : first + _STRIDE], first):
            if key is not None:
                by_length[len(key)].append(index)
        for length, chosen in by_length.items():
            alike = [cast("bytes", keys[index]) for index in chosen]
            if not length or len(alike) < _FEW:
                placed = [partition_of(key, partitions) for key in alike]
            else:
                placed = _partitions_alike(alike, length, partitions)
            for index, partition in zip(chosen, placed, strict=True):
                found[index] = partition
    return found


def _partitions_alike(keys: Sequence[bytes], length: int, partitions: int) -> list[int]:
    joined = b"".join(keys if length % 4 == 0 else map(_padded, keys))
    rows = np.frombuffer(joined, "<u4").reshape(len(keys), -1)
    hashed = _hashed(np.ascontiguousarray(rows.T, dtype=np.uint64), length)
    placed: list[int] = ((hashed & _POSITIVE) % partitions).tolist()
    return placed


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _hashed(words: Any, length: int) -> Any:
    """Hash padded keys of one length: each word is an int, or a numpy array with one per key."""
    value: Any = _SEED ^ length
    whole = length // 4
    for word in words[:whole]:
        mixed = word * _M & _MASK
        mixed = (mixed ^ mixed >> 24) * _M & _MASK
        value = value * _M & _MASK ^ mixed
    for tail in words[whole:]:
        value = (value ^ tail) * _M & _MASK
    value = (value ^ value >> 13) * _M & _MASK
    return value ^ value >> 15


Record = Mapping[str, Any]
Key = str | Callable[[Record], str | bytes | int | None]
"""A field's name, or a function from a record to its key."""
Partitioner = Callable[[Record, int], int]
"""A function from a record and the number of partitions to a partition."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where a batch's records go: `keys` and `partitions` have one item a record.

    A partition of None is the next one in turn; records without a key have it. Without
    `partitions` that is where all records go.
    """

    keys: Sequence[bytes | None] | None = None
    partitions: Sequence[int | None] | None = None


class Partitioning:
    """Round robin over all partitions: each record, or message, goes to the next one.

    The first partition is drawn by lot, so that many short writers spread out.
    """

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.turns: Iterator[int]
        # Not by `random`, which a job may seed, the same in each of its processes.
        self.begin(secrets.randbelow(partitions))

    def begin(self, partition: int) -> None:
        """Let the next one that goes round go to this partition."""
        whole = range(self.partitions)
        self.turns = itertools.cycle([*whole[partition:], *whole[:partition]])

    def places(self, batch: pa.RecordBatch, first: int) -> Places:
        """Place the records of `batch`, of which the first is number `first` of the write.

        Raises OptionError naming the record where the caller's function gives nonsense.
        """
        del batch, first
        return Places()

    def groups(
        self, batch: pa.RecordBatch, first: int
    ) -> list[tuple[int | None, pa.RecordBatch, Sequence[int]]]:
        """Cut `batch` by partition, keeping the order within each.

        Returns partition (None: any, by turns), rows and the rows' numbers in the write.
        """
        targets = self.places(batch, first).partitions
        numbers = range(first, first + batch.num_rows)
        if targets is None:
            return [(None, batch, numbers)]
        rows: dict[int | None, list[int]] = {}
        for row, target in enumerate(targets):
            rows.setdefault(target, []).append(row)
        if len(rows) == 1:
            return [(next(iter(rows)), batch, numbers)]
        return [
            (target, batch.take(pa.array(chosen)), [first + row for row in chosen])
            for target, chosen in rows.items()
        ]

    def _by_key(self, keys: Sequence[bytes | None]) -> Places:
        """Place records by their keys, among the partitions that the writer knows.

        librdkafka would choose among those that the topic has by then, which readers are not
        told the ends of.
        """
        return Places(keys=keys, partitions=partitions_of(keys, self.partitions))


class _Fixed(Partitioning):
    def __init__(self, partitions: int, partition: int) -> None:
        super().__init__(partitions)
        if type(partition) is not int or not 0 <= partition < partitions:
            raise OptionError(
                f"partition is {partition!r}; the channel has the partitions 0 to {partitions - 1}"
            )
        self.turns = itertools.repeat(partition)


class _ByField(Partitioning):
    def __init__(self, partitions: int, field: str, schema: Schema) -> None:
        super().__init__(partitions)
        names = schema.arrow.names
        if field not in names:
            raise OptionError(f"key is {field!r}; the channel has the fields {', '.join(names)}")
        kind = schema.arrow.field(field).type
        self._field = field
        if pa.types.is_int32(kind):
            self._to_bytes: Callable[[Any], bytes] = struct.Struct(">i").pack
        elif pa.types.is_int64(kind):
            self._to_bytes = struct.Struct(">q").pack
        elif pa.types.is_string(kind):
            self._to_bytes = str.encode
        elif pa.types.is_binary(kind):
            self._to_bytes = bytes
        else:
            raise OptionError(
                f"key is {field!r}, a field of type {kind}; a key is a string, bytes, an int or a "
                "long. For others give a function that makes one of these of a record"
            )

    def places(self, batch: pa.RecordBatch, first: int) -> Places:
        del first
        to_bytes = self._to_bytes
        values = batch.column(self._field).to_pylist()
        return self._by_key([None if each is None else to_bytes(each) for each in values])


class _ByKeyFunction(Partitioning):
    def __init__(self, partitions: int, function: Callable[[Record], Any]) -> None:
        super().__init__(partitions)
        self._function = function

    def places(self, batch: pa.RecordBatch, first: int) -> Places:
        keys: list[bytes | None] = []
        for index, record in enumerate(to_records(batch), first):
            key = self._function(record)
            if key is None or type(key) is bytes:
                keys.append(key)
            elif type(key) is str:
                keys.append(key.encode())
            elif type(key) is int and -(2**63) <= key < 2**63:
                keys.append(struct.pack(">q", key))
            else:
                raise OptionError(
                    f"the key function gave {key!r} for record {index}; a key is a str, bytes, an "
                    "int of 64 bits, or None. Nothing of this write was sent"
                )
        return self._by_key(keys)


class _ByPartitioner(Partitioning):
    def __init__(self, partitions: int, function: Partitioner) -> None:
        super().__init__(partitions)
        self._function = function

    def places(self, batch: pa.RecordBatch, first: int) -> Places:
        chosen: list[int | None] = []
        for index, record in enumerate(to_records(batch), first):
            partition = self._function(record, self.partitions)
            if type(partition) is not int or not 0 <= partition < self.partitions:
                raise OptionError(
                    f"the partitioner gave {partition!r} for record {index}; it gives a partition "
                    f"from 0 to {self.partitions - 1}. Nothing of this write was sent"
                )
            chosen.append(partition)
        return Places(partitions=chosen)


def partitioning(
    schema: Schema,
    partitions: int,
    *,
    key: Key | None,
    partitioner: Partitioner | None,
    partition: int | None,
) -> Partitioning:
    """Return how records are placed; without any wish they go round. Raises OptionError."""
    wishes = {"key": key, "partitioner": partitioner, "partition": partition}
    given = [name for name, wish in wishes.items() if wish is not None]
    if len(given) > 1:
        raise OptionError(f"{' and '.join(given)} exclude each other: give one of them")
    if partition is not None:
        return _Fixed(partitions, partition)
    if partitioner is not None:
        if not callable(partitioner):
            raise OptionError(f"partitioner is {partitioner!r}; it takes a function")
        return _ByPartitioner(partitions, partitioner)
    if isinstance(key, str):
        return _ByField(partitions, key, schema)
    if key is not None:
        if not callable(key):
            raise OptionError(f"key is {key!r}; it takes a field's name or a function")
        return _ByKeyFunction(partitions, key)
    return Partitioning(partitions)


__all__ = [
    "Key",
    "Partitioner",
    "Partitioning",
    "murmur2",
    "partition_of",
    "partitioning",
    "partitions_of",
]
