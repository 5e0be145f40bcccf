import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from types import MappingProxyType
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from generated import same, schema_of, schemas, values
from sluiceway.errors import InvalidRecord, OptionError, ValueOutOfRange
from sluiceway.records import to_batches, to_records
from sluiceway.schema import Schema

CENTS = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
WIDE = {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 50}
TIMESTAMP = {"type": "long", "logicalType": "timestamp-micros"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
DATE = {"type": "int", "logicalType": "date"}
POINT = {
    "type": "record",
    "name": "Point",
    "fields": [{"name": "lat", "type": "double"}, {"name": "tag", "type": ["null", "string"]}],
}


def refused(records, schema):
    with pytest.raises(InvalidRecord) as caught:
        to_batches(records, schema)
    return caught.value


@pytest.mark.parametrize("type_", [CENTS, WIDE])
@pytest.mark.parametrize(
    "value",
    [
        *("1E-61", "1E-1000000000", "-1E-1000000000", "1E+1000000000", "NaN", "sNaN", "Infinity"),
        # 2**128, of which Arrow keeps 0.
        "0.000000000000000000000000340282366920938463463374607431768211456",
    ],
)
def test_decimals_of_too_many_digits_are_refused(type_, value):
    error = refused([{"x": Decimal(1)}, {"x": Decimal(value)}], schema_of(type_))
    assert (error.index, error.schema_path) == (1, "x")
    assert "digits" in str(error)


@pytest.mark.parametrize("type_", [CENTS, WIDE])
@pytest.mark.parametrize(
    "value", ["0E-1000000000", "-0E-100", "1.5" + "0" * 100, "100", "1E+2", "0.01", "999.99"]
)
def test_decimals_that_fit_keep_their_value(type_, value):
    (batch,) = to_batches([{"x": Decimal(value)}, {"x": 7}], schema_of(type_))
    assert [record["x"] for record in to_records(batch)] == [Decimal(value), Decimal(7)]


class Colour(enum.IntEnum):
    RED = 3


@pytest.mark.parametrize(
    ("type_", "value", "comes_back"),
    [
        ("int", np.int8(5), 5),
        ("long", np.uint64(5), 5),
        ("int", Colour.RED, 3),
        ("double", 5, 5.0),
        ("double", np.float32(1.5), 1.5),
        ("double", np.uint64(2**53), float(2**53)),
        ("double", np.longdouble("inf"), float("inf")),
        ("float", 0.1, float(np.float32(0.1))),
        ("float", float("inf"), float("inf")),
        ("boolean", np.bool_(True), True),
        ("bytes", bytearray(b"a"), b"a"),
        ("bytes", memoryview(b"a"), b"a"),
        (
            TIMESTAMP,
            datetime(2020, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))),
            datetime(2020, 1, 1, tzinfo=UTC),
        ),
        (
            TIMESTAMP,
            datetime(2020, 7, 1, tzinfo=ZoneInfo("Europe/Rome")),
            datetime(2020, 6, 30, 22, tzinfo=UTC),
        ),
        (TIMESTAMP, pd.Timestamp("2020-01-01", tz="UTC"), datetime(2020, 1, 1, tzinfo=UTC)),
        (LOCAL, pd.Timestamp("2020-01-01"), datetime(2020, 1, 1)),  # noqa: DTZ001
        ({"type": "array", "items": "int"}, (1, 2), [1, 2]),
        ({"type": "array", "items": "int"}, np.array([1, 2]), [1, 2]),
        ({"type": "map", "values": "int"}, MappingProxyType({"a": 1}), {"a": 1}),
        (POINT, MappingProxyType({"lat": 1.0, "tag": None}), {"lat": 1.0, "tag": None}),
    ],
)
def test_values_of_related_types_are_accepted(type_, value, comes_back):
    (batch,) = to_batches({"x": value}, schema_of(type_))
    assert same(to_records(batch), [{"x": comes_back}])


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("int", True),
        ("int", 1.0),
        ("int", 1.5),
        ("int", "1"),
        ("int", 2**31),
        ("int", -(2**31) - 1),
        ("long", 2**63),
        ("long", np.uint64(2**63)),
        ("long", np.float64(1)),
        ("long", None),
        ("double", True),
        ("double", "1"),
        ("double", 2**53 + 1),
        ("double", 10**400),
        ("double", np.uint64(2**64 - 1)),
        ("double", np.uint64(2**64 - 2**11)),
        ("double", np.longdouble("1e400")),
        ("float", 1e300),
        ("float", 2**24 + 1),
        ("float", np.uint64(2**64 - 1)),
        ("boolean", 1),
        ("boolean", "true"),
        ("string", b"a"),
        ("string", 1),
        ("string", "\ud800"),
        ("string", None),
        ("bytes", "a"),
        ("bytes", [1]),
        (DATE, datetime(2020, 1, 1, tzinfo=UTC)),
        (DATE, "2020-01-01"),
        (TIMESTAMP, date(2020, 1, 1)),
        (TIMESTAMP, datetime(2020, 1, 1)),  # noqa: DTZ001
        (TIMESTAMP, 5),
        (TIMESTAMP, datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))),
        (TIMESTAMP, datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5)))),
        (TIMESTAMP, pd.NaT),
        (TIMESTAMP, pd.Timestamp("2020-01-01T00:00:00.000000001", tz="UTC")),
        (LOCAL, datetime(2020, 1, 1, tzinfo=UTC)),
        (LOCAL, pd.NaT),
        ({"type": "array", "items": "int"}, "ab"),
        ({"type": "array", "items": "int"}, {1: 2}),
        ({"type": "map", "values": "int"}, [("a", 1)]),
        ({"type": "map", "values": "int"}, {1: 1}),
        ({"type": "map", "values": "int"}, {None: 1}),
        (POINT, [1.0, None]),
        (POINT, {"lat": 1.0}),
        (POINT, {"lat": 1.0, "tag": None, "lon": 2.0}),
        (POINT, None),
    ],
)
@pytest.mark.parametrize("wrapped", ["plain", "nullable", "array", "map", "record"])
def test_a_value_that_does_not_fit_is_reported_at_any_depth(type_, value, wrapped):
    good = []
    if wrapped == "plain":
        schema, record, field = schema_of(type_), {"x": value}, "x"
    elif wrapped == "nullable":
        if value is None:
            return
        schema, record, field = schema_of(["null", type_]), {"x": value}, "x"
        good = [{"x": None}] * 3
    elif wrapped == "array":
        item = ["null", type_] if value is not None else type_
        schema = schema_of({"type": "array", "items": item})
        record, field = {"x": [None, value] if value is not None else [value]}, "x["
        good = [{"x": []}] * 3
    elif wrapped == "map":
        schema, record = schema_of({"type": "map", "values": type_}), {"x": {"k": value}}
        field, good = "x['k']", [{"x": {}}] * 3
    else:
        inner = {"type": "record", "name": "in", "fields": [{"name": "y", "type": type_}]}
        schema, record = schema_of(["null", inner]), {"x": {"y": value}}
        field, good = "x.y", [{"x": None}] * 3
    error = refused([*good, record, *good], schema)
    assert error.index == len(good)
    assert error.field.startswith(field)
    assert error.reason
    for single in good[:1]:
        assert to_batches([single], schema)


@pytest.mark.long
@given(schemas(), st.data())
def test_one_bad_record_among_good_ones_is_found(schema, data):
    rows = data.draw(st.lists(values(schema.record), min_size=1, max_size=5))
    index = data.draw(st.integers(0, len(rows) - 1))
    name = data.draw(st.sampled_from(schema.arrow.names))
    rows[index] = {**rows[index], name: object()}
    error = refused(rows, schema)
    assert (error.index, error.field) == (index, name)
    assert "object" in error.reason


def test_the_error_path_includes_lists_maps_and_records():
    inner = {"type": "map", "values": {"type": "array", "items": POINT}}
    schema = schema_of({"type": "array", "items": inner})
    good = {"x": [{"a": [{"lat": 1.0, "tag": None}]}, {}]}
    bad = {"x": [{}, {"a": [], "b": [{"lat": 1.0, "tag": None}, {"lat": "1", "tag": None}]}]}
    error = refused([good, good, bad], schema)
    assert (error.index, error.field) == (2, "x[1]['b'][1].lat")
    assert "str '1'" in error.reason


@pytest.mark.long
def test_the_error_index_counts_over_all_batches():
    rows = [{"x": number} for number in range(40_000)]
    assert sum(batch.num_rows for batch in to_batches(rows, schema_of("int"))) == 40_000
    rows[39_999] = {"x": 2**31}
    assert refused(rows, schema_of("int")).index == 39_999


def test_naive_datetimes_are_rejected_with_advice():
    error = refused({"x": datetime(2020, 1, 1)}, schema_of(TIMESTAMP))  # noqa: DTZ001
    assert "has no time zone" in error.reason
    assert "datetime.UTC" in error.reason


TWO = Schema.parse(
    {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "a", "type": "int"},
            {"name": "b", "type": ["long", "null"], "default": 7},
            {"name": "c", "type": {"type": "array", "items": TIMESTAMP}, "default": [0]},
            {"name": "d", "type": POINT, "default": {"lat": 1.5, "tag": None}},
            {"name": "e", "type": {"type": "map", "values": "bytes"}, "default": {"k": "\xff"}},
        ],
    }
)


def test_missing_fields_have_their_defaults():
    (batch,) = to_batches([{"a": 1}, {"a": 2, "b": None}], TWO)
    filled = {
        "c": [datetime(1970, 1, 1, tzinfo=UTC)],
        "d": {"lat": 1.5, "tag": None},
        "e": {"k": b"\xff"},
    }
    assert to_records(batch) == [{"a": 1, "b": 7, **filled}, {"a": 2, "b": None, **filled}]


def test_missing_and_unknown_fields_are_rejected():
    error = refused([{"a": 1}, {"b": 1}], TWO)
    assert (error.index, error.field) == (1, "a")
    assert "missing" in error.reason
    error = refused([{"a": 1}, {"a": 1, "z": 1}], TWO)
    assert (error.index, error.field) == (1, "z")
    assert "it has a, b, c, d, e" in error.reason
    full = {name: to_records(to_batches({"a": 1}, TWO)[0])[0][name] for name in "abcde"}
    error = refused([full, {**full, "z": 1}], TWO)
    assert (error.index, error.field) == (1, "z")


@dataclass
class Point:
    lat: float
    tag: str | None = None


@dataclass(slots=True, frozen=True)
class Place:
    a: int
    d: Point


@dataclass
class Fewer:
    b: int


@dataclass
class More:
    a: int
    z: int


def test_dataclass_instances_may_be_mixed_with_dicts():
    (batch,) = to_batches(Place(1, Point(2.0)), TWO)
    assert to_records(batch)[0]["d"] == {"lat": 2.0, "tag": None}
    mixed = [Place(1, Point(2.0, "t")), {"a": 2, "d": Point(3.0)}, MappingProxyType({"a": 3})]
    (batch,) = to_batches(iter(mixed), TWO)
    assert [row["d"]["lat"] for row in to_records(batch)] == [2.0, 3.0, 1.5]
    assert "missing" in refused([Fewer(1)], TWO).reason
    assert refused([More(1, 2)], TWO).field == "z"


@pytest.mark.parametrize("records", ["text", b"bytes", 5, None, Point])
def test_objects_without_records_are_rejected(records):
    with pytest.raises(OptionError, match="is not a record"):
        to_batches(records, TWO)


@pytest.mark.parametrize("record", [5, None, "x", [1], (1, 2), Point])
def test_items_that_are_not_records_are_rejected(record):
    error = refused([{"a": 1}, record], TWO)
    assert (error.index, error.field) == (1, "")


def test_no_records_give_no_batches():
    assert to_batches([], TWO) == []
    assert to_batches(iter(()), TWO) == []


@pytest.mark.parametrize(
    ("kind", "value"), [(TIMESTAMP, 2**62), (LOCAL, -(2**62)), (DATE, 2**31 - 1)]
)
def test_instants_beyond_python_are_reported(kind, value):
    schema = schema_of({"type": "array", "items": ["null", kind]})
    number = pa.int32() if kind is DATE else pa.int64()
    item = schema.arrow.field("x").type.value_type
    items = pa.array([None, value], number).view(item)
    array = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), items)
    (batch,) = to_batches(pa.table({"x": array}), schema)
    with pytest.raises(ValueOutOfRange, match=r"'x\[\]'.*batches\(\)"):
        to_records(batch)


def test_timestamps_are_read_aware_in_utc_with_microseconds():
    instant = datetime(2020, 1, 1, 12, 30, 15, 999_999, tzinfo=UTC)
    (batch,) = to_batches({"x": instant}, schema_of(TIMESTAMP))
    (record,) = to_records(batch)
    assert record["x"] == instant
    assert record["x"].tzinfo is UTC


CHANGED = Schema.parse(
    {
        "type": "record",
        "name": "Changed",
        "fields": [
            {"name": "number", "type": "int", "default": 7},
            {"name": "data", "type": "bytes"},
            {"name": "items", "type": {"type": "array", "items": "int"}},
            {"name": "pairs", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
            {"name": "point", "type": POINT},
            {"name": "either", "type": ["int", {"type": "array", "items": "int"}]},
        ],
    }
)


@dataclass
class Spot:
    lat: float
    tag: str | None


@dataclass
class Changed:
    number: int
    data: bytearray
    items: list[int]
    pairs: dict[str, np.ndarray]
    point: Spot
    either: tuple[str, list[int]]


def changed(number):
    return Changed(
        number,
        bytearray([number]),
        [number],
        {"a": np.array([number], np.int32)},
        Spot(float(number), None),
        ("array", [number]),
    )


def change(record, number):
    record.number = record.data[0] = record.items[0] = number
    record.pairs["a"][0] = record.point.lat = record.either[1][0] = number


@pytest.mark.parametrize("form", [lambda record: record, vars, lambda r: MappingProxyType(vars(r))])
def test_an_iterator_may_change_and_yield_the_same_record_again(form):
    def records():
        record = changed(0)
        for number in range(40):
            change(record, number)
            yield form(record)

    assert [row for batch in to_batches(records(), CHANGED) for row in to_records(batch)] == [
        row
        for batch in to_batches([changed(number) for number in range(40)], CHANGED)
        for row in to_records(batch)
    ]


def test_an_iterators_records_keep_their_own_defaults():
    class Numbered(dict):
        def __missing__(self, name):
            return {"number": 8}[name]

    record = Numbered(vars(changed(3)))
    del record["number"]
    rows = [row for batch in to_batches(iter([record]), CHANGED) for row in to_records(batch)]
    assert [row["number"] for row in rows] == [8]
