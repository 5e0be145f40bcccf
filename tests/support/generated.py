"""Hypothesis strategies for schemas, records and schema changes, and fastavro's results."""

import io
import uuid
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal as Number
from uuid import UUID

import fastavro
import numpy as np
from hypothesis import strategies as st

from sluiceway.codecs.avro import AvroCodec
from sluiceway.errors import InvalidSchema
from sluiceway.schema import Schema
from sluiceway.schema.avro import default_text
from sluiceway.schema.compatibility import PROMOTIONS
from sluiceway.schema.defaults import default_from_python, default_to_python
from sluiceway.schema.types import (
    LOGICAL,
    Array,
    Decimal,
    Enum,
    Field,
    Fixed,
    Kind,
    Leaf,
    Map,
    Nullable,
    Record,
    Scalar,
    Type,
    Union,
    Uuid,
    branch_name,
)

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True)
Leaves = st.SearchStrategy[Leaf]

SCALARS: Leaves = st.sampled_from([Scalar(kind=kind) for kind in Kind])
FIXED: Leaves = st.builds(Fixed, name=st.just("f"), size=st.integers(1, 17))


def _digits(least: int, most: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.integers(least, most).flatmap(
        lambda precision: st.tuples(st.just(precision), st.integers(0, precision))
    )


def _in_fixed(digits: tuple[int, int], longer: int) -> Leaf:
    size = (10 ** digits[0]).bit_length() // 8 + 1 + longer
    fixed = Fixed(name="d", size=size)
    return Decimal(precision=digits[0], scale=digits[1], fixed=fixed)


DECIMALS: Leaves = st.one_of(
    _digits(1, 76).map(lambda digits: Decimal(precision=digits[0], scale=digits[1])),
    st.builds(_in_fixed, _digits(1, 76), st.integers(0, 5)),
)
UUIDS: Leaves = st.sampled_from([Uuid(), Uuid(fixed=Fixed(name="u", size=16))])


def _enums(symbols: st.SearchStrategy[str], most: int | None = None) -> Leaves:
    return st.lists(symbols, min_size=1, max_size=most, unique=True).flatmap(
        lambda symbols: st.builds(
            Enum,
            name=st.just("e"),
            symbols=st.just(tuple(symbols)),
            default=st.one_of(st.none(), st.sampled_from(symbols)),
        )
    )


ENUMS = _enums(NAMES, 4)
LEAVES: Leaves = st.one_of(SCALARS, SCALARS, FIXED, DECIMALS, UUIDS, ENUMS)
FAST: Leaves = st.one_of(
    SCALARS,
    ENUMS,
    UUIDS,
    DECIMALS.filter(lambda leaf: not leaf.fixed or leaf.fixed.size % 4 == 0),
    st.builds(Fixed, name=st.just("f"), size=st.sampled_from([4, 8, 12, 16, 20, 64])),
)


def types(
    leaves: Leaves = LEAVES, depth: int = 2, *, with_unions: bool = False
) -> st.SearchStrategy[Type]:
    present = leaves
    if depth:
        below = st.deferred(lambda: types(leaves, depth - 1, with_unions=with_unions))
        present = st.one_of(
            leaves,
            below.map(lambda type_: Array(items=type_)),
            below.map(lambda type_: Map(values=type_)),
            records(leaves, depth - 1, most=3, with_unions=with_unions),
        )
    nullable = st.builds(lambda i, n: Nullable(item=i, null_at=n), present, st.integers(0, 1))
    if not with_unions:
        return st.one_of(present, nullable)
    return st.one_of(present, nullable, unions(st.one_of(leaves, leaves, present)))


@st.composite
def unions(draw, branches):
    several = draw(st.lists(branches, min_size=1, max_size=3, unique_by=branch_name))
    union = Union(branches=tuple(several))
    null_at = draw(st.integers(-1, len(several)))
    return union if null_at < 0 or len(several) == 1 else Nullable(item=union, null_at=null_at)


@st.composite
def records(draw, leaves=LEAVES, depth=2, most=5, name="nested", *, with_unions=False):
    most = min(most, 2) if with_unions else most
    names = draw(st.lists(NAMES, min_size=1, max_size=most, unique=True))
    fields = tuple(
        Field(name=n, type=draw(types(leaves, depth, with_unions=with_unions))) for n in names
    )
    return Record(name=name, fields=fields)


def _named(type_: Type, path: str, *, dotted: bool = False) -> Type:
    """Name each type by its path; if `dotted`, with field names and the kind of the type."""

    def within(inner: Type, step: object) -> Type:
        return _named(inner, f"{path}{'.' if dotted else '_'}{step}", dotted=dotted)

    name = f"{path}.{type(type_).__name__}" if dotted else path
    match type_:
        case Nullable(item=item):
            return replace(type_, item=_named(item, path, dotted=dotted))
        case Union(branches=branches):
            steps = [type(b).__name__ if dotted else n for n, b in enumerate(branches)]
            return Union(branches=tuple(map(within, branches, steps)))
        case Array(items=items):
            return Array(items=within(items, "items"))
        case Map(values=values):
            return Map(values=within(values, "values"))
        case Record(fields=fields):
            inside = (
                replace(f, type=within(f.type, f.name if dotted else n))
                for n, f in enumerate(fields)
            )
            return Record(name=name, fields=tuple(inside))
        case Fixed() | Enum():
            return replace(type_, name=name)
        case Decimal(fixed=Fixed()) | Uuid(fixed=Fixed()):
            return replace(type_, fixed=_named(type_.fixed, path, dotted=dotted))
    return type_


def schemas(leaves=LEAVES, depth=2, *, with_unions=False) -> st.SearchStrategy[Schema]:
    strategy = records(leaves, depth, with_unions=with_unions)
    return strategy.map(lambda record: Schema(_named(record, "root")))


def _ticking(instants, nanoseconds):
    """Draw instants that are multiples of `nanoseconds`."""
    microseconds = max(1, nanoseconds // 1000)

    def cut(instant):
        return instant.replace(
            fold=0, microsecond=instant.microsecond // microseconds * microseconds
        )

    return instants.map(cut)


def _instants(zone):
    ends = [datetime.min.replace(tzinfo=zone), datetime.max.replace(tzinfo=zone)]
    zones = st.just(zone)
    return st.one_of(st.datetimes(timezones=zones), st.sampled_from(ends))


def _near(zone):
    """Draw instants that 64 bits of nanoseconds can represent."""
    ends = (datetime(1677, 9, 22), datetime(2262, 4, 11))  # noqa: DTZ001
    return st.datetimes(*ends, timezones=st.just(zone))


_TIMES = st.one_of(st.times(), st.sampled_from([time.min, time.max]))
_VALUES = {
    Kind.BOOLEAN: st.booleans(),
    Kind.INT: st.integers(-(2**31), 2**31 - 1),
    Kind.LONG: st.integers(-(2**63), 2**63 - 1),
    Kind.FLOAT: st.floats(width=32),
    Kind.DOUBLE: st.floats(),
    Kind.STRING: st.text(max_size=8),
    Kind.BYTES: st.binary(max_size=8),
    Kind.DATE: st.one_of(st.dates(), st.sampled_from([date.min, date.max])),
    Kind.TIME_MILLIS: _ticking(_TIMES, 1_000_000),
    Kind.TIME: _ticking(_TIMES, 1_000),
    Kind.TIMESTAMP_MILLIS: _ticking(_instants(UTC), 1_000_000),
    Kind.TIMESTAMP: _ticking(_instants(UTC), 1_000),
    Kind.TIMESTAMP_NANOS: _ticking(_near(UTC), 1),
    Kind.LOCAL_TIMESTAMP_MILLIS: _ticking(_instants(None), 1_000_000),
    Kind.LOCAL_TIMESTAMP: _ticking(_instants(None), 1_000),
    Kind.LOCAL_TIMESTAMP_NANOS: _ticking(_near(None), 1),
}


#: Keys of maps. No key can be a field name, so maps and records differ by their keys.
_KEYS = st.text(max_size=4).map(lambda key: f"{key}-" if key.isidentifier() else key)


def values(type_: Type) -> st.SearchStrategy[object]:
    match type_:
        case Scalar(kind=kind):
            return _VALUES[kind]
        case Fixed(size=size):
            return st.binary(min_size=size, max_size=size)
        case Decimal(precision=precision, scale=scale):
            most = 10**precision - 1
            numbers = st.one_of(st.integers(-most, most), st.sampled_from([-most, 0, most]))
            return numbers.map(lambda number: Number(f"{number}E-{scale}"))
        case Uuid():
            return st.one_of(st.uuids(), st.sampled_from([uuid.UUID(int=0)]))
        case Enum(symbols=symbols):
            return st.sampled_from(symbols)
        case Nullable(item=item):
            return st.one_of(st.none(), values(item))
        case Union(branches=branches):
            return st.one_of([st.tuples(st.just(branch_name(b)), values(b)) for b in branches])
        case Array(items=items):
            return st.lists(values(items), max_size=3)
        case Map(values=items):
            return st.dictionaries(_KEYS, values(items), max_size=3)
        case Record(fields=fields):
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


def with_rows(
    leaves=LEAVES, least=0, most=6, *, with_unions=False
) -> st.SearchStrategy[tuple[Schema, list]]:
    return schemas(leaves, with_unions=with_unions).flatmap(
        lambda schema: st.tuples(
            st.just(schema), st.lists(values(schema.record), min_size=least, max_size=most)
        )
    )


def same(left: object, right: object) -> bool:
    """Compare values exactly: NaN equals NaN, but 0.0 differs from -0.0, and 1 from True."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and repr(left) == repr(right)


LETTER_ENUMS = _enums(st.sampled_from("ABCD"))
PLAIN = st.one_of(
    *[st.just(Scalar(kind=kind)) for kind in Kind if kind not in LOGICAL],
    FIXED,
    LETTER_ENUMS,
    LETTER_ENUMS,
)
"""Leaves that Avro's resolution rules cover completely: no logical types."""

UNION_LEAVES = st.one_of(
    *[st.just(Scalar(kind=kind)) for kind in Kind if kind not in LOGICAL and kind != Kind.FLOAT],
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
                    *[draw(evolved_branches(each, leaves)) for each in branches],
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
    return Schema(_named(writer, "root", dotted=True)), Schema(_named(reader, "root", dotted=True))


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
        case Scalar(kind=kind) if kind in LOGICAL and isinstance(value, int):
            return default_to_python(value, type_)
    return value


PREFIX = b"\x00\x00\x00\x00\x07"
"""The first bytes of a message of schema 7."""


def schema_of(type_, **more):
    """Return the schema of a record with one field, `x`."""
    field = {"name": "x", "type": type_, **more}
    return Schema.parse({"type": "record", "name": "r", "fields": [field]})


def number(value):
    """Return the encoding of an Avro int or long."""
    raw, out = ((value << 1) ^ (value >> 63)) & (2**64 - 1), bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


class RowCodec(AvroCodec):
    """The codec without pyruhvro."""

    columnar = None  # type: ignore[assignment]
