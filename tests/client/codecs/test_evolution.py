"""Schemas evolved at random: rules, resolution and decoding, compared with fastavro."""

import io
from uuid import UUID

import fastavro
import numpy as np
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from generated import (
    DECIMALS,
    FIXED,
    enums,
    named,
    one_batch,
    records,
    resolve,
    same,
    schema,
    types,
    values,
)
from sluiceway.codecs import Decoder, codec
from sluiceway.codecs.resolution import Resolution
from sluiceway.errors import InvalidSchema, SchemaMismatch
from sluiceway.records import to_batches, to_records
from sluiceway.records.validation import check_column
from sluiceway.schema import Schema
from sluiceway.schema.avro import default_text
from sluiceway.schema.compatibility import PROMOTIONS, incompatibilities
from sluiceway.schema.defaults import default_from_python, default_to_python
from sluiceway.schema.types import (
    Array,
    Decimal,
    Enum,
    Field,
    Fixed,
    Kind,
    Map,
    Nullable,
    Record,
    Scalar,
    Type,
    Union,
    Uuid,
    branch_name,
)

LETTER_ENUMS = enums(st.sampled_from("ABCD"))
PLAIN = st.one_of(
    *[st.just(Scalar(kind=kind)) for kind in Kind if not kind.traits.physical],
    FIXED,
    LETTER_ENUMS,
    LETTER_ENUMS,
)
"""Leaves that Avro's resolution rules cover completely: no logical types."""

UNION_LEAVES = st.one_of(
    *[
        st.just(Scalar(kind=kind))
        for kind in Kind
        if not kind.traits.physical and kind != Kind.FLOAT
    ],
    FIXED,
    LETTER_ENUMS,
)
"""Leaves of `PLAIN` whose Python values identify the branch that fastavro has read."""

_KNOWN = [Scalar(kind=kind) for kind in Kind if "nanos" not in kind]
KNOWN_LEAVES = st.one_of(
    st.sampled_from(_KNOWN), st.sampled_from(_KNOWN), PLAIN, DECIMALS, st.just(Uuid())
)
"""Leaves that fastavro supports."""


@st.composite
def evolved(draw, type_: Type, leaves=KNOWN_LEAVES) -> Type:
    """A changed version of `type_`, which can often read it."""
    nullable = isinstance(type_, Nullable)
    match type_.item if nullable else type_:
        case Scalar(kind=kind) as scalar:
            promoted = [Scalar(kind=other) for other in PROMOTIONS.get(kind, ())]
            present = draw(st.sampled_from([scalar] * 3 + promoted + [draw(leaves)]))
        case Enum() as enum:
            present = draw(
                st.sampled_from([enum, draw(LETTER_ENUMS), draw(LETTER_ENUMS), draw(leaves)])
            )
        case Array(items=items):
            present = Array(items=draw(evolved(items, leaves)))
        case Map(values=items):
            present = Map(values=draw(evolved(items, leaves)))
        case Record() as record:
            present = draw(evolved_records(record, leaves))
        case Union(branches=branches):
            present = _as_fastavro_prefers(
                [
                    *[draw(evolved_branches(branch, leaves)) for branch in branches],
                    *draw(st.lists(leaves, max_size=2)),
                ]
            )
        case leaf:
            present = draw(st.sampled_from([leaf] * 4 + [draw(leaves)]))
    if draw(st.sampled_from((nullable, nullable, nullable, True, False))):
        return Nullable(item=present, null_at=draw(st.integers(0, 1)))
    return present


@st.composite
def evolved_branches(draw, branch: Type, leaves) -> Type:
    type_ = draw(evolved(branch, leaves))
    return type_.item if isinstance(type_, Nullable) else type_


_PREFERRED = {"int": 0, "long": 1, "double": 2, "string": 3, "bytes": 4}


def _as_fastavro_prefers(branches: list[Type]) -> Union:
    """Order `branches` so that the first one that can read a value is the one of its type."""
    distinct = {branch_name(branch): branch for branch in branches}
    if "string" in distinct:
        distinct.pop("bytes", None)
    names = sorted(distinct, key=lambda name: _PREFERRED.get(name, 5))
    return Union(branches=tuple(distinct[name] for name in names))


@st.composite
def evolved_records(draw, record: Record, leaves=KNOWN_LEAVES, *, with_unions=False) -> Record:
    remaining = draw(st.lists(st.sampled_from(record.fields), unique=True, max_size=8))
    taken = {field.name for field in record.fields}
    fields = [
        Field(name=f"{f.name}_2", type=draw(evolved(f.type, leaves)), aliases=(f.name,))
        if f"{f.name}_2" not in taken and draw(st.integers(0, 3)) == 0
        else Field(name=f.name, type=draw(evolved(f.type, leaves)))
        for f in remaining
    ]
    new = st.sampled_from([name for name in ("new", "Newer", "_newest") if name not in taken])
    for name in draw(st.lists(new, unique=True, min_size=0 if remaining else 1, max_size=2)):
        type_ = draw(types(leaves, 1, with_unions=with_unions))
        fields.append(Field(name=name, type=type_, default=draw(defaults(type_))))
    return Record(name=record.name, fields=tuple(draw(st.permutations(fields))))


@st.composite
def defaults(draw, type_: Type) -> str | None:
    """JSON text of a valid default of `type_`, or None."""
    if draw(st.integers(0, 7)) == 0:
        return None
    try:
        return default_text(default_from_python(draw(values(type_)), type_), type_, "")
    except InvalidSchema:  # NaN, or a value where null comes first
        null_first = isinstance(type_, Nullable) and type_.null_at == 0
        return "null" if null_first else None


@st.composite
def pairs(draw, leaves=KNOWN_LEAVES, depth=2, *, with_unions=False) -> tuple[Schema, Schema]:
    """A writer's schema, and a reader's schema evolved from it."""
    writer = draw(records(leaves, depth, with_unions=with_unions))
    reader = draw(evolved_records(writer, leaves, with_unions=with_unions))
    return Schema(named(writer)), Schema(named(reader))


def fastavro_reads(row: object, writer: Schema, reader: Schema) -> object:
    """Return `row`, written with `writer` and read with `reader` by fastavro; may raise."""
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(writer.definition), row)
    sink.seek(0)
    value = fastavro.schemaless_reader(
        sink, writer.definition, reader.definition, return_record_name=True
    )
    return _fitted(value, reader.record)


def _is_of(value: object, record: Record) -> bool:
    if isinstance(value, tuple):
        return value[0] == record.name
    return isinstance(value, dict) and value.keys() == {field.name for field in record.fields}


def _fitted(value: object, type_: Type) -> object:
    """Convert what fastavro does not: defaults in JSON's types, and doubles for floats."""
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
            # A record in a union comes with its name, unless it is a default.
            value = value[1] if isinstance(value, tuple) else value
            return {field.name: _fitted(value[field.name], field.type) for field in fields}
        case Union(branches=branches):
            for branch in branches:
                if (
                    (isinstance(branch, Array) and isinstance(value, list))
                    or (isinstance(branch, Map) and isinstance(value, dict))
                    or (isinstance(branch, Record) and _is_of(value, branch))
                ):
                    return _fitted(value, branch)
            # fastavro reads an int or a long as a float without rounding it. A double is preferred.
            kinds = {branch.kind for branch in branches if isinstance(branch, Scalar)}
            if isinstance(value, float) and Kind.FLOAT in kinds and Kind.DOUBLE not in kinds:
                return float(np.float32(value))
        case Scalar(kind=Kind.FLOAT):
            return float(np.float32(value))
        case Scalar(kind=Kind.BYTES) | Fixed() | Decimal() | Uuid(fixed=Fixed()):
            return default_to_python(value, type_) if isinstance(value, str) else value
        case Uuid():
            return UUID(value) if isinstance(value, str) else value
        case Scalar(kind=kind) if kind.traits.physical and isinstance(value, int):
            return default_to_python(value, type_)
    return value


def witnesses(type_: Type) -> list[object]:
    """Values that together use every branch and item of `type_`."""
    match type_:
        case Nullable(item=Union() as union):
            return [None, *witnesses(union)]
        case Nullable(item=item):
            # Of branches without a name, fastavro takes none with a named branch within.
            return [None, *((branch_name(item), value) for value in witnesses(item))]
        case Union(branches=branches):
            return [
                (branch_name(branch), value) for branch in branches for value in witnesses(branch)
            ]
        case Array(items=items):
            return [witnesses(items)]
        case Map(values=items):
            return [{str(number): value for number, value in enumerate(witnesses(items))}]
        case Record(fields=fields):
            ways = {field.name: witnesses(field.type) for field in fields}
            rows = max(map(len, ways.values()))
            return [{name: way[i % len(way)] for name, way in ways.items()} for i in range(rows)]
        case Enum(symbols=symbols):
            return list(symbols)
        case Fixed(size=size):
            return [bytes(size)]
    return [_WITNESS[type_.kind]]


_WITNESS = {
    Kind.BOOLEAN: True,
    Kind.INT: 1,
    Kind.LONG: 1,
    Kind.FLOAT: 1.0,
    Kind.DOUBLE: 1.0,
    Kind.STRING: "text",
    Kind.BYTES: b"text",
}


@given(st.one_of(pairs(PLAIN), pairs(UNION_LEAVES, with_unions=True)))
def test_the_rules_agree_with_fastavro(pair: tuple[Schema, Schema]) -> None:
    writer, reader = pair
    broken = incompatibilities(reader, writer)
    event("incompatible" if broken else "compatible")
    failed = False
    for row in witnesses(writer.record):
        try:
            fastavro_reads(row, writer, reader)
        except Exception:  # of many kinds, for one reason
            failed = True
    assert failed == bool(broken), broken


@pytest.mark.long
@given(st.one_of(pairs(), pairs(UNION_LEAVES, with_unions=True)), st.data())
def test_records_are_resolved_as_fastavro_resolves_them(pair, data):
    writer, reader = pair
    assume(not incompatibilities(reader, writer))
    rows = data.draw(st.lists(values(writer.record), min_size=1, max_size=6))
    batch = one_batch([rows[0], *rows], writer).slice(1)
    try:
        expected = [fastavro_reads(row, writer, reader) for row in rows]
    except UnicodeDecodeError:
        with pytest.raises(ValueError, match="not UTF-8"):
            resolve(batch, writer, reader)
        return
    resolved = resolve(batch, writer, reader)
    resolved.validate(full=True)
    assert resolved.schema.equals(reader.arrow, check_metadata=True)
    for column, field in zip(resolved.columns, reader.record.fields, strict=True):
        check_column(column, field.type, field.name)
    assert same(to_records(resolved), expected)


@pytest.mark.long
@settings(max_examples=settings.default.max_examples // 2)
@given(pairs(depth=1), st.data())
def test_incompatible_schemas_are_not_resolved(pair, data):
    writer, reader = pair
    broken = incompatibilities(reader, writer)
    assume(broken)
    batch = one_batch([data.draw(values(writer.record))], writer)
    with pytest.raises(SchemaMismatch) as raised:
        resolve(batch, writer, reader)
    assert all(sentence in str(raised.value) for sentence in broken)


def test_a_long_of_a_union_read_as_a_float_is_rounded_like_any_other():
    writer = schema({"name": "a", "type": ["long", "string"]})
    reader = schema({"name": "a", "type": ["float", "string"]})
    rows = [{"a": ("long", 2**24 + 1)}, {"a": ("string", "b")}]
    resolved = to_records(resolve(one_batch(rows, writer), writer, reader))
    assert resolved == [{"a": 2.0**24}, {"a": "b"}]
    assert same(resolved, [fastavro_reads(row, writer, reader) for row in rows])


@settings(max_examples=settings.default.max_examples)
@given(
    pair=pairs(depth=1),
    data=st.data(),
    format_=st.sampled_from(["avro", "arrow"]),
    order=st.lists(st.booleans(), min_size=1, max_size=12),
)
def test_mixed_schemas_decode_like_each_message_alone(pair, data, format_, order):
    writer, reader = pair
    assume(not incompatibilities(reader, writer))
    decoding = Decoder(format_, reader, {1: writer, 2: reader})
    for _ in range(2):  # the second time it knows what to expect
        written, expected = [], []
        for is_old in order:
            source = writer if is_old else reader
            row = data.draw(values(source.record))
            (batch,) = to_batches([row], source)
            encoder = codec(format_, source, 1 if is_old else 2)
            written += encoder.encode(batch, limit_bytes=2**31).values.to_pylist()
            resolved, _ = Resolution(source, reader).sift(batch)
            expected.append(to_records(resolved))
        decoded = decoding.decode(written)
        assert all(batch.schema.equals(reader.arrow) for batch in decoded.batches)
        rows = [row for batch in decoded.batches for row in to_records(batch)]
        assert same(rows, [row for rows in expected for row in rows])
        assert (decoded.counts or [1] * len(order)) == list(map(len, expected))
        assert [c.index for c in decoded.corrupt] == [i for i, e in enumerate(expected) if not e]
