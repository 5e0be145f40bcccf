"""What Arrow's own validation leaves out: forbidden nulls, and keys twice in a map."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from sluiceway.records.unfit import NULL, Unfit
from sluiceway.schema.types import Array, Map, Nullable, Record, Scalar, Type, below


def check_column(array: pa.Array, type_: Type, path: str) -> None:
    """Raise Unfit, with a position in `array`, unless it holds values of `type_` only.

    `array` is of the Arrow type of `type_` (or of its plain form), and valid as Arrow sees it.
    """
    for positions, child, child_type, child_path in _walk(array, type_, path):
        if child.null_count and not isinstance(child_type, Nullable):
            first = int(np.flatnonzero(child.is_null())[0])
            raise Unfit(_outer(positions, first), child_path, NULL)
        if _is_map(child_type) and len(rows := _rows_with_duplicates(child)):
            reason = "a key is there twice; keep one"
            raise Unfit(_outer(positions, int(rows[0])), child_path, reason)


def rows_with_duplicate_keys(batch: pa.RecordBatch, record: Record) -> set[int]:
    """Find the rows of `batch` in which some map has a key twice."""
    found: set[int] = set()
    for array, field in zip(batch.columns, record.fields, strict=True):
        if not _has_map(field.type):
            continue
        for positions, child, type_, _ in _walk(array, field.type, field.name):
            if _is_map(type_):
                rows = _rows_with_duplicates(child)
                found.update(_outer(positions, row) for row in rows.tolist())
    return found


_Walk = Iterator[tuple[Any, pa.Array, Type, str]]


def _walk(array: pa.Array, type_: Type, path: str, positions: Any = None) -> _Walk:
    """Visit `array` and all below it: where its values lie in the first array, type and path.

    Below a null nothing is visited, and nothing outside of what lists and maps refer to.
    """
    yield positions, array, type_, path
    present = type_.item if isinstance(type_, Nullable) else type_
    if isinstance(present, Scalar):
        return
    if array.null_count:
        valid = np.flatnonzero(array.is_valid())
        array = array.take(pa.array(valid))
        positions = valid if positions is None else positions[valid]
    match present:
        case Record(fields=fields):
            for number, field in enumerate(fields):
                child = array.field(number)
                yield from _walk(child, field.type, below(path, field.name), positions)
        case Array(items=items) if not _free(items):
            offsets, (values,) = contents(array)
            rows = _repeated(offsets, positions)
            yield from _walk(values, items, f"{path}[]", rows)
        case Map(values=items):
            offsets, (_, values) = contents(array)
            rows = _repeated(offsets, positions)
            yield from _walk(values, items, f"{path}{{}}", rows)


def contents(array: pa.Array) -> tuple[np.ndarray[Any, Any], list[pa.Array]]:
    """Give the offsets of a list or map array without nulls, from 0, and its values.

    The values are those the offsets refer to: one array for a list, keys and items for a map.
    """
    parts = [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]
    if not len(array):  # Arrow does not validate the one offset that an empty array has
        return np.zeros(1, np.int32), [part.slice(0, 0) for part in parts]
    offsets = array.offsets.to_numpy()
    begin, end = int(offsets[0]), int(offsets[-1])
    return offsets - begin, [part.slice(begin, end - begin) for part in parts]


def _rows_with_duplicates(array: pa.Array) -> np.ndarray[Any, Any]:
    valid = None
    if array.null_count:
        valid = np.flatnonzero(array.is_valid())
        array = array.take(pa.array(valid))
    offsets, (keys, _) = contents(array)
    rows = _repeated(offsets, None)
    if len(rows) == len(array) and len(np.unique(rows)) == len(rows):
        return np.empty(0, np.int64)  # one key each
    codes = keys.dictionary_encode()
    pairs = rows * max(1, len(codes.dictionary)) + codes.indices.to_numpy()
    _, first = np.unique(pairs, return_index=True)
    if len(first) == len(pairs):
        return np.empty(0, np.int64)
    again = np.ones(len(pairs), np.bool_)
    again[first] = False
    found = np.unique(rows[again])
    return found if valid is None else valid[found]


def _repeated(offsets: np.ndarray[Any, Any], positions: Any) -> np.ndarray[Any, Any]:
    """Give the position of its row for every value that `offsets` divide."""
    rows = np.arange(len(offsets) - 1) if positions is None else positions
    return np.repeat(rows, np.diff(offsets))


def _outer(positions: Any, row: int) -> int:
    return row if positions is None else int(positions[row])


def _is_map(type_: Type) -> bool:
    return isinstance(type_.item if isinstance(type_, Nullable) else type_, Map)


def _has_map(type_: Type) -> bool:
    match type_:
        case Nullable(item=item) | Array(items=item):
            return _has_map(item)
        case Record(fields=fields):
            return any(_has_map(field.type) for field in fields)
        case _:
            return isinstance(type_, Map)


def _free(type_: Type) -> bool:
    """Tell whether every array of the type's Arrow form fits it."""
    return isinstance(type_, Nullable) and isinstance(type_.item, Scalar)
