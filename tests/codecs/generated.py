"""Hypothesis strategies: schemas that a channel can carry, and records that fit them."""

from datetime import UTC, date, datetime

from hypothesis import strategies as st

from sluiceway.schema import Schema
from sluiceway.schema.types import Array, Field, Kind, Map, Nullable, Record, Scalar, Type

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True)
FAST_KINDS = tuple(kind for kind in Kind if kind is not Kind.BYTES)


def types(kinds: tuple[Kind, ...] = tuple(Kind), depth: int = 2) -> st.SearchStrategy[Type]:
    scalars = st.sampled_from(kinds).map(lambda kind: Scalar(kind=kind))
    present = scalars
    if depth:
        below = st.deferred(lambda: types(kinds, depth - 1))
        present = st.one_of(
            scalars,
            below.map(lambda type_: Array(items=type_)),
            below.map(lambda type_: Map(values=type_)),
            records(kinds, depth - 1, most=3),
        )
    nullable = st.builds(lambda i, n: Nullable(item=i, null_first=n), present, st.booleans())
    return st.one_of(present, nullable)


@st.composite
def records(draw, kinds=tuple(Kind), depth=2, most=5, name="nested"):
    names = draw(st.lists(NAMES, min_size=1, max_size=most, unique=True))
    fields = tuple(Field(name=n, type=draw(types(kinds, depth))) for n in names)
    return Record(name=name, fields=fields)


def _named(type_: Type, path: str) -> Type:
    """Give every nested record a name of its own."""
    match type_:
        case Nullable(item=item):
            return Nullable(item=_named(item, path), null_first=type_.null_first)
        case Array(items=items):
            return Array(items=_named(items, f"{path}_i"))
        case Map(values=values):
            return Map(values=_named(values, f"{path}_v"))
        case Record(fields=fields):
            renamed = [
                Field(name=f.name, type=_named(f.type, f"{path}_{n}")) for n, f in enumerate(fields)
            ]
            return Record(name=path, fields=tuple(renamed))
    return type_


def schemas(kinds=tuple(Kind), depth=2) -> st.SearchStrategy[Schema]:
    return records(kinds, depth).map(lambda record: Schema(_named(record, "root")))


_INSTANTS = st.datetimes(timezones=st.just(UTC)).map(lambda instant: instant.replace(fold=0))
_VALUES = {
    Kind.BOOLEAN: st.booleans(),
    Kind.INT: st.integers(-(2**31), 2**31 - 1),
    Kind.LONG: st.integers(-(2**63), 2**63 - 1),
    Kind.FLOAT: st.floats(width=32),
    Kind.DOUBLE: st.floats(),
    Kind.STRING: st.text(max_size=8),
    Kind.BYTES: st.binary(max_size=8),
    Kind.DATE: st.one_of(st.dates(), st.sampled_from([date.min, date.max])),
    Kind.TIMESTAMP: st.one_of(
        _INSTANTS,
        st.sampled_from([datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]),
    ),
    Kind.LOCAL_TIMESTAMP: st.datetimes().map(lambda instant: instant.replace(fold=0)),
}


def values(type_: Type) -> st.SearchStrategy[object]:
    match type_:
        case Scalar(kind=kind):
            return _VALUES[kind]
        case Nullable(item=item):
            return st.one_of(st.none(), values(item))
        case Array(items=items):
            return st.lists(values(items), max_size=3)
        case Map(values=items):
            return st.dictionaries(st.text(max_size=4), values(items), max_size=3)
        case Record(fields=fields):
            return st.fixed_dictionaries({field.name: values(field.type) for field in fields})
    raise AssertionError(type_)


def with_rows(kinds=tuple(Kind), least=0, most=6) -> st.SearchStrategy[tuple[Schema, list]]:
    return schemas(kinds).flatmap(
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
