"""Hypothesis strategies for schemas that change, and fastavro's word on reading across them."""

import io
from dataclasses import replace
from uuid import UUID

import fastavro
import numpy as np
from generated import DECIMALS, FIXED, records, types, values
from hypothesis import strategies as st

from sluiceway.errors import InvalidSchema
from sluiceway.schema import Schema
from sluiceway.schema import types as t
from sluiceway.schema.avro import default_text
from sluiceway.schema.compatibility import PROMOTIONS
from sluiceway.schema.defaults import default_from_python, default_to_python

_SYMBOLS = st.lists(st.sampled_from("ABCD"), min_size=1, unique=True)
ENUMS = _SYMBOLS.flatmap(
    lambda symbols: st.builds(
        t.Enum,
        name=st.just("e"),
        symbols=st.just(tuple(symbols)),
        default=st.one_of(st.none(), st.sampled_from(symbols)),
    )
)
PLAIN = st.one_of(
    *[st.just(t.Scalar(kind=kind)) for kind in t.Kind if kind not in t.LOGICAL], FIXED, ENUMS, ENUMS
)
"""Leaves of which Avro's rules say all: no logical types."""

_KNOWN = [t.Scalar(kind=kind) for kind in t.Kind if "nanos" not in kind]
LEAVES = st.one_of(
    st.sampled_from(_KNOWN), st.sampled_from(_KNOWN), PLAIN, DECIMALS, st.just(t.Uuid())
)
"""Leaves that fastavro knows as well."""


@st.composite
def evolved(draw, type_: t.Type, leaves=LEAVES) -> t.Type:
    """A type that grew out of `type_`, often one that can read it."""
    nullable = isinstance(type_, t.Nullable)
    match type_.item if nullable else type_:
        case t.Scalar(kind=kind) as scalar:
            promoted = [t.Scalar(kind=other) for other in PROMOTIONS.get(kind, ())]
            present = draw(st.sampled_from([scalar] * 3 + promoted + [draw(leaves)]))
        case t.Enum() as enum:
            present = draw(st.sampled_from([enum, draw(ENUMS), draw(ENUMS), draw(leaves)]))
        case t.Array(items=items):
            present = t.Array(items=draw(evolved(items, leaves)))
        case t.Map(values=items):
            present = t.Map(values=draw(evolved(items, leaves)))
        case t.Record() as record:
            present = draw(evolved_records(record, leaves))
        case leaf:
            present = draw(st.sampled_from([leaf] * 4 + [draw(leaves)]))
    if draw(st.sampled_from((nullable, nullable, nullable, True, False))):
        return t.Nullable(item=present, null_first=draw(st.booleans()))
    return present


@st.composite
def evolved_records(draw, record: t.Record, leaves=LEAVES) -> t.Record:
    kept = draw(st.lists(st.sampled_from(record.fields), unique=True, max_size=8))
    fields = [t.Field(name=f.name, type=draw(evolved(f.type, leaves))) for f in kept]
    taken = {field.name for field in record.fields}
    new = st.sampled_from([name for name in ("new", "Newer", "_newest") if name not in taken])
    for name in draw(st.lists(new, unique=True, min_size=0 if kept else 1, max_size=2)):
        type_ = draw(types(leaves, 1))
        fields.append(t.Field(name=name, type=type_, default=draw(defaults(type_))))
    return t.Record(name=record.name, fields=tuple(draw(st.permutations(fields))))


@st.composite
def defaults(draw, type_: t.Type) -> str | None:
    """JSON text of a default that fits `type_`; now and then None, for there is none."""
    if draw(st.integers(0, 7)) == 0:
        return None
    try:
        return default_text(default_from_python(draw(values(type_)), type_), type_, "")
    except InvalidSchema:  # NaN, or a value where null comes first
        null_first = isinstance(type_, t.Nullable) and type_.null_first
        return "null" if null_first else None


def _named(type_: t.Type, path: str) -> t.Type:
    """Name each type by its place and form, so that both schemas call the same the same."""
    match type_:
        case t.Nullable(item=item):
            return t.Nullable(item=_named(item, path), null_first=type_.null_first)
        case t.Array(items=items):
            return t.Array(items=_named(items, f"{path}.items"))
        case t.Map(values=items):
            return t.Map(values=_named(items, f"{path}.values"))
        case t.Record(fields=fields):
            inside = tuple(
                t.Field(name=f.name, type=_named(f.type, f"{path}.{f.name}"), default=f.default)
                for f in fields
            )
            return t.Record(name=f"{path}.record", fields=inside)
        case t.Fixed() | t.Enum():
            return replace(type_, name=f"{path}.{type(type_).__name__}")
        case t.Decimal(fixed=t.Fixed()) | t.Uuid(fixed=t.Fixed()):
            return replace(type_, fixed=_named(type_.fixed, path))
    return type_


@st.composite
def pairs(draw, leaves=LEAVES, depth=2) -> tuple[Schema, Schema]:
    """A writer's schema and a reader's that grew out of it."""
    writer = draw(records(leaves, depth))
    reader = draw(evolved_records(writer, leaves))
    return Schema(_named(writer, "root")), Schema(_named(reader, "root"))


def witnesses(type_: t.Type) -> list[object]:
    """Values that between them take every way through `type_` that there is."""
    match type_:
        case t.Nullable(item=item):
            return [None, *witnesses(item)]
        case t.Array(items=items):
            return [witnesses(items)]
        case t.Map(values=items):
            return [{str(number): value for number, value in enumerate(witnesses(items))}]
        case t.Record(fields=fields):
            ways = {field.name: witnesses(field.type) for field in fields}
            rows = max(map(len, ways.values()))
            return [{name: way[i % len(way)] for name, way in ways.items()} for i in range(rows)]
        case t.Enum(symbols=symbols):
            return list(symbols)
        case t.Fixed(size=size):
            return [bytes(size)]
    return [_WITNESS[type_.kind]]


_WITNESS = {
    t.Kind.BOOLEAN: True,
    t.Kind.INT: 1,
    t.Kind.LONG: 1,
    t.Kind.FLOAT: 1.0,
    t.Kind.DOUBLE: 1.0,
    t.Kind.STRING: "text",
    t.Kind.BYTES: b"text",
}


def fastavro_reads(row: object, writer: Schema, reader: Schema) -> object:
    """What fastavro gives of `row`, written with `writer` and read with `reader`; it may raise."""
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(writer.definition), row)
    sink.seek(0)
    found = fastavro.schemaless_reader(sink, writer.definition, reader.definition)
    return _fitted(found, reader.record)


def _fitted(value: object, type_: t.Type) -> object:
    """Say in Python's types what fastavro leaves in JSON's (defaults) or too precise (floats)."""
    if value is None:
        return None
    match type_:
        case t.Nullable(item=item):
            return _fitted(value, item)
        case t.Array(items=items):
            return [_fitted(item, items) for item in value]
        case t.Map(values=items):
            return {key: _fitted(item, items) for key, item in value.items()}
        case t.Record(fields=fields):
            return {field.name: _fitted(value[field.name], field.type) for field in fields}
        case t.Scalar(kind=t.Kind.FLOAT):
            return float(np.float32(value))
        case t.Scalar(kind=t.Kind.BYTES) | t.Fixed() | t.Decimal() | t.Uuid(fixed=t.Fixed()):
            return default_to_python(value, type_) if isinstance(value, str) else value
        case t.Uuid():
            return UUID(value) if isinstance(value, str) else value
        case t.Scalar(kind=kind) if kind in t.LOGICAL and isinstance(value, int):
            return default_to_python(value, type_)
    return value
