"""The hash by which Kafka's Java clients place keys."""

import struct
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

__all__ = ["murmur2", "partition_of", "partitions_of"]

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
