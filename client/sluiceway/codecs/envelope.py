"""The head of a message of the format `arrow`.

    bytes  0–3    "SLWA"
           4      version, 1
           5      flags; bit 0: provenance follows the head
           6–7    0
           8–11   schema id        ┐ big-endian
           12–15  records          ┘
           16–71  provenance, if flagged: topic id 16, batch id 16, attempt id 16, sequence 8
    then          one encapsulated Arrow IPC record batch message, uncompressed, no dictionaries

Both lengths are multiples of 8, so that Arrow's buffers stay aligned within the value.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

MAGIC: Final = b"SLWA"
VERSION: Final = 1

_HEAD: Final = struct.Struct(">4sBBHII")
_PROVENANCE: Final = struct.Struct(">16s16s16sQ")
_HAS_PROVENANCE: Final = 1


class NotAnEnvelope(ValueError):
    """The value does not begin as a message of the format `arrow`; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Which attempt at which batch wrote a message; the ids are 16 bytes each.

    `sequence` is the number of the message's first record among those that the attempt wrote to
    the partition, from 0.
    """

    topic_id: bytes
    batch_id: bytes
    attempt_id: bytes
    sequence: int

    def pack(self) -> bytes:
        """Write the 56 bytes that stand for it."""
        ids = (self.topic_id, self.batch_id, self.attempt_id)
        if any(len(id_) != 16 for id_ in ids) or not 0 <= self.sequence < 1 << 64:
            raise ValueError("provenance needs ids of 16 bytes and a sequence of 64 bits")
        return _PROVENANCE.pack(*ids, self.sequence)

    @classmethod
    def unpack(cls, data: bytes) -> Provenance:
        """Read what `pack` wrote; the inverse."""
        topic_id, batch_id, attempt_id, sequence = _PROVENANCE.unpack(data)
        return cls(topic_id=topic_id, batch_id=batch_id, attempt_id=attempt_id, sequence=sequence)


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """The head of a message: how many records of which schema follow it, and who wrote them."""

    schema_id: int
    records: int
    provenance: Provenance | None = None

    @property
    def size_bytes(self) -> int:
        """How many bytes stand before the IPC message."""
        return _HEAD.size + (_PROVENANCE.size if self.provenance else 0)

    def pack(self) -> bytes:
        """Write the head; `unpack` is the inverse."""
        flags = _HAS_PROVENANCE if self.provenance else 0
        head = _HEAD.pack(MAGIC, VERSION, flags, 0, self.schema_id, self.records)
        return head + self.provenance.pack() if self.provenance else head

    @classmethod
    def unpack(cls, value: bytes) -> Envelope:
        """Read the head of `value`; raises NotAnEnvelope."""
        if not value.startswith(MAGIC):
            raise NotAnEnvelope(f"it begins with {value[:4]!r} and not with {MAGIC!r}")
        if len(value) < _HEAD.size:
            raise NotAnEnvelope(f"it ends after {len(value)} bytes, within its head")
        _, version, flags, zero, schema_id, records = _HEAD.unpack_from(value)
        if version != VERSION or flags & ~_HAS_PROVENANCE or zero:
            raise NotAnEnvelope(
                f"it has the version {version} and the flags {flags:#04x}, which this client does "
                "not know; a newer one may have written it"
            )
        if not flags:
            return cls(schema_id=schema_id, records=records)
        if len(value) < _HEAD.size + _PROVENANCE.size:
            raise NotAnEnvelope(f"it ends after {len(value)} bytes, within its provenance")
        provenance = Provenance.unpack(value[_HEAD.size : _HEAD.size + _PROVENANCE.size])
        return cls(schema_id=schema_id, records=records, provenance=provenance)
