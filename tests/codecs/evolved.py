"""Hypothesis strategies for schemas that change, and fastavro's word on reading across them."""

import io
import json

import fastavro
import numpy as np
from generated import types, values
from hypothesis import strategies as st

from sluiceway.errors import InvalidSchema
from sluiceway.schema import Schema
from sluiceway.schema.compatibility import PROMOTIONS
from sluiceway.schema.defaults import as_json, as_python
from sluiceway.schema.parsing import default_text
from sluiceway.schema.types import (
    LOGICAL,
    Array,
    Field,
    Kind,
    Map,
    Nullable,
    Record,
    Scalar,
    Type,
)

PLAIN_KINDS = tuple(kind for kind in Kind if kind not in LOGICAL)


@st.composite
def evolved(draw, type_: Type, kinds=tuple(Kind)) -> Type:
    """A type that grew out of `type_`, often one that can read it."""
    nullable = isinstance(type_, Nullable)
    match type_.item if nullable else type_:
        case Scalar(kind=kind) as scalar:
            choices = [kind, kind, kind, *PROMOTIONS.get(kind, ()), draw(st.sampled_from(kinds))]
            choice = draw(st.sampled_from(choices))
            present = scalar if choice is kind else Scalar(kind=choice)
        case Array(items=items):
            present = Array(items=draw(evolved(items, kinds)))
        case Map(values=items):
            present = Map(values=draw(evolved(items, kinds)))
        case Record() as record:
            present = draw(evolved_records(record, kinds))
        case other:
            present = other
    if draw(st.sampled_from((nullable, nullable, nullable, True, False))):
        return Nullable(item=present, null_first=draw(st.booleans()))
    return present


@st.composite
def evolved_records(draw, record: Record, kinds=tuple(Kind)) -> Record:
    kept = draw(st.lists(st.sampled_from(record.fields), unique=True, max_size=8))
    fields = [Field(name=f.name, type=draw(evolved(f.type, kinds))) for f in kept]
    taken = {field.name for field in record.fields}
    new = st.sampled_from([name for name in ("new", "Newer", "_newest") if name not in taken])
    for name in draw(st.lists(new, unique=True, min_size=0 if kept else 1, max_size=2)):
        type_ = draw(types(kinds, 1))
        fields.append(Field(name=name, type=type_, default=draw(defaults(type_))))
    return Record(name=record.name, fields=tuple(draw(st.permutations(fields))))


@st.composite
def defaults(draw, type_: Type) -> str | None:
    """JSON text of a default that fits `type_`; now and then None, for there is none."""
    if draw(st.integers(0, 7)) == 0:
        return None
    try:
        return default_text(as_json(draw(values(type_)), type_), type_, "")
    except InvalidSchema:  # NaN, or a value where null comes first
        null_first = isinstance(type_, Nullable) and type_.null_first
        return "null" if null_first else None


def _named(type_: Type, path: str) -> Type:
    """Name each record by its place, so that both schemas call it the same."""
    match type_:
        case Nullable(item=item):
            return Nullable(item=_named(item, path), null_first=type_.null_first)
        case Array(items=items):
            return Array(items=_named(items, f"{path}.items"))
        case Map(values=items):
            return Map(values=_named(items, f"{path}.values"))
        case Record(fields=fields):
            inside = tuple(
                Field(name=f.name, type=_named(f.type, f"{path}.{f.name}"), default=f.default)
                for f in fields
            )
            return Record(name=path + ".record", fields=inside)
    return type_


@st.composite
def pairs(draw, kinds=tuple(Kind), depth=2) -> tuple[Schema, Schema]:
    """A writer's schema and a reader's that grew out of it."""
    from generated import records

    writer = draw(records(kinds, depth))
    reader = draw(evolved_records(writer, kinds))
    return Schema(_named(writer, "root")), Schema(_named(reader, "root"))


def witnesses(type_: Type) -> list[object]:
    """Values that between them take every way through `type_` that there is."""
    match type_:
        case Nullable(item=item):
            return [None, *witnesses(item)]
        case Array(items=items):
            return [witnesses(items)]
        case Map(values=items):
            return [{str(number): value for number, value in enumerate(witnesses(items))}]
        case Record(fields=fields):
            ways = {field.name: witnesses(field.type) for field in fields}
            rows = max(map(len, ways.values()))
            return [{name: way[i % len(way)] for name, way in ways.items()} for i in range(rows)]
        case Scalar(kind=Kind.BYTES):
            return [b"text"]
    return [_WITNESS[type_.kind]]


_WITNESS = {
    Kind.BOOLEAN: True,
    Kind.INT: 1,
    Kind.LONG: 1,
    Kind.FLOAT: 1.0,
    Kind.DOUBLE: 1.0,
    Kind.STRING: "text",
}


def fastavro_reads(row: object, writer: Schema, reader: Schema) -> object:
    """What fastavro gives of `row`, written with `writer` and read with `reader`; it may raise."""
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(writer.definition), row)
    sink.seek(0)
    found = fastavro.schemaless_reader(sink, writer.definition, reader.definition)
    return _fitted(found, reader.record)


def _fitted(value: object, type_: Type) -> object:
    """Say in Python's types what fastavro leaves in JSON's (defaults) or too precise (floats)."""
    if value is None:
        return None
    match type_:
        case Nullable(item=item):
            return _fitted(value, item)
        case Array(items=items):
            return [_fitted(item, items) for item in value]
        case Map(values=items):
            return {key: _fitted(item, items) for key, item in value.items()}
        case Record(fields=fields):
            return {field.name: _fitted(value[field.name], field.type) for field in fields}
        case Scalar(kind=Kind.FLOAT):
            return float(np.float32(value))
        case Scalar(kind=Kind.BYTES) if isinstance(value, str):
            return as_python(value, type_)
        case Scalar(kind=kind) if kind in LOGICAL and isinstance(value, int):
            return as_python(value, type_)
    return value


def added(schema: dict, **fields) -> dict:
    """`schema` with more fields, each given as its type or as (type, default)."""
    changed = json.loads(json.dumps(schema))
    for name, given in fields.items():
        member = {"name": name, "type": given}
        if isinstance(given, tuple):
            member = {"name": name, "type": given[0], "default": given[1]}
        changed["fields"].append(member)
    return changed
