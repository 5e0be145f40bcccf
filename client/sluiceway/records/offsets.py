"""Arrays of no length, whose single offset some writers of Arrow leave out or get wrong."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types


def with_offsets(array: pa.Array) -> pa.Array:
    """Return `array` with a zero for offset in every empty text, list and map that it holds.

    An array of no items may come without its only offset, as Java's Arrow (and so Spark) writes
    it. Arrow's C interface, which knows no lengths of buffers, would read one all the same, from
    whatever memory comes next.
    """
    if not _lacks_offsets(array):
        return array
    # Taking every row builds the array anew.
    return array.take(pa.array(range(len(array)), pa.int64()))


def _lacks_offsets(array: pa.Array) -> bool:
    kind = array.type
    if types.is_struct(kind):
        return any(_lacks_offsets(array.field(i)) for i in range(kind.num_fields))
    width = _offset_bytes(kind)
    if not width:
        return False
    offsets = array.buffers()[1]
    if offsets is None or offsets.size < width * (array.offset + len(array) + 1):
        return True
    if not len(array) and any(memoryview(offsets)[width * array.offset :][:width]):
        return True  # Arrow does not validate what an array without items says they are
    if types.is_map(kind):
        return _lacks_offsets(array.keys) or _lacks_offsets(array.items)
    if types.is_list(kind) or types.is_large_list(kind):
        return _lacks_offsets(array.values)
    return False


def _offset_bytes(kind: pa.DataType) -> int:
    if types.is_large_string(kind) or types.is_large_binary(kind) or types.is_large_list(kind):
        return 8
    plain = (types.is_string, types.is_binary, types.is_list, types.is_map)
    return 4 if any(is_kind(kind) for is_kind in plain) else 0
