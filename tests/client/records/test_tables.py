from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from generated import schema_of
from sluiceway.errors import InvalidRecord, SchemaMismatch
from sluiceway.records import to_batches, to_records
from sluiceway.schema import Schema

TIMESTAMP = {"type": "long", "logicalType": "timestamp-micros"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
DATE = {"type": "int", "logicalType": "date"}
POINT = {
    "type": "record",
    "name": "Point",
    "fields": [{"name": "lat", "type": "double"}, {"name": "tag", "type": ["null", "string"]}],
}
INTS = {"type": "array", "items": "int"}
MAP = {"type": "map", "values": "int"}


def values(array, type_):
    batches = to_batches(pa.table({"x": array}), schema_of(type_))
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(schema_of(type_).arrow)
    return [row["x"] for batch in batches for row in to_records(batch)]


@pytest.mark.parametrize(
    ("array", "type_", "expected"),
    [
        (pa.array([1, 2], pa.int8()), "int", [1, 2]),
        (pa.array([1, 2], pa.uint32()), "long", [1, 2]),
        (pa.array([1, 2], pa.uint64()), "long", [1, 2]),
        (pa.array([1, 2], pa.int64()), "int", [1, 2]),
        (pa.array([1.0, None]), ["null", "int"], [1, None]),
        (pa.array([1, 2], pa.int64()), "double", [1.0, 2.0]),
        (pa.array([1.5, float("nan"), float("inf")]), "float", "[1.5, nan, inf]"),
        (pa.array([2.0**24 + 1, 1e-50]), "float", [2.0**24, 0.0]),
        (pa.array(["a", "b"], pa.large_string()), "string", ["a", "b"]),
        (pa.array(["a", "b"], pa.string_view()), "string", ["a", "b"]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), "string", ["a", "b", "a"]),
        (pa.array([b"a"], pa.large_binary()), "bytes", [b"a"]),
        (pa.array([b"a"], pa.binary(1)), "bytes", [b"a"]),
        (pa.array([0], pa.timestamp("s", tz="UTC")), TIMESTAMP, [datetime(1970, 1, 1, tzinfo=UTC)]),
        (
            pa.array([1000], pa.timestamp("ns", tz="Asia/Tokyo")),
            TIMESTAMP,
            [datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)],
        ),
        (pa.array([5], pa.timestamp("ms")), LOCAL, [datetime(1970, 1, 1, 0, 0, 0, 5000)]),  # noqa: DTZ001
        (pa.array([None, None]), ["null", "string"], [None, None]),
        (pa.array([[1], None, []], pa.large_list(pa.int8())), ["null", INTS], [[1], None, []]),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)), INTS, [[1, 2], [3, 4]]),
        (pa.array([[1, 2], [3]], pa.list_view(pa.int64())), INTS, [[1, 2], [3]]),
        (
            pa.array([[("a", 1)], None], pa.map_(pa.large_string(), pa.int64())),
            ["null", MAP],
            [{"a": 1}, None],
        ),
        (
            pa.array([{"tag": "a", "lat": 1}, None]),
            ["null", POINT],
            [{"lat": 1.0, "tag": "a"}, None],
        ),
        (
            pa.array([[{"lat": 1.0, "tag": None}]]),
            {"type": "array", "items": POINT},
            [[{"lat": 1.0, "tag": None}]],
        ),
    ],
)
def test_arrow_arrays_of_related_types_are_cast(array, type_, expected):
    cast_values = values(array, type_)
    assert (str(cast_values) if isinstance(expected, str) else cast_values) == expected
    whole = pa.concat_arrays([array, array])
    assert str(values(whole[len(array) :], type_)) == str(cast_values)
    assert str(values(whole[1:], type_)) == str((cast_values + cast_values)[1:])


@pytest.mark.parametrize(
    ("array", "type_"),
    [
        (pa.array([1]), "string"),
        (pa.array(["1"]), "int"),
        (pa.array([True]), "int"),
        (pa.array([1]), "boolean"),
        (pa.array(["a"]), "bytes"),
        (pa.array([b"a"]), "string"),
        (pa.array([1]), DATE),
        (pa.array([1], pa.timestamp("us")), TIMESTAMP),
        (pa.array([1], pa.timestamp("us", tz="UTC")), LOCAL),
        (pa.array([1], pa.timestamp("us")), DATE),
        (pa.array([1], pa.decimal128(5)), "double"),
        (pa.array([[1]]), "int"),
        (pa.array([1]), INTS),
        (pa.array([["a"]]), INTS),
        (pa.array([{"a": 1}]), MAP),
        (pa.array([{"lat": 1.0}]), POINT),
        (pa.array([{"lat": 1.0, "tag": "a", "z": 1}]), POINT),
        (pa.array([{"lat": "a", "tag": "a"}]), POINT),
    ],
)
def test_columns_of_other_types_are_reported(array, type_):
    with pytest.raises(SchemaMismatch, match="'x"):
        values(array, type_)
    with pytest.raises(SchemaMismatch, match="'x"):
        values(array[:0], type_)


@pytest.mark.parametrize(
    ("array", "type_", "index", "field"),
    [
        (pa.array([1, 2**31, 2**32]), "int", 1, "x"),
        (pa.array([1.0, 2.0, 2.5]), "long", 2, "x"),
        (pa.array([1.0, float("nan")]), "long", 1, "x"),
        (pa.array([0, 2**53 + 1]), "double", 1, "x"),
        (pa.array([1.0, float("inf"), 1e300]), "float", 2, "x"),
        (pa.array([0, 2**63], pa.uint64()), "long", 1, "x"),
        (pa.array([0, 2**62], pa.timestamp("s", tz="UTC")), TIMESTAMP, 1, "x"),
        (pa.array([0, 1], pa.timestamp("ns", tz="UTC")), TIMESTAMP, 1, "x"),
        (pa.array([1, None], pa.int32()), "int", 1, "x"),
        (pa.array([1, None], pa.int64()), "int", 1, "x"),
        (pa.array([None]), "int", 0, "x"),
        (pa.array([[1], None], pa.list_(pa.int64())), INTS, 1, "x"),
        (pa.array([[1], [], [2, None]], pa.list_(pa.int64())), INTS, 2, "x[]"),
        (pa.array([[1], None, [2, 2**31]], pa.list_(pa.int64())), ["null", INTS], 2, "x[]"),
        (pa.array([{"a": 1}, {"a": None}], pa.map_(pa.string(), pa.int64())), MAP, 1, "x{}"),
        (
            pa.array([[("a", 1)], [("b", 1), ("b", 2)]], pa.map_(pa.string(), pa.int32())),
            MAP,
            1,
            "x",
        ),
        (
            pa.array([None, [("b", 1), ("b", 2)]], pa.map_(pa.string(), pa.int64())),
            ["null", MAP],
            1,
            "x",
        ),
        (
            pa.array([None, {"lat": 1.0, "tag": ""}, {"lat": None, "tag": ""}]),
            ["null", POINT],
            2,
            "x.lat",
        ),
    ],
)
def test_values_that_do_not_fit_are_reported(array, type_, index, field):
    for start in (0, 1):
        table = pa.concat_tables([pa.table({"x": array[:start]}), pa.table({"x": array[start:]})])
        with pytest.raises(InvalidRecord) as caught:
            to_batches(table, schema_of(type_))
        assert (caught.value.index, caught.value.field) == (index, field)


def test_a_null_below_a_null_is_accepted():
    schema = schema_of(["null", {"type": "array", "items": POINT}])
    lat = pa.array([None, 1.0], pa.float64())
    points = pa.StructArray.from_arrays([lat, pa.array(["a", "b"])], names=["lat", "tag"])
    offsets = pa.array([0, None, 2], pa.int32())  # the first list is null
    array = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), points)
    hidden = pa.Array.from_buffers(
        array.type, 2, [pa.py_buffer(b"\x02"), *array.buffers()[1:2]], children=[points]
    )
    assert values(hidden, schema.definition["fields"][0]["type"]) == [
        None,
        [{"lat": 1.0, "tag": "b"}],
    ]
    assert offsets.null_count == 1


def test_columns_are_found_by_name_and_defaults_fill_the_rest():
    schema = Schema.parse(
        {
            "type": "record",
            "name": "r",
            "fields": [
                {"name": "a", "type": "int"},
                {"name": "b", "type": ["string", "null"], "default": "?"},
            ],
        }
    )
    (batch,) = to_batches(pa.record_batch({"a": [1, 2]}), schema)
    assert to_records(batch) == [{"a": 1, "b": "?"}, {"a": 2, "b": "?"}]
    (batch,) = to_batches(pa.table({"b": ["x"], "a": [1]}), schema)
    assert to_records(batch) == [{"a": 1, "b": "x"}]
    with pytest.raises(SchemaMismatch, match="'a' is missing"):
        to_batches(pa.table({"b": ["x"]}), schema)
    with pytest.raises(SchemaMismatch, match="no field 'z'"):
        to_batches(pa.table({"a": [1], "z": [1]}), schema)
    twice = pa.Table.from_arrays([pa.array([1])] * 2, names=["a", "a"])
    with pytest.raises(SchemaMismatch, match="column 'a' exists twice"):
        to_batches(twice, schema)
    assert to_batches(pa.table({"a": pa.array([], pa.int32())}), schema) == []


def text(*values):
    """An array of texts that are not checked to be valid UTF-8."""
    return pa.array(values, pa.binary()).view(pa.string())


@pytest.mark.parametrize(
    ("array", "type_", "index"),
    [
        (text(b"a", b"b", b"c", b"d\xff", b"e", b"\xfe"), "string", 3),
        (text(*[b"a"] * 6, b"\xff").slice(2), "string", 4),
        (
            pa.array([1, 2, -1]).view(pa.time64("us")),
            {"type": "long", "logicalType": "time-micros"},
            2,
        ),
        (
            pa.ListArray.from_arrays([0, 1, 2], text(b"a", b"\xff")),
            {"type": "array", "items": "string"},
            0,
        ),
    ],
)
def test_invalid_arrow_data_is_rejected_with_the_column_and_the_record(array, type_, index):
    batch = pa.RecordBatch.from_arrays([pa.array(range(len(array))), array], names=["n", "x"])
    schema = Schema.parse(
        {
            "type": "record",
            "name": "r",
            "fields": [{"name": "n", "type": "long"}, {"name": "x", "type": type_}],
        }
    )
    with pytest.raises(InvalidRecord) as raised:
        to_batches(batch, schema)
    assert (raised.value.index, raised.value.field) == (index, "x")


def test_text_that_is_no_utf_8_is_an_error_with_advice():
    batch = pa.RecordBatch.from_arrays([text(b"\xff")], names=["x"])
    with pytest.raises(
        InvalidRecord, match=r"not valid UTF-8: .* make_valid_utf8\(\), or write it as"
    ):
        to_batches(batch, schema_of("string"))


def frame_values(series, type_):
    batches = to_batches(pd.DataFrame({"x": series}), schema_of(type_))
    return [row["x"] for batch in batches for row in to_records(batch)]


@pytest.mark.parametrize(
    ("series", "type_", "expected"),
    [
        (pd.Series([1, 2]), "int", [1, 2]),
        (pd.Series([1, None]), ["null", "long"], [1, None]),
        (pd.Series([1, None], dtype="Int64"), ["null", "long"], [1, None]),
        (pd.Series([1.5, None]), ["null", "double"], [1.5, None]),
        (pd.Series(["a", None]), ["null", "string"], ["a", None]),
        (pd.Series(["a", None], dtype=object), ["null", "string"], ["a", None]),
        (pd.Series(["a", "b"], dtype="category"), "string", ["a", "b"]),
        (pd.Series([b"a", np.nan], dtype=object), ["null", "bytes"], [b"a", None]),
        (
            pd.Series(pd.to_datetime(["2020-01-01"], utc=True)),
            TIMESTAMP,
            [datetime(2020, 1, 1, tzinfo=UTC)],
        ),
        (pd.Series([[1], None]), ["null", INTS], [[1], None]),
        (pd.Series([{"a": 1}]), MAP, [{"a": 1}]),
    ],
)
def test_pandas_columns_are_accepted(series, type_, expected):
    assert frame_values(series, type_) == expected


def test_nan_stays_nan_in_fields_that_are_not_nullable():
    (value,) = frame_values(pd.Series([float("nan")]), "double")
    assert value != value


@pytest.mark.parametrize(
    ("series", "type_", "index"),
    [
        (pd.Series([1, None]), "long", 1),
        (pd.Series(["a", None]), "string", 1),
        (pd.Series(["a", 5], dtype=object), "string", 1),
        (pd.Series([1, True], dtype=object), "int", 1),
        (pd.Series([1, 2**40]), "int", 1),
    ],
)
def test_pandas_values_that_do_not_fit_are_reported(series, type_, index):
    with pytest.raises(InvalidRecord) as caught:
        frame_values(series, type_)
    assert (caught.value.index, caught.value.field) == (index, "x")


@pytest.mark.parametrize(
    "values", [pd.arrays.SparseArray([0.0, 1.0]), np.array([1j]), np.array([1], np.longdouble)]
)
def test_columns_without_a_type_in_arrow_are_reported(values):
    with pytest.raises(SchemaMismatch, match=r"the column 'x' is .*: cast it, for instance"):
        frame_values(pd.Series(values), "double")


def test_a_dataframe_must_have_the_schemas_columns():
    with pytest.raises(SchemaMismatch, match="no field 'y'"):
        to_batches(pd.DataFrame({"x": [1], "y": [1]}), schema_of("int"))
    with pytest.raises(SchemaMismatch, match="'x' is missing"):
        to_batches(pd.DataFrame(index=[1]), schema_of("int"))


def large_lists(*lengths):
    """Return lists of zeros, which take no memory until they are changed."""
    bits = pa.py_buffer(np.zeros(sum(lengths) // 8 + 1, np.uint8))
    items = pa.Array.from_buffers(pa.bool_(), sum(lengths), [None, bits])
    return pa.LargeListArray.from_arrays(np.cumsum([0, *lengths]), items)


def large_values(*lengths):
    """Return values of zeros, which take no memory until they are changed."""
    zeros = np.zeros(sum(lengths), np.uint8)
    buffers = [None, pa.py_buffer(np.cumsum([0, *lengths])), pa.py_buffer(zeros)]
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)


BOOLEANS = {"type": "array", "items": "boolean"}
LARGE = [(large_lists, pc.list_value_length, BOOLEANS), (large_values, pc.binary_length, "bytes")]


@pytest.mark.parametrize(("make", "length", "type_"), LARGE)
def test_rows_that_are_too_large_together_are_divided(make, length, type_):
    lengths = [2**31 - 9, 8, 8, 5]
    batches = to_batches(pa.table({"x": make(*lengths)}), schema_of(type_))
    assert [length(batch["x"]).to_pylist() for batch in batches] == [[2**31 - 9, 8], [8, 5]]


@pytest.mark.parametrize(("make", "length", "type_"), LARGE)
def test_a_row_that_is_too_large_alone_is_reported(make, length, type_):
    with pytest.raises(InvalidRecord, match="larger than 2 GiB") as raised:
        to_batches(pa.table({"x": make(3, 2**31, 1)}), schema_of(type_))
    assert raised.value.index == 1


@pytest.mark.parametrize("position", range(5))
def test_a_value_that_does_not_fit_is_reported_at_any_place(position):
    numbers = [1] * 5
    numbers[position] = 2**40
    with pytest.raises(InvalidRecord) as raised:
        values(pa.array(numbers), "int")
    assert raised.value.index == position
