"""Avro defaults: validation, normal form, conversion from and to Python."""

from __future__ import annotations

import enum
import json
import math
import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal as Number
from typing import Any, Final
from uuid import UUID

from sluiceway.errors import InvalidSchema
from sluiceway.schema import types as t

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class _InvalidLiteral(ValueError):
    """The JSON value does not fit its type; the text is the reason."""


def _normal_literal(value: object, leaf: t.Leaf) -> object:
    """Return the JSON value in the normal form of `leaf`. Raises _InvalidLiteral."""
    match leaf:
        case t.Scalar(kind=t.Kind.BOOLEAN):
            if isinstance(value, bool):
                return value
            raise _InvalidLiteral("it must be true or false")
        case t.Scalar(kind=t.Kind.FLOAT | t.Kind.DOUBLE as kind):
            return _number(value, kind)
        case t.Scalar(kind=t.Kind.STRING):
            return _text(value)
        case t.Scalar(kind=t.Kind.BYTES):
            return _bytes(value).decode("latin-1")
        case t.Scalar(kind=kind):
            return _whole(value, kind)
        case t.Fixed(size=size) | t.Uuid(fixed=t.Fixed(size=size)):
            return _sized(value, size)
        case t.Decimal():
            return _decimal(value, leaf)
        case t.Uuid():
            if isinstance(value, str) and re.fullmatch(t.UUID_TEXT, value):
                return value
            raise _InvalidLiteral("it must be the text of a UUID, such as that of uuid.uuid4()")
        case t.Enum(symbols=symbols):
            if value in symbols:
                return value
            raise _InvalidLiteral(f"it must be one of the symbols {', '.join(symbols)}")


def _whole(value: object, kind: t.Kind) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _InvalidLiteral("it must be a whole number")
    low, high = kind.range
    if not low <= value <= high:
        raise _InvalidLiteral(f"it must lie between {low} and {high}")
    if kind.ticks > t.MICROSECONDS and value % 1000:
        raise _InvalidLiteral("it must be whole microseconds, a multiple of 1000")
    return value


def _number(value: object, kind: t.Kind) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _InvalidLiteral("it must be a number")
    try:
        number = float(value)
    except OverflowError as error:
        raise _InvalidLiteral("it is too large") from error
    if not math.isfinite(number):
        raise _InvalidLiteral("it must be finite, as JSON numbers are")
    if kind is t.Kind.FLOAT and abs(number) > t.FLOAT_MAX:
        raise _InvalidLiteral("it is too large for a float")
    return number


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _InvalidLiteral("it must be a JSON string")
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise _InvalidLiteral("it has a lone surrogate, which is not a character")
    return value


def _bytes(value: object) -> bytes:
    if not isinstance(value, str):
        raise _InvalidLiteral("it must be a JSON string")
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError as error:
        raise _InvalidLiteral("bytes must be characters up to U+00FF, one each") from error


def _sized(value: object, size: int) -> str:
    if len(data := _bytes(value)) != size:
        raise _InvalidLiteral(f"it must have {size} bytes, and has {len(data)}")
    return data.decode("latin-1")


def _decimal(value: object, leaf: t.Decimal) -> str:
    data = _bytes(value)
    if leaf.fixed is not None:
        _sized(value, leaf.fixed.size)
    unscaled = int.from_bytes(data, signed=True)
    if not data or abs(unscaled) >= 10**leaf.precision:
        raise _InvalidLiteral(
            f"it must be the bytes of a whole number of at most {leaf.precision} digits"
        )
    return _unscaled_bytes(unscaled, leaf).decode("latin-1")


def _unscaled_bytes(unscaled: int, leaf: t.Decimal) -> bytes:
    size = leaf.fixed.size if leaf.fixed else unscaled_size(unscaled)
    return unscaled.to_bytes(size, signed=True)


def unscaled_size(unscaled: int) -> int:
    """Return the size of the shortest two's complement of `unscaled`."""
    return (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1


def _unscaled(value: Number, leaf: t.Decimal) -> tuple[int] | None:
    """Return the exact unscaled number of `value` as a tuple, or None if there is none."""
    if not value.is_finite() or value.adjusted() >= leaf.precision - leaf.scale:
        return None
    sign, digits, exponent = value.as_tuple()
    number = int("".join(map(str, digits))) * (-1 if sign else 1)
    shift = int(exponent) + leaf.scale
    if shift >= 0:
        return (number * 10**shift,)
    whole, rest = divmod(number, 10**-shift)
    return None if rest else (whole,)


def symbol(member: enum.Enum) -> str:
    """Return the Avro symbol of an enum member: its value if that is text, else its name."""
    return member.value if isinstance(member.value, str) else member.name


def _epoch(kind: t.Kind) -> datetime:
    return _EPOCH if kind.traits.instant else _EPOCH.replace(tzinfo=None)


def _fits(value: Any, kind: t.Kind) -> bool:
    """Return whether `value` is a time or timestamp with a time zone if `kind` has one."""
    is_of_class = kind.ticks and isinstance(value, kind.traits.python)
    return bool(is_of_class) and (value.tzinfo is not None) == kind.traits.instant


def _ticks(length: timedelta, kind: t.Kind) -> object:
    """Return the ticks of `length`, or a text, which is rejected, if it is between two ticks."""
    microseconds = length // timedelta(microseconds=1)
    ticks, between = divmod(microseconds * kind.ticks, t.MICROSECONDS)
    return str(length) if between else ticks


def _length(ticks: int, kind: t.Kind) -> timedelta:
    return timedelta(microseconds=ticks * t.MICROSECONDS // kind.ticks)


def _normal(value: object, type_: t.Type, path: str) -> object:
    """Return the JSON default of a field in normal form. Raises InvalidSchema.

    The default of a union belongs to its first branch.
    """
    match type_:
        case t.Nullable(null_at=0):
            if value is not None:
                raise _bad_default(path, "only null can be the default where null comes first")
            return None
        case t.Nullable(item=item):
            return _normal(value, item, path)
        case t.Union(branches=branches):
            return _normal(value, branches[0], path)
        case t.Array(items=items):
            if not isinstance(value, list):
                raise _bad_default(path, "it must be a JSON array")
            return [_normal(item, items, f"{path}[]") for item in value]
        case t.Map(values=values):
            if not isinstance(value, dict):
                raise _bad_default(path, "it must be a JSON object")
            return {key: _normal(value[key], values, f"{path}{{}}") for key in sorted(value)}
        case t.Record(fields=fields):
            return _normal_record(value, fields, path)
        case leaf:
            try:
                return _normal_literal(value, leaf)
            except _InvalidLiteral as error:
                raise _bad_default(path, str(error)) from error


def _normal_record(value: object, fields: tuple[Any, ...], path: str) -> object:
    if not isinstance(value, dict):
        raise _bad_default(path, "it must be a JSON object")
    if unknown := sorted(set(value) - {field.name for field in fields}):
        raise _bad_default(path, f"the record has no field {unknown[0]!r}")
    whole: dict[str, object] = {}
    for field in fields:
        if field.name in value:
            whole[field.name] = _normal(
                value[field.name], field.type, t.join_path(path, field.name)
            )
        elif field.default is not None:
            whole[field.name] = json.loads(field.default)
        else:
            where = t.join_path(path, field.name)
            raise _bad_default(where, "the default lacks this field")
    return whole


def _bad_default(path: str, reason: str) -> InvalidSchema:
    return t.invalid_schema(path, f"the default does not fit: {reason}")


def default_text(value: object, type_: t.Type, path: str) -> str:
    """Return the canonical JSON text of the default `value`. Raises InvalidSchema."""
    return json.dumps(_normal(value, type_, path), separators=(",", ":"))


def default_from_python(value: Any, type_: t.Type) -> object:
    """Return the JSON default of a Python value; the inverse of `default_to_python`.

    Values of other types are returned unchanged, and rejected by `default_text`.
    """
    match type_:
        case t.Nullable(item=item):
            return None if value is None else default_from_python(value, item)
        case t.Union(branches=branches):
            return default_from_python(value, branches[0])
        case t.Array(items=items) if isinstance(value, list):
            return [default_from_python(item, items) for item in value]
        case t.Map(values=values) if isinstance(value, dict):
            return {key: default_from_python(item, values) for key, item in value.items()}
        case t.Scalar(kind=t.Kind.BYTES) | t.Fixed() if isinstance(value, bytes):
            return value.decode("latin-1")
        case t.Scalar(python=python) if (
            python is date and isinstance(value, date) and not isinstance(value, datetime)
        ):
            return value.toordinal() - _EPOCH.toordinal()
        case t.Scalar(kind=kind) if _fits(value, kind):
            moment = value if isinstance(value, datetime) else datetime.combine(_EPOCH, value)
            return _ticks(moment - _epoch(kind), kind)
        case t.Decimal() if isinstance(value, Number) and (unscaled := _unscaled(value, type_)):
            return _unscaled_bytes(unscaled[0], type_).decode("latin-1")
        case t.Uuid(fixed=fixed) if isinstance(value, UUID):
            return str(value) if fixed is None else value.bytes.decode("latin-1")
        case t.Enum() if isinstance(value, enum.Enum):
            return symbol(value)
    return value


def default_to_python(default: Any, type_: t.Type) -> object:
    """Return the Python value of a default in normal form, that of a union with its branch."""
    match type_:
        case t.Nullable(item=item):
            return None if default is None else default_to_python(default, item)
        case t.Union(branches=branches):
            return t.branch_name(branches[0]), default_to_python(default, branches[0])
        case t.Array(items=items):
            return [default_to_python(item, items) for item in default]
        case t.Map(values=values):
            return {key: default_to_python(item, values) for key, item in default.items()}
        case t.Record(fields=fields):
            return {f.name: default_to_python(default[f.name], f.type) for f in fields}
        case t.Scalar(kind=t.Kind.BYTES) | t.Fixed():
            return default.encode("latin-1")
        case t.Scalar(python=python) if python is date:
            return _EPOCH.date() + timedelta(days=default)
        case t.Scalar(kind=kind) if kind.ticks:
            moment = _epoch(kind) + _length(default, kind)
            return moment.time() if kind.traits.python is time else moment
        case t.Decimal(scale=scale):
            unscaled = int.from_bytes(default.encode("latin-1"), signed=True)
            return Number(f"{unscaled}E-{scale}")
        case t.Uuid(fixed=fixed):
            return UUID(default) if fixed is None else UUID(bytes=default.encode("latin-1"))
    return default


def default_value(field: t.Field) -> object:
    """Return the Python value of a field's default; None without one."""
    if field.default is None:
        return None
    return default_to_python(json.loads(field.default), field.type)
