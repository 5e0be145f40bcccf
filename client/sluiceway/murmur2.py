"""The hash by which Kafka's Java producers place keys."""

import struct

__all__ = ["murmur2", "partition_of"]

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_SEED = 0x9747B28C


def murmur2(data: bytes) -> int:
    """Return the 32-bit murmur2 hash of `data`, unsigned."""
    length = len(data)
    value = _SEED ^ length
    for (word,) in struct.iter_unpack("<I", data[: length & ~3]):
        mixed = word * _M & _MASK
        mixed = (mixed ^ mixed >> 24) * _M & _MASK
        value = value * _M & _MASK ^ mixed
    tail = data[length & ~3 :]
    if tail:
        value = (value ^ int.from_bytes(tail, "little")) * _M & _MASK
    value = (value ^ value >> 13) * _M & _MASK
    return value ^ value >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key: the same as a Java producer or librdkafka takes."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
