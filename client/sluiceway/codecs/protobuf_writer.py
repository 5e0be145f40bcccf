"""Columnar Protobuf encoder on NumPy: assembles many messages from columns.

It writes the bytes that `google.protobuf` writes for messages with the same values: fields in the
order of their numbers, numbers of lists packed, and no field with the default of a type without
presence. An entry of a map is a message without presence, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, time
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluiceway.codecs.base import NotRepresentable
from sluiceway.codecs.physical import bytes_of, convert_valid, decimals_to_bytes
from sluiceway.codecs.protobuf_columnar import (
    FIXED,
    NANOSECONDS,
    WireField,
    offsets_of,
    tag,
    varint,
)
from sluiceway.records.validation import list_contents
from sluiceway.schema import types as t
from sluiceway.schema.proto_files import WELL_KNOWN
from sluiceway.schema.protobuf import symbol_numbers

_Numbers: TypeAlias = np.ndarray[Any, Any]

_SEGMENT_BYTES: Final = 64
"""The most bytes a message that are assembled at once, so that they fit into the caches."""
_MAX_BYTES: Final = 2**31 - 1
_INTEGERS: Final = {32: pa.int32(), 64: pa.int64()}


def messages(batch: pa.RecordBatch, fields: Sequence[WireField], head: bytes) -> pa.Array:
    """Return the message of each row of a valid `batch`, after `head`.

    Raises NotRepresentable, and pyarrow.ArrowCapacityError for more than 2 GiB.
    """
    pieces = _Pieces(batch.num_rows)
    pieces.add(head)
    _add_fields(pieces, batch.columns, fields)
    return pieces.joined()


class _Pieces:
    """The bytes of messages, put together piece by piece.

    Pieces of up to ten bytes are cells of a matrix with a row a message. Cells that belong to no
    message are left out.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._cells: list[tuple[Any, Any]] = []
        self._width = 0
        self._sizes: Any = 0
        self._parts: list[pa.Array] = []

    def add(self, data: bytes, there: _Numbers | None = None) -> None:
        """Add the same bytes to the messages where `there` is true; None: to all."""
        sizes = len(data) if there is None else there * len(data)
        self._add(np.frombuffer(data, np.uint8)[:, None], there, len(data), sizes)

    def add_fixed(self, values: _Numbers, there: _Numbers | None = None) -> None:
        """Add numbers of a fixed width."""
        width = values.dtype.itemsize
        cells = np.ascontiguousarray(values).view(np.uint8).reshape(-1, width).T
        self._add(cells, there, width, width if there is None else there * width)

    def add_varints(self, values: _Numbers, there: _Numbers | None = None) -> None:
        """Add unsigned numbers of 64 bits in groups of 7, the lowest first."""
        width = max(1, -(-int(values.max(initial=0)).bit_length() // 7))
        groups = [values >> np.uint64(7 * place) for place in range(width)]
        kept = np.ones((width, self._rows), np.bool_)
        sizes: _Numbers = np.ones(self._rows, np.int64)
        for place in range(1, width):
            np.not_equal(groups[place], 0, out=kept[place])
            sizes += kept[place]
        cells = np.empty((width, self._rows), np.uint8)
        for place, group in enumerate(groups):
            cells[place] = group & np.uint64(0x7F)
            if place + 1 < width:
                # All groups but the last one have the highest bit.
                cells[place] |= kept[place + 1].view(np.uint8) << 7
        if there is not None:
            kept &= there
            sizes = sizes * there
        self._add(cells, kept, width, sizes)

    def _add(self, cells: Any, kept: Any, width: int, sizes: Any) -> None:
        if self._width + width > _SEGMENT_BYTES:
            self._end_segment()
        self._cells.append((cells, kept))
        self._width += width
        self._sizes = self._sizes + sizes

    def add_contents(self, contents: pa.Array) -> None:
        """Add binary values, none of them null."""
        self._end_segment()
        self._parts.append(contents)

    def _end_segment(self) -> None:
        if not self._cells:
            return
        cells = np.empty((self._rows, self._width), np.uint8)
        kept = np.ones((self._rows, self._width), np.bool_)
        start = 0
        for data, mask in self._cells:
            stop = start + len(data)
            cells[:, start:stop] = data.T
            if mask is not None:
                kept[:, start:stop] = mask.T if mask.ndim == 2 else mask[:, None]
            start = stop
        offsets = offsets_of(np.broadcast_to(self._sizes, self._rows))
        data = cells if kept.all() else np.compress(kept.ravel(), cells.ravel())
        self._parts.append(_binary(offsets, data))
        self._cells, self._width, self._sizes = [], 0, 0

    def joined(self) -> pa.Array:
        """Return the messages."""
        self._end_segment()
        return pc.binary_join_element_wise(*self._parts, b"")


def _binary(offsets: _Numbers, data: Any) -> pa.Array:
    """Return the bytes between two offsets each."""
    if len(offsets) and offsets[-1] > _MAX_BYTES:
        raise pa.ArrowCapacityError("more than 2 GiB of messages")
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _add_fields(pieces: _Pieces, columns: Sequence[pa.Array], fields: Sequence[WireField]) -> None:
    _require_one_member(columns, fields)
    pairs = zip(fields, columns, strict=True)
    for field, array in sorted(pairs, key=lambda pair: pair[0].proto.number):
        if field.proto.label == "map":
            pieces.add_contents(_valid(array, lambda maps, field=field: _entries(maps, field)))
        elif field.proto.label == "repeated" and not field.is_number:
            pieces.add_contents(_valid(array, lambda lists, field=field: _items(lists, field)))
        elif field.proto.label == "repeated":
            packed = _valid(array, lambda lists, field=field: _packed(lists, field))
            _add_contents(pieces, field.tag, packed, always=False)
        else:
            always = field.nullable or field.is_message
            _add_value(pieces, field, field.tag, array, always=always)


def _require_one_member(columns: Sequence[pa.Array], fields: Sequence[WireField]) -> None:
    oneofs: dict[str, list[tuple[WireField, _Numbers]]] = {}
    for field, array in zip(fields, columns, strict=True):
        if (oneof := field.proto.oneof) is None:
            continue
        there = np.asarray(array.is_valid())
        for other, earlier in oneofs.setdefault(oneof, []):
            if (there & earlier).any():
                reason = f"it is set beside {other.name!r}, and both are of the oneof {oneof!r}"
                raise NotRepresentable(field.path, reason)
        oneofs[oneof].append((field, there))


def _add_value(
    pieces: _Pieces, field: WireField, tag_: bytes, array: pa.Array, *, always: bool
) -> None:
    """Add values that are not null; those of a default only if `always`."""
    there = np.asarray(array.is_valid()) if array.null_count else None
    if not field.is_number:
        _add_contents(pieces, tag_, _contents(array, field), there, always=always)
        return
    values = _numbers(array, field)
    if not always:
        # As bits, so that -0.0 is not the default.
        there = _unless_all(values.view(f"u{values.dtype.itemsize}") != 0)
    pieces.add(tag_, there)
    _add_numbers(pieces, field, values, there)


def _unless_all(there: _Numbers) -> _Numbers | None:
    return None if there.all() else there


def _add_numbers(
    pieces: _Pieces, field: WireField, values: _Numbers, there: _Numbers | None = None
) -> None:
    if field.proto.type in FIXED:
        pieces.add_fixed(values, there)
    else:
        pieces.add_varints(values, there)


def _add_contents(
    pieces: _Pieces,
    tag_: bytes,
    contents: pa.Array,
    there: _Numbers | None = None,
    *,
    always: bool = True,
) -> None:
    lengths = _lengths(contents)
    if not always:
        # Null values are empty.
        there = _unless_all(lengths > 0)
    pieces.add(tag_, there)
    pieces.add_varints(lengths, there)
    pieces.add_contents(contents)


def _lengths(contents: pa.Array) -> _Numbers:
    return np.asarray(pc.binary_length(contents)).astype(np.uint64)


def _valid(array: pa.Array, convert: Any) -> pa.Array:
    """Convert lists or maps to bytes; below null records they are null, and give none."""
    return convert_valid(array, convert).fill_null(b"")


def _packed(lists: pa.Array, field: WireField) -> pa.Array:
    offsets, (values,) = list_contents(lists)
    pieces = _Pieces(len(values))
    _add_numbers(pieces, field, _numbers(values, field))
    return _together(offsets, pieces.joined())


def _items(lists: pa.Array, field: WireField) -> pa.Array:
    offsets, (values,) = list_contents(lists)
    pieces = _Pieces(len(values))
    _add_contents(pieces, field.tag, _contents(values, field))
    return _together(offsets, pieces.joined())


def _entries(maps: pa.Array, field: WireField) -> pa.Array:
    offsets, (keys, values) = list_contents(maps)
    entries = _Pieces(len(keys))
    _add_contents(entries, tag(1, "string"), keys.cast(pa.binary()), always=False)
    _add_value(entries, field, tag(2, field.proto.type), values, always=field.is_message)
    pieces = _Pieces(len(keys))
    _add_contents(pieces, field.tag, entries.joined())
    return _together(offsets, pieces.joined())


def _together(offsets: _Numbers, items: pa.Array) -> pa.Array:
    """Return the bytes of all items of each list."""
    ends = offsets_of(_lengths(items).astype(np.int64))
    return _binary(ends[offsets], items.buffers()[2] or b"")


def _numbers(array: pa.Array, field: WireField) -> _Numbers:
    """Return numbers as they are on the wire; nulls are 0."""
    type_, leaf = field.proto.type, field.proto.value
    if isinstance(leaf, t.Decimal):
        words = np.ascontiguousarray(bytes_of(array)).view("<u8")
        if array.null_count:
            words = words * np.asarray(array.is_valid())[:, None]
        _require(not words[:, 1].any(), field)
        return words[:, 0]
    if isinstance(leaf, t.Enum):
        numbers = symbol_numbers(leaf, field.path)
        table = np.array([*(numbers[symbol] for symbol in leaf.symbols), 0], np.int64)
        places = pc.index_in(array, value_set=pa.array(leaf.symbols)).fill_null(len(table) - 1)
        own: _Numbers = table[places.to_numpy()].view(np.uint64)
        return own
    if array.null_count:
        array = array.fill_null(False if type_ == "bool" else 0)
    values: _Numbers = array.to_numpy(zero_copy_only=False)
    if type_ in ("uint32", "fixed32"):
        _require(not (values >> 32).any(), field)
    if type_ == "fixed32":
        return values.astype(np.uint32)
    if type_ in FIXED:
        return values
    values = values.astype(np.int64)
    if type_ in ("sint32", "sint64"):
        values = values << 1 ^ values >> 63
    return values.view(np.uint64)


def _require(fits: bool, field: WireField) -> None:
    if not fits:
        raise NotRepresentable(field.path, f"it is not a number of the type {field.proto.type}")


def _contents(array: pa.Array, field: WireField) -> pa.Array:
    """Return texts, bytes and messages as bytes; nulls are empty."""
    type_, value = field.proto.type, field.proto.value
    if isinstance(value, t.Record):
        pieces = _Pieces(len(array))
        # `flatten` makes fields null below a null record, so it is empty.
        _add_fields(pieces, array.flatten(), field.record)
        return pieces.joined()
    if type_ in WELL_KNOWN:
        return _well_known(array, field)
    contents = array.cast(pa.binary())
    return contents.fill_null(b"") if contents.null_count else contents


def _well_known(array: pa.Array, field: WireField) -> pa.Array:
    value = field.proto.value
    pieces = _Pieces(len(array))
    valid = np.asarray(array.is_valid())
    if isinstance(value, t.Decimal):
        unscaled = decimals_to_bytes(array).fill_null(b"")
        _add_contents(pieces, tag(1, "bytes"), unscaled, valid)
        pieces.add(tag(2, "uint32") + varint(value.precision), valid)
        if value.scale:
            pieces.add(tag(3, "int32") + varint(value.scale), valid)
        return pieces.joined()
    assert isinstance(value, t.Scalar)  # noqa: S101 - by `proto_field`
    kind = value.kind
    stored = array.view(_INTEGERS[kind.physical.traits.bits])
    numbers = stored.fill_null(0).to_numpy().astype(np.int64)
    low, high = kind.range
    if ((numbers < low) | (numbers > high)).any():
        reason = "it is outside of the years 1 to 9999, which Protobuf's dates and timestamps have"
        raise NotRepresentable(field.path, reason)
    if kind.traits.python is date:
        parts = _calendar(numbers)
    else:
        seconds, rest = np.divmod(numbers, kind.ticks)
        nanos = rest * (NANOSECONDS // kind.ticks)
        parts = [seconds, nanos]
        if kind.traits.python is time:
            parts = [seconds // 3600, seconds // 60 % 60, seconds % 60, nanos]
    for number, part in enumerate(parts, 1):
        there = (part != 0) & valid
        pieces.add(tag(number, "int64"), there)
        pieces.add_varints(part.view(np.uint64), there)
    return pieces.joined()


def _calendar(days: _Numbers) -> list[_Numbers]:
    """Return the years, months and days of the month of days since 1970."""
    dates = days.astype("datetime64[D]")
    months, years = dates.astype("datetime64[M]"), dates.astype("datetime64[Y]")
    day = (dates - months.astype("datetime64[D]")).astype(np.int64) + 1
    month = (months - years.astype("datetime64[M]")).astype(np.int64) + 1
    return [years.astype(np.int64) + 1970, month, day]
