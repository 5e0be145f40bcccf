"""Columnar Protobuf decoder on NumPy: reads a field of many messages at once.

It reads messages as Protobuf's libraries write them: fields in the order of their numbers, numbers
of lists packed, and nothing else. All other messages are reported as suspect, for instance those
with unknown fields, with a field that is there twice, or with a value that is not one of its type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from itertools import count
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluiceway.codecs.avro_strict import BUDGET_PER_BYTE, CELL_BYTES, width
from sluiceway.codecs.base import RUN_BYTES
from sluiceway.codecs.physical import array_like, decimals_from_bytes
from sluiceway.codecs.record_messages import NotDecodable
from sluiceway.records.validation import invalid_rows
from sluiceway.schema import types as t
from sluiceway.schema.arrow import arrow_type, to_arrow
from sluiceway.schema.proto_files import WELL_KNOWN
from sluiceway.schema.protobuf import DECIMAL, ProtoField, proto_field, symbol_numbers

_Numbers = np.ndarray[Any, Any]

VARINT: Final = frozenset(
    {"bool", "enum", "int32", "int64", "sint32", "sint64", "uint32", "uint64"}
)
"""The types whose values are one varint."""

FIXED: Final = {
    **dict.fromkeys(("fixed32", "sfixed32", "float"), 4),
    **dict.fromkeys(("fixed64", "sfixed64", "double"), 8),
}
"""The bytes of the values of types that have a fixed width."""

NANOSECONDS: Final = 1_000_000_000

_KEY: Final = b"\x0a"
"""The tag of the keys of maps."""
_PADDING: Final = 32
"""The bytes behind the messages that may be read, and are not used."""
_LENGTH_BYTES: Final = 5
"""The most bytes of a length that all of Protobuf's libraries read."""
_TOO_LONG: Final = 1 << 40
"""The size of what cannot be read; no message is as long."""
_LONG_LIST: Final = 64
_FEW_LISTS: Final = 32
"""Of lists with more than `_LONG_LIST` texts or messages at most so many are left to the strict
decoder, which is faster then."""


def tag(number: int, type_: str, *, packed: bool = False) -> bytes:
    """Return the bytes before a value: the number of its field, and how the value is stored."""
    wire_type = 2 if packed or type_ not in VARINT | FIXED.keys() else 0
    if not wire_type:
        wire_type = {4: 5, 8: 1}.get(FIXED.get(type_, 0), 0)
    return varint(number << 3 | wire_type)


def varint(value: int) -> bytes:
    """Return a number of up to 64 bits in groups of 7, the lowest first."""
    groups = [value >> shift & 0x7F for shift in range(0, max(1, value.bit_length()), 7)]
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


@dataclass(frozen=True, kw_only=True)
class WireField:
    """A field of a message, with the fields of the message in it."""

    name: str
    tag: bytes
    proto: ProtoField
    nullable: bool
    path: str
    record: tuple[WireField, ...] = ()

    @property
    def is_number(self) -> bool:
        """Whether the field has numbers: unlike texts and messages, these have no length prefix."""
        return self.proto.type in VARINT | FIXED.keys()

    @property
    def is_message(self) -> bool:
        """Whether the field has messages: these have presence, even if they are not optional."""
        return isinstance(self.proto.value, t.Record) or self.proto.type in WELL_KNOWN


def wire_fields(record: t.Record, path: str = "") -> tuple[WireField, ...]:
    """Return the fields of `record`, in its order. Raises UnsupportedType and InvalidSchema."""
    made = []
    for field in record.fields:
        where = t.join_path(path, field.name)
        proto = proto_field(field, where)
        within = where + {"repeated": "[]", "map": "{}"}.get(proto.label, "")
        packed = proto.label in ("repeated", "map")
        if isinstance(enum := proto.value, t.Enum):
            numbers = symbol_numbers(enum, within)
            if missing := [symbol for symbol in enum.symbols if symbol not in numbers]:
                raise t.invalid_schema(within, f"its symbol {missing[0]!r} has no number")
        nested = proto.value if isinstance(proto.value, t.Record) else None
        made.append(
            WireField(
                name=field.name,
                tag=tag(proto.number, proto.type, packed=packed),
                proto=proto,
                nullable=isinstance(field.type, t.Nullable),
                path=within,
                record=() if nested is None else wire_fields(nested, within),
            )
        )
    return tuple(made)


def supports(record: t.Record) -> bool:
    """Return whether any messages of `record` take memory in proportion to their bytes."""
    expansion = 0
    for type_ in t.walk(record):
        match type_:
            case t.Array(items=t.Scalar() | t.Decimal() | t.Enum() as item):
                expansion += CELL_BYTES * width(item)
            case t.Array(items=item):
                # All but numbers have a tag and a length.
                expansion += CELL_BYTES * width(item) // 2
            case t.Map(values=item):
                expansion += CELL_BYTES * (2 + width(item)) // 2
    return expansion <= BUDGET_PER_BYTE


class ColumnarProtobufReader:
    """Decoder for messages of `fields` that begin with one of `heads`.

    Only the fields of `decoded` are returned.
    """

    def __init__(
        self, fields: Sequence[WireField], heads: Sequence[bytes], decoded: t.Record
    ) -> None:
        self._fields = fields
        self._heads = heads
        self._decoded = decoded
        self._schema = to_arrow(decoded)

    def decode(self, values: Sequence[bytes | None]) -> tuple[pa.RecordBatch, list[int]]:
        """Decode a row from each message; return also the rows that need the strict decoder.

        Raises NotDecodable.
        """
        array = pa.array(values, pa.binary())
        if isinstance(array, pa.ChunkedArray) or array.nbytes > RUN_BYTES:
            raise NotDecodable
        text = _Text(array, padding=max(map(len, self._heads)))
        lengths = pc.binary_length(array)
        bounds = offsets_of(np.asarray(lengths.fill_null(0) if array.null_count else lengths))
        starts, ends = bounds[:-1], bounds[1:]
        suspect = np.ones(len(array) + 1, np.bool_)
        for head in self._heads:
            begins = text.begins(starts, ends, head) & suspect[:-1]
            suspect[:-1] &= ~begins
            starts = starts + begins * len(head)
            if not suspect[:-1].any():
                break
        starts = np.where(suspect[:-1], ends, starts)
        cursor = _Cursor(text, starts, ends, np.arange(len(array)), suspect)
        names = [field.name for field in self._fields]
        columns = dict(zip(names, cursor.columns(self._fields), strict=True))
        own = [columns[name] for name in self._schema.names]
        batch = pa.RecordBatch.from_arrays(own, schema=self._schema)
        rows = set(np.flatnonzero(suspect[:-1]).tolist())
        return batch, sorted(rows | invalid_rows(batch, self._decoded))


class _Text:
    """Bytes with messages, and padding behind them."""

    def __init__(self, array: pa.Array, padding: int = 0) -> None:
        """Copy the bytes of a binary array that is no slice of another one."""
        data = array.buffers()[2] or b""
        self.size = len(data)
        padded = self.size + max(padding, _PADDING)
        self.data = np.zeros(padded, np.uint8)
        self.data[: self.size] = np.frombuffer(data, np.uint8)
        # The eight bytes from each byte on.
        self._words = np.ndarray((padded - 7,), "<u8", self.data, strides=(1,))

    def begins(self, at: _Numbers, ends: _Numbers, expected: bytes) -> _Numbers:
        """Return where the bytes from `at` to `ends` begin as expected."""
        matches = ends - at >= len(expected)
        for index, byte in enumerate(expected):
            matches &= self.data[at + index] == byte
        return matches

    def numbers(self, at: _Numbers, type_: str) -> tuple[_Numbers, _Numbers | int]:
        """Return the numbers from `at` on, as unsigned ones of 64 bits, and their sizes in bytes.

        The size of a varint that is none of 64 bits is `_TOO_LONG`.
        """
        if size := FIXED.get(type_):
            words = self._words[at]
            return (words & 0xFFFF_FFFF if size == 4 else words), size
        first = self.data[at]
        if not (first & 0x80).any():
            return first.astype(np.uint64), 1
        words = self._words[at]
        ends = ~words & 0x8080_8080_8080_8080
        # The bytes up to the first one that ends a number.
        own = ends ^ (ends - 1)
        sizes = ((own & 0x0101_0101_0101_0101) * 0x0101_0101_0101_0101 >> 56).astype(np.int64)
        groups = words & own & 0x7F7F_7F7F_7F7F_7F7F
        # Two groups of 7 bits become one of 14, two of these one of 28, and these one of 56.
        groups = groups & 0x007F_007F_007F_007F | (groups & 0x7F00_7F00_7F00_7F00) >> 1
        groups = groups & 0x0000_3FFF_0000_3FFF | (groups & 0x3FFF_0000_3FFF_0000) >> 2
        values = groups & 0x0000_0000_0FFF_FFFF | (groups & 0x0FFF_FFFF_0000_0000) >> 4
        longer = np.flatnonzero(ends == 0)
        if len(longer):
            ninth, tenth = (self.data[at[longer] + place].astype(np.uint64) for place in (8, 9))
            values[longer] |= (ninth & 0x7F) << 56
            has_tenth = ninth > 0x7F
            values[longer] |= np.where(has_tenth, tenth << 63, 0).astype(np.uint64)
            tenth_size = np.where(tenth > 1, _TOO_LONG, 10)
            sizes[longer] = np.where(has_tenth, tenth_size, 9)
        return values, sizes

    def cut(self, begins: _Numbers, ends: _Numbers, nulls: _Numbers | None = None) -> pa.Array:
        """Return the bytes from each begin to its end; no range begins before another one ends."""
        bounds = np.zeros(2 * len(begins) + 1, np.int32)
        bounds[:-1:2], bounds[1::2] = begins, ends
        bounds[-1] = self.size
        # Every other element is what is between two ranges.
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self.data)]
        pieces = pa.Array.from_buffers(pa.binary(), 2 * len(begins), buffers)
        return pieces.take(pa.array(np.arange(0, 2 * len(begins), 2), mask=nulls))


class _Cursor:
    """Read positions in messages, or in parts of them.

    `rows` are the messages to which the parts belong; those of -1 are not checked.
    """

    def __init__(
        self, text: _Text, starts: _Numbers, ends: _Numbers, rows: _Numbers, suspect: _Numbers
    ) -> None:
        self._text = text
        self._at = starts
        self._ends = ends
        self._rows = rows
        self._suspect = suspect

    def columns(self, fields: Sequence[WireField]) -> list[pa.Array]:
        """Read whole messages with these fields; return a column for each."""
        arrays: dict[str, pa.Array] = {}
        oneofs: dict[str, _Numbers] = {}
        for field in sorted(fields, key=lambda field: field.proto.number):
            if field.proto.label == "map":
                arrays[field.name] = self.maps(field)
            elif field.proto.label == "repeated":
                arrays[field.name] = self.lists(field)
            else:
                there = self.take(field.tag)
                nulls = ~there if field.nullable else None
                if field.is_message and not field.nullable:
                    self.suspect_where(~there)
                if oneof := field.proto.oneof:
                    self.suspect_where(there & oneofs.get(oneof, False))
                    oneofs[oneof] = there | oneofs.get(oneof, False)
                arrays[field.name] = self.values(field, there, nulls)
        self.finish()
        return [arrays[field.name] for field in fields]

    def take(self, tag_: bytes) -> _Numbers:
        """Return where a field is next, and move behind its tag there."""
        there = self._text.begins(self._at, self._ends, tag_)
        self._at = self._at + there * len(tag_)
        return there

    def values(self, field: WireField, there: _Numbers, nulls: _Numbers | None) -> pa.Array:
        if field.is_number:
            return self.converted(field.proto, self.numbers(there, field.proto.type), nulls)
        return self.contents(field, *self.ranges(there), nulls)

    def numbers(self, there: _Numbers, type_: str) -> _Numbers:
        """Read numbers; they are 0 where there are none."""
        numbers, sizes = self._text.numbers(self._at, type_)
        self.skip(sizes * there)
        return numbers * there

    def ranges(self, there: _Numbers) -> tuple[_Numbers, _Numbers]:
        """Read lengths; return the begins and ends of what is so long, which is skipped."""
        at = self._at
        lengths = np.minimum(self.numbers(there, "uint64"), _TOO_LONG).astype(np.int64)
        self.suspect_where(self._at - at > _LENGTH_BYTES)
        begins = self._at
        self.skip(lengths)
        return begins, self._at

    def skip(self, sizes: _Numbers) -> None:
        at = self._at + sizes
        beyond = at > self._ends
        if beyond.any():
            self.suspect_where(beyond)
            at = np.where(beyond, self._ends, at)
        self._at = at

    def finish(self) -> None:
        """Suspect messages with more bytes."""
        self.suspect_where(self._at != self._ends)

    def suspect_where(self, wrong: _Numbers, rows: _Numbers | None = None) -> None:
        if wrong.any():
            rows = (self._rows if rows is None else rows)[wrong]
            self._suspect[rows] = True

    def lists(self, field: WireField) -> pa.Array:
        proto = field.proto
        if field.is_number:
            offsets, numbers, rows = self.packed(field)
            items = _Cursor(self._text, rows, rows, rows, self._suspect)
            values = items.converted(proto, numbers, None)
        else:
            offsets, begins, ends, items = self.items(field.tag)
            values = items.contents(field, begins, ends, None)
        type_ = arrow_type(t.Array(items=proto.value))
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=type_)

    def maps(self, field: WireField) -> pa.Array:
        proto = field.proto
        offsets, begins, ends, items = self.items(field.tag)
        entries = items.parts(begins, ends, None)
        keys = _strings(self._text.cut(*entries.ranges(entries.take(_KEY))))
        # A value that is missing is the default of its type, also that of messages.
        values = entries.values(field, entries.take(tag(2, proto.type)), None)
        entries.finish()
        type_ = arrow_type(t.Map(values=proto.value))
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, values, type=type_)

    def items(self, tag_: bytes) -> tuple[_Numbers, _Numbers, _Numbers, _Cursor]:
        """Read all items of lists; return the lists' offsets, and the items' begins and ends.

        The cursor is that of the items' rows.
        """
        at = self._at.copy()
        active = np.arange(len(at))
        turns: list[tuple[_Numbers, _Numbers, _Numbers]] = []
        for turn in count():
            active = active[self._text.begins(at[active], self._ends[active], tag_)]
            if not len(active) or (turn >= _LONG_LIST and len(active) <= _FEW_LISTS):
                break
            rows = self._rows[active]
            item = _Cursor(self._text, at[active], self._ends[active], rows, self._suspect)
            begins, ends = item.ranges(item.take(tag_))
            at[active] = ends
            turns.append((active, begins, ends))
        # What is left of long lists is not read, and so suspect.
        self._at = at
        nothing = np.empty(0, np.int64)
        owners, begins, ends = map(np.concatenate, zip(*turns, (nothing,) * 3, strict=True))
        order = np.argsort(owners, kind="stable")
        offsets = offsets_of(np.bincount(owners, minlength=len(at)))
        begins, ends, rows = begins[order], ends[order], self._rows[owners[order]]
        return offsets, begins, ends, _Cursor(self._text, begins, ends, rows, self._suspect)

    def packed(self, field: WireField) -> tuple[_Numbers, _Numbers, _Numbers]:
        """Read packed numbers; return the lists' offsets, the numbers, and their rows."""
        begins, ends = self.ranges(self.take(field.tag))
        if size := FIXED.get(field.proto.type):
            cut_off = (ends - begins) % size != 0
        else:
            cut_off = (self._text.data[ends - 1] > 0x7F) & (ends > begins)
        self.suspect_where(cut_off)
        ends = np.where(cut_off, begins, ends)
        text = _Text(self._text.cut(begins, ends))
        bounds = offsets_of(ends - begins)
        if size:
            offsets, stops = bounds // size, np.arange(size, text.size + 1, size)
        else:
            stops = np.flatnonzero(text.data[: text.size] < 0x80) + 1
            offsets = np.searchsorted(stops, bounds, side="right")
        starts = np.concatenate([np.zeros(1, np.int64), stops])[:-1]
        numbers, sizes = text.numbers(starts, field.proto.type)
        rows = np.repeat(self._rows, np.diff(offsets))
        self.suspect_where(starts + sizes != stops, rows)
        return offsets, numbers, rows

    def converted(self, proto: ProtoField, numbers: _Numbers, nulls: _Numbers | None) -> pa.Array:
        """Return the values of the unsigned `numbers` on the wire."""
        leaf = proto.value
        if isinstance(leaf, t.Decimal):
            return _unsigned_decimals(numbers, leaf, nulls)
        if isinstance(leaf, t.Enum):
            return self.symbols(leaf, numbers, nulls)
        return pa.array(_stored(numbers, proto.type), arrow_type(leaf), mask=nulls)

    def symbols(self, enum: t.Enum, numbers: _Numbers, nulls: _Numbers | None) -> pa.Array:
        by_symbol = symbol_numbers(enum, "")
        symbols = sorted(enum.symbols, key=by_symbol.__getitem__)
        own = np.array([by_symbol[symbol] for symbol in symbols])
        stored = numbers.view(np.int64)
        places = np.minimum(np.searchsorted(own, stored), len(own) - 1)
        # The strict decoder finds the default of an enum.
        self.suspect_where(own[places] != stored)
        return pa.array(symbols).take(pa.array(places, mask=nulls))

    def contents(
        self, field: WireField, begins: _Numbers, ends: _Numbers, nulls: _Numbers | None
    ) -> pa.Array:
        """Return the values of texts, bytes and messages."""
        proto = field.proto
        match proto.value:
            case t.Record() as record:
                columns = self.parts(begins, ends, nulls).columns(field.record)
                mask = None if nulls is None else pa.array(nulls)
                type_ = arrow_type(record)
                return pa.StructArray.from_arrays(columns, fields=list(type_), mask=mask)
            case t.Decimal() as leaf:
                parts = self.parts(begins, ends, nulls)
                read = parts.members_of(DECIMAL, nulls)
                parts.suspect_where(read["scale"] != leaf.scale)
                decimals = decimals_from_bytes(read["value"], leaf)
                # Arrow validates also the values below null records.
                zero = pa.scalar(Decimal(0), decimals.type)
                below_null = pa.array(self._rows < 0)
                return pc.if_else(below_null, zero, decimals)
            case t.Scalar(kind=kind) if proto.type in WELL_KNOWN:
                parts = self.parts(begins, ends, nulls)
                values, wrong = _moments(parts.members_of(proto.type, nulls), kind)
                parts.suspect_where(wrong)
                stored = pa.array(values, arrow_type(t.Scalar(kind=kind.physical)), mask=nulls)
                return stored.view(arrow_type(proto.value))
        texts = self._text.cut(begins, ends, nulls)
        match proto.value:
            case t.Fixed(size=size) | t.Uuid(fixed=t.Fixed(size=size)):
                wrong = ends - begins != size
                self.suspect_where(wrong if nulls is None else wrong & ~nulls)
                return _fixed(texts, wrong, size)
            case t.Scalar(kind=t.Kind.BYTES):
                return texts
        return _strings(texts)

    def parts(self, begins: _Numbers, ends: _Numbers, nulls: _Numbers | None) -> _Cursor:
        rows = self._rows if nulls is None else np.where(nulls, -1, self._rows)
        return _Cursor(self._text, begins, ends, rows, self._suspect)

    def members_of(self, name: str, nulls: _Numbers | None) -> dict[str, Any]:
        """Read well-known messages; return numbers, or the binary array of a decimal."""
        read: dict[str, Any] = {}
        (declared,) = WELL_KNOWN[name].messages.values()
        for member in declared:
            there = self.take(tag(member.number, member.type))
            if member.type == "bytes":
                read[member.name] = self._text.cut(*self.ranges(there), nulls)
            else:
                read[member.name] = _stored(self.numbers(there, member.type), member.type)
        self.finish()
        return read


def _strings(texts: pa.Array) -> pa.Array:
    try:
        return texts.cast(pa.string())
    except pa.ArrowInvalid as error:  # not UTF-8
        raise NotDecodable from error


def _fixed(texts: pa.Array, wrong: _Numbers, size: int) -> pa.Array:
    """Return values of one size; the `wrong` ones have another size, or are null."""
    filled = pc.if_else(pa.array(wrong), pa.scalar(bytes(size)), texts) if wrong.any() else texts
    return array_like(pa.binary(size), texts, [filled.buffers()[2] or pa.py_buffer(b"")])


def _unsigned_decimals(numbers: _Numbers, leaf: t.Decimal, nulls: _Numbers | None) -> pa.Array:
    words = np.zeros((len(numbers), 2), "<u8")
    words[:, 0] = numbers
    valid = None if nulls is None else pa.array(~nulls).buffers()[1]
    return pa.Array.from_buffers(arrow_type(leaf), len(numbers), [valid, pa.py_buffer(words)])


def _stored(numbers: _Numbers, type_: str) -> _Numbers:
    """Return the values of a scalar type; higher bits do not count, as in Protobuf."""
    match type_:
        case "bool":
            return numbers.astype(np.bool_)
        case "int32" | "sfixed32":
            return numbers.astype(np.int32)
        case "uint32" | "fixed32":
            return numbers.astype(np.uint32).astype(np.int64)
        case "sint32":
            return _unzigzagged(numbers & 0xFFFF_FFFF).astype(np.int32)
        case "sint64":
            return _unzigzagged(numbers)
        case "float":
            return numbers.astype(np.uint32).view(np.float32)
        case "double":
            return numbers.view(np.float64)
    return numbers.view(np.int64)


def _unzigzagged(numbers: _Numbers) -> _Numbers:
    values: _Numbers = (numbers >> 1).view(np.int64) ^ -(numbers & 1).view(np.int64)
    return values


def _moments(read: dict[str, _Numbers], kind: t.Kind) -> tuple[_Numbers, _Numbers]:
    """Return the stored numbers of dates, times or timestamps, and where these are none."""
    low, high = kind.range
    if kind.traits.python is date:
        year, month, day = (read[name].astype(np.int64) for name in ("year", "month", "day"))
        months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
        days = months.astype("datetime64[D]") + (day - 1)
        values = days.astype(np.int64)
        right = (month >= 1) & (month <= 12) & (day >= 1) & (days.astype("datetime64[M]") == months)
    else:
        if kind.traits.python is time:
            hours, minutes, second = (read[name] for name in ("hours", "minutes", "seconds"))
            seconds = (hours.astype(np.int64) * 60 + minutes) * 60 + second
            right = (hours >= 0) & (minutes >= 0) & (minutes < 60) & (second >= 0) & (second < 60)
        else:
            seconds = read["seconds"]
            right = (seconds >= low // kind.ticks) & (seconds <= high // kind.ticks)
        nanos = read["nanos"].astype(np.int64)
        fraction, finer = np.divmod(nanos, NANOSECONDS // kind.ticks)
        right &= (nanos >= 0) & (nanos < NANOSECONDS) & (finer == 0)
        seconds = np.where(right, seconds, 0)
        values = seconds * kind.ticks + fraction
        # Nanoseconds overflow within the first and the last second of 64 bits.
        right &= (values < 0) == (seconds < 0)
    right &= (values >= low) & (values <= high)
    return np.where(right, values, 0), ~right


def offsets_of(counts: _Numbers) -> _Numbers:
    """Return the offsets of parts of these lengths."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets
