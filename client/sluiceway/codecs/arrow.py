"""The format `arrow`: one record batch per message in a versioned envelope.

    bytes  0–3    "SLWA"
           4      version, 1
           5      flags; bit 0: provenance follows the head
           6–7    0
           8–11   schema id        ┐ big-endian
           12–15  records          ┘
           16–71  provenance, if flagged: topic id 16, batch id 16, attempt id 16, sequence 8
    then          one encapsulated Arrow IPC record batch message, uncompressed, no dictionaries

Both lengths are multiples of 8, so that Arrow's buffers stay aligned within the value.

pyarrow checks that the metadata is a well-formed flatbuffer, but would decompress a body of any
claimed size. What the message says is therefore read here, before pyarrow acts on it. The tables'
layout is that of `Message.fbs` and `Schema.fbs` in Arrow's format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from sluiceway.codecs.base import Corrupt, Decoded, Encoded
from sluiceway.errors import RecordTooLarge
from sluiceway.records.tables import with_offsets
from sluiceway.records.validation import ValueMismatch, check_column

if TYPE_CHECKING:
    from sluiceway.schema import Schema

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


_V5: Final = 4
_RECORD_BATCH: Final = 3
_MARKER: Final = 0xFFFF_FFFF

# The tables' fields, by number.
_VERSION, _HEADER_TYPE, _HEADER = 0, 1, 2
_NODES, _BUFFERS, _COMPRESSION, _VARIADIC = 1, 2, 3, 4


class Unacceptable(ValueError):
    """The bytes are not a record batch that may be read; the text says why."""


class BatchReader:
    """Reads record batches of one Arrow schema out of IPC messages, zero-copy."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        nodes, buffers = zip(*(_layout(field.type) for field in schema), strict=True)
        self._nodes = sum(nodes)
        self._buffers = sum(buffers)

    def read(self, value: bytes, start: int) -> pa.RecordBatch:
        """Read the one message that `value` is from `start` on; raises Unacceptable.

        The batch is valid in every respect that Arrow knows, and refers to `value`'s memory.
        """
        metadata_bytes = _metadata_bytes(value, start)
        try:
            message = pa.ipc.read_message(pa.py_buffer(value).slice(start))
            metadata = message.metadata.to_pybytes()
            if message.type != "record batch":
                raise Unacceptable(f"it is a {message.type}, not a record batch")
            self._check(metadata, message.body.size)
            if start + 8 + metadata_bytes + message.body.size != len(value):
                raise Unacceptable("it is longer or shorter than its Arrow message says")
            batch = pa.ipc.read_record_batch(message, self._schema)
            batch.validate(full=True)
        except (pa.ArrowException, OSError, EOFError, struct.error, OverflowError) as error:
            raise Unacceptable(f"its Arrow message is broken: {error}") from error
        return batch

    def _check(self, metadata: bytes, body_bytes: int) -> None:
        message = _Table(metadata, _u32(metadata, 0))
        if message.number(_VERSION, "<h") != _V5 or message.number(_HEADER_TYPE, "<B") != (
            _RECORD_BATCH
        ):
            raise Unacceptable("its Arrow message is not a record batch of the version V5")
        header = message.table(_HEADER)
        if header.has(_COMPRESSION):
            raise Unacceptable(
                "its body is compressed, which this format forbids; Kafka compresses"
            )
        if header.has(_VARIADIC):
            raise Unacceptable("it has buffers of views, which no channel's type has")
        found = (header.count(_NODES), header.count(_BUFFERS))
        if found != (self._nodes, self._buffers):
            raise Unacceptable(
                f"it has {found[0]} columns in {found[1]} buffers, "
                f"the schema has {self._nodes} in {self._buffers}"
            )
        if (claimed := sum(header.buffer_lengths(_BUFFERS))) > body_bytes:
            raise Unacceptable(f"its columns claim {claimed} bytes of a body of {body_bytes}")


def _metadata_bytes(value: bytes, start: int) -> int:
    if len(value) < start + 8 or _u32(value, start) != _MARKER:
        raise Unacceptable("no Arrow message follows its head")
    return _u32(value, start + 4)


def _layout(type_: pa.DataType) -> tuple[int, int]:
    """Count the nodes and buffers of an array of `type_`, children included."""
    children = [type_.field(i).type for i in range(type_.num_fields)]
    nodes, buffers = 1, 2
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        buffers = 3
    elif pa.types.is_struct(type_):
        buffers = 1
    for child in children:
        below = _layout(child)
        nodes += below[0]
        buffers += below[1]
    return nodes, buffers


class _Table:
    """A flatbuffer's table at `position`; struct.error where it points out of the buffer."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position
        self._vtable = position - struct.unpack_from("<i", data, position)[0]
        if self._vtable < 0:
            raise struct.error("a table's description lies before the buffer")
        (self._vtable_bytes,) = struct.unpack_from("<H", data, self._vtable)

    def _place(self, field: int) -> int | None:
        entry = 4 + 2 * field
        if entry + 2 > self._vtable_bytes:
            return None
        (offset,) = struct.unpack_from("<H", self._data, self._vtable + entry)
        return self._position + offset if offset else None

    def has(self, field: int) -> bool:
        return self._place(field) is not None

    def number(self, field: int, form: str) -> int:
        place = self._place(field)
        return 0 if place is None else int(struct.unpack_from(form, self._data, place)[0])

    def table(self, field: int) -> _Table:
        place = self._place(field)
        if place is None:
            raise Unacceptable("its Arrow message has no record batch")
        return _Table(self._data, place + _u32(self._data, place))

    def count(self, field: int) -> int:
        place = self._place(field)
        return 0 if place is None else _u32(self._data, place + _u32(self._data, place))

    def buffer_lengths(self, field: int) -> Iterator[int]:
        place = self._place(field)
        if place is not None:
            start = place + _u32(self._data, place) + 4
            # An offset and a length for each, both of 64 bits.
            end = start + 16 * self.count(field)
            yield from (length for _, length in struct.iter_unpack("<qq", self._data[start:end]))


def _u32(data: bytes, position: int) -> int:
    return int(struct.unpack_from("<I", data, position)[0])


_MOST_RECORDS: Final = 2**31 - 1


class ArrowCodec:
    """The codec of the format `arrow`; see `Codec` for what it promises."""

    def __init__(self, schema: Schema, schema_id: int) -> None:
        self._schema = schema
        self._schema_id = schema_id
        self._reader = BatchReader(schema.arrow)

    def encode(self, batch: pa.RecordBatch, *, limit_bytes: int) -> Encoded:
        """Encode `batch` as one value if it fits under the limit, else as several, by halves."""
        values: list[bytes] = []
        counts: list[int] = []
        for piece in self._pieces(batch, 0, limit_bytes):
            head = Envelope(schema_id=self._schema_id, records=piece.num_rows).pack()
            values.append(b"".join((head, piece.serialize())))
            counts.append(piece.num_rows)
        return Encoded(values=values, counts=counts)

    def _pieces(
        self, batch: pa.RecordBatch, start: int, limit_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        if not batch.num_rows:
            return
        head_bytes = Envelope(schema_id=self._schema_id, records=batch.num_rows).size_bytes
        size_bytes = head_bytes + pa.ipc.get_record_batch_size(batch)
        if size_bytes <= limit_bytes:
            yield batch
        elif batch.num_rows == 1:
            raise RecordTooLarge(index=start, size_bytes=size_bytes, limit_bytes=limit_bytes)
        else:
            half = batch.num_rows // 2
            yield from self._pieces(batch.slice(0, half), start, limit_bytes)
            yield from self._pieces(batch.slice(half), start + half, limit_bytes)

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Decode values of any number of records each; the batches refer to the values' memory."""
        batches: list[pa.RecordBatch] = []
        counts: list[int] = []
        corrupt: list[Corrupt] = []
        for index, value in enumerate(values):
            try:
                batch = self._batch(value)
            except (NotAnEnvelope, Unacceptable) as error:
                corrupt.append(Corrupt(index=index, reason=str(error)))
                counts.append(0)
                continue
            counts.append(batch.num_rows)
            if batch.num_rows:
                batches.append(batch)
        return Decoded(batches=batches, counts=counts, corrupt=corrupt)

    def _batch(self, value: bytes | None) -> pa.RecordBatch:
        if value is None:
            raise Unacceptable("it has no value (a tombstone), and so no records")
        envelope = Envelope.unpack(value)
        if envelope.schema_id != self._schema_id:
            raise Unacceptable(
                f"it was written with the schema id {envelope.schema_id}, "
                f"the channel's is {self._schema_id}"
            )
        batch = self._reader.read(value, envelope.size_bytes)
        columns = [with_offsets(column) for column in batch.columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema.arrow)
        if batch.num_rows != envelope.records or batch.num_rows > _MOST_RECORDS:
            raise Unacceptable(
                f"it holds {batch.num_rows} records, and says it holds {envelope.records}"
            )
        try:
            for array, field in zip(batch.columns, self._schema.record.fields, strict=True):
                check_column(array, field.type, field.name)
        except ValueMismatch as error:
            raise Unacceptable(
                f"record {error.position}, field {error.path!r} is not the schema's: {error.reason}"
            ) from error
        return batch
