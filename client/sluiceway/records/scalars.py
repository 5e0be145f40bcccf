"""Columns of single values: Python objects checked and made into Arrow arrays at C speed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import date, datetime
from operator import attrgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluiceway.records.unfit import TooMuch, Unfit, shown
from sluiceway.schema.arrow import arrow_type
from sluiceway.schema.types import Kind, Scalar

_FLOATS: Final = (float, np.floating)
_INTEGERS: Final = (int, np.integer)
_ALLOWED: Final[dict[Kind, tuple[type, ...]]] = {
    Kind.BOOLEAN: (bool, np.bool_),
    Kind.INT: _INTEGERS,
    Kind.LONG: _INTEGERS,
    Kind.FLOAT: _FLOATS + _INTEGERS,
    Kind.DOUBLE: _FLOATS + _INTEGERS,
    Kind.STRING: (str,),
    Kind.BYTES: (bytes, bytearray, memoryview),
    Kind.DATE: (date,),
    Kind.TIMESTAMP: (datetime,),
    Kind.LOCAL_TIMESTAMP: (datetime,),
}
_REFUSED: Final[dict[Kind, tuple[type, ...]]] = {
    **dict.fromkeys((Kind.INT, Kind.LONG, Kind.FLOAT, Kind.DOUBLE), (bool,)),
    Kind.DATE: (datetime,),
}
"""What Python takes for an instance of an allowed type, and we do not."""

_WANTED: Final = {
    Kind.BOOLEAN: "True or False",
    Kind.INT: "an integer of 32 bits",
    Kind.LONG: "an integer of 64 bits",
    Kind.FLOAT: "a number that a 32-bit float can hold",
    Kind.DOUBLE: "a number that a 64-bit float can hold",
    Kind.STRING: "a str of whole characters",
    Kind.BYTES: "bytes",
    Kind.DATE: "a datetime.date (of a datetime, take .date())",
    Kind.TIMESTAMP: "a datetime.datetime with a time zone, in whole microseconds",
    Kind.LOCAL_TIMESTAMP: "a datetime.datetime without a time zone, in whole microseconds",
}


def scalars(values: Sequence[Any], kinds: set[type], kind: Kind, path: str) -> pa.Array:
    """Make the array of `values`, whose types other than None's are `kinds`.

    Raises Unfit for a value that is not of `kind`, TooMuch where one array is too small.
    """
    allowed, refused = _ALLOWED[kind], _REFUSED.get(kind, ())
    for type_ in kinds:
        if not issubclass(type_, allowed) or issubclass(type_, refused):
            position = list(map(type, values)).index(type_)
            raise Unfit(position, path, _wanted(kind, values[position]))
    if kind in (Kind.TIMESTAMP, Kind.LOCAL_TIMESTAMP):
        _check_zones(values, kinds, kind, path)
    array = _converted(values, kind, path)
    if kind is Kind.FLOAT:
        _check_overflow(array, values, path)
    return array


def _converted(values: Sequence[Any], kind: Kind, path: str) -> pa.Array:
    target = arrow_type(Scalar(kind=kind))
    try:
        array = pa.array(values, target)
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        for position, value in enumerate(values):
            try:
                pa.array([value], target)
            except (pa.ArrowException, OverflowError, ValueError, TypeError):
                raise Unfit(position, path, _wanted(kind, value)) from error
        raise TooMuch from error
    if isinstance(array, pa.ChunkedArray):
        raise TooMuch
    return array


def _check_zones(values: Sequence[Any], kinds: set[type], kind: Kind, path: str) -> None:
    present = [value for value in values if value is not None]
    if kinds - {datetime}:  # pandas has instants of its own, with nanoseconds, and one that is none
        for position, value in enumerate(values):
            if value is not None and (value != value or getattr(value, "nanosecond", 0)):
                raise Unfit(position, path, _wanted(kind, value))
    zones = set(map(attrgetter("tzinfo"), present))
    if kind is Kind.TIMESTAMP and None in zones:
        position = _first(values, lambda v: v is not None and v.tzinfo is None)
        reason = (
            f"{shown(values[position])} has no time zone, so that it is no certain instant; "
            "attach one, for instance value.replace(tzinfo=datetime.UTC)"
        )
        raise Unfit(position, path, reason)
    if kind is Kind.LOCAL_TIMESTAMP and zones - {None}:
        position = _first(values, lambda v: v is not None and v.tzinfo is not None)
        raise Unfit(position, path, _wanted(kind, values[position]))


def _check_overflow(array: pa.Array, values: Sequence[Any], path: str) -> None:
    """Refuse what became infinite, and was not, when it was cut down to 32 bits."""
    if not pc.any(pc.is_inf(array)).as_py():
        return
    for position in np.flatnonzero(pc.is_inf(array).fill_null(False)).tolist():
        if not math.isinf(values[position]):
            raise Unfit(position, path, _wanted(Kind.FLOAT, values[position]))


def _wanted(kind: Kind, value: object) -> str:
    return f"it must be {_WANTED[kind]}, and is {shown(value)}"


def _first(values: Sequence[Any], condition: Callable[[Any], bool]) -> int:
    return next(position for position, value in enumerate(values) if condition(value))
