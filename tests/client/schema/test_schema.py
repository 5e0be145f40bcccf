import json
import pickle
import re
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Annotated, Literal, Union
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from generated import schemas
from sluiceway.errors import InvalidSchema, UnsupportedType
from sluiceway.schema import Schema
from sluiceway.schema import types as t


def record(*fields: object, **more: object) -> dict[str, object]:
    return {"type": "record", "name": "r", "fields": list(fields), **more}


def of_type(type_: object, **more: object) -> dict[str, object]:
    return record({"name": "x", "type": type_, **more})


@pytest.mark.long
@given(st.one_of(schemas(), schemas(with_unions=True)))
def test_the_canonical_form_is_its_own_canonical_form(schema):
    assert Schema.parse(schema.canonical) == schema
    assert Schema.parse(schema.definition) == schema
    assert Schema.parse(schema.canonical).fingerprint == schema.fingerprint
    assert schema.canonical.isascii()


@given(schemas())
def test_arrow_to_avro_to_arrow_is_the_same_schema(schema):
    again = Schema.of(schema.arrow)
    assert again.arrow.equals(schema.arrow)
    assert not schema.differences(again)
    assert Schema.parse(again.canonical) == again


def test_documentation_aliases_and_spaces_do_not_change_a_schema():
    plain = Schema.parse(of_type("int"))
    rich = of_type("int", doc="hours", aliases=["y"], order="ignore") | {"doc": "d", "tags": 1}
    assert Schema.parse(json.dumps(rich, indent=4)) == plain
    assert plain.canonical == ('{"type":"record","name":"r","fields":[{"name":"x","type":"int"}]}')
    assert plain.fingerprint == ("8b888fc6d568343e8f72e84d44521ec82ce5bc9fd0912d1b1eda3aea8a9be5b7")


def test_annotations_are_kept_where_they_stand():
    source = {
        "type": "record",
        "name": "a.Trip",
        "doc": "A trip.",
        "aliases": ["a.Ride", "b.Ride"],
        "connect.version": 2,
        "fields": [
            {"name": "x", "type": {"type": "int", "unit": "h"}, "default": 1, "aliases": ["y"]},
            {
                "name": "at",
                "type": {"type": "long", "logicalType": "timestamp-micros", "tz": "UTC"},
            },
            {
                "name": "kind",
                "type": {
                    "type": "enum",
                    "name": "a.Kind",
                    "symbols": ["A"],
                    "doc": "Kinds.",
                    "aliases": ["a.Sort"],
                },
            },
            {"name": "again", "type": ["null", "a.Kind"], "doc": "No longer used."},
            {
                "name": "price",
                "type": {
                    "type": "fixed",
                    "name": "a.Price",
                    "size": 8,
                    "logicalType": "decimal",
                    "precision": 9,
                    "scale": 2,
                    "aliases": ["a.Cost"],
                    "connect.name": "Decimal",
                },
            },
            {"name": "tags", "type": {"type": "array", "items": "string", "max": [1, None]}},
            {"name": "rest", "type": {"type": "map", "values": "bytes", "doc": "\u0000\u00e9"}},
        ],
    }
    annotated = Schema.parse(source)
    assert annotated.definition == source
    assert annotated.annotated
    plain = Schema.parse(annotated.canonical)
    assert plain == annotated
    assert hash(plain) == hash(annotated)
    assert not plain.annotated
    assert Schema.parse(annotated.text).text == annotated.text
    assert pickle.loads(pickle.dumps(annotated)).text == annotated.text  # noqa: S301


def test_a_type_that_is_used_again_has_the_attributes_of_its_definition():
    kind = {"type": "enum", "name": "Kind", "symbols": ["A"], "protobuf": {"A": 0}}
    first, again = {"name": "a", "type": ["null", kind]}, {"name": "b", "type": "Kind"}
    schema = Schema.parse({"type": "record", "name": "R", "fields": [first, again]})
    enums = [type_ for type_ in t.walk(schema.record) if isinstance(type_, t.Enum)]
    assert [enum.attributes for enum in enums] == [{"protobuf": {"A": 0}}] * 2
    assert schema.definition["fields"] == [first, again]


def test_aliases_of_named_types_without_a_namespace_are_in_that_of_the_type():
    schema = Schema.parse(of_type("int") | {"namespace": "n.m", "aliases": ["old", "other.Old"]})
    assert schema.definition["aliases"] == ["n.m.old", "other.Old"]


@pytest.mark.parametrize(
    ("aliases", "reason"),
    [
        ("y", "field 'x': the aliases must be a list of names"),
        ([1], "field 'x': the aliases must be a list of names"),
        (["a b"], "field 'x': the alias 'a b' is not an Avro name"),
        (["z"], "field 'x': its alias 'z' is a name or an alias of the field 'z'"),
        (["w"], "field 'z': its alias 'w' is a name or an alias of the field 'x'"),
    ],
)
def test_aliases_that_are_no_names_or_belong_to_two_fields_are_refused(aliases, reason):
    fields = [
        {"name": "x", "type": "int", "aliases": aliases},
        {"name": "z", "type": "int", "aliases": ["w"]},
    ]
    with pytest.raises(InvalidSchema, match=f"^{re.escape(reason)}"):
        Schema.parse(record(*fields))


def test_attributes_that_json_does_not_have_are_refused():
    with pytest.raises(InvalidSchema, match="field 'x': an attribute is not a JSON value"):
        Schema.parse(of_type("int", tags={1, 2}))


def test_a_named_record_may_be_used_again_and_is_written_once():
    point = record({"name": "x", "type": "int"}, name="a.b.Point")
    source = record(
        {"name": "p", "type": point},
        {"name": "q", "type": {"type": "array", "items": "Point"}},
        name="Line",
        namespace="a.b",
    )
    schema = Schema.parse(source)
    assert schema.name == "a.b.Line"
    assert schema.canonical.count('"fields"') == 2
    assert Schema.parse(schema.canonical) == schema
    assert schema.arrow.field("q").type.value_type == schema.arrow.field("p").type


def test_a_definition_is_parsed_once_and_again_after_a_change():
    definition = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
    schema = Schema.parse(definition)
    assert Schema.parse(json.loads(json.dumps(definition))) is schema
    definition["fields"][0]["type"] = "string"
    assert Schema.parse(definition) != schema


def test_a_schema_can_be_pickled_and_hashed():
    schema = Schema.parse(of_type(["null", "string"], default=None))
    assert schema.arrow is not None
    copy = pickle.loads(pickle.dumps(schema))  # noqa: S301
    assert copy == schema
    assert hash(copy) == hash(schema)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{", "not JSON"),
        ("[]", "JSON object"),
        ('{"type": "record", "name": "r", "fields": [], "x": NaN}', "NaN"),
        ("[" * 100_000, "nested deeper"),
        ({"name": "r"}, "no Avro type"),
        (record(), "needs a list of fields"),
        (record({"name": "x y", "type": "int"}), "rename it, for instance to 'x_y'"),
        (record({"name": "1x", "type": "int"}), "'_1x'"),
        (record({"name": "é", "type": "int"}), "not an Avro name"),
        (record({"type": "int"}), "an object with a name"),
        (record({"name": "x", "type": "int"}, {"name": "x", "type": "int"}), "exists twice"),
        (record({"name": "x", "type": "int"}, name="a-b"), "not an Avro name"),
        (record({"name": "x", "type": "int"}, name=5), "needs a name"),
        (of_type("integer"), "field 'x': unknown type 'integer'"),
        (of_type("array"), "must be an object"),
        (of_type({"type": "array"}), "field 'x[]': has no Avro type"),
        (of_type({"type": "map", "values": 7}), "field 'x{}': has no Avro type"),
        (of_type({"type": "string", "logicalType": "date"}), "belongs on int"),
        (of_type(["null", {"type": ["null", "int"]}]), "cannot be a branch of a union"),
        (of_type(["int", {"type": ["int", "string"]}]), "cannot be a branch of a union"),
        (of_type(["null", "int", "null"]), "has null twice"),
        (of_type([None, "int"]), 'null instead of "null"'),
        (of_type({"type": "enum", "name": "E", "symbols": [True]}), "symbol True is not text"),
        (of_type(["int", "string", "int"]), "two branches of the union have the Avro type int"),
        (of_type(["int", {"type": "int", "logicalType": "date"}]), "the Avro type int"),
        (of_type(record({"name": "y", "type": "int"})), "'r' is taken"),
        (
            of_type(record({"name": "y", "type": "int"}, name="n", namespace=""), name="x")
            | {"namespace": "a"},
            "give the record 'n' a namespace",
        ),
    ],
)
def test_invalid_schemas_are_rejected_with_their_path(source, expected):
    with pytest.raises(InvalidSchema) as caught:
        Schema.parse(source)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("type_", "path"),
    [
        ("null", "x"),
        ({"type": "fixed", "name": "f", "size": 12, "logicalType": "duration"}, "x"),
        ({"type": "fixed", "name": "f", "size": 1025}, "x"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 77}, "x"),
        ({"type": "bytes", "logicalType": "big-decimal"}, "x"),
        ({"type": "array", "items": {"type": "string", "logicalType": "colour"}}, "x[]"),
        ({"type": "error", "name": "e", "fields": []}, "x"),
        (["null"], "x"),
        ([], "x"),
        ("r", "x"),
        ({"type": "array", "items": "null"}, "x[]"),
        ({"type": "map", "values": {"type": "array", "items": "null"}}, "x{}[]"),
        (record({"name": "y", "type": ["null", "r"]}, name="s"), "x.y"),
    ],
)
def test_unsupported_types_are_rejected_with_their_path(type_, path):
    with pytest.raises(UnsupportedType) as caught:
        Schema.parse(of_type(type_))
    assert caught.value.path == path


def test_a_schema_must_be_a_record():
    with pytest.raises(UnsupportedType, match="needs an Avro record"):
        Schema.parse({"type": "map", "values": "int"})


@pytest.mark.parametrize(
    ("type_", "default"),
    [
        ("int", 2**31),
        ("int", True),
        ("int", 1.5),
        ("long", 2**63),
        ("long", "1"),
        ("boolean", 0),
        ("double", "1"),
        ("double", 10**400),
        ("float", 1e39),
        ("string", None),
        ("string", "\ud800"),
        ("bytes", "\u0100"),
        (["null", "int"], 5),
        (["int", "null"], None),
        (["int", "string"], "a"),
        (["null", "int", "string"], "a"),
        ({"type": "array", "items": "int"}, {}),
        ({"type": "array", "items": "int"}, ["a"]),
        ({"type": "map", "values": "int"}, []),
        ({"type": "long", "logicalType": "timestamp-micros"}, 2**62),
        (record({"name": "y", "type": "int"}, name="s"), {}),
        (record({"name": "y", "type": "int"}, name="s"), {"y": 1, "z": 2}),
        (record({"name": "y", "type": "int"}, name="s"), 5),
    ],
)
def test_a_default_must_be_of_its_type(type_, default):
    with pytest.raises(InvalidSchema, match="field 'x"):
        Schema.parse(of_type(type_, default=default))


def test_exploding_schemas_are_rejected():
    deep: object = "int"
    for _ in range(40):
        deep = {"type": "array", "items": deep}
    with pytest.raises(InvalidSchema, match="deeper than 32"):
        Schema.parse(of_type(deep))
    wide = [{"name": f"f{number}", "type": "int"} for number in range(10_001)]
    with pytest.raises(InvalidSchema, match="more than 10000 fields"):
        Schema.parse(record(*wide))
    # Each record contains the previous one ten times: 10 ** 6 fields from sixty.
    fields: list[object] = [{"name": "f0", "type": "int"}]
    below = "int"
    members = []
    for level in range(6):
        first = below if level == 0 else f"n{level - 1}"
        inner = [{"name": f"i{number}", "type": first} for number in range(10)]
        members.append({"name": f"m{level}", "type": record(*inner, name=f"n{level}")})
    with pytest.raises(InvalidSchema, match="more than 10000 fields"):
        Schema.parse(record(*fields, *members))


def test_references_count_for_the_depth():
    members: list[object] = []
    for level in range(20):
        type_ = "int" if level == 0 else {"type": "array", "items": f"n{level - 1}"}
        inner = record({"name": "y", "type": type_}, name=f"n{level}")
        members.append({"name": f"m{level}", "type": inner})
    with pytest.raises(InvalidSchema, match="deeper than 32"):
        Schema.parse(record(*members))


@dataclass
class Point:
    lat: float
    lon: Annotated[float, "float"] = 1.5


@dataclass
class Everything:
    a: int
    b: str | None
    p: Point
    q: list[Point]
    i: Annotated[int, "int"]
    z: Annotated[datetime, "local-timestamp-micros"]
    m: dict[str, Point | None] = field(default_factory=dict)
    t: datetime | None = None
    d: date = date(2020, 1, 1)
    x: int | None = 5
    y: bytes = b"\xff"
    u: datetime = datetime(1970, 1, 2, tzinfo=UTC)
    n: list[bool] = field(default_factory=list)


def test_a_dataclass_is_a_schema():
    schema = Schema.of(Everything)
    timestamp = {"type": "long", "logicalType": "timestamp-micros"}
    point = {
        "type": "record",
        "name": "Point",
        "fields": [
            {"name": "lat", "type": "double"},
            {"name": "lon", "type": "float", "default": 1.5},
        ],
    }
    local = {"type": "long", "logicalType": "local-timestamp-micros"}
    assert schema.definition == {
        "type": "record",
        "name": "Everything",
        "fields": [
            {"name": "a", "type": "long"},
            {"name": "b", "type": ["null", "string"]},
            {"name": "p", "type": point},
            {"name": "q", "type": {"type": "array", "items": "Point"}},
            {"name": "i", "type": "int"},
            {"name": "z", "type": local},
            {"name": "m", "type": {"type": "map", "values": ["null", "Point"]}, "default": {}},
            {"name": "t", "type": ["null", timestamp], "default": None},
            {"name": "d", "type": {"type": "int", "logicalType": "date"}, "default": 18262},
            {"name": "x", "type": ["long", "null"], "default": 5},
            {"name": "y", "type": "bytes", "default": "\xff"},
            {"name": "u", "type": timestamp, "default": 86_400_000_000},
            {"name": "n", "type": {"type": "array", "items": "boolean"}, "default": []},
        ],
    }
    assert Schema.parse(schema.canonical) == schema
    assert Schema.of(schema) is schema
    assert Schema.of(schema.canonical) == schema


@dataclass
class Several:
    a: int | str
    b: Union[str, Point, None]  # noqa: UP007
    c: list[int | bool | None]
    d: float | int = 5
    e: str | bytes | None = b"x"
    f: int | str | None = None
    g: Annotated[int, "int"] | Literal["A", "B"] = "B"


def test_an_annotation_of_several_types_is_a_union():
    fields = {f["name"]: (f["type"], f.get("default", "-")) for f in definition_of(Several)}
    symbols = {"type": "enum", "name": "Several.g", "symbols": ["A", "B"]}
    assert fields.pop("b")[0][:2] == ["null", "string"]
    assert fields == {
        "a": (["long", "string"], "-"),
        "c": ({"type": "array", "items": ["null", "long", "boolean"]}, "-"),
        "d": (["long", "double"], 5),
        "e": (["bytes", "string", "null"], "x"),
        "f": (["null", "long", "string"], None),
        "g": ([symbols, "int"], "B"),
    }


def definition_of(cls):
    schema = Schema.of(cls)
    assert Schema.parse(schema.canonical) == schema
    return schema.definition["fields"]


def test_a_union_has_64_types_at_most_and_counts_them_as_fields():
    types = [{"type": "fixed", "name": f"f{number}", "size": 1} for number in range(65)]
    assert len(Schema.parse(of_type(types[1:])).arrow.field("x").type.fields) == 64
    with pytest.raises(InvalidSchema, match="field 'x': the union has more than 64 types"):
        Schema.parse(of_type(types))
    several = [{"name": f"u{number}", "type": ["null", "int", "string"]} for number in range(3334)]
    with pytest.raises(InvalidSchema, match="more than 10000 fields"):
        Schema.parse(record(*several))


def test_a_union_has_no_own_arrow_type():
    schema = Schema.parse(of_type(["int", "null", "string"]))
    with pytest.raises(UnsupportedType, match=r"union of int, string, .* as Avro JSON") as caught:
        Schema.of(schema.arrow)
    assert caught.value.path == "x"


def test_differences_match_the_branches_of_unions_by_name():
    point = record({"name": "y", "type": "int"}, name="Point")
    schema = Schema.parse(of_type(["int", "null", point]))
    renamed = {**point, "name": "geo.Point"}
    assert not schema.differences(Schema.parse(of_type([renamed, "int", "null"])))
    other = Schema.parse(of_type([{**renamed, "name": "Place"}, "int", "null"]))
    assert "union of int, record here" in schema.differences(other)[0]
    wide = {**point, "fields": [{"name": "y", "type": "long"}]}
    changed = Schema.parse(of_type(["int", "null", wide]))
    assert schema.differences(changed) == ("field 'x.y' is int here and long there",)


def test_unsupported_annotations_are_reported():
    @dataclass
    class Bad:
        x: list[complex]

    with pytest.raises(UnsupportedType, match="complex") as caught:
        Schema.of(Bad)
    assert caught.value.path == "x[]"

    @dataclass
    class Either:
        x: UUID | str

    with pytest.raises(InvalidSchema, match=r"field 'x': two branches .* Avro type string"):
        Schema.of(Either)

    @dataclass
    class Keys:
        x: dict[int, str]

    with pytest.raises(UnsupportedType, match="dict"):
        Schema.of(Keys)


@dataclass
class Loop:
    x: "Loop | None"


@dataclass
class Nothing:
    pass


@dataclass
class Lost:
    x: "Elsewhere"  # noqa: F821


@dataclass
class Odd:
    x: Annotated[str, "int"]


@dataclass
class Wrong:
    x: int = "five"  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("source", "error", "expected"),
    [
        (Loop, UnsupportedType, "hold themselves"),
        (Nothing, InvalidSchema, "no fields"),
        (Lost, InvalidSchema, "annotations of Lost"),
        (Odd, InvalidSchema, "does not fit its type"),
        (Wrong, InvalidSchema, "the default does not fit"),
        (5, InvalidSchema, "int is not a schema"),
        (int, InvalidSchema, "type is not a schema"),
        (pa.schema([]), InvalidSchema, "no fields"),
    ],
)
def test_invalid_sources_of_a_schema_are_rejected(source, error, expected):
    with pytest.raises(error, match=expected):
        Schema.of(source)


@pytest.mark.parametrize(
    ("type_", "name"),
    [
        (pa.decimal128(10, -2), "decimal"),
        (pa.decimal128(2, 3), "decimal"),
        (pa.time64("ns"), "time64"),
        (pa.duration("us"), "duration"),
        (pa.null(), "null"),
        (pa.dictionary(pa.int32(), pa.uint64()), "uint64"),
        (pa.run_end_encoded(pa.int32(), pa.string()), "run_end_encoded"),
        (pa.uint64(), "uint64"),
        (pa.date64(), "date64"),
        (pa.binary(0), "fixed_size_binary"),
        (pa.binary(1025), "fixed_size_binary"),
        (pa.struct([]), "struct"),
        (pa.map_(pa.int32(), pa.string()), "map"),
        (pa.sparse_union([pa.field("a", pa.int32())]), "union"),
        (pa.month_day_nano_interval(), "interval"),
    ],
)
def test_unsupported_arrow_types_are_reported(type_, name):
    with pytest.raises(UnsupportedType, match=name) as caught:
        Schema.of(pa.schema([pa.field("s", pa.struct([pa.field("x", type_)]))]))
    assert caught.value.path == "s.x"


@pytest.mark.parametrize(
    ("given_type", "carried"),
    [
        (pa.int8(), pa.int32()),
        (pa.int16(), pa.int32()),
        (pa.uint8(), pa.int32()),
        (pa.uint16(), pa.int32()),
        (pa.uint32(), pa.int64()),
        (pa.float16(), pa.float32()),
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.timestamp("ms", tz="Asia/Tokyo"), pa.timestamp("ms", tz="UTC")),
        (pa.timestamp("ns", tz="Europe/Rome"), pa.timestamp("ns", tz="UTC")),
        (pa.time32("s"), pa.time32("ms")),
        (pa.uuid(), pa.binary(16)),
        (pa.dictionary(pa.int32(), pa.large_string()), pa.string()),
        (pa.large_list(pa.int8()), pa.list_(pa.int32())),
        (pa.list_(pa.int64(), 3), pa.list_(pa.int64())),
    ],
)
def test_narrow_and_large_arrow_types_widen(given_type, carried):
    assert Schema.of(pa.schema([("x", given_type)])).arrow.field("x").type == carried


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([("mean delay", pa.int32())], "rename it, for instance to 'mean_delay'"),
        ([("count(1)", pa.int32())], "'count_1'"),
        ([("x", pa.int32()), ("x", pa.int32())], "exists twice"),
    ],
)
def test_arrow_names_that_are_not_avro_names_are_rejected(fields, expected):
    with pytest.raises(InvalidSchema, match="field"):
        Schema.of(pa.schema(fields))
    with pytest.raises(InvalidSchema) as caught:
        Schema.of(pa.schema(fields))
    assert expected in str(caught.value)


def test_differences_name_the_fields():
    ours = Schema.parse(
        record(
            {"name": "a", "type": "int"},
            {"name": "b", "type": {"type": "array", "items": "string"}},
            {"name": "c", "type": "int"},
            {"name": "d", "type": {"type": "map", "values": "int"}},
        )
    )
    theirs = Schema.parse(
        record(
            {"name": "a", "type": ["int", "null"]},
            {"name": "b", "type": {"type": "array", "items": "bytes"}},
            {"name": "d", "type": record({"name": "x", "type": "int"}, name="s")},
            {"name": "e", "type": "int"},
        )
    )
    assert ours.differences(theirs) == (
        "field 'a' is int here and int or null there",
        "field 'b[]' is string here and bytes there",
        "field 'c' is missing there",
        "field 'd' is map of int here and record there",
        "field 'e' is unknown here",
    )
    turned = Schema.parse(record(*reversed(ours.definition["fields"])))
    assert ours.differences(turned) == (
        "the schema has its fields in another order: a, b, c, d here",
    )
