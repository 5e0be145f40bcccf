"""Hypothesis strategies for schemas and records, and helpers of the codecs' tests."""

import io
import uuid
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal as Number

import fastavro
import pyarrow as pa
from hypothesis import strategies as st

from sluiceway.codecs.avro import AvroCodec
from sluiceway.codecs.resolution import Resolution
from sluiceway.errors import InvalidSchema
from sluiceway.records import to_batches
from sluiceway.schema import Schema
from sluiceway.schema import types as t
from sluiceway.schema.proto_files import proto_file
from sluiceway.schema.protobuf import numbered

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True)
Leaves = st.SearchStrategy[t.Leaf]

SCALARS: Leaves = st.sampled_from([t.Scalar(kind=kind) for kind in t.Kind])
FIXED: Leaves = st.builds(t.Fixed, name=st.just("f"), size=st.integers(1, 17))


@st.composite
def _decimals(draw):
    """Draw a decimal of bytes, or of a fixed that may be longer than its largest number."""
    precision, longer = draw(st.integers(1, 76)), draw(st.none() | st.integers(0, 5))
    size = (10**precision).bit_length() // 8 + 1
    fixed = None if longer is None else t.Fixed(name="d", size=size + longer)
    return t.Decimal(precision=precision, scale=draw(st.integers(0, precision)), fixed=fixed)


DECIMALS: Leaves = _decimals()
UUIDS: Leaves = st.sampled_from([t.Uuid(), t.Uuid(fixed=t.Fixed(name="u", size=16))])


@st.composite
def enums(draw, symbols, most=None):
    chosen = draw(st.lists(symbols, min_size=1, max_size=most, unique=True))
    default = draw(st.none() | st.sampled_from(chosen))
    return t.Enum(name="e", symbols=tuple(chosen), default=default)


ENUMS: Leaves = enums(NAMES, 4)
LEAVES: Leaves = st.one_of(SCALARS, SCALARS, FIXED, DECIMALS, UUIDS, ENUMS)
FAST: Leaves = st.one_of(
    SCALARS,
    ENUMS,
    UUIDS,
    DECIMALS.filter(lambda leaf: not leaf.fixed or leaf.fixed.size % 4 == 0),
    st.builds(t.Fixed, name=st.just("f"), size=st.sampled_from([4, 8, 12, 16, 20, 64])),
)


def types(
    leaves: Leaves = LEAVES, depth: int = 2, *, with_unions: bool = False
) -> st.SearchStrategy[t.Type]:
    present = leaves
    if depth:
        below = st.deferred(lambda: types(leaves, depth - 1, with_unions=with_unions))
        present = st.one_of(
            leaves,
            below.map(lambda type_: t.Array(items=type_)),
            below.map(lambda type_: t.Map(values=type_)),
            records(leaves, depth - 1, most=3, with_unions=with_unions),
        )
    nullable = st.builds(lambda i, n: t.Nullable(item=i, null_at=n), present, st.integers(0, 1))
    if not with_unions:
        return st.one_of(present, nullable)
    return st.one_of(present, nullable, unions(st.one_of(leaves, leaves, present)))


@st.composite
def unions(draw, branches):
    several = draw(st.lists(branches, min_size=1, max_size=3, unique_by=t.branch_name))
    union = t.Union(branches=tuple(several))
    null_at = draw(st.integers(-1, len(several)))
    return union if null_at < 0 or len(several) == 1 else t.Nullable(item=union, null_at=null_at)


@st.composite
def records(draw, leaves=LEAVES, depth=2, most=5, *, with_unions=False):
    most = min(most, 2) if with_unions else most
    names = draw(st.lists(NAMES, min_size=1, max_size=most, unique=True))
    fields = tuple(
        t.Field(name=n, type=draw(types(leaves, depth, with_unions=with_unions))) for n in names
    )
    return t.Record(name="nested", fields=fields)


def named(type_: t.Type, path: str = "root") -> t.Type:
    """Name each type by its path of field names and kinds of types."""

    def within(inner: t.Type, step: str) -> t.Type:
        return named(inner, f"{path}.{step}")

    name = f"{path}.{type(type_).__name__}"
    match type_:
        case t.Nullable(item=item):
            return replace(type_, item=named(item, path))
        case t.Union(branches=branches):
            return t.Union(branches=tuple(within(b, type(b).__name__) for b in branches))
        case t.Array(items=items):
            return t.Array(items=within(items, "items"))
        case t.Map(values=values):
            return t.Map(values=within(values, "values"))
        case t.Record(fields=fields):
            inside = tuple(replace(field, type=within(field.type, field.name)) for field in fields)
            return t.Record(name=name, fields=inside)
        case t.Fixed() | t.Enum():
            return replace(type_, name=name)
        case t.Decimal(fixed=t.Fixed()) | t.Uuid(fixed=t.Fixed()):
            return replace(type_, fixed=named(type_.fixed, path))
    return type_


def schemas(leaves=LEAVES, depth=2, *, with_unions=False) -> st.SearchStrategy[Schema]:
    return records(leaves, depth, with_unions=with_unions).map(lambda record: Schema(named(record)))


def protobuf_schemas(leaves=LEAVES, depth=2) -> st.SearchStrategy[Schema]:
    """Schemas of the types and names that Protobuf has, without numbers."""
    drawn = records(leaves, depth).map(lambda record: Schema(named(_protobuf_form(record))))
    return drawn.filter(_has_protobuf_names)


def _has_protobuf_names(schema: Schema) -> bool:
    try:
        proto_file(numbered(schema))
    except InvalidSchema:
        return False
    return True


@st.composite
def with_protobuf_rows(draw):
    """Draw a schema with any numbers, types of Protobuf and oneofs, and rows of it."""
    unsigned = st.just(t.Decimal(precision=20, scale=0))
    schema = draw(protobuf_schemas(st.one_of(LEAVES, LEAVES, unsigned)))
    record = _with_forms(draw, schema.record)
    rows = draw(st.lists(values(record), min_size=1, max_size=4))
    return numbered(Schema(record)), [_representable(row, record) for row in rows]


_FORMS = {
    t.Scalar(kind=t.Kind.INT): ("int32", "sint32", "sfixed32"),
    t.Scalar(kind=t.Kind.LONG): ("int64", "sint64", "sfixed64", "uint32", "fixed32"),
    t.Decimal(precision=20, scale=0): ("uint64", "fixed64", "confluent.type.Decimal"),
}


def _with_forms(draw, type_):
    match type_:
        case t.Nullable(item=inner) | t.Array(items=inner) | t.Map(values=inner):
            (name,) = {"item", "items", "values"} & vars(type_).keys()
            return replace(type_, **{name: _with_forms(draw, inner)})
        case t.Enum(symbols=symbols):
            least = draw(st.sampled_from([-(2**31), -1, 0, 1, 2**31 - 9]))
            numbers = [0, *(number for number in range(least, least + 9) if number)]
            own = dict(zip(symbols, numbers, strict=False))
            return replace(type_, attributes={"protobuf": own})
        case t.Record(fields=fields):
            first = draw(st.sampled_from([1, 14, 2000, 2**29 - 20]))
            numbers = draw(st.permutations(range(first, first + len(fields))))
            made = []
            for number, field in zip(numbers, fields, strict=True):
                form = {"number": number}
                leaf = _item(field.type)
                if leaf in _FORMS:
                    form["type"] = draw(st.sampled_from(_FORMS[leaf]))
                if isinstance(field.type, t.Nullable) and draw(st.booleans()):
                    form["oneof"] = "one_of_several"
                inner = _with_forms(draw, field.type)
                made.append(replace(field, type=inner, attributes={"protobuf": form}))
            return replace(type_, fields=tuple(made))
    return type_


def _item(type_):
    match type_:
        case t.Nullable(item=item) | t.Array(items=item) | t.Map(values=item):
            return item
    return type_


def _representable(value, type_, form=None):
    """Return the value without the sign in unsigned types, and with one member of each oneof."""
    if value is None:
        return None
    match type_:
        case t.Nullable(item=item):
            return _representable(value, item, form)
        case t.Array(items=items):
            return [_representable(item, items, form) for item in value]
        case t.Map(values=item):
            return {key: _representable(entry, item, form) for key, entry in value.items()}
        case t.Record(fields=fields):
            row, taken = {}, False
            for field in fields:
                attribute = field.attributes["protobuf"]
                item = value[field.name]
                if "oneof" in attribute:
                    item, taken = None if taken else item, taken or item is not None
                row[field.name] = _representable(item, field.type, attribute.get("type"))
            return row
    if form in ("uint32", "fixed32"):
        return value & 0xFFFF_FFFF
    return Number(int(value) % 2**64) if form in ("uint64", "fixed64") else value


def _protobuf_form(type_):
    match type_:
        case t.Nullable(item=item):
            inner = _protobuf_form(item)
            return inner if isinstance(inner, t.Array | t.Map) else replace(type_, item=inner)
        case t.Array(items=items):
            return t.Array(items=_protobuf_item(items))
        case t.Map(values=values):
            return t.Map(values=_protobuf_item(values))
        case t.Record(fields=fields):
            return replace(
                type_, fields=tuple(replace(f, type=_protobuf_form(f.type)) for f in fields)
            )
        case t.Scalar(kind=kind) if kind.name.startswith("LOCAL"):
            return t.Scalar(kind=t.Kind[kind.name.removeprefix("LOCAL_")])
    return type_


def _protobuf_item(type_):
    match _protobuf_form(type_):
        case t.Nullable(item=item) | t.Array(items=item) | t.Map(values=item):
            return item
        case item:
            return item


def _ticking(instants, unit_us):
    """Draw instants that are multiples of a unit."""
    return instants.map(
        lambda at: at.replace(fold=0, microsecond=at.microsecond // unit_us * unit_us)
    )


def _instants(zone, ends=(datetime.min, datetime.max)):  # noqa: DTZ901
    between = st.datetimes(*ends, timezones=st.just(zone))
    return st.one_of(between, st.sampled_from([end.replace(tzinfo=zone) for end in ends]))


#: Ends of the time that 64 bits of nanoseconds can represent.
_NANOSECONDS = (datetime(1677, 9, 22), datetime(2262, 4, 11))  # noqa: DTZ001
_TIMES = st.one_of(st.times(), st.sampled_from([time.min, time.max]))
_VALUES = {
    t.Kind.BOOLEAN: st.booleans(),
    t.Kind.INT: st.integers(-(2**31), 2**31 - 1),
    t.Kind.LONG: st.integers(-(2**63), 2**63 - 1),
    t.Kind.FLOAT: st.floats(width=32),
    t.Kind.DOUBLE: st.floats(),
    t.Kind.STRING: st.text(max_size=8),
    t.Kind.BYTES: st.binary(max_size=8),
    t.Kind.DATE: st.one_of(st.dates(), st.sampled_from([date.min, date.max])),
    t.Kind.TIME_MILLIS: _ticking(_TIMES, 1000),
    t.Kind.TIME: _ticking(_TIMES, 1),
    t.Kind.TIMESTAMP_MILLIS: _ticking(_instants(UTC), 1000),
    t.Kind.TIMESTAMP: _ticking(_instants(UTC), 1),
    t.Kind.TIMESTAMP_NANOS: _ticking(_instants(UTC, _NANOSECONDS), 1),
    t.Kind.LOCAL_TIMESTAMP_MILLIS: _ticking(_instants(None), 1000),
    t.Kind.LOCAL_TIMESTAMP: _ticking(_instants(None), 1),
    t.Kind.LOCAL_TIMESTAMP_NANOS: _ticking(_instants(None, _NANOSECONDS), 1),
}


#: Keys of maps. No key can be a field name, so maps and records differ by their keys.
_KEYS = st.text(max_size=4).map(lambda key: f"{key}-" if key.isidentifier() else key)


def values(type_: t.Type) -> st.SearchStrategy[object]:
    match type_:
        case t.Scalar(kind=kind):
            return _VALUES[kind]
        case t.Fixed(size=size):
            return st.binary(min_size=size, max_size=size)
        case t.Decimal(precision=precision, scale=scale):
            most = 10**precision - 1
            numbers = st.one_of(st.integers(-most, most), st.sampled_from([-most, 0, most]))
            return numbers.map(lambda number: Number(f"{number}E-{scale}"))
        case t.Uuid():
            return st.one_of(st.uuids(), st.sampled_from([uuid.UUID(int=0)]))
        case t.Enum(symbols=symbols):
            return st.sampled_from(symbols)
        case t.Nullable(item=item):
            return st.one_of(st.none(), values(item))
        case t.Union(branches=branches):
            return st.one_of([st.tuples(st.just(t.branch_name(b)), values(b)) for b in branches])
        case t.Array(items=items):
            return st.lists(values(items), max_size=3)
        case t.Map(values=items):
            return st.dictionaries(_KEYS, values(items), max_size=3)
        case t.Record(fields=fields):
            return st.fixed_dictionaries({field.name: values(field.type) for field in fields})
    raise AssertionError(type_)


def without_branches(value: object) -> object:
    """Return the value as readers get it: without the branch names of drawn union values."""
    match value:
        case tuple():
            return without_branches(value[1])
        case list():
            return [*map(without_branches, value)]
        case dict():
            return {key: without_branches(item) for key, item in value.items()}
    return value


@st.composite
def with_rows(draw, leaves=LEAVES, least=0, *, with_unions=False):
    """Draw a schema and at least so many rows of it."""
    schema = draw(schemas(leaves, with_unions=with_unions))
    return schema, draw(st.lists(values(schema.record), min_size=least, max_size=6))


def same(left: object, right: object) -> bool:
    """Compare values exactly: NaN equals NaN, but 0.0 differs from -0.0, and 1 from True."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and repr(left) == repr(right)


PREFIX = b"\x00\x00\x00\x00\x07"
"""The first bytes of a message of schema 7."""


def one_batch(rows: list, schema: Schema) -> pa.RecordBatch:
    (batch,) = to_batches(rows, schema)
    return batch


def schema(*fields: dict) -> Schema:
    return Schema.parse({"type": "record", "name": "Reading", "fields": list(fields)})


def resolve(batch: pa.RecordBatch, writer: Schema, reader: Schema) -> pa.RecordBatch:
    resolved, reasons = Resolution(writer, reader).sift(batch)
    if reasons:
        raise ValueError("; ".join(f"record {index}: {why}" for index, why in reasons.items()))
    return resolved


def schema_of(type_, **more) -> Schema:
    """Return the schema of a record with one field, `x`."""
    return schema({"name": "x", "type": type_, **more})


def number(value: int) -> bytes:
    """Return the encoding of an Avro int or long."""
    fastavro.schemaless_writer(encoded := io.BytesIO(), "long", value)
    return encoded.getvalue()


class RowCodec(AvroCodec):
    """The codec without pyruhvro."""

    columnar = None  # type: ignore[assignment]


class ColumnCodec(AvroCodec):
    """The codec with pyruhvro also for few records."""

    few_records = 0
