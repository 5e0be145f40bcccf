"""Schemas of leaf types: from Avro JSON, dataclasses, Spark, and defaults."""

import enum
import json
import subprocess
import sys
import time as clock
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Annotated, Literal
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from generated import LEAVES, same, values
from sluiceway.errors import InvalidSchema, UnsupportedType
from sluiceway.schema import Schema
from sluiceway.schema.defaults import default_from_python, default_text, default_to_python


def logical(type_, name, **more):
    return {"type": type_, "logicalType": name, **more}


def record(*fields, **more):
    return {"type": "record", "name": "r", "fields": list(fields), **more}


def of_type(type_, **more):
    return record({"name": "x", "type": type_, **more})


FIXED = {"type": "fixed", "name": "f", "size": 4}
ENUM = {"type": "enum", "name": "e", "symbols": ["A", "B"]}


@pytest.mark.parametrize(
    ("type_", "arrow"),
    [
        (logical("bytes", "decimal", precision=10), pa.decimal128(10, 0)),
        (logical("bytes", "decimal", precision=38, scale=38), pa.decimal128(38, 38)),
        (logical("bytes", "decimal", precision=39), pa.decimal256(39, 0)),
        (FIXED | logical("fixed", "decimal", precision=9, scale=2), pa.decimal128(9, 2)),
        (logical("string", "uuid"), pa.string()),
        (FIXED | {"size": 16} | logical("fixed", "uuid"), pa.binary(16)),
        (FIXED, pa.binary(4)),
        (ENUM, pa.string()),
        (logical("int", "time-millis"), pa.time32("ms")),
        (logical("long", "time-micros"), pa.time64("us")),
        (logical("long", "timestamp-millis"), pa.timestamp("ms", tz="UTC")),
        (logical("long", "timestamp-nanos"), pa.timestamp("ns", tz="UTC")),
        (logical("long", "local-timestamp-millis"), pa.timestamp("ms")),
        (logical("long", "local-timestamp-nanos"), pa.timestamp("ns")),
        ({"type": {"type": "bytes"}, "logicalType": "decimal", "precision": 3}, pa.decimal128(3)),
    ],
)
def test_each_type_has_its_arrow_type(type_, arrow):
    assert Schema.parse(of_type(type_)).arrow.field("x").type == arrow
    assert Schema.parse(of_type(["null", type_])).arrow.field("x").nullable


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        (logical("bytes", "decimal"), "precision None"),
        (logical("bytes", "decimal", precision=0), "precision of 1 or more"),
        (logical("bytes", "decimal", precision=2, scale=3), "scale from 0 to the precision"),
        (logical("bytes", "decimal", precision=2, scale=-1), "scale from 0 to the precision"),
        (logical("bytes", "decimal", precision=True), "precision True"),
        (logical("string", "decimal", precision=2), "belongs on bytes or fixed"),
        (FIXED | logical("fixed", "decimal", precision=10), "do not fit into a fixed of 4 bytes"),
        (FIXED | logical("fixed", "uuid"), "a uuid takes a fixed of 16 bytes, not 4"),
        (logical("bytes", "uuid"), "belongs on string or fixed"),
        (logical("long", "time-millis"), "belongs on int"),
        (FIXED | {"size": 0}, "needs a size of at least 1 byte"),
        (FIXED | {"size": "4"}, "needs a size of at least 1"),
        (FIXED | {"name": "1"}, "not an Avro name"),
        ({"type": "fixed", "size": 4}, "the fixed needs a name"),
        (ENUM | {"symbols": []}, "needs a list of symbols"),
        (ENUM | {"symbols": "AB"}, "needs a list of symbols"),
        (ENUM | {"symbols": ["A", "A"]}, "the symbol 'A' twice"),
        (ENUM | {"symbols": ["a b"]}, "for instance to 'a_b'"),
        (ENUM | {"symbols": ["A" * 1025]}, "more than 1024 letters"),
        (ENUM | {"default": "C"}, "not one of its symbols: give one of A, B"),
        (ENUM | {"name": "r"}, "'r' is taken"),
        ("fixed", "must be an object"),
    ],
)
def test_invalid_types_are_rejected_with_their_path(type_, expected):
    with pytest.raises(InvalidSchema) as caught:
        Schema.parse(of_type({"type": "array", "items": type_}))
    assert expected in str(caught.value)
    assert "'x[]'" in str(caught.value)


def test_a_named_type_may_be_used_again_with_its_logical_type():
    money = FIXED | logical("fixed", "decimal", precision=9, scale=2)
    source = record(
        {"name": "a", "type": money},
        {"name": "b", "type": ["null", "f"]},
        {"name": "c", "type": ENUM},
        {"name": "d", "type": {"type": "map", "values": "e"}},
    )
    schema = Schema.parse(source)
    assert schema.arrow.field("b").type == pa.decimal128(9, 2)
    assert schema.canonical.count('"fixed"') == schema.canonical.count('"enum"') == 1
    assert Schema.parse(schema.canonical) == schema


def test_a_name_without_a_namespace_inside_one_is_rejected():
    inner = {"type": "fixed", "name": "f", "namespace": "", "size": 4}
    with pytest.raises(InvalidSchema, match="give the fixed 'f' a namespace"):
        Schema.parse(of_type(inner, name="x") | {"namespace": "a"})


def test_arrow_metadata_keeps_the_avro_type():
    note = Schema.parse(of_type(ENUM)).arrow.field("x").metadata
    assert Schema.of(pa.schema([pa.field("x", pa.string(), metadata=note)])).definition["fields"][
        0
    ]["type"][1]["symbols"] == ["A", "B"]
    # It does not fit other types, and unknown words are not types.
    for changed in (
        pa.field("x", pa.binary(), metadata=note),
        pa.field("x", pa.binary(), metadata={"sluiceway.avro": "5"}),
        pa.field("x", pa.binary(), metadata={"sluiceway.avro": '{"type":"enum"}'}),
        pa.field("x", pa.binary(), metadata={"sluiceway.avro": "no"}),
    ):
        assert Schema.of(pa.schema([changed])).arrow.field("x").type == pa.binary()


def test_differences_distinguish_the_types():
    def one(type_):
        return Schema.parse(of_type(type_))

    def said(ours, theirs):
        (sentence,) = one(ours).differences(one(theirs))
        return sentence

    money = logical("bytes", "decimal", precision=9, scale=2)
    assert said(money, money | {"scale": 3}) == (
        "field 'x' is decimal(9, 2) here and decimal(9, 3) there"
    )
    assert said(FIXED, FIXED | {"size": 5}).endswith(
        "fixed of 4 bytes here and fixed of 5 bytes there"
    )
    assert said(ENUM, ENUM | {"symbols": ["B"]}).endswith("enum of A, B here and enum of B there")
    sixteen = FIXED | {"size": 16} | logical("fixed", "uuid")
    assert said(logical("string", "uuid"), sixteen).endswith("uuid here and uuid in 16 bytes there")
    for type_ in (FIXED, ENUM, money, sixteen):
        renamed = type_ | ({"name": "other"} if "name" in type_ else {})
        assert one(type_).differences(one(renamed)) == ()


class Colour(enum.Enum):
    RED = "red"
    GREEN = 2


class Level(enum.StrEnum):
    LOW = "low"


@dataclass
class Leg:
    seat: Literal["aisle", "window"]
    code: Annotated[bytes, "fixed(3)"] | None


OWNER = UUID(int=1)


@dataclass
class Ticket:
    price: Annotated[Decimal, "decimal(10, 2)"]
    tax: Annotated[Decimal | None, "decimal(4)"]
    id: UUID
    group: Annotated[UUID, "fixed(16)"]
    at: time
    brief: Annotated[time, "time-millis"]
    fine: Annotated[time, "time-micros"]
    sold: Annotated[datetime, "timestamp-millis"]
    exact: Annotated[datetime, "local-timestamp-nanos"]
    colours: list[Colour]
    legs: dict[str, Leg]
    level: Level = Level.LOW
    least: Annotated[Decimal, "decimal(5,2)"] = Decimal("-1.5")
    start: time = time(1)
    owner: UUID = OWNER
    hue: Colour | None = Colour.GREEN


def test_a_dataclass_may_have_fields_of_every_type():
    schema = Schema.of(Ticket)
    types = {field["name"]: field["type"] for field in schema.definition["fields"]}
    assert types["price"] == logical("bytes", "decimal", precision=10, scale=2)
    assert types["tax"] == ["null", logical("bytes", "decimal", precision=4, scale=0)]
    assert types["id"] == logical("string", "uuid")
    assert types["group"] == {"type": "fixed", "name": "Ticket.group", "size": 16} | logical(
        "fixed", "uuid"
    )
    assert types["at"] == logical("long", "time-micros")
    assert types["brief"] == logical("int", "time-millis")
    assert types["fine"] == logical("long", "time-micros")
    assert types["sold"] == logical("long", "timestamp-millis")
    assert types["exact"] == logical("long", "local-timestamp-nanos")
    colour = {"type": "enum", "name": "Colour", "symbols": ["red", "GREEN"]}
    assert types["colours"] == {"type": "array", "items": colour}
    seat = {"type": "enum", "name": "Leg.seat", "symbols": ["aisle", "window"]}
    assert types["legs"]["values"]["fields"][0] == {"name": "seat", "type": seat}
    code = {"type": "fixed", "name": "Leg.code", "size": 3}
    assert types["legs"]["values"]["fields"][1] == {"name": "code", "type": ["null", code]}
    defaults = {f["name"]: f["default"] for f in schema.definition["fields"] if "default" in f}
    assert defaults == {
        "level": "low",
        "least": "\xff\x6a",
        "start": 3_600_000_000,
        "owner": "00000000-0000-0000-0000-000000000001",
        "hue": "GREEN",
    }
    assert Schema.parse(schema.canonical) == schema


def bad(hint, **more):
    return dataclass(type("Bad", (), {"__annotations__": {"x": hint}, **more}))


class Numbers(enum.Enum):
    ONE = "1"


@pytest.mark.parametrize(
    ("cls", "error", "expected"),
    [
        (bad(Decimal), UnsupportedType, "give its precision"),
        (bad(list[Decimal]), UnsupportedType, r"'x\[\]'.*give its precision"),
        (bad(Annotated[Decimal, "money"]), InvalidSchema, "'decimal\\(10, 2\\)' on Decimal"),
        (bad(Annotated[Decimal, "decimal(2, 3)"]), InvalidSchema, "scale from 0"),
        (bad(Annotated[Decimal, "decimal(77, 3)"]), UnsupportedType, "at most 76 digits"),
        (bad(Annotated[UUID, "fixed(15)"]), InvalidSchema, "does not fit its type"),
        (bad(Annotated[bytes, "fixed(2000)"]), UnsupportedType, "at most 1024 bytes"),
        (bad(Annotated[time, "timestamp-millis"]), InvalidSchema, "does not fit its type"),
        (bad(Literal["a b"]), InvalidSchema, "'a_b'"),
        (bad(Literal[1]), InvalidSchema, "the symbol 1 is not text"),
        (bad(Numbers), InvalidSchema, "'_1'"),
        (bad(time, x=time(1, tzinfo=UTC)), InvalidSchema, "the default does not fit"),
        (bad(date, x=datetime(2020, 1, 1, tzinfo=UTC)), InvalidSchema, "whole number"),
        (bad(Literal["a"], x="b"), InvalidSchema, "one of the symbols a"),
        (
            bad(Annotated[Decimal, "decimal(3, 2)"], x=Decimal("0.001")),
            InvalidSchema,
            "JSON string",
        ),
        (bad(Annotated[Decimal, "decimal(3)"], x=Decimal("1e999999")), InvalidSchema, "'x'"),
        (
            bad(Annotated[time, "time-millis"], x=time(0, 0, 0, 1)),
            InvalidSchema,
            "whole number",
        ),
    ],
)
def test_invalid_annotations_are_reported(cls, error, expected):
    with pytest.raises(error, match=expected):
        Schema.of(cls)


@pytest.mark.parametrize(
    ("type_", "default"),
    [
        (FIXED, "abc"),
        (FIXED, "abc\u0100"),
        (FIXED, 4),
        (ENUM, "C"),
        (ENUM, ["A"]),
        (logical("string", "uuid"), "no uuid"),
        (FIXED | {"size": 16} | logical("fixed", "uuid"), "short"),
        (logical("bytes", "decimal", precision=2), ""),
        (logical("bytes", "decimal", precision=2), "\x64"),
        (logical("bytes", "decimal", precision=2), 5),
        (FIXED | logical("fixed", "decimal", precision=2), "\x01"),
        (logical("int", "time-millis"), 86_400_000),
        (logical("int", "time-millis"), -1),
        (logical("long", "timestamp-nanos"), 1001),
        (logical("long", "timestamp-millis"), 253_402_300_800_000),
    ],
)
def test_a_default_must_be_of_its_type(type_, default):
    with pytest.raises(InvalidSchema, match="field 'x': the default does not fit"):
        Schema.parse(of_type(type_, default=default))


@pytest.mark.long
@given(LEAVES.flatmap(lambda leaf: st.tuples(st.just(leaf), values(leaf))))
def test_a_default_round_trips_through_python(given_):
    leaf, value = given_
    try:
        text = default_text(default_from_python(value, leaf), leaf, "x")
    except InvalidSchema as error:
        assert "finite" in str(error)  # noqa: PT017 - the one thing that JSON cannot say
        return
    assert same(default_to_python(json.loads(text), leaf), value)
    assert default_text(json.loads(text), leaf, "x") == text


def test_the_normal_form_of_a_decimal_default_is_the_shortest():
    long = Schema.parse(of_type(logical("bytes", "decimal", precision=2), default="\x00\x00\x05"))
    short = Schema.parse(of_type(logical("bytes", "decimal", precision=2), default="\x05"))
    assert long == short


@pytest.mark.long
def test_a_struct_type_is_a_schema_and_importing_the_client_needs_no_pyspark():
    program = """
import sys
from sluiceway.schema import Schema
assert "pyspark" not in sys.modules
from pyspark.sql.types import *
inner = StructType([StructField("d", DecimalType(10, 2), False)])
struct = StructType([
    StructField("a", LongType(), False), StructField("b", ArrayType(inner)),
    StructField("c", MapType(StringType(), TimestampNTZType(), False)),
])
print(Schema.of(struct).canonical)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=480
    )
    money = logical("bytes", "decimal", precision=10, scale=2)
    inner = record({"name": "d", "type": money}, name="Record.b.item")
    wall = logical("long", "local-timestamp-micros")
    b, c = {"type": "array", "items": ["null", inner]}, {"type": "map", "values": wall}
    assert json.loads(done.stdout) == record(
        {"name": "a", "type": "long"},
        {"name": "b", "type": ["null", b], "default": None},
        {"name": "c", "type": ["null", c], "default": None},
        name="Record",
    )


@pytest.mark.long
def test_ten_thousand_fields_are_fast_and_one_more_is_rejected():
    names = [f"f{number}" for number in range(10_000)]
    money = logical("bytes", "decimal", precision=10, scale=2)
    before = clock.process_time()
    schema = Schema.parse(record(*({"name": name, "type": ["null", money]} for name in names)))
    again = Schema.of(schema.arrow)
    assert Schema.parse(again.canonical).arrow == schema.arrow
    assert not schema.differences(again)
    assert clock.process_time() - before < 10
    fields = [pa.field(f"f{number}", pa.int32()) for number in range(10_001)]
    for source in (
        pa.schema(fields),
        pa.schema([pa.field("s", pa.struct(fields[1:]))]),
        record(*({"name": field.name, "type": "int"} for field in fields)),
    ):
        with pytest.raises(InvalidSchema, match="more than 10000 fields"):
            Schema.of(source)
