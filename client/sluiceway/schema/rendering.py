"""Rendering of schemas as Avro JSON, in the canonical form that is compared and stored."""

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
    """Return the Avro JSON of `record`, as an object.

    Names are full names. A named type is spelled out at its first use, and named after that.
    """
    rendered = _rendered(record, set())
    assert isinstance(rendered, dict)  # noqa: S101 - the first use of a record
    return rendered


def leaf_definition(leaf: Leaf) -> dict[str, Any] | str:
    """Return the Avro JSON of a leaf."""
    rendered: dict[str, Any] | str = _leaf(leaf, set())
    return rendered


def canonical(record: Record) -> str:
    """Return the Avro JSON of `record` as ASCII text: no spaces, attributes in a fixed order."""
    return json.dumps(definition(record), separators=(",", ":"))


def _rendered(type_: Type, named: set[str]) -> Any:
    match type_:
        case Scalar() | Fixed() | Decimal() | Uuid() | Enum():
            return _leaf(type_, named)
        case Nullable(item=item, null_first=True):
            return ["null", _rendered(item, named)]
        case Nullable(item=item):
            return [_rendered(item, named), "null"]
        case Array(items=items):
            return {"type": "array", "items": _rendered(items, named)}
        case Map(values=values):
            return {"type": "map", "values": _rendered(values, named)}
        case Record(name=name, fields=fields):
            if name in named:
                return name
            named.add(name)
            members = []
            for field in fields:
                member = {"name": field.name, "type": _rendered(field.type, named)}
                if field.default is not None:
                    member["default"] = json.loads(field.default)
                members.append(member)
            return {"type": "record", "name": name, "fields": members}


def _leaf(leaf: Leaf, named: set[str]) -> Any:
    match leaf:
        case Scalar(kind=kind) if kind in LOGICAL:
            return {"type": LOGICAL[kind].value, "logicalType": kind.value}
        case Scalar(kind=kind):
            return kind.value
        case Fixed():
            return _fixed(leaf, named, {})
        case Enum(name=name, symbols=symbols, default=default):
            shown = {"type": "enum", "name": name, "symbols": list(symbols)}
            return _once(name, named, shown | ({} if default is None else {"default": default}))
        case Decimal(precision=precision, scale=scale, fixed=fixed):
            logical = {"logicalType": "decimal", "precision": precision, "scale": scale}
            return {"type": "bytes"} | logical if fixed is None else _fixed(fixed, named, logical)
        case Uuid(fixed=fixed):
            logical = {"logicalType": "uuid"}
            return {"type": "string"} | logical if fixed is None else _fixed(fixed, named, logical)


def _fixed(fixed: Fixed, named: set[str], logical: dict[str, Any]) -> Any:
    shown = {"type": "fixed", "name": fixed.name, "size": fixed.size}
    return _once(fixed.name, named, shown | logical)


def _once(name: str, named: set[str], shown: dict[str, Any]) -> Any:
    if name in named:
        return name
    named.add(name)
    return shown
