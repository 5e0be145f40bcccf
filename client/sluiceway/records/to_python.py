"""Conversion of record batches to Python objects, column by column, without garbage collection."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
from pyarrow import types

from sluiceway.errors import ValueOutOfRange
from sluiceway.records.validation import list_contents
from sluiceway.schema import types as t
from sluiceway.schema.arrow import type_in_metadata, union_branches

__all__ = ["gc_paused", "to_records"]


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAYS: Final = (t.CALENDAR[0] // t.DAY, t.CALENDAR[1] // t.DAY - 1)
_MAX_COMPILED: Final = 200
"""The most fields of a compiled row: larger ones are rare, and slow to compile."""
_MICROSECONDS: Final = (t.CALENDAR[0] * t.MICROSECONDS, t.CALENDAR[1] * t.MICROSECONDS - 1)


@dataclass(frozen=True, kw_only=True)
class _Form:
    """How values are converted that Python has several forms for, or none."""

    with_branches: bool
    out_of_range_as_text: bool


def to_records(
    batch: pa.RecordBatch, *, with_branches: bool = False, out_of_range_as_text: bool = False
) -> list[dict[str, Any]]:
    """Convert each row of `batch` to a dict.

    Timestamps become aware datetimes in UTC, local timestamps naive ones, maps and records dicts,
    arrays lists, enums their symbols. Raises ValueOutOfRange with the field for a date or time
    outside of the years 1 to 9999 or between two microseconds; `batches()` returns these. With
    `out_of_range_as_text`, the dates or times of its column are texts in ISO 8601 instead.

    A value of a union of several types is the value alone, or `with_branches` a tuple of the
    branch's name and the value.
    """
    form = _Form(with_branches=with_branches, out_of_range_as_text=out_of_range_as_text)
    fields = zip(batch.columns, batch.schema, strict=True)
    with gc_paused():
        columns = [_values(c, field, field.name, form) for c, field in fields]
        return _builder(tuple(batch.schema.names))(columns)


@lru_cache(maxsize=256)
def _builder(names: tuple[str, ...]) -> Callable[[list[list[Any]]], list[dict[str, Any]]]:
    """Compile a function for dicts with these keys, twice as fast as dict(zip())."""
    if not 0 < len(names) <= _MAX_COMPILED:
        return lambda columns: [dict(zip(names, row)) for row in zip(*columns, strict=True)]  # noqa: B905 - equal, and hot
    values = [f"v{number}" for number in range(len(names))]
    items = ", ".join(f"{name!r}: {value}" for name, value in zip(names, values, strict=True))
    source = f"lambda columns: [{{{items}}} for {', '.join(values)}, in zip(*columns, strict=True)]"
    built: Callable[[list[list[Any]]], list[dict[str, Any]]] = eval(source)  # noqa: S307 - only `repr`s of names
    return built


def _values(array: pa.Array, field: pa.Field, path: str, form: _Form) -> list[Any]:
    type_ = array.type
    if field.metadata and (names := union_branches(field)) is not None:
        return _branch_values(array, field, names, path, form)
    if field.metadata and isinstance(leaf := type_in_metadata(field, field.name), t.Uuid):
        make = UUID if leaf.fixed is None else _uuid_of_bytes
        return [value and make(value) for value in array.to_pylist()]
    if types.is_string(type_) or types.is_binary(type_):
        objects: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
        return objects
    if not array.null_count:
        return _present(array, field.type, path, form)
    if _is_flat(type_):
        filled = array.fill_null(pa.scalar(0).cast(type_))
        filled = _present(filled, field.type, path, form)
        for place in np.flatnonzero(array.is_null()).tolist():
            filled[place] = None
        return filled
    places = np.flatnonzero(array.is_valid())
    present = _present(array.take(pa.array(places)), field.type, path, form)
    values: list[Any] = [None] * len(array)
    for place, value in zip(places.tolist(), present, strict=True):
        values[place] = value
    return values


def _branch_values(
    array: pa.Array, field: pa.Field, names: list[str], path: str, form: _Form
) -> list[Any]:
    """Convert the values of a union; see `UNION` for their form."""
    values: list[Any] = [None] * len(array)
    # `flatten` makes all branches null below a null.
    for name, child, member in zip(names, array.flatten(), field.type, strict=True):
        places = np.flatnonzero(child.is_valid())
        converted = _values(child.take(pa.array(places)), member, path, form)
        for place, value in zip(places.tolist(), converted, strict=True):
            values[place] = (name, value) if form.with_branches else value
    return values


def _is_flat(type_: pa.DataType) -> bool:
    """Return whether nulls can be filled with 0 during the conversion."""
    return bool(types.is_integer(type_) or types.is_floating(type_) or types.is_timestamp(type_))


def _uuid_of_bytes(value: bytes) -> UUID:
    return UUID(bytes=value)


def _present(array: pa.Array, type_: pa.DataType, path: str, form: _Form) -> list[Any]:
    """Convert an array without nulls."""
    if types.is_date32(type_):
        return _in_range(array, form, lambda: _dates(array, path))
    if types.is_timestamp(type_):
        aware = type_.tz is not None
        return _in_range(array, form, lambda: _instants(_microseconds(array, type_, path), aware))
    if types.is_struct(type_):
        members = list(type_)
        columns = [
            _values(array.field(number), member, t.join_path(path, member.name), form)
            for number, member in enumerate(members)
        ]
        return _builder(tuple(member.name for member in members))(columns)
    if types.is_list(type_):
        offsets, (items,) = list_contents(array)
        values = _values(items, type_.value_field, f"{path}[]", form)
        return _cut(values, offsets.tolist())
    if types.is_map(type_):
        offsets, (keys, items) = list_contents(array)
        names = _values(keys, type_.key_field, path, form)
        values = _values(items, type_.item_field, f"{path}{{}}", form)
        entries = list(zip(names, values, strict=True))
        return list(map(dict, _cut(entries, offsets.tolist())))
    return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def _in_range(array: pa.Array, form: _Form, convert: Callable[[], list[Any]]) -> list[Any]:
    """Return the converted values, or all as text if one is out of range and the form has that."""
    try:
        return convert()
    except ValueOutOfRange:
        if not form.out_of_range_as_text:
            raise
    texts: list[str] = array.cast(pa.string()).to_pylist()
    return [text.replace(" ", "T").replace("Z", "+00:00") for text in texts]


def _dates(array: pa.Array, path: str) -> list[Any]:
    days = array.view(pa.int32()).to_numpy()
    _check_range(days, _DAYS, path)
    return days.astype("M8[D]").tolist()  # type: ignore[no-any-return]


def _microseconds(array: pa.Array, type_: pa.DataType, path: str) -> Any:
    ticks = array.view(pa.int64()).to_numpy()
    if type_.unit == "ns":
        if (ticks % 1000).any():
            raise ValueOutOfRange(
                f"field {path!r} has a value between two microseconds, which Python's datetime "
                "cannot represent; read it with batches(), which returns Arrow's values"
            )
        return ticks // 1000
    if type_.unit == "ms":
        _check_range(ticks, (_MICROSECONDS[0] // 1000, _MICROSECONDS[1] // 1000), path)
        return ticks * 1000
    _check_range(ticks, _MICROSECONDS, path)
    return ticks


def _instants(microseconds: Any, aware: bool) -> list[Any]:
    if not aware:
        return microseconds.view("M8[us]").tolist()  # type: ignore[no-any-return]
    # NumPy converts durations at C speed; the sum with an aware epoch is aware.
    return list(map(_EPOCH.__add__, microseconds.view("m8[us]").tolist()))


def _check_range(values: Any, bounds: tuple[int, int], path: str) -> None:
    if len(values) and (values.min() < bounds[0] or values.max() > bounds[1]):
        raise ValueOutOfRange(
            f"field {path!r} has a value outside of the years 1 to 9999, which Python's datetime "
            "cannot represent; read it with batches(), which returns Arrow's values"
        )


def _cut(values: list[Any], bounds: list[int]) -> list[list[Any]]:
    return [values[begin:end] for begin, end in pairwise(bounds)]


_pauses: set[object] = set()
_is_paused = False


def _end_pauses() -> None:
    """Collect in a forked child: it has none of the threads whose blocks would end the pause."""
    global _is_paused
    _pauses.clear()
    if _is_paused:
        _is_paused = False
        gc.enable()


os.register_at_fork(after_in_child=_end_pauses)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector while the block creates thousands of objects that stay alive.

    The collector runs after every 700 new objects, and over all objects after each growth by a
    quarter. Without the pause, reading records as dicts has 0.78 of its speed (`bench/python.py`).
    For short blocks only: the collector is paused for the whole process, until the last of the
    blocks that run at the same time has ended.
    """
    global _is_paused, _pauses
    pause = {object()}
    # Without a lock, which an interrupt could leave held. Interrupts come at calls, and no call is
    # between two steps that belong together.
    _pauses |= pause
    try:
        if gc.isenabled():
            _is_paused = True
            gc.disable()
        yield
    finally:
        # It is gone in a child that was forked in the block.
        _pauses -= pause
        if _is_paused and not _pauses:
            _is_paused = False
            gc.enable()
