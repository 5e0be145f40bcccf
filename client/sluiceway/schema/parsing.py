"""Avro JSON read into the types of a schema; what a channel cannot carry is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from sluiceway.errors import InvalidSchema, UnsupportedType
from sluiceway.schema import defaults
from sluiceway.schema.types import (
    LOGICAL,
    MAX_DEPTH,
    MAX_FIELDS,
    Array,
    Field,
    Kind,
    Map,
    Nullable,
    Present,
    Record,
    Scalar,
    Type,
    at,
    below,
)

NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
"""An Avro name without its namespace."""

_PLAIN: Final = {kind.value: kind for kind in Kind if kind not in LOGICAL}
_COMPLEX: Final = frozenset({"record", "error", "enum", "fixed", "array", "map", "union", "null"})
_HINTS: Final = {
    "null": "only a union of null and one other type can be null",
    "enum": "use a string",
    "fixed": "use bytes",
    "decimal": "use a string, or a long of the smallest unit",
    "uuid": "use a plain string",
    "timestamp-millis": "use timestamp-micros",
    "timestamp-nanos": "use timestamp-micros",
    "local-timestamp-millis": "use local-timestamp-micros",
    "local-timestamp-nanos": "use local-timestamp-micros",
    "time-millis": "use an int",
    "time-micros": "use a long",
    "duration": "use a long of microseconds",
}


def parse(source: str | Mapping[str, Any]) -> Record:
    """Read the record that an Avro schema describes (JSON text, or what `json.loads` makes of it).

    Raises InvalidSchema where it is no Avro schema, and UnsupportedType where it is one that
    a channel cannot carry; both name the path of the field. Documentation, aliases and unknown
    attributes are dropped: they decide neither bytes nor values.
    """
    definition = _loaded(source) if isinstance(source, str) else source
    if not isinstance(definition, Mapping):
        raise InvalidSchema("the schema must be a JSON object that describes an Avro record")
    reading = _Reading()
    root = reading.type(definition, "", "", 0)
    if not isinstance(root, Record):
        raise UnsupportedType(
            path="",
            type_name=str(definition.get("type")),
            hint="a channel's records are Avro records: put it into a field of one",
        )
    return root


def _loaded(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidSchema(f"the schema is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise InvalidSchema(f"the schema is not JSON: {error}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


class _Reading:
    """One pass over a definition: the records named so far, and what was counted."""

    def __init__(self) -> None:
        self.records: dict[str, Record | None] = {}  # None: still being read
        self.weights: dict[str, tuple[int, int]] = {}  # fields within, levels below
        self.fields = 0
        self.deepest = 0

    def type(self, source: object, path: str, namespace: str, depth: int) -> Type:
        if depth > MAX_DEPTH:
            raise InvalidSchema(f"{at(path)} is nested deeper than {MAX_DEPTH} levels")
        self.deepest = max(self.deepest, depth)
        if isinstance(source, str):
            return self._named(source, path, namespace, depth)
        if isinstance(source, list):
            return self._union(source, path, namespace, depth)
        if not isinstance(source, Mapping) or "type" not in source:
            raise InvalidSchema(f"{at(path)} has no Avro type: give a name, a list or an object")
        inner = source["type"]
        if logical := source.get("logicalType"):
            return _logical(inner, logical, path)
        match inner:
            case "record":
                return self._record(source, path, namespace, depth)
            case "array":
                item = self.type(source.get("items"), f"{path}[]", namespace, depth + 1)
                return Array(items=item)
            case "map":
                item = self.type(source.get("values"), f"{path}{{}}", namespace, depth + 1)
                return Map(values=item)
            case "enum" | "fixed" | "error":
                raise UnsupportedType(path=path, type_name=inner, hint=_HINTS.get(inner, ""))
        return self.type(inner, path, namespace, depth + 1)

    def _named(self, name: str, path: str, namespace: str, depth: int) -> Type:
        if kind := _PLAIN.get(name):
            return Scalar(kind=kind)
        if name in _COMPLEX:
            if name in ("record", "array", "map"):
                raise InvalidSchema(f'{at(path)}: {name!r} must be an object {{"type": "{name}"}}')
            raise UnsupportedType(path=path, type_name=name, hint=_HINTS.get(name, ""))
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if full not in self.records:
            raise InvalidSchema(f"{at(path)} has the unknown type {name!r}")
        record = self.records[full]
        if record is None:
            raise UnsupportedType(
                path=path, type_name=f"{full} (recursive)", hint="records cannot hold themselves"
            )
        fields, levels = self.weights[full]
        self._count(fields)
        if depth + levels > MAX_DEPTH:
            raise InvalidSchema(f"{at(path)} is nested deeper than {MAX_DEPTH} levels")
        self.deepest = max(self.deepest, depth + levels)
        return record

    def _union(self, branches: list[object], path: str, namespace: str, depth: int) -> Type:
        if len(branches) != 2 or branches.count("null") != 1:
            shown = json.dumps([b if isinstance(b, str) else "…" for b in branches])
            raise UnsupportedType(
                path=path,
                type_name=f"union {shown}",
                hint="a union may only be of null and one other type",
            )
        null_first = branches[0] == "null"
        item = self.type(branches[1 if null_first else 0], path, namespace, depth + 1)
        if isinstance(item, Nullable):
            raise InvalidSchema(f"{at(path)} has a union directly inside a union")
        return Nullable(item=item, null_first=null_first)

    def _record(self, source: Mapping[str, Any], path: str, namespace: str, depth: int) -> Present:
        full = _full_name(source, path, namespace)
        if full in self.records or full in _PLAIN or full in _COMPLEX:
            raise InvalidSchema(f"{at(path)}: the name {full!r} is taken; name each record once")
        members = source.get("fields")
        if not isinstance(members, list) or not members:
            # An empty record takes no bytes, so that a few bytes could say there are millions.
            raise InvalidSchema(
                f"{at(path)}: the record {full!r} needs a list of fields, not empty"
            )
        self.records[full] = None
        before, deepest, self.deepest = self.fields, self.deepest, depth
        self._count(len(members))
        inside = full.rpartition(".")[0]
        fields: dict[str, Field] = {}
        for member in members:
            field = self._field(member, path, inside, depth)
            if field.name in fields:
                raise InvalidSchema(f"{at(below(path, field.name))} is there twice")
            fields[field.name] = field
        record = Record(name=full, fields=tuple(fields.values()))
        self.records[full] = record
        self.weights[full] = (self.fields - before, self.deepest - depth)
        self.deepest = max(self.deepest, deepest)
        return record

    def _field(self, member: object, path: str, namespace: str, depth: int) -> Field:
        if not isinstance(member, Mapping) or not isinstance(name := member.get("name"), str):
            raise InvalidSchema(f"{at(path)}: every field must be an object with a name")
        where = below(path, name)
        if not NAME.fullmatch(name):
            raise InvalidSchema(f"{at(where)}: {name_advice(name)}")
        type_ = self.type(member.get("type"), where, namespace, depth + 1)
        if "default" not in member:
            return Field(name=name, type=type_)
        return Field(name=name, type=type_, default=default_text(member["default"], type_, where))

    def _count(self, fields: int) -> None:
        self.fields += fields
        if self.fields > MAX_FIELDS:
            raise InvalidSchema(f"the schema has more than {MAX_FIELDS} fields")


def default_text(value: object, type_: Type, path: str) -> str:
    """Write the default `value` (parsed JSON) as canonical text; raise InvalidSchema."""
    try:
        normal = defaults.normal(value, type_, path)
    except defaults.DefaultDoesNotFit as error:
        raise InvalidSchema(
            f"{at(error.path)} has a default that does not fit: {error.reason}"
        ) from error
    return json.dumps(normal, separators=(",", ":"))


def name_advice(name: str) -> str:
    """Say what is wrong with `name`, and give a name like it that Avro allows."""
    better = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "field"
    better = f"_{better}" if better[0].isdigit() else better
    return (
        f"{name!r} is not an Avro name (letters, digits and _, no digit first); "
        f"rename it, for instance to {better!r}"
    )


def _full_name(source: Mapping[str, Any], path: str, namespace: str) -> str:
    name, own = source.get("name"), source.get("namespace", namespace)
    if not isinstance(name, str) or not isinstance(own, str):
        raise InvalidSchema(f"{at(path)}: a record needs a name, and its namespace must be text")
    full = name if "." in name or not own else f"{own}.{name}"
    for part in full.split("."):
        if not NAME.fullmatch(part):
            raise InvalidSchema(f"{at(path)}: {name_advice(part)}")
    if namespace and "." not in full:
        # Its name, written again, would be read as one of the enclosing namespace.
        raise InvalidSchema(f"{at(path)}: give the record {full!r} a namespace, as its parent has")
    return full


def _logical(inner: object, logical: object, path: str) -> Scalar:
    kind = next((kind for kind in LOGICAL if kind.value == logical), None)
    if isinstance(inner, Mapping):
        inner = inner.get("type")
    if kind is None:
        hint = _HINTS.get(str(logical), "leave the logicalType out to carry the plain type")
        raise UnsupportedType(path=path, type_name=f"{inner} ({logical})", hint=hint)
    if inner != LOGICAL[kind].value:
        raise InvalidSchema(f"{at(path)}: the logical type {logical} belongs on {LOGICAL[kind]}")
    return Scalar(kind=kind)
