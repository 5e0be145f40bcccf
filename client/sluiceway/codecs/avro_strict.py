"""Strict Avro decoder: validates each byte, and limits the memory of a message.

It decodes the messages that the columnar codec does not reproduce, and gives the reason why a
message is corrupt.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from datetime import time
from typing import Any, Final, TypeAlias

from sluiceway.codecs.record_messages import MalformedMessage
from sluiceway.schema import types as t
from sluiceway.schema.defaults import unscaled_size

CELL_BYTES: Final = 8
BUDGET_PER_BYTE: Final = 1024
"""The most bytes of Arrow memory for one byte of a message."""


def width(type_: t.Type) -> int:
    """Count the Arrow cells of one value of `type_` in its own row, null or not."""
    match type_:
        case t.Nullable(item=item):
            return 1 + width(item)
        case t.Union(branches=branches):
            return 1 + sum(1 + width(branch) for branch in branches)
        case t.Record(fields=fields):
            return 1 + sum(width(field.type) for field in fields)
        case t.Fixed(size=size) | t.Uuid(fixed=t.Fixed(size=size)):
            return _cells(size)
        case t.Decimal():
            return 4
        case t.Enum(symbols=symbols):
            return 1 + _cells(max(map(len, symbols)))
        case _:
            return 1


def _cells(size_bytes: int) -> int:
    return -(-size_bytes // CELL_BYTES)


def expansion(type_: t.Type) -> int:
    """Return an upper bound of the Arrow bytes for one byte of a message in arrays and maps."""
    bound = 0
    for nested in t.walk(type_):
        match nested:
            case t.Array(items=item):
                bound += CELL_BYTES * width(item) // _min_bytes(item)
            case t.Map(values=item):
                bound += CELL_BYTES * (2 + width(item)) // (1 + _min_bytes(item))
    return bound


def widest(type_: t.Type) -> int:
    """Count the cells of the widest item of an array or map within `type_`."""
    most = 0
    for nested in t.walk(type_):
        match nested:
            case t.Array(items=item) | t.Map(values=item):
                most = max(most, 2 + width(item))
    return most


def _min_bytes(type_: t.Type) -> int:
    """Count the bytes of the shortest encoding of a value of `type_`."""
    match type_:
        case t.Record(fields=fields):
            return sum(_min_bytes(field.type) for field in fields)
        case t.Uuid(fixed=None):
            return 1 + t.UUID_TEXT_BYTES
        case t.Nullable() | t.Union() | t.Array() | t.Map():
            return 1
        case leaf:
            stored = t.physical(leaf)
            if isinstance(stored, t.Fixed):
                return stored.size
            return stored.traits.bits // 8 if stored.traits.python is float else 1


FREE_ITEMS: Final = 16
"""The number of items, also wide or null ones, that any message may have beyond its limits."""


class _Cursor:
    """A message, the read position in it, and the number of cells that it may still fill."""

    __slots__ = ("cells", "data", "position")

    def __init__(self, data: bytes, position: int, cells: int) -> None:
        self.data = data
        self.position = position
        self.cells = cells

    def take(self, count: int, path: str) -> bytes:
        if count < 0:
            raise MalformedMessage(f"field {path!r} has the negative length {count}")
        end = self.position + count
        if end > len(self.data):
            missing = end - len(self.data)
            raise MalformedMessage(f"field {path!r} is truncated: {missing} bytes are missing")
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def number(self, path: str, max_bytes: int = 10, bits: int = 64) -> int:
        position = self.position
        if position < len(self.data) and (byte := self.data[position]) < 0x80:  # nearly always
            self.position = position + 1
            return (byte >> 1) ^ -(byte & 1)
        raw = shift = 0
        for _ in range(max_bytes):
            byte = self.take(1, path)[0]
            raw |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                if raw >> bits:
                    break
                return (raw >> 1) ^ -(raw & 1)
        raise MalformedMessage(f"field {path!r} has a number of more than {bits} bits")


_Reader: TypeAlias = Callable[[_Cursor], Any]


class StrictReader:
    """Decoder for messages of `record`; values have their physical types."""

    def __init__(self, record: t.Record, schema_id: int) -> None:
        self._schema_id = schema_id
        self._read = _reader(record, "")
        self._cells = width(record) + FREE_ITEMS * widest(record)

    def read(self, value: bytes) -> dict[str, Any]:
        """Decode a message of one record, with its prefix.

        Raises MalformedMessage unless every byte belongs to it. Memory is limited by the length.
        """
        if len(value) < 5 or value[0] != 0:
            raise MalformedMessage(
                f"it begins with {value[:5]!r}, not with the byte 0 and a schema id as in the "
                "wire format of schema registries"
            )
        (schema_id,) = struct.unpack_from(">I", value, 1)
        if schema_id != self._schema_id:
            raise MalformedMessage(
                f"its schema id is {schema_id}, the channel's is {self._schema_id}"
            )
        cursor = _Cursor(value, 5, self._cells + len(value) * BUDGET_PER_BYTE // CELL_BYTES)
        record: dict[str, Any] = self._read(cursor)
        if left := len(value) - cursor.position:
            raise MalformedMessage(f"{left} bytes follow after the record")
        return record


def _reader(type_: t.Type, path: str) -> _Reader:
    match type_:
        case t.Nullable(item=t.Union(branches=branches), null_at=null_at):
            return _union(branches, null_at, path)
        case t.Union(branches=branches):
            return _union(branches, None, path)
        case t.Nullable(item=item, null_at=null_at):
            return _nullable(_reader(item, path), null_at, path)
        case t.Record(fields=fields):
            readers = [(f.name, _reader(f.type, t.join_path(path, f.name))) for f in fields]
            return lambda cursor: {name: read(cursor) for name, read in readers}
        case t.Array(items=items):
            return _blocks(_reader(items, f"{path}[]"), width(items), f"{path}[]")
        case t.Map(values=values):
            return _map(values, path)
        case leaf:
            return _leaf(leaf, path)


def _leaf(leaf: t.Leaf, path: str) -> _Reader:
    match leaf:
        case t.Scalar(kind=kind, python=python) if python is time:
            return _below(kind.range[1] + 1, _scalar(kind.physical, path), "a time of day", path)
        case t.Scalar(kind=kind):
            return _scalar(kind.physical, path)
        case t.Fixed(size=size) | t.Uuid(fixed=t.Fixed(size=size)):
            return lambda cursor: cursor.take(size, path)
        case t.Decimal():
            return _decimal(leaf, path)
        case t.Uuid():
            return _uuid(path)
        case t.Enum(symbols=symbols):
            return _below(len(symbols), _scalar(t.Kind.INT, path), "the number of a symbol", path)


def _below(end: int, read: _Reader, what: str, path: str) -> _Reader:
    def number(cursor: _Cursor) -> int:
        value: int = read(cursor)
        if not 0 <= value < end:
            raise MalformedMessage(f"field {path!r} is {value}, which is not {what}")
        return value

    return number


def _decimal(leaf: t.Decimal, path: str) -> _Reader:
    end = 10**leaf.precision
    fixed = leaf.fixed

    def decimal(cursor: _Cursor) -> bytes:
        data = cursor.take(cursor.number(path) if fixed is None else fixed.size, path)
        number = int.from_bytes(data, signed=True)
        if not data or not -end < number < end:
            raise MalformedMessage(
                f"field {path!r} is not a number of at most {leaf.precision} digits"
            )
        return data if fixed else number.to_bytes(unscaled_size(number), signed=True)

    return decimal


def _uuid(path: str) -> _Reader:
    read, matches = _scalar(t.Kind.STRING, path), re.compile(t.UUID_TEXT).fullmatch

    def text(cursor: _Cursor) -> str:
        value: str = read(cursor)
        if not matches(value):
            raise MalformedMessage(f"field {path!r} is not the text of a UUID")
        return value

    return text


def _scalar(kind: t.Kind, path: str) -> _Reader:
    def boolean(cursor: _Cursor) -> bool:
        byte = cursor.take(1, path)[0]
        if byte > 1:
            raise MalformedMessage(f"field {path!r} is the byte {byte}, which is not a boolean")
        return byte == 1

    def string(cursor: _Cursor) -> str:
        try:
            return cursor.take(cursor.number(path), path).decode("utf-8")
        except UnicodeDecodeError as error:
            raise MalformedMessage(f"field {path!r} is not UTF-8: {error.reason}") from error

    match kind:
        case t.Kind.BOOLEAN:
            return boolean
        case t.Kind.INT:
            return lambda cursor: cursor.number(path, 5, 32)
        case t.Kind.LONG:
            return lambda cursor: cursor.number(path)
        case t.Kind.FLOAT:
            return lambda cursor: struct.unpack("<f", cursor.take(4, path))[0]
        case t.Kind.DOUBLE:
            return lambda cursor: struct.unpack("<d", cursor.take(8, path))[0]
        case t.Kind.STRING:
            return string
        case _:
            return lambda cursor: cursor.take(cursor.number(path), path)


def _nullable(read: _Reader, null_at: int, path: str) -> _Reader:
    def nullable(cursor: _Cursor) -> Any:
        branch = cursor.number(path)
        if branch not in (0, 1):
            raise MalformedMessage(f"field {path!r} has the branch {branch} of a union of two")
        return None if branch == null_at else read(cursor)

    return nullable


def _union(branches: tuple[t.Branch, ...], null_at: int | None, path: str) -> _Reader:
    """Return the reader of a union's values in their Arrow form: a dict of the present branch."""
    readers: list[tuple[str, _Reader] | None] = [
        (str(number), _branch(branch, path)) for number, branch in enumerate(branches)
    ]
    if null_at is not None:
        readers.insert(null_at, None)

    def union(cursor: _Cursor) -> Any:
        number = cursor.number(path)
        if not 0 <= number < len(readers):
            raise MalformedMessage(
                f"field {path!r} has the branch {number} of a union of {len(readers)}"
            )
        branch = readers[number]
        if branch is None:
            return None
        name, read = branch
        return {name: read(cursor)}

    return union


def _branch(branch: t.Branch, path: str) -> _Reader:
    read = _reader(branch, path)
    if not isinstance(branch, t.Enum):
        return read
    symbols = branch.symbols  # an enum in a union keeps its symbols in the physical form
    return lambda cursor: symbols[read(cursor)]


def _blocks(read: _Reader, cells: int, path: str) -> _Reader:
    def blocks(cursor: _Cursor) -> list[Any]:
        items: list[Any] = []
        while count := cursor.number(path):
            end = None
            if count < 0:
                size = cursor.number(path)
                count, end = -count, cursor.position + size
            if count > len(cursor.data) - cursor.position:
                raise MalformedMessage(
                    f"field {path!r} claims {count} items, more than it has bytes"
                )
            cursor.cells -= count * cells
            if cursor.cells < 0:
                raise MalformedMessage(
                    f"field {path!r} would take more than {BUDGET_PER_BYTE} times its size"
                )
            items += [read(cursor) for _ in range(count)]
            if end is not None and cursor.position != end:
                raise MalformedMessage(f"field {path!r} has a block whose size is wrong")
        return items

    return blocks


def _map(values: t.Type, path: str) -> _Reader:
    read_key = _scalar(t.Kind.STRING, f"{path}{{}}")
    read_value = _reader(values, f"{path}{{}}")
    entries = _blocks(
        lambda cursor: (read_key(cursor), read_value(cursor)), 2 + width(values), path
    )

    def distinct(cursor: _Cursor) -> list[Any]:
        pairs: list[Any] = entries(cursor)
        if len({key for key, _ in pairs}) < len(pairs):
            raise MalformedMessage(f"field {path!r} has a duplicate key")
        return pairs

    return distinct
