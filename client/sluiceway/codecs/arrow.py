"""The format `arrow`: one record batch per message in a versioned envelope.

    bytes  0–3    "SLWA"
           4      version, 1
           5      flags; bit 0: provenance follows the header
           6–7    0
           8–11   schema id        ┐ big-endian
           12–15  records          ┘
           16–71  provenance, if flagged: topic id 16, batch id 16, attempt id 16, sequence 8
    then          one encapsulated Arrow IPC record batch message, uncompressed, no dictionaries

Both lengths are multiples of 8, which keeps Arrow's buffers aligned within the value.

pyarrow checks that the metadata is a well-formed flatbuffer, but would decompress a body of any
claimed size. So the metadata is checked here before pyarrow acts on it. The layout of its tables is
in `Message.fbs` and `Schema.fbs` of the Arrow format.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from sluiceway.codecs.base import Corrupt, Decoded, Encoded
from sluiceway.errors import RecordTooLarge
from sluiceway.records.tables import has_offsets, with_valid_offsets
from sluiceway.records.validation import ValueMismatch, check_column
from sluiceway.schema import Schema

MAGIC: Final = b"SLWA"
VERSION: Final = 1

_HEAD: Final = struct.Struct(">4sBBHII")
_HAS_PROVENANCE: Final = 1
_PROVENANCE_BYTES: Final = 56


class InvalidEnvelope(ValueError):
    """The value does not begin with an envelope of the format `arrow`; the text is the reason."""


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """The envelope of a message: schema id and number of records.

    `size_bytes` is its size, after which the IPC message begins. Provenance is skipped; earlier
    versions wrote it.
    """

    schema_id: int
    records: int
    size_bytes: int = _HEAD.size

    def pack(self) -> bytes:
        """Encode the envelope, without provenance."""
        return _HEAD.pack(MAGIC, VERSION, 0, 0, self.schema_id, self.records)

    @classmethod
    def unpack(cls, value: bytes) -> Envelope:
        """Decode the envelope of `value`. Raises InvalidEnvelope."""
        if not value.startswith(MAGIC):
            raise InvalidEnvelope(f"it begins with {value[:4]!r}, not with {MAGIC!r}")
        if len(value) < _HEAD.size:
            raise InvalidEnvelope(f"it ends after {len(value)} bytes, within the envelope")
        _, version, flags, zero, schema_id, records = _HEAD.unpack_from(value)
        if version != VERSION or flags & ~_HAS_PROVENANCE or zero:
            raise InvalidEnvelope(
                f"its version {version} and flags {flags:#04x} are unknown to this client; a newer "
                "client may have written it"
            )
        size_bytes = _HEAD.size + (_PROVENANCE_BYTES if flags else 0)
        if len(value) < size_bytes:
            raise InvalidEnvelope(f"it ends after {len(value)} bytes, within the provenance")
        return cls(schema_id=schema_id, records=records, size_bytes=size_bytes)


_V5: Final = 4
_RECORD_BATCH: Final = 3
_MARKER: Final = 0xFFFF_FFFF

# The tables' fields, by number.
_VERSION, _HEADER_TYPE, _HEADER = 0, 1, 2
_NODES, _BUFFERS, _COMPRESSION, _VARIADIC = 1, 2, 3, 4


class InvalidBatch(ValueError):
    """The bytes are not an acceptable record batch; the text is the reason."""


def _layout(type_: pa.DataType) -> tuple[int, int]:
    """Count the nodes and buffers of an array of `type_` and of its children."""
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


def _contains_offsets(type_: pa.DataType) -> bool:
    """Return whether an array of `type_`, or one in it, has offsets."""
    fields = range(type_.num_fields)
    return has_offsets(type_) or any(_contains_offsets(type_.field(i).type) for i in fields)


class _Table:
    """A table in a flatbuffer. Raises struct.error for positions outside of the buffer."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position
        self._vtable = position - struct.unpack_from("<i", data, position)[0]
        if self._vtable < 0:
            raise struct.error("a vtable lies before the buffer")
        (self._vtable_bytes,) = struct.unpack_from("<H", data, self._vtable)

    def _position_of(self, field: int) -> int | None:
        entry = 4 + 2 * field
        if entry + 2 > self._vtable_bytes:
            return None
        (offset,) = struct.unpack_from("<H", self._data, self._vtable + entry)
        return self._position + offset if offset else None

    def has(self, field: int) -> bool:
        return self._position_of(field) is not None

    def number(self, field: int, form: str) -> int:
        position = self._position_of(field)
        return 0 if position is None else int(struct.unpack_from(form, self._data, position)[0])

    def table(self, field: int) -> _Table:
        position = self._position_of(field)
        if position is None:
            raise InvalidBatch("its Arrow message has no record batch")
        return _Table(self._data, position + _u32(self._data, position))

    def count(self, field: int) -> int:
        position = self._position_of(field)
        return 0 if position is None else _u32(self._data, position + _u32(self._data, position))

    def buffer_lengths(self, field: int) -> Iterator[int]:
        position = self._position_of(field)
        if position is not None:
            start = position + _u32(self._data, position) + 4
            # Each buffer has an offset and a length of 64 bits.
            end = start + 16 * self.count(field)
            yield from (length for _, length in struct.iter_unpack("<qq", self._data[start:end]))


def _u32(data: bytes, position: int) -> int:
    return int(struct.unpack_from("<I", data, position)[0])


_MAX_RECORDS: Final = 2**31 - 1


def _binary(value: bytes) -> pa.Array:
    """Return an array of one value, without a copy."""
    offsets = pa.py_buffer(struct.pack("=ii", 0, len(value)))
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(value)])


class ArrowCodec:
    """The codec of the format `arrow`; see `Codec` for its contract.

    Only `columns` are decoded (None: all).
    """

    def __init__(
        self, schema: Schema, schema_id: int, columns: Collection[str] | None = None
    ) -> None:
        self._schema = schema
        self.decoded_schema = schema if columns is None else schema.select(columns)
        self._decoded = [
            (field, _contains_offsets(schema.arrow.field(field.name).type))
            for field in self.decoded_schema.record.fields
        ]
        self._schema_id = schema_id
        nodes, buffers = zip(*(_layout(field.type) for field in schema.arrow), strict=True)
        self._nodes = sum(nodes)
        self._buffers = sum(buffers)

    def encode(self, batch: pa.RecordBatch, *, limit_bytes: int) -> Encoded:
        """Encode `batch` as one value, or halve it until each value is within the limit."""
        pieces = [*self._pieces(batch, 0, limit_bytes)]
        values = [
            _binary(b"".join((self._envelope(piece).pack(), piece.serialize()))) for piece in pieces
        ]
        return Encoded(
            values=pa.chunked_array(values, pa.binary()),
            counts=[piece.num_rows for piece in pieces],
        )

    def _envelope(self, batch: pa.RecordBatch) -> Envelope:
        return Envelope(schema_id=self._schema_id, records=batch.num_rows)

    def _pieces(
        self, batch: pa.RecordBatch, start: int, limit_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        if not batch.num_rows:
            return
        size_bytes = self._envelope(batch).size_bytes + pa.ipc.get_record_batch_size(batch)
        if size_bytes <= limit_bytes:
            yield batch
        elif batch.num_rows == 1:
            raise RecordTooLarge(index=start, size_bytes=size_bytes, limit_bytes=limit_bytes)
        else:
            half = batch.num_rows // 2
            yield from self._pieces(batch.slice(0, half), start, limit_bytes)
            yield from self._pieces(batch.slice(half), start + half, limit_bytes)

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Decode values of any number of records; the batches refer to the values' memory."""
        batches: list[pa.RecordBatch] = []
        counts: list[int] = []
        corrupt: list[Corrupt] = []
        for index, value in enumerate(values):
            try:
                batch = self._batch(value)
            except (InvalidEnvelope, InvalidBatch) as error:
                corrupt.append(Corrupt(index=index, reason=str(error)))
                counts.append(0)
                continue
            counts.append(batch.num_rows)
            if batch.num_rows:
                batches.append(batch)
        return Decoded(batches=batches, counts=counts, corrupt=corrupt)

    def _batch(self, value: bytes | None) -> pa.RecordBatch:
        if value is None:
            raise InvalidBatch("it is a tombstone, which has no records")
        envelope = Envelope.unpack(value)
        if envelope.schema_id != self._schema_id:
            raise InvalidBatch(
                f"its schema id is {envelope.schema_id}, the channel's is {self._schema_id}"
            )
        batch = self._read(value, envelope.size_bytes)
        if batch.num_rows != envelope.records or batch.num_rows > _MAX_RECORDS:
            raise InvalidBatch(
                f"it holds {batch.num_rows} records, but its envelope says {envelope.records}"
            )
        columns = [
            with_valid_offsets(column) if offsets else column
            for column, (_, offsets) in zip(batch.columns, self._decoded, strict=True)
        ]
        try:
            for array, (field, _) in zip(columns, self._decoded, strict=True):
                check_column(array, field.type, field.name)
        except ValueMismatch as error:
            raise InvalidBatch(
                f"record {error.position}, field {error.path!r} is invalid: {error.reason}"
            ) from error
        return pa.RecordBatch.from_arrays(columns, schema=self.decoded_schema.arrow)

    def _read(self, value: bytes, start: int) -> pa.RecordBatch:
        """Read the decoded columns of the one IPC message in `value` from `start` on.

        Raises InvalidBatch. The batch passed Arrow's full validation, and refers to the memory of
        `value`.
        """
        if len(value) < start + 8 or _u32(value, start) != _MARKER:
            raise InvalidBatch("no Arrow message follows the envelope")
        metadata_bytes = _u32(value, start + 4)
        try:
            message = pa.ipc.read_message(pa.py_buffer(value).slice(start))
            metadata = message.metadata.to_pybytes()
            if message.type != "record batch":
                raise InvalidBatch(f"it is a {message.type}, not a record batch")
            self._check_metadata(metadata, message.body.size)
            if start + 8 + metadata_bytes + message.body.size != len(value):
                raise InvalidBatch("its length is not that of its Arrow message")
            batch = pa.ipc.read_record_batch(message, self._schema.arrow)
            if self.decoded_schema is not self._schema:
                batch = batch.select(self.decoded_schema.arrow.names)
            batch.validate(full=True)
        except (pa.ArrowException, OSError, EOFError, struct.error, OverflowError) as error:
            raise InvalidBatch(f"its Arrow message is malformed: {error}") from error
        return batch

    def _check_metadata(self, metadata: bytes, body_bytes: int) -> None:
        message = _Table(metadata, _u32(metadata, 0))
        if message.number(_VERSION, "<h") != _V5 or message.number(_HEADER_TYPE, "<B") != (
            _RECORD_BATCH
        ):
            raise InvalidBatch("its Arrow message is not a record batch of version V5")
        header = message.table(_HEADER)
        if header.has(_COMPRESSION):
            raise InvalidBatch("its body is compressed, which this format leaves to Kafka")
        if header.has(_VARIADIC):
            raise InvalidBatch("it has view buffers, which no type of a channel has")
        counts = (header.count(_NODES), header.count(_BUFFERS))
        if counts != (self._nodes, self._buffers):
            raise InvalidBatch(
                f"it has {counts[0]} columns in {counts[1]} buffers, "
                f"the schema has {self._nodes} in {self._buffers}"
            )
        if (claimed := sum(header.buffer_lengths(_BUFFERS))) > body_bytes:
            raise InvalidBatch(f"its columns claim {claimed} bytes, but its body has {body_bytes}")
