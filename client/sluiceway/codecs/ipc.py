"""Arrow's IPC messages from people we do not know.

pyarrow checks that the metadata is a well-formed flatbuffer, but would decompress a body of any
claimed size. What the message says is therefore read here, before pyarrow acts on it. The tables'
layout is that of `Message.fbs` and `Schema.fbs` in Arrow's format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

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
