"""`.proto` files as descriptors, and their comparison with those of registry clients."""

import base64
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from hypothesis import given, settings

from generated import protobuf_schemas
from sluiceway.schema import Schema
from sluiceway.schema.proto_files import ProtoFile, compiled, proto_file
from sluiceway.schema.protobuf import numbered
from sluiceway_gateway.registry.descriptors import (
    InvalidFile,
    SentFile,
    descriptor_of,
    serialized,
)


def protoc(text: str) -> FileDescriptorProto:
    """The descriptor that protoc makes of a file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "sent.proto"
        path.write_text(text)
        described = FileDescriptorProto()
        compiled(path, [path.parent]).FindFileByName("sent.proto").CopyToProto(described)
    return described


def sent(text: str) -> SentFile:
    return SentFile(base64.b64encode(protoc(text).SerializeToString()).decode())


def without_json_names(message: Any) -> None:
    """Remove the names in JSON that protoc adds."""
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        without_json_names(nested)


@settings(max_examples=10)
@given(protobuf_schemas())
def test_a_descriptor_is_that_of_protoc(schema: Schema) -> None:
    file = proto_file(numbered(schema))
    expected = protoc(file.text)
    made = descriptor_of(file)
    assert SentFile(base64.b64encode(expected.SerializeToString()).decode()).is_same(file)
    expected.name = made.name
    for described in (expected, made):
        for message in described.message_type:
            without_json_names(message)
    assert made == expected


UNSIGNED = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 0}
FIELDS = [
    {"name": "id", "type": "long"},
    {"name": "big", "type": UNSIGNED, "protobuf": {"number": 4, "type": "fixed64"}},
    {"name": "gift", "type": ["null", "boolean"]},
    {
        "name": "line",
        "type": {"type": "record", "name": "L", "fields": [{"name": "a", "type": "int"}]},
    },
    {"name": "state", "type": {"type": "enum", "name": "E", "symbols": ["NEW", "PAID"]}},
    {"name": "stock", "type": {"type": "map", "values": "shop.L"}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    *(
        {"name": name, "type": ["null", "long"], "protobuf": {"number": number, "oneof": "either"}}
        for name, number in (("x", 11), ("y", 12))
    ),
]
ORDER = {"type": "record", "name": "shop.Order", "fields": FIELDS}


@pytest.fixture(scope="module")
def order() -> ProtoFile:
    return proto_file(numbered(Schema.parse(ORDER)))


THEIRS = """
syntax = "proto3";
package shop;
option java_package = "com.shop";
import "google/protobuf/timestamp.proto";
message Other { Order order = 1; Other again = 2; }
message Order {
  enum State { NEW = 0; PAID = 1; }
  message Line { int32 a = 1; }
  map<string, Line> stock = 17;
  int64 id = 13;
  fixed64 big = 4;
  optional bool gift = 14;
  Line line = 15;
  State state = 16;
  google.protobuf.Timestamp at = 18;
  oneof choice { int64 x = 11; int64 y = 12; }
}
"""


def test_a_file_of_another_layout_is_the_same(order: ProtoFile) -> None:
    assert sent(THEIRS).is_same(order)
    # Presence is the same in proto2, with another syntax.
    proto2 = (
        THEIRS.replace('syntax = "proto3"', 'syntax = "proto2"')
        .replace("int64 id", "required int64 id")
        .replace("fixed64 big", "required fixed64 big")
        .replace("Line line", "optional Line line")
        .replace("State state", "required State state")
        .replace("google.protobuf.Timestamp at", "optional google.protobuf.Timestamp at")
        .replace("int32 a", "required int32 a")
        .replace("Order order", "optional Order order")
        .replace("Other again", "optional Other again")
    )
    assert sent(proto2).is_same(order)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("int64 id = 13;", "int64 id = 19;"),
        ("int64 id = 13;", "int64 no = 13;"),
        ("int64 id = 13;", "sint64 id = 13;"),
        ("int64 id = 13;", "optional int64 id = 13;"),
        ("int64 id = 13;", "repeated int64 id = 13;"),
        ("int64 id = 13;", "int64 id = 13; bool more = 19;"),
        ("int64 id = 13;", ""),
        ("optional bool gift", "bool gift"),
        ("PAID = 1;", "PAID = 2;"),
        ("PAID = 1;", "PAYED = 1;"),
        ("int32 a = 1;", "int64 a = 1;"),
        ("int64 x = 11; int64 y = 12; }", "int64 x = 11; } optional int64 y = 12;"),
        ("map<string, Line>", "map<string, int32>"),
        ("map<string, Line>", "map<int32, Line>"),
        ("google.protobuf.Timestamp at", "Line at"),
        ("package shop;", "package shops;"),
    ],
)
def test_what_bytes_depend_on_makes_another_file(order: ProtoFile, ours: str, theirs: str) -> None:
    assert THEIRS.count(ours) == 1
    assert not sent(THEIRS.replace(ours, theirs)).is_same(order)


def test_messages_that_hold_themselves_are_compared(order: ProtoFile) -> None:
    recursive = THEIRS.replace("int32 a = 1;", "int32 a = 1; Line b = 2;")
    assert not sent(recursive).is_same(order)


def test_text_is_compared_without_comments_and_white_space(order: ProtoFile) -> None:
    assert SentFile(order.text).is_same(order)
    spaced = order.text.replace(" = ", "  =\n /* a; */ // b\n ")
    assert SentFile(spaced).is_same(order)
    assert not SentFile(order.text.replace("int64 x", "int64 z")).is_same(order)


@pytest.mark.parametrize("part", ['"\\', "/*", "//", '"'])
def test_texts_without_an_end_are_read_in_linear_time(order: ProtoFile, part: str) -> None:
    # Minutes of one core otherwise.
    assert not SentFile(part * 200_000 + " ").is_same(order)


@pytest.mark.parametrize("wide", ["oneof", "enum"])
def test_wide_messages_are_compared_fast(wide: str) -> None:
    fields: list[dict[str, Any]] = [
        {"name": f"f{n}", "type": ["null", "long"], "protobuf": {"number": n, "oneof": "one"}}
        for n in range(1, 5_000)
    ]
    if wide == "enum":
        symbols = [f"S{number}" for number in range(10_000)]
        fields = [{"name": f"f{n}", "type": "E"} for n in range(1_000)]
        fields[0]["type"] = {"type": "enum", "name": "E", "symbols": symbols}
    file = proto_file(numbered(Schema.parse({"type": "record", "name": "M", "fields": fields})))
    sent_file = SentFile(serialized(file))
    begin_s = time.process_time()
    assert sent_file.is_same(file)
    # Ten seconds where a field is compared with all others, or an enum in each field.
    assert time.process_time() - begin_s < 2


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("YWJjZA==", "neither the text of a file nor a descriptor"),
        (
            FileDescriptorProto(name="a.proto", dependency=["google/type/money.proto"]),
            "imports 'google/type/money.proto', which is not here",
        ),
        (
            FileDescriptorProto(name="a.proto", message_type=[{"name": "M"}, {"name": "M"}]),
            "M",
        ),
    ],
)
def test_descriptors_that_cannot_be_used_are_refused(
    schema: str | FileDescriptorProto, reason: str
) -> None:
    if isinstance(schema, FileDescriptorProto):
        schema = base64.b64encode(schema.SerializeToString()).decode()
    with pytest.raises(InvalidFile, match=reason):
        SentFile(schema)


def test_well_known_messages_are_their_files() -> None:
    fields = [
        {"name": name, "type": {"type": physical, "logicalType": logical, **more}}
        for name, physical, logical, more in (
            ("day", "int", "date", {}),
            ("clock", "long", "time-micros", {}),
            ("price", "bytes", "decimal", {"precision": 5, "scale": 2}),
        )
    ]
    file = proto_file(numbered(Schema.parse({"type": "record", "name": "M", "fields": fields})))
    assert SentFile(serialized(file)).is_same(file)
