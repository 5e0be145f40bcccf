"""Partitioners: round robin, by the hash of a key, fixed, or a function of the caller."""

import secrets
import struct
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa

from sluiceway.api.arguments import whole_number
from sluiceway.errors import IncompatibleGateway, OptionError
from sluiceway.kafka.keys import KeyField, key_bytes
from sluiceway.kafka.messages import Numbers
from sluiceway.records import to_records
from sluiceway.schema import Schema

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_SEED = 0x9747B28C
_POSITIVE = 0x7FFFFFFF
_MIN_VECTORIZED = 16
"""Fewer keys of one length are hashed one by one, because of the cost of a numpy call."""
_KEYS_PER_PASS = 8192
"""Keys hashed together; more would not fit into the CPU cache."""


def murmur2(data: bytes) -> int:
    """Return the 32-bit murmur2 hash of `data`, unsigned."""
    words = [word for (word,) in struct.iter_unpack("<I", _padded(data))]
    hashed: int = _murmur2(words, len(data))
    return hashed


def partition_of(key: bytes, partitions: int, partitioner: str = "murmur2") -> int | None:
    """Return the partition of a key; None for one that counts as none.

    `partitioner` is the channel's. Raises IncompatibleGateway if this version does not have it.
    """
    return partitions_of([key], partitions, partitioner)[0]


def partitions_of(
    keys: Sequence[bytes | None], partitions: int, partitioner: str = "murmur2"
) -> list[int | None]:
    """Return `partition_of` each key, and None for None. Raises IncompatibleGateway."""
    by_key = PARTITIONERS.get(partitioner)
    if by_key is None:
        raise IncompatibleGateway(
            f"the channel has the partitioner {partitioner!r}, which this version does not have: "
            "upgrade sluiceway in this program to the gateway's version"
        )
    return by_key(keys, partitions)


def _by_murmur2(keys: Sequence[bytes | None], partitions: int) -> list[int | None]:
    """Return the partitions that Java's producers choose."""

    def of_length(same_length: Sequence[bytes], length: int) -> Any:
        joined = b"".join(same_length if length % 4 == 0 else map(_padded, same_length))
        return _murmur2(_columns(joined, "<u4", len(same_length)), length) & _POSITIVE

    return _by_length(keys, partitions, lambda key: murmur2(key) & _POSITIVE, of_length)


def _by_crc32(keys: Sequence[bytes | None], partitions: int) -> list[int | None]:
    """Return the partitions that librdkafka's `consistent_random` chooses."""
    return [zlib.crc32(key) % partitions if key else None for key in keys]


def _by_fnv1a(keys: Sequence[bytes | None], partitions: int) -> list[int | None]:
    """Return the partitions that librdkafka's `fnv1a` chooses."""

    def of_length(same_length: Sequence[bytes], _: int) -> Any:
        return _fnv1a(_columns(b"".join(same_length), "u1", len(same_length)))

    return _by_length(keys, partitions, _fnv1a, of_length)


PARTITIONERS: Mapping[str, Callable[[Sequence[bytes | None], int], list[int | None]]] = {
    "murmur2": _by_murmur2,
    "consistent_random": _by_crc32,
    "fnv1a": _by_fnv1a,
}
"""The partitions of keys, by the name of a channel's partitioner."""


def _by_length(
    keys: Sequence[bytes | None],
    partitions: int,
    hash_of: Callable[[bytes], int],
    hashes_of: Callable[[Sequence[bytes], int], Any],
) -> list[int | None]:
    """Return the remainders of hashes; keys of one length are vectorized."""
    targets: list[int | None] = [None] * len(keys)
    for first in range(0, len(keys), _KEYS_PER_PASS):
        by_length: defaultdict[int, list[int]] = defaultdict(list)
        for index, key in enumerate(keys[first : first + _KEYS_PER_PASS], first):
            if key is not None:
                by_length[len(key)].append(index)
        for length, chosen in by_length.items():
            same_length = [cast("bytes", keys[index]) for index in chosen]
            if not length or len(same_length) < _MIN_VECTORIZED:
                hashed = [hash_of(key) % partitions for key in same_length]
            else:
                hashed = (hashes_of(same_length, length) % partitions).tolist()
            for index, partition in zip(chosen, hashed, strict=True):
                targets[index] = partition
    return targets


def _columns(joined: bytes, word: str, count: int) -> Any:
    """Return the words of `count` joined keys of one length, an array with one per key each."""
    rows = np.frombuffer(joined, word).reshape(count, -1)
    return np.ascontiguousarray(rows.T, dtype=np.uint64)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _murmur2(words: Any, length: int) -> Any:
    """Hash padded keys of one length; each word is an int, or a numpy array with one per key."""
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


def _fnv1a(data: Any) -> Any:
    """Hash keys of one length; each byte is an int, or a numpy array with one per key."""
    value: Any = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & _MASK
    # The absolute value of a signed number, as in Sarama.
    negative = value >> 31
    return (value ^ negative * _MASK) + negative


Record = Mapping[str, Any]
Key = str | Callable[[Record], str | bytes | int | None]
"""A field name, or a function that returns a record's key."""
Partitioner = Callable[[Record, int], int]
"""A function that returns the partition for a record and a number of partitions."""


@dataclass(frozen=True, kw_only=True)
class KeysAndPartitions:
    """The keys and partitions of a batch, one item per record.

    A partition of None, as for records without a key, means the next one of the round robin;
    `partitions` of None means None for all.
    """

    keys: Sequence[bytes | None] | None = None
    partitions: Sequence[int | None] | None = None


class Partitioning:
    """Round robin over all partitions, by record or by message.

    The first partition is random, which distributes many short-lived writers. Only records without
    a key may go to partitions that are added later, so that keys keep theirs: `follows_growth`.
    """

    follows_growth = True
    has_keys = False

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        # A job may seed `random` identically in each of its processes.
        self.start_round_robin_at(secrets.randbelow(partitions))

    def start_round_robin_at(self, partition: int) -> None:
        """Continue the round robin with this partition."""
        self._next = partition

    def next_partitions(self, count: int) -> Numbers:
        """Return the next partitions of the round robin."""
        partitions = (self._next + np.arange(count, dtype=np.int64)) % self.partitions
        self._next = (self._next + count) % self.partitions
        return partitions.astype(np.int32)

    def grow(self, partitions: int) -> None:
        """Continue the round robin over this number of partitions, with the first added one."""
        first, self.partitions = self.partitions, partitions
        self.start_round_robin_at(first)

    def assign(self, batch: pa.RecordBatch, first: int) -> KeysAndPartitions:
        """Return keys and partitions for a batch whose first record is number `first` of a write.

        Raises OptionError, with the record's number, for an invalid result of the caller's
        function.
        """
        del batch, first
        return KeysAndPartitions()

    def encode_key(self, key: Any) -> bytes:
        """Return the key of a delete. Raises OptionError, also for a writer without keys."""
        del key
        raise OptionError(
            "this writer has no keys, by which records are deleted: open it with the key of the "
            'records, as in channel.writer(key="id")'
        )

    def assign_keys(self, keys: Sequence[bytes | None]) -> KeysAndPartitions:
        """Return these keys with their partitions."""
        return KeysAndPartitions(keys=keys)

    def split(
        self, batch: pa.RecordBatch, first: int
    ) -> list[tuple[int | None, pa.RecordBatch, Sequence[int]]]:
        """Split a batch by partition, keeping the order within each.

        Returns partition (None: the next of the round robin), rows, and their numbers in the
        write.
        """
        targets = self.assign(batch, first).partitions
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


class _Fixed(Partitioning):
    follows_growth = False

    def __init__(self, partitions: int, partition: int) -> None:
        super().__init__(partitions)
        self._partition = partition

    def next_partitions(self, count: int) -> Numbers:
        return np.full(count, self._partition, np.int32)


class _ByKey(Partitioning):
    """Hashes keys over the partitions that the topic had when the writer was opened.

    librdkafka would use its current partitions, for which the writer reports no end offsets.
    """

    follows_growth = False
    has_keys = True

    def __init__(self, partitions: int, key_partitioner: str) -> None:
        super().__init__(partitions)
        self._key_partitioner = key_partitioner

    def assign_keys(self, keys: Sequence[bytes | None]) -> KeysAndPartitions:
        partitions = partitions_of(keys, self.partitions, self._key_partitioner)
        return KeysAndPartitions(keys=keys, partitions=partitions)


class _ByField(_ByKey):
    def __init__(self, partitions: int, key_partitioner: str, field: str, schema: Schema) -> None:
        super().__init__(partitions, key_partitioner)
        self._field = KeyField(field, schema)

    def assign(self, batch: pa.RecordBatch, first: int) -> KeysAndPartitions:
        del first
        encode = self._field.encode
        values = batch.column(self._field.name).to_pylist()
        return self.assign_keys([None if value is None else encode(value) for value in values])

    def encode_key(self, key: Any) -> bytes:
        return self._field.checked(key)


class _ByKeyFunction(_ByKey):
    def __init__(
        self, partitions: int, key_partitioner: str, function: Callable[[Record], Any]
    ) -> None:
        super().__init__(partitions, key_partitioner)
        self._function = function

    def assign(self, batch: pa.RecordBatch, first: int) -> KeysAndPartitions:
        keys: list[bytes | None] = []
        for index, record in enumerate(to_records(batch), first):
            key = self._function(record)
            encoded = key_bytes(key)
            if encoded is None and key is not None:
                raise OptionError(
                    f"the key function returned {key!r} for record {index}; a key is a str, bytes, "
                    "an int of 64 bits, or None. No record of this write was sent"
                )
            keys.append(encoded)
        return self.assign_keys(keys)

    def encode_key(self, key: Any) -> bytes:
        encoded = key_bytes(key)
        if encoded is None:
            raise OptionError(
                f"the key to delete is {key!r}; it takes what the writer's key function returns: "
                "a str, bytes, or an int of 64 bits"
            )
        return encoded


class _ByPartitioner(Partitioning):
    follows_growth = False

    def __init__(self, partitions: int, function: Partitioner) -> None:
        super().__init__(partitions)
        self._function = function

    def assign(self, batch: pa.RecordBatch, first: int) -> KeysAndPartitions:
        chosen: list[int | None] = []
        for index, record in enumerate(to_records(batch), first):
            result = self._function(record, self.partitions)
            partition = whole_number(result, 0, self.partitions)
            if partition is None:
                raise OptionError(
                    f"the partitioner returned {result!r} for record {index}; it must return a "
                    f"partition from 0 to {self.partitions - 1}. No record of this write was sent"
                )
            chosen.append(partition)
        return KeysAndPartitions(partitions=chosen)


def partitioning(
    schema: Schema,
    partitions: int,
    *,
    key: Key | None,
    partitioner: Partitioner | None,
    partition: int | None,
    key_partitioner: str,
) -> Partitioning:
    """Return the partitioning of a writer; round robin by default. Raises OptionError.

    `key_partitioner` is the channel's rule for keys.
    """
    options = {"key": key, "partitioner": partitioner, "partition": partition}
    chosen = [name for name, option in options.items() if option is not None]
    if len(chosen) > 1:
        raise OptionError(f"{' and '.join(chosen)} exclude each other: give one of them")
    if partition is not None:
        number = whole_number(partition, 0, partitions)
        if number is None:
            raise OptionError(
                f"partition is {partition!r}; the channel has the partitions 0 to {partitions - 1}"
            )
        return _Fixed(partitions, number)
    if partitioner is not None:
        if not callable(partitioner):
            raise OptionError(f"partitioner is {partitioner!r}; it takes a function")
        return _ByPartitioner(partitions, partitioner)
    if isinstance(key, str):
        return _ByField(partitions, key_partitioner, key, schema)
    if key is not None:
        if not callable(key):
            raise OptionError(f"key is {key!r}; it takes a field's name or a function")
        return _ByKeyFunction(partitions, key_partitioner, key)
    return Partitioning(partitions)


__all__ = [
    "PARTITIONERS",
    "Key",
    "KeysAndPartitions",
    "Partitioner",
    "Partitioning",
    "murmur2",
    "partition_of",
    "partitioning",
    "partitions_of",
]
