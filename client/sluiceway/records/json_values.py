"""JSON of records: values of Python records as values of JSON, and back by the schema.

Dates and times are ISO 8601, decimals and UUIDs text, bytes base64, and the numbers that JSON does
not have the texts NaN, Infinity and -Infinity, as Arrow and Spark parse them.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID

from sluiceway.records.validation import ValueMismatch
from sluiceway.schema import Schema
from sluiceway.schema import types as t

__all__ = ["json_value", "records_from_json"]

_NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_FLOATS: Final = {text: float(name) for name, text in _NOT_FINITE.items()}
_NANOSECONDS: Final = re.compile(r"[.,][0-9]{7}")
"""More digits than a `datetime` or `time` has, which would drop them."""


def json_value(value: Any) -> Any:
    """Return a value of JSON's types for a value of a record."""
    match value:
        case Mapping():
            return {str(key): json_value(item) for key, item in value.items()}
        case list() | tuple():
            return [json_value(item) for item in value]
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal():
            return f"{value:f}"
        case UUID():
            return str(value)
        case float() if not math.isfinite(value):
            return _NOT_FINITE[str(value)]
        case _:
            return value


def records_from_json(records: Iterable[Mapping[str, Any]], schema: Schema) -> list[dict[str, Any]]:
    """Return the records of JSON objects, for `to_batches`, which checks everything else.

    A value of a union of several types is the value alone if its branch has its own JSON type,
    or an object with the branch's name, as in Avro's JSON encoding. Raises InvalidRecord for a text
    that is not of the field's type.
    """
    converted = []
    for index, record in enumerate(records):
        try:
            converted.append(_fields(record, schema.record, ""))
        except ValueMismatch as error:
            raise error.to_invalid_record(index) from error
    return converted


def _fields(value: Mapping[str, Any], record: t.Record, path: str) -> dict[str, Any]:
    types = {field.name: field.type for field in record.fields}
    return {
        name: _python(item, types[name], t.join_path(path, name)) if name in types else item
        for name, item in value.items()
    }


def _python(value: Any, type_: t.Type, path: str) -> Any:
    match type_:
        case t.Nullable(item=item):
            return None if value is None else _python(value, item, path)
        case t.Array(items=items) if isinstance(value, list):
            return [_python(element, items, f"{path}[{i}]") for i, element in enumerate(value)]
        case t.Map(values=values) if isinstance(value, dict):
            return {key: _python(entry, values, f"{path}[{key!r}]") for key, entry in value.items()}
        case t.Record() if isinstance(value, dict):
            return _fields(value, type_, path)
        case t.Union(branches=branches) if isinstance(value, dict) and len(value) == 1:
            (name,) = value
            named = {t.branch_name(branch): branch for branch in branches}
            return (name, _python(value[name], named[name], path)) if name in named else value
        case t.Decimal() if isinstance(value, str | float):
            return _decimal(value, path)
        case t.Fixed() | t.Scalar() if isinstance(value, str):
            return _parsed(value, type_, path)
        case _:
            return value


def _parsed(text: str, type_: t.Fixed | t.Scalar, path: str) -> Any:
    python = type_.python
    parse: Callable[[str], Any]
    if python is bytes:
        parse, wanted = lambda encoded: base64.b64decode(encoded, validate=True), "base64"
    elif python is date:
        parse, wanted = date.fromisoformat, "a date such as 2026-01-31"
    elif python is time:
        parse, wanted = _clock(time.fromisoformat), "a time such as 23:59:58.123456"
    elif isinstance(type_, t.Scalar) and python is datetime:
        parse = _clock(datetime.fromisoformat)
        wanted = "a time without a zone, such as 2026-01-31T23:59:58.123456"
        if type_.kind.traits.instant:
            wanted = "a time with its zone, such as 2026-01-31T23:59:58.123456Z"
    elif python is float:
        return _FLOATS.get(text, text)
    else:
        return text
    try:
        return parse(text)
    except ValueError as error:
        raise ValueMismatch(0, path, f"it must be {wanted}; this text is not") from error


def _clock(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def checked(text: str) -> Any:
        if _NANOSECONDS.search(text):
            raise ValueError("more digits than microseconds have")
        return parse(text)

    return checked


def _decimal(value: str | float, path: str) -> Decimal:
    wanted = 'it must be a decimal as text, such as "12.50"'
    if isinstance(value, float):
        raise ValueMismatch(0, path, f"{wanted}: a number of JSON may be rounded")
    try:
        return Decimal(value)
    except InvalidOperation as error:
        raise ValueMismatch(0, path, f"{wanted}; this text is not") from error
