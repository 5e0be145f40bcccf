"""The types of a schema written as Avro JSON, in the one form that is compared and stored."""

from __future__ import annotations

import json
from typing import Any

from sluiceway.schema.types import (
    LOGICAL,
    Array,
    Decimal,
    Enum,
    Fixed,
    Leaf,
    Map,
    Nullable,
    Record,
    Scalar,
    Type,
    Uuid,
)


def definition(record: Record) -> dict[str, Any]:
    """Give the Avro JSON of `record`, as `json.loads` would.

    Full names, no namespaces; what has a name is spelled out where it is first met, and named
    after that.
    """
    rendered = _rendered(record, set())
    assert isinstance(rendered, dict)  # noqa: S101 - a record met first is spelled out
    return rendered


def leaf_definition(leaf: Leaf) -> dict[str, Any] | str:
    """Give the Avro JSON of a type that has no types within."""
    rendered: dict[str, Any] | str = _leaf(leaf, set())
    return rendered


def canonical(record: Record) -> str:
    """Write `record` as Avro JSON without spaces, attributes in a fixed order, ASCII only."""
    return json.dumps(definition(record), separators=(",", ":"))


def _rendered(type_: Type, met: set[str]) -> Any:
    match type_:
        case Scalar() | Fixed() | Decimal() | Uuid() | Enum():
            return _leaf(type_, met)
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
                return name
            met.add(name)
            members = []
            for field in fields:
                member = {"name": field.name, "type": _rendered(field.type, met)}
                if field.default is not None:
                    member["default"] = json.loads(field.default)
                members.append(member)
            return {"type": "record", "name": name, "fields": members}


def _leaf(leaf: Leaf, met: set[str]) -> Any:
    match leaf:
        case Scalar(kind=kind) if kind in LOGICAL:
            return {"type": LOGICAL[kind].value, "logicalType": kind.value}
        case Scalar(kind=kind):
            return kind.value
        case Fixed():
            return _fixed(leaf, met, {})
        case Enum(name=name, symbols=symbols, default=default):
            shown = {"type": "enum", "name": name, "symbols": list(symbols)}
            return _once(name, met, shown | ({} if default is None else {"default": default}))
        case Decimal(precision=precision, scale=scale, fixed=fixed):
            logical = {"logicalType": "decimal", "precision": precision, "scale": scale}
            return {"type": "bytes"} | logical if fixed is None else _fixed(fixed, met, logical)
        case Uuid(fixed=fixed):
            logical = {"logicalType": "uuid"}
            return {"type": "string"} | logical if fixed is None else _fixed(fixed, met, logical)


def _fixed(fixed: Fixed, met: set[str], logical: dict[str, Any]) -> Any:
    shown = {"type": "fixed", "name": fixed.name, "size": fixed.size}
    return _once(fixed.name, met, shown | logical)


def _once(name: str, met: set[str], shown: dict[str, Any]) -> Any:
    if name in met:
        return name
    met.add(name)
    return shown
