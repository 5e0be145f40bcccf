"""Channels of the format `protobuf`: the numbers of their schemas, and the registry's view."""

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from confluent_kafka.schema_registry import Schema as RegistrySchema
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from gateways import SCHEMA, Rig, code

PATH = "/v1/channels/mine"


def field(name: str, type_: Any = "long", number: int | None = None, **more: Any) -> dict[str, Any]:
    attribute = {} if number is None else {"protobuf": {"number": number}}
    return {"name": name, "type": type_, **more, **attribute}


def record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Mine", "fields": list(fields)}


def put(rig: Rig, *fields: dict[str, Any], dry: bool = False, **spec: Any) -> httpx.Response:
    params = {"dry_run": "true"} if dry else {}
    spec |= {"schema": record(*fields)} if fields else {}
    return rig.http.put(PATH, json={"spec": spec}, params=params)


def numbers(schema: dict[str, Any]) -> dict[str, int]:
    return {member["name"]: member["protobuf"]["number"] for member in schema["fields"]}


def numbers_of(response: httpx.Response) -> dict[str, int]:
    assert response.is_success, response.text
    return numbers(response.json()["spec"]["schema"])


def versions(rig: Rig) -> list[dict[str, int]]:
    items = rig.http.get(f"{PATH}/schemas").json()["items"]
    return [numbers(version["definition"]) for version in items]


def refused(response: httpx.Response, status: int, name: str) -> list[str]:
    assert (response.status_code, code(response)) == (status, name), response.text
    return [error["message"] for error in response.json()["errors"]]


def test_a_schema_gets_numbers_once(rig: Rig) -> None:
    made = put(rig, field("a"), field("b", "string"), format="protobuf")
    assert made.json()["spec"]["format"] == "protobuf"
    assert numbers_of(made) == {"a": 1, "b": 2}
    for schema in ((field("a"), field("b", "string")), made.json()["spec"]["schema"]["fields"]):
        again = put(rig, *schema)
        assert again.headers["etag"] == made.headers["etag"]
        assert again.json() == made.json()
    assert versions(rig) == [{"a": 1, "b": 2}]
    assert code(put(rig, format="avro")) == "immutable_field"


@pytest.mark.sample
def test_numbers_stay_and_are_never_used_again(rig: Rig) -> None:
    nullable = {"type_": ["null", "long"], "default": None}
    put(rig, field("a"), field("b"), format="protobuf")
    assert numbers_of(put(rig, field("a"))) == {"a": 1}
    third = (field("a"), field("c", **nullable))
    dry = put(rig, *third, dry=True)
    assert numbers_of(dry) == {"a": 1, "c": 3}
    assert versions(rig) == [{"a": 1, "b": 2}, {"a": 1}]
    made = put(rig, *third)
    assert made.json()["spec"] == dry.json()["spec"]
    back = put(rig, field("a"), field("b"), compatibility="none")
    assert back.json()["status"]["schema"] == {
        "id": 1,
        "version": 1,
    }
    assert numbers_of(put(rig, field("d", aliases=["b"]))) == {"d": 2}


def test_a_renamed_number_has_its_former_name_as_an_alias(rig: Rig) -> None:
    put(rig, field("a", number=7), format="protobuf")
    renamed = put(rig, field("b", number=7))
    assert renamed.json()["spec"]["schema"]["fields"][0] == field("b", number=7, aliases=["a"])
    # Documentation alone removes no number.
    described = put(rig, field("b", doc="It is described."))
    assert numbers_of(described) == {"b": 7}
    assert described.json()["status"]["schema"]["version"] == 2


@pytest.mark.parametrize(
    ("fields", "messages"),
    [
        (
            [field("a", number=5)],
            ["the schema: the field 'a' has the number 5 here and 1 there"] * 2,
        ),
        ([field("a", "string")], ["'a': the number 1 is string here and int64 there"] * 2),
        # The second version does not have the number any more.
        ([field("c", "string", 2)], ["with version 1: field 'c': the number 2 is string here"]),
        # The schema of the first version, with other numbers.
        (
            [field("a", number=1), field("b", number=3)],
            ["with version 1: the schema: the field 'b' has the number 3 here and 2 there"],
        ),
    ],
)
def test_numbers_with_another_meaning_are_refused_whatever_the_rule(
    rig: Rig, fields: list[dict[str, Any]], messages: list[str]
) -> None:
    put(rig, field("a"), field("b"), format="protobuf", compatibility="none")
    put(rig, field("a"))
    for dry in (True, False):
        errors = refused(put(rig, *fields, dry=dry), 409, "schema_incompatible")
        assert len(errors) == len(messages)
        for error, message in zip(errors, messages, strict=True):
            assert message in error
    assert versions(rig) == [{"a": 1, "b": 2}, {"a": 1}]


@pytest.mark.parametrize(
    ("fields", "pointer", "message"),
    [
        ([field("a"), field("b", ["int", "string"])], "/fields/1", "nullable fields of one oneof"),
        ([field("a", ["null", {"type": "array", "items": "long"}])], "/fields/0", "cannot be null"),
        ([field("a", number=19_500)], "/fields/0", "number 19500 is not one that Protobuf allows"),
        ([field("a_b"), field("aB")], "/fields/1", "does not tell it from the field 'a_b'"),
        ([field("a", number=1), field("b", number=1)], "", "'a' and 'b' both have the number 1"),
    ],
)
def test_schemas_that_protobuf_does_not_have_are_refused_at_the_field(
    rig: Rig, fields: list[dict[str, Any]], pointer: str, message: str
) -> None:
    response = put(rig, *fields, format="protobuf")
    (error,) = refused(response, 422, "invalid_schema")
    assert message in error
    assert response.json()["errors"][0]["pointer"] == f"/spec/schema{pointer}"


def test_the_rule_of_the_channel_holds_besides(rig: Rig) -> None:
    put(rig, field("a"), format="protobuf")
    (error,) = refused(put(rig, field("a"), field("b")), 409, "schema_incompatible")
    assert "records of version 1 cannot be read with it: field 'b'" in error


def test_concurrent_registrations_give_no_number_twice(rig: Rig) -> None:
    put(rig, field("a"), format="protobuf", compatibility="none")
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda name: numbers_of(put(rig, field(name))), "bcdefg"))
    names = {number: name for version in versions(rig) for name, number in version.items()}
    assert len(versions(rig)) == 7
    assert sorted(names.values()) == [*"abcdefg"]


LINE = {"type": "record", "name": "Line", "fields": [field("a", "int", 4)]}
TEXT = """syntax = "proto3";

message Mine {
  int64 id = 2;
  repeated .Line lines = 7;
  optional bool gift = 8;
}

message Line {
  int32 a = 4;
}
"""


def descriptor(*, line_number: int = 4) -> str:
    """The file as a client of Python sends it: a descriptor, with its own layout."""
    file = FileDescriptorProto(name="theirs.proto", syntax="proto3")
    file.message_type.add(name="Other")
    mine = file.message_type.add(name="Mine")
    mine.nested_type.add(name="Row").field.add(name="a", number=line_number, label=1, type=5)
    mine.field.add(name="lines", number=7, label=3, type=11, type_name=".Mine.Row")
    mine.oneof_decl.add(name="_gift")
    mine.field.add(name="gift", number=8, label=1, type=8, proto3_optional=True, oneof_index=0)
    mine.field.add(name="id", number=2, label=1, type=3)
    return base64.b64encode(file.SerializeToString()).decode()


def test_the_registry_shows_a_proto_file(rig: Rig) -> None:
    lines = field("lines", {"type": "array", "items": LINE}, 7)
    made = put(
        rig, field("id", number=2), lines, field("gift", ["null", "boolean"]), format="protobuf"
    )
    id_ = made.json()["status"]["schema"]["id"]
    with SchemaRegistryClient({"url": f"{rig.url}/registry"}) as client:
        latest = client.get_latest_version("mine-value")
        assert (latest.schema_id, latest.version, latest.schema.schema_type) == (id_, 1, "PROTOBUF")
        assert latest.schema.schema_str == TEXT
        for same in (TEXT, f"// Mine\n{TEXT}", descriptor()):
            schema = RegistrySchema(same, "PROTOBUF")
            assert client.lookup_schema("mine-value", schema).schema_id == id_
            assert client.register_schema("mine-value", schema) == id_
            assert client.test_compatibility("mine-value", schema)
        for other in (TEXT.replace("a = 4", "a = 5"), descriptor(line_number=5)):
            schema = RegistrySchema(other, "PROTOBUF")
            for call in (client.lookup_schema, client.register_schema, client.test_compatibility):
                with pytest.raises(SchemaRegistryError, match=r"not that of a version|1 versions"):
                    call("mine-value", schema)
        with pytest.raises(SchemaRegistryError, match="neither the text of a file nor"):
            client.lookup_schema("mine-value", RegistrySchema("YWJjZA==", "PROTOBUF"))
        with pytest.raises(SchemaRegistryError, match="schemas of the type 'PROTOBUF'"):
            client.lookup_schema("mine-value", RegistrySchema("{}", "JSON"))
    listed = rig.http.get("/registry/schemas").json()
    assert {version["schema"] for version in listed} == {TEXT}
    for path in (f"schemas/ids/{id_}", "subjects/mine-value/versions/1"):
        shown = rig.http.get(f"/registry/{path}").json()
        assert (shown["schemaType"], shown["schema"]) == ("PROTOBUF", TEXT)
        assert rig.http.get(f"/registry/{path}/schema").text == TEXT
        serialized = rig.http.get(f"/registry/{path}", params={"format": "serialized"}).json()
        alone = rig.http.get(f"/registry/{path}/schema", params={"format": "serialized"})
        assert serialized == shown | {"schema": alone.text}
        file = FileDescriptorProto.FromString(base64.b64decode(alone.text))
        assert [message.name for message in file.message_type] == ["Mine", "Line"]


def test_an_id_of_several_channels_is_shown_as_the_subject_has_it(rig: Rig) -> None:
    id_ = put(rig, field("a", number=3), format="protobuf").json()["status"]["schema"]["id"]
    schema = record(field("a"))
    for name, format_ in (("packed", "arrow"), ("other", "protobuf"), ("plain", "avro")):
        made = rig.put(name, schema=schema, format=format_)
        assert made.json()["status"]["schema"]["id"] == id_
        path = f"/registry/schemas/ids/{id_}"
        shown = rig.http.get(path).json()
        if name == "packed":
            assert "a = 3;" in shown["schema"]
    assert "schemaType" not in shown
    for subject, text in (
        ("mine-value", "a = 3;"),
        ("other-value", "a = 1;"),
        ("plain-value", "{"),
    ):
        assert text in rig.http.get(path, params={"subject": subject}).json()["schema"]
    # A subject that does not have it tells nothing.
    rig.put("flights", schema=SCHEMA, format="json")
    assert rig.http.get(path, params={"subject": "flights-value"}).json() == shown
