"""Hypothesis strategies: schemas that a channel can carry, and records that fit them."""

import uuid
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal as Number

from hypothesis import strategies as st

from sluiceway.schema import Schema
from sluiceway.schema import types as t

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True)
Leaves = st.SearchStrategy[t.Leaf]

SCALARS: Leaves = st.sampled_from([t.Scalar(kind=kind) for kind in t.Kind])
FIXED: Leaves = st.builds(t.Fixed, name=st.just("f"), size=st.integers(1, 17))


def _digits(least: int, most: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.integers(least, most).flatmap(
        lambda precision: st.tuples(st.just(precision), st.integers(0, precision))
    )


def _in_fixed(digits: tuple[int, int], longer: int) -> t.Leaf:
    size = (10 ** digits[0]).bit_length() // 8 + 1 + longer
    fixed = t.Fixed(name="d", size=size)
    return t.Decimal(precision=digits[0], scale=digits[1], fixed=fixed)


DECIMALS: Leaves = st.one_of(
    _digits(1, 76).map(lambda digits: t.Decimal(precision=digits[0], scale=digits[1])),
    st.builds(_in_fixed, _digits(1, 76), st.integers(0, 5)),
)
UUIDS: Leaves = st.sampled_from([t.Uuid(), t.Uuid(fixed=t.Fixed(name="u", size=16))])
ENUMS: Leaves = st.lists(NAMES, min_size=1, max_size=4, unique=True).flatmap(
    lambda symbols: st.builds(
        t.Enum,
        name=st.just("e"),
        symbols=st.just(tuple(symbols)),
        default=st.one_of(st.none(), st.sampled_from(symbols)),
    )
)
LEAVES: Leaves = st.one_of(SCALARS, SCALARS, FIXED, DECIMALS, UUIDS, ENUMS)
FAST: Leaves = st.one_of(
    SCALARS,
    ENUMS,
    UUIDS,
    DECIMALS.filter(lambda leaf: not leaf.fixed or leaf.fixed.size % 4 == 0),
    st.builds(t.Fixed, name=st.just("f"), size=st.sampled_from([4, 8, 12, 16, 20, 64])),
)


def types(leaves: Leaves = LEAVES, depth: int = 2) -> st.SearchStrategy[t.Type]:
    present = leaves
    if depth:
        below = st.deferred(lambda: types(leaves, depth - 1))
        present = st.one_of(
            leaves,
            below.map(lambda type_: t.Array(items=type_)),
            below.map(lambda type_: t.Map(values=type_)),
            records(leaves, depth - 1, most=3),
        )
    nullable = st.builds(lambda i, n: t.Nullable(item=i, null_first=n), present, st.booleans())
    return st.one_of(present, nullable)


@st.composite
def records(draw, leaves=LEAVES, depth=2, most=5, name="nested"):
    names = draw(st.lists(NAMES, min_size=1, max_size=most, unique=True))
    fields = tuple(t.Field(name=n, type=draw(types(leaves, depth))) for n in names)
    return t.Record(name=name, fields=fields)


def _named(type_: t.Type, path: str) -> t.Type:
    """Give everything that is named a name of its own."""
    match type_:
        case t.Nullable(item=item):
            return t.Nullable(item=_named(item, path), null_first=type_.null_first)
        case t.Array(items=items):
            return t.Array(items=_named(items, f"{path}_i"))
        case t.Map(values=values):
            return t.Map(values=_named(values, f"{path}_v"))
        case t.Record(fields=fields):
            renamed = [
                t.Field(name=f.name, type=_named(f.type, f"{path}_{n}"))
                for n, f in enumerate(fields)
            ]
            return t.Record(name=path, fields=tuple(renamed))
        case t.Fixed() | t.Enum():
            return replace(type_, name=path)
        case t.Decimal(fixed=t.Fixed()) | t.Uuid(fixed=t.Fixed()):
            return replace(type_, fixed=replace(type_.fixed, name=path))
    return type_


def schemas(leaves=LEAVES, depth=2) -> st.SearchStrategy[Schema]:
    return records(leaves, depth).map(lambda record: Schema(_named(record, "root")))


def _ticking(instants, nanoseconds):
    """Draw what a unit of so many nanoseconds can tell."""
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
    """Draw instants that 64 bits of nanoseconds can tell."""
    ends = (datetime(1677, 9, 22), datetime(2262, 4, 11))  # noqa: DTZ001
    return st.datetimes(*ends, timezones=st.just(zone))


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
    t.Kind.TIME_MILLIS: _ticking(_TIMES, 1_000_000),
    t.Kind.TIME: _ticking(_TIMES, 1_000),
    t.Kind.TIMESTAMP_MILLIS: _ticking(_instants(UTC), 1_000_000),
    t.Kind.TIMESTAMP: _ticking(_instants(UTC), 1_000),
    t.Kind.TIMESTAMP_NANOS: _ticking(_near(UTC), 1),
    t.Kind.LOCAL_TIMESTAMP_MILLIS: _ticking(_instants(None), 1_000_000),
    t.Kind.LOCAL_TIMESTAMP: _ticking(_instants(None), 1_000),
    t.Kind.LOCAL_TIMESTAMP_NANOS: _ticking(_near(None), 1),
}


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
        case t.Array(items=items):
            return st.lists(values(items), max_size=3)
        case t.Map(values=items):
            return st.dictionaries(st.text(max_size=4), values(items), max_size=3)
        case t.Record(fields=fields):
            return st.fixed_dictionaries({field.name: values(field.type) for field in fields})
    raise AssertionError(type_)


def with_rows(leaves=LEAVES, least=0, most=6) -> st.SearchStrategy[tuple[Schema, list]]:
    return schemas(leaves).flatmap(
        lambda schema: st.tuples(
            st.just(schema), st.lists(values(schema.record), min_size=least, max_size=most)
        )
    )


def same(left: object, right: object) -> bool:
    """Compare values so that NaN is itself, 0.0 is not -0.0, and 1 is not True."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and repr(left) == repr(right)
