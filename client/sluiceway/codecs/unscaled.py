"""Decimals as bytes: the unscaled number in two's complement, the highest byte first.

Arrow holds it in 16 or 32 bytes, the lowest first. All of this works on whole arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from sluiceway.schema.arrow import arrow_type
from sluiceway.schema.types import Decimal

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def shortest_of_decimals(array: pa.Array) -> pa.Array:
    """Write each decimal as the fewest bytes that hold it, at least one."""
    rows = _rows(array)
    width = rows.shape[1]
    sign = _signs(rows)
    other = rows != sign[:, None]
    # The first byte that is not mere sign; the last one counts in any case.
    first = np.where(other.any(axis=1), other.argmax(axis=1), width - 1)
    top = np.take_along_axis(rows, first[:, None], axis=1)[:, 0]
    first -= (top ^ sign) >> 7  # a byte of sign more, where the number's own top bit says another
    kept = np.arange(width) >= first[:, None]
    if array.null_count:
        kept &= np.asarray(array.is_valid())[:, None]
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(kept.sum(axis=1), out=offsets[1:])
    data = np.ascontiguousarray(rows[kept])
    return _array(pa.binary(), array, [pa.py_buffer(offsets), pa.py_buffer(data)])


def fixed_of_decimals(array: pa.Array, size: int) -> pa.Array:
    """Write each decimal as `size` bytes, which hold it."""
    rows = _resized(_rows(array), size)
    return _array(pa.binary(size), array, [pa.py_buffer(np.ascontiguousarray(rows))])


def decimals_of_bytes(array: pa.Array, leaf: Decimal) -> pa.Array:
    """Read binaries as decimals of `leaf`.

    No bytes at all, or more than Arrow's decimal has, are read as a number of too many digits.
    """
    type_ = arrow_type(leaf)
    width = type_.byte_width
    count = len(array)
    if not count:
        return pa.array([], type_)
    _, offsets_buffer, data_buffer = array.buffers()
    bounds = np.frombuffer(offsets_buffer, np.int32, count + 1, array.offset * 4).astype(np.int64)
    lengths = np.diff(bounds)
    if array.null_count:
        lengths[np.asarray(array.is_null())] = 0
    readable = (lengths > 0) & (lengths <= width)
    lengths = np.where(readable, lengths, 0)
    data = np.frombuffer(data_buffer or b"\0", np.uint8)
    starts = bounds[:-1]
    top = data[np.where(readable, starts, 0)] if len(data) else np.zeros(count, np.uint8)
    sign = np.where(readable & (top > 0x7F), 0xFF, 0).astype(np.uint8)
    rows = np.repeat(sign[:, None], width, axis=1)
    # Byte by byte from the right: as many steps as the longest number has bytes.
    for place in range(int(lengths.max(initial=0))):
        has = lengths > place
        rows[has, width - 1 - place] = data[starts[has] + lengths[has] - 1 - place]
    return _decimals(rows, ~readable, array, leaf)


def decimals_of_fixed(array: pa.Array, leaf: Decimal) -> pa.Array:
    """Read binaries of one size as decimals of `leaf`; too large a one as too many digits."""
    size = array.type.byte_width
    width = arrow_type(leaf).byte_width
    buffer = array.buffers()[1]
    rows = np.frombuffer(buffer, np.uint8, len(array) * size, array.offset * size)
    rows = rows.reshape(-1, size)
    made = _resized(rows, width)
    lost = np.zeros(len(rows), np.bool_)
    if size > width:
        lost = (rows[:, : size - width] != _signs(made)[:, None]).any(axis=1)
    return _decimals(made, lost, array, leaf)


def _decimals(rows: _Bytes, lost: Any, array: pa.Array, leaf: Decimal) -> pa.Array:
    """Make an array of numbers, and of one too large for `leaf` where they are `lost`."""
    type_ = arrow_type(leaf)
    if lost.any():
        too_large = (10**leaf.precision).to_bytes(type_.byte_width, signed=True)
        rows = rows.copy()  # they may be the buffer of `array`
        rows[lost] = np.frombuffer(too_large, np.uint8)
    return _array(type_, array, [pa.py_buffer(np.ascontiguousarray(rows[:, ::-1]))])


def _rows(array: pa.Array) -> _Bytes:
    """Give the numbers of a decimal array as rows of bytes, the highest first."""
    width = array.type.byte_width
    data = np.frombuffer(array.buffers()[1], np.uint8, len(array) * width, array.offset * width)
    return data.reshape(-1, width)[:, ::-1]


def _signs(rows: _Bytes) -> _Bytes:
    """Give the byte that goes on forever to the left of each number."""
    return np.where(rows[:, 0] > 0x7F, 0xFF, 0).astype(np.uint8)


def _resized(rows: _Bytes, size: int) -> _Bytes:
    """Cut or lengthen numbers to `size` bytes, from the left."""
    width = rows.shape[1]
    if size <= width:
        return rows[:, width - size :]
    longer = np.repeat(_signs(rows)[:, None], size, axis=1)
    longer[:, size - width :] = rows
    return longer


def _array(type_: pa.DataType, like: pa.Array, buffers: list[pa.Buffer]) -> pa.Array:
    """Make an array with the nulls of `like`."""
    mask = pa.array(like.is_valid()).buffers()[1] if like.null_count else None
    return pa.Array.from_buffers(type_, len(like), [mask, *buffers], like.null_count)
