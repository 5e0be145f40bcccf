"""JSON Schema (draft 7) of the messages of the format `json`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any, Final

from sluiceway.schema import types as t
from sluiceway.schema.schema import Schema

__all__ = ["NOT_FINITE", "json_schema", "moment_text"]

NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")
"""The texts of floats that JSON's numbers do not include."""

_DAY: Final = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK: Final = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?"
_ZONE: Final = "(Z|[+-][0-9]{2}:[0-9]{2})"


def moment_text(kind: t.Kind) -> str:
    """Return the regular expression of the texts of a date, time or timestamp (RFC 3339)."""
    if kind.traits.python is date:
        return _DAY
    if kind.traits.python is time:
        return _CLOCK
    return f"{_DAY}[T ]{_CLOCK}{_ZONE if kind.traits.instant else ''}"


def json_schema(schema: Schema) -> dict[str, Any]:
    """Return the JSON Schema that every message written with `schema` fits.

    Other fields are allowed, and fields with a default, or that are nullable, may be missing.
    """
    return {"$schema": "http://json-schema.org/draft-07/schema#", **_record(schema.record)}


def _record(record: t.Record) -> dict[str, Any]:
    properties = {field.name: _field(field) for field in record.fields}
    required = [
        field.name
        for field in record.fields
        if field.default is None and not isinstance(field.type, t.Nullable)
    ]
    described = {"title": record.name, "type": "object", **_documented(record.attributes)}
    return described | {"properties": properties} | ({"required": required} if required else {})


def _field(field: t.Field) -> dict[str, Any]:
    return _documented(field.attributes) | _values(field.type)


def _documented(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    doc = (attributes or {}).get("doc")
    return {"description": doc} if isinstance(doc, str) else {}


def _values(type_: t.Type) -> dict[str, Any]:
    match type_:
        case t.Nullable(item=item):
            return {"oneOf": [{"type": "null"}, _values(item)]}
        case t.Record():
            return _record(type_)
        case t.Array(items=items):
            return {"type": "array", "items": _values(items)}
        case t.Map(values=values):
            return {"type": "object", "additionalProperties": _values(values)}
        case t.Scalar(kind=kind):
            return _scalar(kind)
        case t.Fixed():
            return {"type": "string", "contentEncoding": "base64"}
        case t.Decimal():
            return {"type": "number"}
        case t.Uuid():
            return {"type": "string", "format": "uuid"}
        case t.Enum(symbols=symbols):
            return {"type": "string", "enum": list(symbols)}
        case t.Union():
            raise AssertionError(type_)


def _scalar(kind: t.Kind) -> dict[str, Any]:
    match kind:
        case t.Kind.BOOLEAN:
            return {"type": "boolean"}
        case t.Kind.INT | t.Kind.LONG:
            low, high = kind.range
            return {"type": "integer", "minimum": low, "maximum": high}
        case t.Kind.FLOAT | t.Kind.DOUBLE:
            return {"oneOf": [{"type": "number"}, {"type": "string", "enum": list(NOT_FINITE)}]}
        case t.Kind.STRING:
            return {"type": "string"}
        case t.Kind.BYTES:
            return {"type": "string", "contentEncoding": "base64"}
    if kind.traits.python is date:
        return {"type": "string", "format": "date"}
    if kind.traits.python is datetime and kind.traits.instant:
        return {"type": "string", "format": "date-time"}
    # JSON Schema has no format for times without a time zone.
    return {"type": "string", "pattern": f"^{moment_text(kind)}$"}
