"""Values of logical and named types: conversion, refusal, and validation when decoded."""

import enum
from datetime import UTC, datetime, time
from decimal import Decimal
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from generated import PREFIX, ColumnCodec, RowCodec, number, same, schema_of
from sluiceway.codecs import codec
from sluiceway.codecs.arrow import Envelope
from sluiceway.errors import InvalidRecord, SchemaMismatch, ValueOutOfRange
from sluiceway.records import to_batches, to_records

NO_LIMIT = 2**31


def logical(type_, name, **more):
    return {"type": type_, "logicalType": name, **more}


FIXED = {"type": "fixed", "name": "f", "size": 4}
ENUM = {"type": "enum", "name": "e", "symbols": ["RED", "green"]}
MONEY = logical("bytes", "decimal", precision=5, scale=2)
MONEY4 = FIXED | logical("fixed", "decimal", precision=5, scale=2)
MONEY20 = {"type": "fixed", "name": "m", "size": 20}
MONEY20 |= logical("fixed", "decimal", precision=34, scale=2)
WIDE = logical("bytes", "decimal", precision=76, scale=0)
UUID_TEXT = logical("string", "uuid")
UUID16 = {"type": "fixed", "name": "u", "size": 16} | logical("fixed", "uuid")
TIME = logical("long", "time-micros")
TIME_MS = logical("int", "time-millis")
MS = logical("long", "timestamp-millis")
NS = logical("long", "timestamp-nanos")
LOCAL_NS = logical("long", "local-timestamp-nanos")
ID = UUID("12345678-90ab-cdef-1234-567890abcdef")


class Colour(enum.Enum):
    RED = 1
    LEAF = "green"
    BLUE = "blue"


class Level(enum.StrEnum):
    LEAF = "green"


class Ident(UUID):
    pass


@pytest.mark.parametrize(
    ("type_", "value", "comes_back"),
    [
        (MONEY, Decimal("1"), Decimal("1.00")),
        (MONEY, Decimal("1E+2"), Decimal("100.00")),
        (MONEY, Decimal("-0"), Decimal("0.00")),
        (MONEY, 5, Decimal("5.00")),
        (MONEY, np.int8(5), Decimal("5.00")),
        (MONEY4, Decimal("-999.99"), Decimal("-999.99")),
        (WIDE, Decimal(10**76 - 1), Decimal(10**76 - 1)),
        (UUID_TEXT, ID, ID),
        (UUID_TEXT, str(ID).upper(), ID),
        (UUID16, str(ID), ID),
        (UUID16, Ident(int=5), UUID(int=5)),
        (ENUM, Colour.RED, "RED"),
        (ENUM, Colour.LEAF, "green"),
        (ENUM, Level.LEAF, "green"),
        (FIXED, bytearray(b"1234"), b"1234"),
        (FIXED, memoryview(b"\x00\x00\x00\x00"), b"\x00\x00\x00\x00"),
        (TIME, time(1, 2, 3, 4), time(1, 2, 3, 4)),
        (TIME_MS, time(23, 59, 59, 999_000), time(23, 59, 59, 999_000)),
        (NS, pd.Timestamp("2020-01-01T00:00:00.000001", tz="UTC"), "2020-01-01 00:00:00.000001"),
        (MS, pd.Timestamp("2020-01-01T00:00:00.001", tz="UTC"), "2020-01-01 00:00:00.001000"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_values_are_accepted_as_several_python_types(type_, value, comes_back, nested):
    schema = schema_of({"type": "array", "items": ["null", type_]} if nested else type_)
    (batch,) = to_batches({"x": [None, value] if nested else value}, schema)
    for format_ in ("avro", "arrow", "json"):
        codec_ = codec(format_, schema, 7)
        (read,) = codec_.decode(
            codec_.encode(batch, limit_bytes=NO_LIMIT).values.to_pylist()
        ).batches
        ((decoded_value,),) = (row.values() for row in to_records(read))
        decoded_value = decoded_value[1] if nested else decoded_value
        if isinstance(comes_back, str) and isinstance(decoded_value, datetime):
            comes_back = datetime.fromisoformat(comes_back).replace(tzinfo=UTC)
        assert same(decoded_value, comes_back)


@pytest.mark.parametrize(
    ("type_", "value", "says"),
    [
        (MONEY, Decimal("0.001"), "at most 5 digits, 2 behind the point"),
        (MONEY, Decimal(1000), "at most 5 digits"),
        (MONEY, Decimal("NaN"), "decimal.Decimal"),
        (MONEY, Decimal("Infinity"), "decimal.Decimal"),
        (MONEY, Decimal("1e999999"), "decimal.Decimal"),
        (MONEY, 1000, "decimal.Decimal"),
        (MONEY, 1.5, "float 1.5"),
        (MONEY, True, "bool True"),
        (MONEY, "1.5", "str '1.5'"),
        (UUID_TEXT, "12345678", "a uuid.UUID, or the text of one"),
        (UUID_TEXT, str(ID) + "\n", "the text of one"),
        (UUID_TEXT, ID.bytes, "a uuid.UUID"),
        (UUID16, "{" + str(ID) + "}", "the text of one"),
        (ENUM, "red", "one of the symbols RED, green"),
        (ENUM, Colour.BLUE, "one of the symbols"),
        (ENUM, 1, "int 1"),
        (FIXED, b"123", "bytes of length 4"),
        (FIXED, "1234", "str '1234'"),
        (TIME, time(1, tzinfo=UTC), "without a time zone"),
        (TIME, datetime(2020, 1, 1, tzinfo=UTC), "a datetime.time"),
        (TIME_MS, time(0, 0, 0, 1), "in whole milliseconds"),
        (MS, datetime(2020, 1, 1, 0, 0, 0, 1, tzinfo=UTC), "in whole milliseconds"),
        (MS, datetime(2020, 1, 1), "has no time zone"),  # noqa: DTZ001
        (NS, datetime(1600, 1, 1, tzinfo=UTC), "the years 1678 to 2261"),
        (LOCAL_NS, datetime(2300, 1, 1), "the years 1678 to 2261"),  # noqa: DTZ001
        (MS, pd.Timestamp("2020-01-01T00:00:00.000000001", tz="UTC"), "whole milliseconds"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_values_that_do_not_fit_exactly_are_rejected(type_, value, says, nested):
    schema = schema_of({"type": "map", "values": ["null", type_]} if nested else type_)
    bad = {"x": {"a": None, "b": value}} if nested else {"x": value}
    good = [{"x": {}}] if nested else []
    with pytest.raises(InvalidRecord) as caught:
        to_batches([*good, bad], schema)
    assert caught.value.index == len(good)
    assert caught.value.field == ("x['b']" if nested else "x")
    assert says in caught.value.reason


INSTANT = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("array", "type_", "expected"),
    [
        (pa.array([Decimal("1.5")], pa.decimal128(2, 1)), MONEY, Decimal("1.50")),
        (pa.array([Decimal("1.5")], pa.decimal256(50, 4)), MONEY4, Decimal("1.50")),
        (pa.array([7], pa.uint64()), MONEY, Decimal("7.00")),
        (pa.array([str(ID)], pa.large_string()), UUID_TEXT, ID),
        (pa.array([str(ID)]), UUID16, ID),
        (pa.array([ID.bytes], pa.binary(16)), UUID_TEXT, ID),
        (pa.array([ID.bytes], pa.uuid()), UUID16, ID),
        (pa.array([ID.bytes], pa.uuid()), UUID_TEXT, ID),
        (pa.array(["RED"]).dictionary_encode(), ENUM, "RED"),
        (pa.array([b"1234"]), FIXED, b"1234"),
        (pa.array([1000], pa.time64("ns")), TIME, time(0, 0, 0, 1)),
        (pa.array([time(1)], pa.time64("us")), TIME_MS, time(1)),
        (pa.array([1000], INSTANT), MS, datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)),
        (pa.array([1], INSTANT), NS, datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
    ],
)
def test_arrow_arrays_of_related_types_are_cast(array, type_, expected):
    (batch,) = to_batches(pa.table({"x": array}), schema_of(type_))
    assert to_records(batch) == [{"x": expected}]
    nullable = schema_of(["null", type_])
    with_null = pa.concat_arrays([array, pa.nulls(1, array.type)])
    (batch,) = to_batches(pa.table({"x": with_null}), nullable)
    assert to_records(batch) == [{"x": expected}, {"x": None}]


@pytest.mark.parametrize(
    ("good", "bad", "kind", "type_"),
    [
        (Decimal(1), Decimal("0.001"), pa.decimal128(9, 3), MONEY),
        (1, 1000, pa.int64(), MONEY),
        (str(ID), "x", pa.string(), UUID_TEXT),
        (str(ID), "x", pa.string(), UUID16),
        (ID.bytes, b"x", pa.binary(), UUID_TEXT),
        ("RED", "red", pa.string(), ENUM),
        (b"1234", b"123", pa.binary(), FIXED),
        (0, 1, pa.time64("ns"), TIME),
        (0, 1, INSTANT, MS),
        (0, 2**60, INSTANT, NS),
    ],
)
def test_arrow_values_that_do_not_fit_are_reported(good, bad, kind, type_):
    with pytest.raises(InvalidRecord) as caught:
        to_batches(pa.table({"x": pa.array([good, good, bad, bad], kind)}), schema_of(type_))
    assert (caught.value.index, caught.value.field) == (2, "x")
    lists = pa.array([[good], [], [good, bad]], pa.list_(kind))
    with pytest.raises(InvalidRecord) as caught:
        to_batches(pa.table({"x": lists}), schema_of({"type": "array", "items": type_}))
    assert (caught.value.index, caught.value.field) == (2, "x[]")


@pytest.mark.parametrize(
    ("array", "type_"),
    [
        (pa.array([1.5]), MONEY),
        (pa.array(["1.5"]), MONEY),
        (pa.array([1]), UUID_TEXT),
        (pa.array([1]), ENUM),
        (pa.array(["1234"]), FIXED),
        (pa.array([1]), TIME),
        (pa.array([1], pa.timestamp("us")), MS),
    ],
)
def test_arrow_columns_of_other_types_are_reported(array, type_):
    with pytest.raises(SchemaMismatch, match=r"field 'x' is .*, but the schema has .*; "):
        to_batches(pa.table({"x": array}), schema_of(type_))


@pytest.mark.parametrize(
    ("series", "type_", "expected"),
    [
        (pd.Series([Decimal("1.5"), None]), MONEY, [Decimal("1.50"), None]),
        (pd.Series([ID, None]), UUID_TEXT, [ID, None]),
        (pd.Series(["RED", None], dtype="category"), ENUM, ["RED", None]),
        (pd.Series([time(1), None]), TIME, [time(1), None]),
        (pd.Series(pd.to_datetime([1, None], unit="s", utc=True)), MS, [1, None]),
    ],
)
def test_pandas_columns_are_accepted(series, type_, expected):
    (batch,) = to_batches(pd.DataFrame({"x": series}), schema_of(["null", type_]))
    expected = [datetime.fromtimestamp(v, UTC) if v == 1 else v for v in expected]
    assert [row["x"] for row in to_records(batch)] == expected


def test_nanoseconds_beyond_python_are_reported():
    for type_ in (NS, LOCAL_NS):
        schema = schema_of(type_)
        batch = pa.record_batch(
            [pa.array([1001], schema.arrow.field("x").type)], schema=schema.arrow
        )
        with pytest.raises(ValueOutOfRange, match=r"'x'.*two microseconds.*batches\(\)"):
            to_records(batch)


def both(schema):
    assert ColumnCodec(schema, 7).columnar is not None
    return ColumnCodec(schema, 7), RowCodec(schema, 7)


@pytest.mark.parametrize(
    ("type_", "good", "body", "says"),
    [
        (MONEY, Decimal("1.00"), b"\x00", "at most 5 digits"),
        (MONEY, Decimal("1.00"), b"\x06\x01\x86\xa0", "at most 5 digits"),
        (MONEY, Decimal("1.00"), number(17) + b"\x01" + bytes(16), "at most 5 digits"),
        (MONEY4, Decimal("1.00"), b"\x00\x01\x86\xa0", "at most 5 digits"),
        (MONEY4, Decimal("1.00"), b"\x00\x01\x86", "truncated"),
        (MONEY20, Decimal("1.00"), b"\x01" + bytes(19), "at most 34 digits"),
        (WIDE, Decimal(1), number(32) + b"\x7f" * 32, "at most 76 digits"),
        (UUID_TEXT, ID, b"\x02a", "not the text of a UUID"),
        (UUID_TEXT, ID, number(37) + str(ID).encode() + b"\n", "not the text of a UUID"),
        (UUID16, ID, b"\x00" * 15, "truncated"),
        (ENUM, "RED", b"\x04", "is 2, which is not the number of a symbol"),
        (ENUM, "RED", b"\x01", "is -1"),
        (ENUM, "RED", number(2**40), "more than 32 bits"),
        (FIXED, b"1234", b"12345", "bytes follow"),
        (TIME, time(1), number(86_400_000_000), "not a time of day"),
        (TIME_MS, time(1), number(-1), "not a time of day"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_encodings_without_a_value_are_reported_among_good_ones(type_, good, body, says, nested):
    schema = schema_of({"type": "array", "items": type_} if nested else type_)
    value = {"x": [good] if nested else good}
    (batch,) = to_batches([value] * 30, schema)
    for codec_ in both(schema):
        values = codec_.encode(batch, limit_bytes=NO_LIMIT).values.to_pylist()
        values[3:3] = [PREFIX + (b"\x02" + body + b"\x00" if nested else body)]
        decoded = codec_.decode(values)
        assert [corrupt.index for corrupt in decoded.corrupt] == [3]
        if not nested:  # in an array, the next byte may be read as part of the number
            assert says in decoded.corrupt[0].reason
        rows = [row for made in decoded.batches for row in to_records(made)]
        assert rows == [value] * 30


@pytest.mark.parametrize("rows", [1, 40])
def test_encodings_without_a_value_do_not_stay_in_buffers(rows):
    schema = schema_of({"type": "array", "items": MONEY20})
    (batch,) = to_batches([{"x": []}] * rows, schema)
    for codec_ in both(schema):
        values = codec_.encode(batch, limit_bytes=NO_LIMIT).values.to_pylist()
        decoded = codec_.decode([*values, PREFIX + b"\x02\x01" + bytes(19) + b"\x00"])
        assert [corrupt.index for corrupt in decoded.corrupt] == [rows]
        for made in decoded.batches:
            made.validate(full=True)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"\x04\x00\x05", Decimal("0.05")),
        (number(20) + b"\xff" * 20, Decimal("-0.01")),
        (b"\x84\x00\x00\x05", Decimal("0.05")),
    ],
)
def test_decimals_may_have_redundant_sign_bytes(body, value):
    schema = schema_of(MONEY)
    for codec_ in both(schema):
        (batch,) = codec_.decode([PREFIX + body] * 3).batches
        assert to_records(batch) == [{"x": value}] * 3


@given(st.lists(st.one_of(st.none(), st.integers(1 - 10**38, 10**38 - 1)), max_size=20))
def test_decimals_are_the_shortest_twos_complement(numbers):
    type_ = ["null", logical("bytes", "decimal", precision=38, scale=0)]
    schema = schema_of(type_)
    batches = to_batches([{"x": n} for n in numbers], schema)
    values = [
        v
        for b in batches
        for v in ColumnCodec(schema, 7).encode(b, limit_bytes=999).values.to_pylist()
    ]
    expected = []
    for integer in numbers:
        if integer is None:
            expected.append(PREFIX + b"\x00")
            continue
        size = next(n for n in range(1, 18) if -(1 << (8 * n - 1)) <= integer < 1 << (8 * n - 1))
        expected.append(PREFIX + b"\x02" + number(size) + integer.to_bytes(size, signed=True))
    assert values == expected


@pytest.mark.parametrize(
    ("type_", "array"),
    [
        (ENUM, pa.array(["blue"])),
        (UUID_TEXT, pa.array(["x"])),
        (MONEY, pa.Array.from_buffers(
            pa.decimal128(5, 2), 1, [None, pa.py_buffer((10**6).to_bytes(16, "little"))]
        )),
        (TIME, pa.Array.from_buffers(
            pa.time64("us"), 1, [None, pa.py_buffer((86_400_000_000).to_bytes(8, "little"))]
        )),
    ],
)  # fmt: skip
def test_invalid_values_are_rejected_in_arrow_messages(type_, array):
    schema = schema_of(type_)
    batch = pa.RecordBatch.from_arrays([array], names=["x"])
    value = Envelope(schema_id=7, records=1).pack() + batch.serialize().to_pybytes()
    (corrupt,) = codec("arrow", schema, 7).decode([value]).corrupt
    assert "field 'x'" in corrupt.reason or "malformed" in corrupt.reason


def test_an_invalid_value_below_a_null_is_accepted():
    inner = {"type": "record", "name": "i", "fields": [{"name": "e", "type": ENUM}]}
    schema = schema_of(["null", inner])
    struct = pa.StructArray.from_arrays(
        [pa.array(["blue", "RED"])], names=["e"], mask=pa.array([True, False])
    )
    (batch,) = to_batches(pa.table({"x": struct}), schema)
    for codec_ in (*both(schema), codec("arrow", schema, 7)):
        decoded = codec_.decode(codec_.encode(batch, limit_bytes=NO_LIMIT).values.to_pylist())
        rows = [row for made in decoded.batches for row in to_records(made)]
        assert rows == [{"x": None}, {"x": {"e": "RED"}}]
