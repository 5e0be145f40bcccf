"""The types of a schema written as Avro JSON, in the one form that is compared and stored."""

from __future__ import annotations

import json
from typing import Any

from sluiceway.schema.types import LOGICAL, Array, Map, Nullable, Record, Scalar, Type


def definition(record: Record) -> dict[str, Any]:
    """Give the Avro JSON of `record`, as `json.loads` would.

    Full names, no namespaces; a record is spelled out where it is first met and named after that.
    """
    rendered = _rendered(record, set())
    assert isinstance(rendered, dict)  # noqa: S101 - a record met first is spelled out
    return rendered


def canonical(record: Record) -> str:
    """Write `record` as Avro JSON without spaces, attributes in a fixed order, ASCII only."""
    return json.dumps(definition(record), separators=(",", ":"))


def _rendered(type_: Type, met: set[str]) -> Any:
    match type_:
        case Scalar(kind=kind) if kind in LOGICAL:
            return {"type": LOGICAL[kind].value, "logicalType": kind.value}
        case Scalar(kind=kind):
            return kind.value
        case Nullable(item=item, null_first=True):
            return ["null", _rendered(item, met)]
        case Nullable(item=item):
            return [_rendered(item, met), "null"]
        case Array(items=items):
            return {"type": "array", "items": _rendered(items, met)}
        case Map(values=values):
            return {"type": "map", "values": _rendered(values, met)}
        case Record(name=name, fields=fields):
            if name in met:
                # A name without a dot would be looked up in the enclosing record's namespace.
                return name
            met.add(name)
            members = []
            for field in fields:
                member = {"name": field.name, "type": _rendered(field.type, met)}
                if field.default is not None:
                    member["default"] = json.loads(field.default)
                members.append(member)
            return {"type": "record", "name": name, "fields": members}
