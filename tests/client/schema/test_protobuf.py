"""Schemas of Protobuf: from `.proto` files and classes, their numbers, and their evolution."""

import subprocess
import sys
import time
from dataclasses import dataclass

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from generated import ENUMS, FIXED, SCALARS, UUIDS, protobuf_schemas
from sluiceway.errors import InvalidSchema, UnsupportedType
from sluiceway.schema import Schema
from sluiceway.schema.compatibility import incompatibilities
from sluiceway.schema.proto_files import proto_file
from sluiceway.schema.protobuf import number_changes, numbered

ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/type/date.proto";
import "google/type/timeofday.proto";

message Other { int32 a = 1; }
message Order {
  enum State { NEW = 0; PAID = 5; }
  message Line { string product = 1; fixed32 count = 2; }
  int64 id = 1;
  sint32 delta = 2;
  uint64 big = 3;
  optional bool gift = 4;
  State state = 5;
  Line first = 7;
  repeated Line lines = 8;
  repeated sfixed64 places = 9;
  map<string, uint32> stock = 10;
  map<string, State> states = 11;
  oneof payment { string iban = 20; Line card = 22; }
  google.protobuf.Timestamp at = 25;
  google.type.Date day = 26;
  google.type.TimeOfDay clock = 27;
  bytes raw = 28;
  float ratio = 29;
  double exact = 30;
}
"""


def write(folder, content, name="shop.proto"):
    path = folder / name
    path.write_text(content)
    return path


def proto(folder, body):
    """The schema of the message M with this body."""
    return Schema.from_proto(
        write(folder, f'syntax = "proto3"; message M {{ {body} }}'), message="M"
    )


def avro(*fields):
    return Schema.parse({"type": "record", "name": "M", "fields": list(fields)})


def field(name, type_="long", number=None, **more):
    attribute = {} if number is None else {"protobuf": {"number": number}}
    return {"name": name, "type": type_, **attribute, **more}


def numbers(schema):
    return {f.name: f.attributes["protobuf"]["number"] for f in schema.record.fields}


def test_a_file_becomes_a_schema_with_its_numbers(tmp_path):
    schema = Schema.from_proto(write(tmp_path, ORDER), "shop.Order")
    fields = {f["name"]: f for f in schema.definition["fields"]}
    shown = {name: (f["type"], f["default"], f["protobuf"]) for name, f in fields.items()}
    state = {
        "type": "enum",
        "name": "shop.Order.State",
        "symbols": ["NEW", "PAID"],
        "protobuf": {"NEW": 0, "PAID": 5},
    }
    line = shown["first"][0][1]
    assert line["name"] == "shop.Order.Line"
    assert [f["protobuf"] for f in line["fields"]] == [
        {"number": 1},
        {"number": 2, "type": "fixed32"},
    ]
    unsigned = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 0}
    at = {"type": "long", "logicalType": "timestamp-micros"}
    day, clock = (
        {"type": physical, "logicalType": logical}
        for physical, logical in (("int", "date"), ("long", "time-micros"))
    )
    assert shown == {
        "id": ("long", 0, {"number": 1}),
        "delta": ("int", 0, {"number": 2, "type": "sint32"}),
        "big": (unsigned, "\0", {"number": 3, "type": "uint64"}),
        "gift": (["null", "boolean"], None, {"number": 4}),
        "state": (state, "NEW", {"number": 5}),
        "first": (["null", line], None, {"number": 7}),
        "lines": ({"type": "array", "items": "shop.Order.Line"}, [], {"number": 8}),
        "places": (
            {"type": "array", "items": "long"},
            [],
            {"number": 9, "type": "sfixed64"},
        ),
        "stock": ({"type": "map", "values": "long"}, {}, {"number": 10, "type": "uint32"}),
        "states": ({"type": "map", "values": "shop.Order.State"}, {}, {"number": 11}),
        "iban": (["null", "string"], None, {"number": 20, "oneof": "payment"}),
        "card": (["null", "shop.Order.Line"], None, {"number": 22, "oneof": "payment"}),
        "at": (["null", at], None, {"number": 25}),
        "day": (["null", day], None, {"number": 26}),
        "clock": (["null", clock], None, {"number": 27}),
        "raw": ("bytes", "", {"number": 28}),
        "ratio": ("float", 0.0, {"number": 29}),
        "exact": ("double", 0.0, {"number": 30}),
    }
    # It is the second message of its file, which foreign writers put into each message.
    assert schema.definition["protobuf"] == {"indexes": [1]}


def generated(content):
    """The class of the message `shop.M`, as protoc generates it."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(content.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.M"))


def test_a_generated_class_is_a_schema():
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package="shop", syntax="proto3")
    file.message_type.add(name="M").field.add(name="a", number=3, type=5, label=1)
    schema = Schema.of(generated(file))
    assert (schema.name, numbers(schema)) == ("shop.M", {"a": 3})


def test_required_fields_of_proto2_have_no_default(tmp_path):
    path = write(tmp_path, 'syntax = "proto2"; message M { required int32 a = 1; }')
    assert Schema.from_proto(path).definition["fields"] == [
        {"name": "a", "type": "int", "protobuf": {"number": 1}}
    ]


@pytest.mark.parametrize(
    ("body", "path", "reason"),
    [
        ("map<int32, string> m = 1;", "m", "map keys must be strings"),
        ("M again = 1;", "again", r"M \(recursive\)"),
        ("message E {} E empty = 1;", "empty", "without fields"),
        (
            "enum E { option allow_alias = true; A = 0; B = 0; } E e = 1;",
            "e",
            "leave the alias 'B' out",
        ),
        ("confluent.type.Decimal d = 1;", "d", "a decimal, its precision and its scale"),
        ("google.protobuf.Struct s = 1;", "s.fields{}.struct_value", "recursive"),
    ],
)
def test_what_a_schema_cannot_have_is_refused_by_name(tmp_path, body, path, reason):
    imports = 'import "confluent/type/decimal.proto"; import "google/protobuf/struct.proto";'
    file = write(tmp_path, f'syntax = "proto3"; {imports} message M {{ {body} }}')
    with pytest.raises(UnsupportedType, match=reason) as raised:
        Schema.from_proto(file, "M")
    assert raised.value.path == path


@pytest.mark.parametrize("body", ["optional int32 a = 1 [default = 5];", "optional group A = 1 {}"])
def test_defaults_and_groups_of_proto2_are_refused(tmp_path, body):
    file = write(tmp_path, f'syntax = "proto2"; message M {{ {body} }}')
    with pytest.raises(UnsupportedType, match=r"field 'a' .*(with a default|group)"):
        Schema.from_proto(file)


def test_a_file_is_named_in_its_errors(tmp_path, capfd):
    with pytest.raises(InvalidSchema, match=r"there is no file .*none\.proto"):
        Schema.from_proto(tmp_path / "none.proto")
    file = write(tmp_path, ORDER)
    with pytest.raises(InvalidSchema, match=r"shop\.Other, shop\.Order"):
        Schema.from_proto(file)
    with pytest.raises(InvalidSchema, match=r"has no message 'Order'"):
        Schema.from_proto(file, "Order")
    with pytest.raises(InvalidSchema, match="protoc has printed why"):
        Schema.from_proto(write(tmp_path, 'syntax = "proto3"; message M { int33 a = 1; }'))
    assert "int33" in capfd.readouterr().err


def test_the_missing_package_is_named(tmp_path):
    program = (
        "import sys; sys.modules['grpc_tools'] = None; from sluiceway.schema import Schema; "
        "Schema.from_proto(sys.argv[1])"
    )
    command = [sys.executable, "-c", program, str(write(tmp_path, ORDER))]
    errors = subprocess.run(command, check=False, capture_output=True, text=True).stderr
    assert "need grpcio-tools" in errors
    assert "pip install 'sluiceway[protobuf]'" in errors


@dataclass
class Flight:
    carrier: str
    delay: int | None = None


def test_fields_without_numbers_get_them_in_order():
    schema = numbered(Schema.of(Flight))
    assert numbers(schema) == {"carrier": 1, "delay": 2}
    assert numbered(schema) == schema
    assert numbers(numbered(avro(field("a"), field("b", number=18_999), field("c")))) == {
        "a": 20_000,
        "b": 18_999,
        "c": 20_001,
    }


def test_numbers_stay_and_are_never_used_again():
    first = numbered(avro(field("a"), field("b"), field("c")))
    second = numbered(avro(field("c"), field("a")), [first])
    assert numbers(second) == {"c": 3, "a": 1}
    third = numbered(avro(field("d"), field("a")), [first, second])
    assert numbers(third) == {"d": 4, "a": 1}
    assert not number_changes(third, first)


def test_a_renamed_number_gets_the_former_name_as_an_alias():
    first = numbered(avro(field("a"), field("b", "string")))
    second = numbered(avro(field("x", number=1), field("b", "string", number=2)), [first])
    assert second.record.fields[0].aliases == ("a",)
    assert not incompatibilities(second, first)
    # Also before an alias that is another field's name there.
    other = numbered(avro(field("x", number=1, aliases=["b"])), [first])
    assert other.record.fields[0].aliases == ("a", "b")
    # By an alias, the field keeps its number.
    third = numbered(avro(field("y", aliases=["x"])), [first, second])
    assert numbers(third) == {"y": 1}


def test_a_schema_without_attributes_keeps_those_of_earlier_versions(tmp_path):
    first = numbered(Schema.from_proto(write(tmp_path, ORDER), "shop.Order"))
    fields = [
        {"name": f.name, "type": f_["type"], "default": f_["default"]}
        for f, f_ in zip(first.record.fields, first.definition["fields"], strict=True)
    ]
    plain = Schema.parse({**first.definition, "fields": [*fields, field("new")]}).canonical
    second = numbered(Schema.parse(plain), [first])
    assert second.definition["protobuf"] == {"indexes": [1]}
    shown = {f["name"]: f["protobuf"] for f in second.definition["fields"]}
    assert shown.pop("new") == {"number": 31}
    assert shown == {f["name"]: f["protobuf"] for f in first.definition["fields"]}
    assert not number_changes(second, first)
    # A type that the Avro type does not allow is not kept, which `number_changes` names.
    (_, delta) = (f["name"] for f in fields[:2])
    other = numbered(
        Schema.parse({**first.definition, "fields": [field(delta, "string")]}), [first]
    )
    assert other.definition["fields"][0]["protobuf"] == {"number": 2}
    (change,) = number_changes(other, first)
    assert "'delta': the number 2 is string here and sint32 there" in change


def test_a_field_that_comes_back_is_not_taken_for_another_of_its_record():
    def version(name, *names):
        record = {"type": "record", "name": "L", "fields": [field(n, default=0) for n in names]}
        return avro(field(name, record), field("z", default=0))

    first = numbered(version("x", "a", "b"))
    second = numbered(version("y", "a", "c"), [first])
    third = numbered(version("x", "a", "c"), [first, second])
    for schema in (second, third):
        inner = schema.definition["fields"][0]["type"]
        assert [f["protobuf"]["number"] for f in inner["fields"]] == [1, 3]
    assert third.record.fields[0].type.fields[1].aliases == ()


def placed(schema, *place):
    """The schema with this place of its message in its file."""
    return Schema.parse({**schema.definition, "protobuf": {"indexes": [*place]}})


def test_a_message_has_one_place_for_each_schema_id():
    first = numbered(placed(avro(field("a")), 1))
    moved = placed(first, 2, 0)
    (change,) = number_changes(numbered(moved, [first]), first)
    assert "the place [2, 0] in its file here and [1] there" in change
    # Other fields have another id, and messages of all ids may have the first place.
    more = numbered(placed(avro(field("a"), field("b")), 2), [first])
    assert not number_changes(more, first)
    described = numbered(avro(field("a", doc="It is described.")), [first, more])
    assert described.definition["protobuf"] == {"indexes": [1]}
    unplaced = numbered(avro(field("a")))
    assert not number_changes(numbered(moved, [unplaced]), unplaced)


@pytest.mark.parametrize(
    "place", [3, [1], {}, {"indexes": []}, *({"indexes": [n]} for n in (-1, True, "a", 2**31))]
)
def test_an_invalid_place_is_refused(place):
    with pytest.raises(InvalidSchema, match=r'the place of the message .*\{"indexes": \[1\]\}'):
        numbered(Schema.parse({**avro(field("a")).definition, "protobuf": place}))


def test_nested_records_and_enums_keep_their_numbers():
    def version(fields, symbols):
        enum = {"type": "enum", "name": "E", "symbols": symbols}
        inner = {"type": "record", "name": "I", "fields": [*fields, {"name": "e", "type": enum}]}
        return avro(field("x", {"type": "array", "items": inner}), field("y", ["null", "I"]))

    first = numbered(version([field("a"), field("b")], ["ON", "OFF"]))
    second = numbered(version([field("b"), field("z")], ["OFF", "ON", "NEW"]), [first])
    inner = second.definition["fields"][0]["type"]["items"]
    assert [(f["name"], f["protobuf"]["number"]) for f in inner["fields"]] == [
        *(("b", 2), ("z", 4), ("e", 3)),
    ]
    assert inner["fields"][2]["type"]["protobuf"] == {"OFF": 1, "ON": 0, "NEW": 2}
    with pytest.raises(InvalidSchema, match="none of its symbols has the number 0"):
        numbered(version([field("b")], ["OFF"]), [first])


E = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ([field("a", number=1)], [field("a", number=2)], "'a' has the number 2 here and 1 there"),
        ([field("a", number=1)], [field("b", "string", 1)], "is string here and int64 there"),
        (
            [field("a", number=1)],
            [{"name": "a", "type": "long", "protobuf": {"number": 1, "type": "sint64"}}],
            "is sint64 here and int64 there",
        ),
        (
            [field("a", number=1)],
            [{"name": "a", "type": "long", "protobuf": {"number": 1, "type": "uint32"}}],
            "is uint32 here and int64 there",
        ),
        (
            [field("a", number=1)],
            [field("a", {"type": "array", "items": "long"}, 1)],
            "is repeated int64 here and int64 there",
        ),
        (
            [field("a", {"type": "array", "items": "long"}, 1)],
            [field("a", {"type": "map", "values": "long"}, 1)],
            "is map int64 here and repeated int64 there",
        ),
        (
            [field("e", E | {"protobuf": {"A": 0, "B": 1}}, 1)],
            [field("e", E | {"symbols": ["A", "C"], "protobuf": {"A": 0, "C": 1}}, 1)],
            "the number 1 is 'C' here and 'B' there",
        ),
        (
            [field("a", ["null", "long"], 1), field("b", ["null", "long"], 2)],
            [
                {
                    "name": name,
                    "type": ["null", "long"],
                    "protobuf": {"number": number, "oneof": "choice"},
                }
                for number, name in enumerate("ab", 1)
            ],
            "the oneof 'choice' takes 'a', 'b'",
        ),
    ],
)
def test_what_another_version_would_confuse_is_named(before, after, reason):
    first = numbered(avro(*before))
    (change,) = number_changes(numbered(avro(*after), [first]), first)
    assert reason in change


def test_enums_of_many_symbols_in_many_fields_are_compared_fast():
    def version(*fields):
        symbols = enum(*(f"S{number}" for number in range(10_000)))
        return avro(field("f", symbols), *(field(f"f{n}", "E") for n in range(1_000)), *fields)

    begin_s = time.process_time()
    first = numbered(version())
    assert not number_changes(numbered(version(field("new")), [first]), first)
    # Ten seconds and more where they are compared in each field.
    assert time.process_time() - begin_s < 4


def test_changes_that_protobuf_reads_are_allowed():
    first = numbered(avro(field("a", "int"), field("b"), field("c", ["null", "long"])))
    inner = {"name": "c", "type": ["null", "long"], "protobuf": {"number": 3, "oneof": "one"}}
    new = {"name": "d", "type": ["null", "string"], "protobuf": {"number": 4, "oneof": "one"}}
    second = numbered(avro(field("a", "long"), field("b"), inner, new), [first])
    assert not number_changes(second, first)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([field("a", number=1), field("b", number=1)], "'a' and 'b' both have the number 1"),
        ([field("a", number=0)], "number 0 is not one that Protobuf allows"),
        ([field("a", number=19_500)], "number 19500 is not one"),
        ([{"name": "a", "type": "int", "protobuf": 3}], 'such as {"number": 1}'),
        (
            [{"name": "a", "type": "int", "protobuf": {"type": "int64"}}],
            "'int64', but its Avro type allows int32, sint32, sfixed32",
        ),
        ([{"name": "a", "type": "int", "protobuf": {"oneof": "o"}}], "must be nullable"),
        (
            [{"name": "a", "type": ["null", "int"], "protobuf": {"oneof": "a"}}],
            "its oneof has the name of a field",
        ),
        ([field("e", E | {"protobuf": {"A": 1, "B": 2}})], "has the number 0"),
        ([field("e", E | {"protobuf": {"A": 0, "B": 0}})], "'A' and 'B' both have the number 0"),
        ([field("e", E | {"protobuf": ["A"]})], "must be its numbers"),
        ([field("e", E | {"protobuf": {"A": 2**31 - 1}})], "no number is left after 2147483647"),
    ],
)
def test_invalid_numbers_are_refused(fields, reason):
    with pytest.raises(InvalidSchema, match=r"field '[abe]'|the schema") as raised:
        numbered(avro(*fields))
    assert reason in str(raised.value)


LIST = {"type": "array", "items": "long"}
WIDE = {"type": "record", "name": "W", "fields": [field(f"f{n}") for n in range(200)]}


@pytest.mark.parametrize(
    ("type_", "path"),
    [
        (["null", LIST], "x"),
        ({"type": "array", "items": LIST}, "x[]"),
        ({"type": "map", "values": LIST}, "x{}"),
        ({"type": "array", "items": ["null", "long"]}, "x[]"),
        ({"type": "array", "items": WIDE}, "x[]"),
        (["int", "string"], "x"),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, "x"),
    ],
)
def test_types_that_protobuf_does_not_have_are_refused_by_name(type_, path):
    with pytest.raises(UnsupportedType) as raised:
        numbered(avro(field("x", type_)))
    assert raised.value.path == path


def enum(*symbols, name="E"):
    return {"type": "enum", "name": name, "symbols": symbols}


MAP = {"type": "map", "values": "long"}


@pytest.mark.parametrize(
    ("fields", "path", "reason"),
    [
        ([field("a_b"), field("aB")], "aB", "from the field 'a_b', as both are 'aB' in JSON"),
        ([field("_"), field("__")], "__", "both are '' in JSON"),
        ([field("a_b", MAP), field("ABEntry")], "a_b", "ABEntry, which is the field 'ABEntry'"),
        (
            [field("x", MAP), field("X", MAP)],
            "X",
            "XEntry, which is the name of the entries of 'x'",
        ),
        ([field("_1", MAP)], "_1", "1Entry, which is not a name"),
        ([field("e", enum("on", "ON"))], "e", "the symbols 'on' and 'ON' of the enum E"),
        ([field("e", enum("on", "reserved"))], "e", "not take 'reserved' for a symbol of the enum"),
        ([field("e", enum("E_ON", "On"))], "e", "the symbols 'E_ON' and 'On'"),
        (
            [{"name": "_a", "type": ["null", "long"], "protobuf": {"oneof": "A"}}],
            "_a",
            "from the oneof 'A', as both are 'A' in JSON",
        ),
        (
            [field("r", {"type": "record", "name": "R", "fields": [field("a"), field("a_")]})],
            "r.a_",
            "from the field 'a'",
        ),
    ],
)
def test_names_that_protobuf_takes_for_one_have_no_file(fields, path, reason):
    schema = numbered(avro(*fields))
    with pytest.raises(InvalidSchema) as raised:
        proto_file(schema)
    assert raised.value.path == path
    assert reason in str(raised.value)


def test_symbols_have_a_scope_of_their_own_where_they_would_clash(tmp_path):
    fields = [field("a", enum("A", "B")), field("b", enum("B", "Values", name="C"))]
    file = proto_file(numbered(avro(*fields)))
    assert [*file.enums] == ["E", "C.Values_"]
    assert Schema.from_proto(write(tmp_path, file.text), "M").record.fields[1].type.symbols == (
        "B",
        "Values",
    )


#: No decimals, whose digits a file does not tell.
READABLE = st.one_of(SCALARS, FIXED, UUIDS, ENUMS)


@settings(max_examples=10)
@given(protobuf_schemas(READABLE))
def test_every_schema_is_a_file_that_protoc_compiles_to_the_same_numbers(tmp_path_factory, schema):
    schema = numbered(schema)
    file = proto_file(schema)
    path = write(tmp_path_factory.mktemp("proto"), file.text)
    read = Schema.from_proto(path, f"{file.package}.{next(iter(file.messages))}")
    assert _numbers_in(read.definition) == _numbers_in(schema.definition)


def _numbers_in(definition):
    """The numbers, types and oneofs of fields, and the numbers of symbols, in their order."""
    match definition:
        case {"fields": list() as fields}:
            return [(f["name"], f["protobuf"], _numbers_in(f["type"])) for f in fields]
        case {"symbols": list()}:
            return sorted(definition["protobuf"].items())
        case {"items": inner} | {"values": inner}:
            return _numbers_in(inner)
        case [*branches]:
            (present,) = [branch for branch in branches if branch != "null"]
            return _numbers_in(present)
    return None
