"""Conversion of Python values without nesting, of one type of a schema, to an Arrow array."""

from __future__ import annotations

import decimal
import enum
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, time
from decimal import Decimal as Number
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluiceway.records.validation import (
    INTEGERS,
    ArrayOverflow,
    ValueMismatch,
    accepts,
    describe,
    expected,
    invalid_values,
)
from sluiceway.schema import types as t
from sluiceway.schema.arrow import arrow_type
from sluiceway.schema.defaults import symbol

__all__ = ["scalars"]

_FLOAT: Final = t.Scalar(kind=t.Kind.FLOAT)
_ERRORS: Final = (pa.ArrowException, OverflowError, ValueError, TypeError)


def scalars(values: Sequence[Any], kinds: set[type], leaf: t.Leaf, path: str) -> pa.Array:
    """Convert `values`, which have the types `kinds` or are None, to an array of `leaf`.

    Raises ValueMismatch for a value that does not fit, and ArrayOverflow.
    """
    for type_ in kinds:
        if not accepts(type_, leaf):
            position = list(map(type, values)).index(type_)
            raise _mismatch_of(position, path, leaf, values[position])
    match leaf:
        case t.Scalar(kind=t.Kind.FLOAT | t.Kind.DOUBLE) if kinds - {float, int}:
            values = _numbers(values, leaf, path)
        case t.Scalar(kind=kind) if kind.ticks:
            _check_clocks(values, kinds, leaf, path)
        case t.Uuid():
            values = _uuids(values, kinds, leaf, path)
        case t.Decimal():
            values = _decimals(values, kinds, leaf, path)
        case t.Enum() if kinds - {str}:
            values = [symbol(value) if isinstance(value, enum.Enum) else value for value in values]
    array = _converted(values, leaf, path)
    if leaf == _FLOAT:
        _check_overflow(array, values, path)
    elif isinstance(leaf, t.Enum) and len(rows := invalid_values(array, leaf)):
        raise _mismatch_of(int(rows[0]), path, leaf, values[int(rows[0])])
    return array


def _converted(values: Sequence[Any], leaf: t.Leaf, path: str) -> pa.Array:
    target = arrow_type(leaf)
    try:
        array = pa.array(values, target)
    except _ERRORS as error:
        for position, value in enumerate(values):
            try:
                pa.array([value], target)
            except _ERRORS:
                raise _mismatch_of(position, path, leaf, value) from error
        raise ArrayOverflow from error
    if isinstance(array, pa.ChunkedArray):
        raise ArrayOverflow
    return array


def _numbers(values: Sequence[Any], leaf: t.Leaf, path: str) -> Sequence[Any]:
    """Return `values` with NumPy's numbers as Python's: Arrow stores -1 for uint64(2**64 - 1).

    Raises ValueMismatch for a finite longdouble that is infinite as a double.
    """
    _refuse(
        values,
        leaf,
        path,
        lambda v: isinstance(v, np.longdouble) and np.isfinite(v) and math.isinf(v),
    )
    return [
        int(value)
        if isinstance(value, np.integer)
        else float(value)
        if isinstance(value, np.floating)
        else value
        for value in values
    ]


def _decimals(values: Sequence[Any], kinds: set[type], leaf: t.Decimal, path: str) -> Sequence[Any]:
    """Return `values` without surplus zeros.

    Raises ValueMismatch for other surplus digits: Arrow may drop them, or crash.
    """
    if kinds - {Number, int}:
        values = [int(value) if isinstance(value, INTEGERS) else value for value in values]
    if kinds <= {int}:
        return values
    exact = decimal.Context(
        prec=leaf.precision,
        Emin=-leaf.scale,
        Emax=decimal.MAX_EMAX,
        traps=[decimal.Inexact, decimal.InvalidOperation],
    ).plus
    fitting: list[Any] = []
    try:
        fitting.extend(exact(value) if isinstance(value, Number) else value for value in values)
    except decimal.DecimalException as error:
        position = len(fitting)
        raise _mismatch_of(position, path, leaf, values[position]) from error
    return fitting


def _uuids(values: Sequence[Any], kinds: set[type], leaf: t.Uuid, path: str) -> Sequence[Any]:
    """Return `values` as text or bytes, the storage type of `leaf`."""
    if str in kinds or kinds - {UUID}:
        matches = re.compile(t.UUID_TEXT).fullmatch
        _refuse(values, leaf, path, lambda v: isinstance(v, str) and not matches(v))
    if leaf.fixed is None:
        return [None if value is None else str(value) for value in values]
    return [
        value if value is None else value.bytes if isinstance(value, UUID) else UUID(value).bytes
        for value in values
    ]


def _check_clocks(values: Sequence[Any], kinds: set[type], leaf: t.Scalar, path: str) -> None:
    """Reject a wrong time zone, and values between two ticks."""
    ticks, instant = leaf.kind.ticks, leaf.kind.traits.instant
    present = [value for value in values if value is not None]
    if kinds - {datetime, time}:
        # pandas has its own timestamp class, with nanoseconds, and NaT.
        finest = ticks > t.MICROSECONDS
        _refuse(
            values, leaf, path, lambda v: v != v or (getattr(v, "nanosecond", 0) and not finest)
        )
    zones = set(map(attrgetter("tzinfo"), present))
    if instant and None in zones:
        position = next(
            i for i, value in enumerate(values) if value is not None and value.tzinfo is None
        )
        reason = (
            "has no time zone, so it is not an instant; attach one, for instance with "
            "value.replace(tzinfo=datetime.UTC)"
        )
        raise _about(values, position, path, reason)
    if instant and not {1, 9999}.isdisjoint(map(attrgetter("year"), present)):
        for position, value in enumerate(values):
            if value is not None and _is_beyond_calendar(value):
                reason = "is outside of the years 1 to 9999 in UTC, so no reader could return it"
                raise _about(values, position, path, reason)
    if not instant and zones - {None}:
        _refuse(values, leaf, path, lambda v: v.tzinfo is not None)
    if ticks < t.MICROSECONDS:
        between = t.MICROSECONDS // ticks
        _refuse(values, leaf, path, lambda v: v.microsecond % between)


def _about(values: Sequence[Any], position: int, path: str, reason: str) -> ValueMismatch:
    full_reason = f"{describe(values[position])} {reason}"
    return ValueMismatch(position, path, full_reason, public_reason=f"it {reason}")


def _is_beyond_calendar(value: datetime) -> bool:
    try:
        value.astimezone(UTC)
    except (OverflowError, ValueError):
        return True
    return False


def _check_overflow(array: pa.Array, values: Sequence[Any], path: str) -> None:
    """Reject finite values that became infinite in 32 bits."""
    if not pc.any(pc.is_inf(array)).as_py():
        return
    for position in np.flatnonzero(pc.is_inf(array).fill_null(False)).tolist():
        if not math.isinf(values[position]):
            raise _mismatch_of(position, path, _FLOAT, values[position])


def _mismatch_of(position: int, path: str, leaf: t.Leaf, value: object) -> ValueMismatch:
    return ValueMismatch.of_value(position, path, expected(leaf), value)


def _refuse(
    values: Sequence[Any], leaf: t.Leaf, path: str, is_wrong: Callable[[Any], object]
) -> None:
    """Raise ValueMismatch for the first wrong value that is not None."""
    for position, value in enumerate(values):
        if value is not None and is_wrong(value):
            raise _mismatch_of(position, path, leaf, value)
