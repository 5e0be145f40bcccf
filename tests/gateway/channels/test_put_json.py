"""Channels of the format `json`: creation, changes of the schema, and the registry's view."""

import json
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema as RegistrySchema
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from gateways import SCHEMA, Rig, code


def record(type_: Any, **more: Any) -> dict[str, Any]:
    field = {"name": "value", "type": type_, **more}
    return {"type": "record", "name": "Mine", "fields": [field]}


def put(rig: Rig, **spec: Any) -> Any:
    return rig.http.put("/v1/channels/mine", json={"spec": spec})


def test_a_channel_of_json_has_an_avro_schema(rig: Rig) -> None:
    made = put(rig, format="json", schema=SCHEMA)
    assert made.status_code == 201, made.text
    assert (made.json()["spec"]["format"], made.json()["spec"]["schema"]) == ("json", SCHEMA)
    assert code(put(rig, format="avro")) == "immutable_field"


def test_unions_of_several_types_are_refused(rig: Rig) -> None:
    refused = put(rig, format="json", schema=record(["int", "string"]))
    assert (refused.status_code, code(refused)) == (422, "invalid_schema")
    assert "which only the format avro has" in refused.json()["detail"]


@pytest.mark.parametrize("rule", ["backward", "none"])
def test_bytes_do_not_become_text_as_they_are_base64(rig: Rig, rule: str) -> None:
    array = {"type": "array", "items": ["null", "bytes"]}
    text = {"type": "array", "items": ["null", "string"]}
    put(rig, format="json", schema=record(array), compatibility=rule)
    refused = put(rig, schema=record(text))
    assert (refused.status_code, code(refused)) == (409, "schema_incompatible")
    assert "base64" in refused.json()["errors"][0]["message"]
    assert "'value[]' is string here and bytes there" in refused.json()["errors"][0]["message"]
    rig.put("other", format="avro", schema=record(array))
    changed = rig.http.put("/v1/channels/other", json={"spec": {"schema": record(text)}})
    assert changed.status_code == 200, changed.text


def test_the_registry_shows_json_schema(rig: Rig) -> None:
    schema = record(["null", "long"], doc="A number.")
    made = put(rig, format="json", schema=schema)
    id_ = made.json()["status"]["schema"]["id"]
    with SchemaRegistryClient({"url": f"{rig.url}/registry"}) as client:
        latest = client.get_latest_version("mine-value")
        assert (latest.schema_id, latest.version, latest.schema.schema_type) == (id_, 1, "JSON")
        assert json.loads(latest.schema.schema_str) == {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "title": "Mine",
            "type": "object",
            "properties": {
                "value": {
                    "description": "A number.",
                    "oneOf": [
                        {"type": "null"},
                        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
                    ],
                }
            },
        }
        spaced = RegistrySchema(json.dumps(json.loads(latest.schema.schema_str), indent=2), "JSON")
        assert client.lookup_schema("mine-value", spaced).schema_id == id_
        assert client.register_schema("mine-value", spaced) == id_
        assert client.test_compatibility("mine-value", spaced)
        assert client.get_schema(id_).schema_type == "JSON"
        other = RegistrySchema('{"type": "object"}', "JSON")
        for call in (client.lookup_schema, client.register_schema, client.test_compatibility):
            with pytest.raises(SchemaRegistryError, match=r"not that of a version|1 versions"):
                call("mine-value", other)
        with pytest.raises(
            SchemaRegistryError, match="this subject has schemas of the type 'JSON'"
        ):
            client.lookup_schema("mine-value", RegistrySchema(json.dumps(schema), "AVRO"))
    listed = rig.http.get("/registry/schemas").json()
    assert {listed_schema["schemaType"] for listed_schema in listed} == {"JSON"}


def test_an_id_of_several_formats_is_avro_unless_the_subject_is_of_json(rig: Rig) -> None:
    id_ = put(rig, format="json", schema=SCHEMA).json()["status"]["schema"]["id"]
    assert rig.put("flights").json()["status"]["schema"]["id"] == id_
    path = f"/registry/schemas/ids/{id_}"
    for subject in ({}, {"subject": "flights-value"}, {"subject": "com.example.Flight"}):
        body = rig.http.get(path, params=subject).json()
        assert "schemaType" not in body
        assert json.loads(body["schema"]) == SCHEMA
    shown = rig.http.get(path, params={"subject": "mine-value"}).json()
    assert shown["schemaType"] == "JSON"
    raw = rig.http.get(f"{path}/schema", params={"subject": "mine-value"})
    assert raw.text == shown["schema"]
