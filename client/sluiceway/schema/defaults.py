"""Avro's default values: checked when a schema is read, turned into Python values for records."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from sluiceway.schema.types import Array, Kind, Map, Nullable, Record, Scalar, Type, below

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BITS: Final = {Kind.INT: 31}
_MICROSECONDS: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_RANGES: Final = {  # the years 1 to 9999, which is what Python can say
    Kind.DATE: (-719_162, 2_932_896),
    Kind.TIMESTAMP: _MICROSECONDS,
    Kind.LOCAL_TIMESTAMP: _MICROSECONDS,
}
_FLOAT_MAX: Final = 3.4028234663852886e38


class DefaultDoesNotFit(ValueError):
    """The default at `path` is none of its type's values; `reason` says why."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason


def normal(value: object, type_: Type, path: str) -> object:
    """`value` (parsed JSON) as the default of a field of type `type_`, in its one normal form.

    Raises DefaultDoesNotFit. The default of a nullable field belongs to the first branch, as Avro
    wants it.
    """
    match type_:
        case Nullable(null_first=True):
            if value is not None:
                raise DefaultDoesNotFit(path, "only null can be the default where null comes first")
            return None
        case Nullable(item=item):
            return normal(value, item, path)
        case Scalar(kind=kind):
            return _normal_scalar(value, kind, path)
        case Array(items=items):
            if not isinstance(value, list):
                raise DefaultDoesNotFit(path, "it must be a JSON array")
            return [normal(item, items, f"{path}[]") for item in value]
        case Map(values=values):
            if not isinstance(value, dict):
                raise DefaultDoesNotFit(path, "it must be a JSON object")
            return {key: normal(value[key], values, f"{path}{{}}") for key in sorted(value)}
        case Record(fields=fields):
            return _normal_record(value, fields, path)


def _normal_record(value: object, fields: tuple[Any, ...], path: str) -> object:
    if not isinstance(value, dict):
        raise DefaultDoesNotFit(path, "it must be a JSON object")
    if unknown := sorted(set(value) - {field.name for field in fields}):
        raise DefaultDoesNotFit(path, f"the record has no field {unknown[0]!r}")
    whole: dict[str, object] = {}
    for field in fields:
        if field.name in value:
            whole[field.name] = normal(value[field.name], field.type, below(path, field.name))
        elif field.default is not None:
            whole[field.name] = json.loads(field.default)
        else:
            raise DefaultDoesNotFit(below(path, field.name), "the default leaves this field out")
    return whole


def _normal_scalar(value: object, kind: Kind, path: str) -> object:
    match kind:
        case Kind.BOOLEAN:
            if isinstance(value, bool):
                return value
            raise DefaultDoesNotFit(path, "it must be true or false")
        case Kind.FLOAT | Kind.DOUBLE:
            return _normal_number(value, kind, path)
        case Kind.STRING | Kind.BYTES:
            return _normal_text(value, kind, path)
        case _:
            bits = _BITS.get(kind, 63)
            if isinstance(value, bool) or not isinstance(value, int):
                raise DefaultDoesNotFit(path, "it must be a whole number")
            low, high = _RANGES.get(kind, (-(1 << bits), (1 << bits) - 1))
            if not low <= value <= high:
                raise DefaultDoesNotFit(path, f"it must lie between {low} and {high}")
            return value


def _normal_number(value: object, kind: Kind, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DefaultDoesNotFit(path, "it must be a number")
    try:
        number = float(value)
    except OverflowError as error:
        raise DefaultDoesNotFit(path, "it is too large") from error
    if not math.isfinite(number):
        raise DefaultDoesNotFit(path, "it must be finite: JSON knows no other numbers")
    if kind is Kind.FLOAT and abs(number) > _FLOAT_MAX:
        raise DefaultDoesNotFit(path, "it is too large for a float")
    return number


def _normal_text(value: object, kind: Kind, path: str) -> str:
    if not isinstance(value, str):
        raise DefaultDoesNotFit(path, "it must be a JSON string")
    if kind is Kind.BYTES and not value.isascii() and max(value) > "\xff":
        raise DefaultDoesNotFit(path, "bytes are written as characters up to U+00FF, one each")
    if kind is Kind.STRING and any("\ud800" <= char <= "\udfff" for char in value):
        raise DefaultDoesNotFit(path, "half a surrogate pair is no character")
    return value


def as_json(value: object, type_: Type) -> object:
    """Turn a Python value into the JSON form of a default; the inverse of `as_python`.

    Values of other types come back as they are, for `normal` to judge.
    """
    match type_:
        case Nullable(item=item):
            return None if value is None else as_json(value, item)
        case Scalar(kind=Kind.BYTES):
            return value.decode("latin-1") if isinstance(value, bytes) else value
        case Scalar(kind=Kind.DATE):
            return (value - _EPOCH.date()).days if isinstance(value, date) else value
        case Scalar(kind=Kind.TIMESTAMP | Kind.LOCAL_TIMESTAMP as kind):
            if not isinstance(value, datetime) or (value.tzinfo is None) is (
                kind is Kind.TIMESTAMP
            ):
                return value
            epoch = _EPOCH if kind is Kind.TIMESTAMP else _EPOCH.replace(tzinfo=None)
            return (value - epoch) // timedelta(microseconds=1)
        case Array(items=items):
            return [as_json(item, items) for item in value] if isinstance(value, list) else value
        case Map(values=values):
            if not isinstance(value, dict):
                return value
            return {key: as_json(item, values) for key, item in value.items()}
        case _:
            return value


def as_python(default: object, type_: Type) -> object:
    """Turn a default in normal form into the Python value that a record would hold."""
    match type_:
        case Nullable(item=item):
            return None if default is None else as_python(default, item)
        case Scalar(kind=Kind.BYTES):
            return str(default).encode("latin-1")
        case Scalar(kind=Kind.DATE):
            return _EPOCH.date() + timedelta(days=_whole(default))
        case Scalar(kind=Kind.TIMESTAMP):
            return _EPOCH + timedelta(microseconds=_whole(default))
        case Scalar(kind=Kind.LOCAL_TIMESTAMP):
            return _EPOCH.replace(tzinfo=None) + timedelta(microseconds=_whole(default))
        case Array(items=items) if isinstance(default, list):
            return [as_python(item, items) for item in default]
        case Map(values=values) if isinstance(default, dict):
            return {key: as_python(item, values) for key, item in default.items()}
        case Record(fields=fields) if isinstance(default, dict):
            return {f.name: as_python(default[f.name], f.type) for f in fields}
        case _:
            return default


def _whole(value: object) -> int:
    assert isinstance(value, int)  # noqa: S101 - `normal` let nothing else through
    return value
