"""Channels of the format `bytes`: creation and changes."""

from typing import Any

import pytest

from gateways import SCHEMA, Rig, code


def record(type_: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Mine", "fields": [{"name": "value", "type": type_}]}


def put(rig: Rig, **spec: Any) -> Any:
    return rig.http.put("/v1/channels/raw", json={"spec": spec})


def test_a_channel_of_bytes_has_a_schema_without_giving_one(rig: Rig) -> None:
    made = put(rig, format="bytes")
    assert made.status_code == 201, made.text
    assert made.json()["spec"]["format"] == "bytes"
    (field,) = made.json()["spec"]["schema"]["fields"]
    assert field == {"name": "value", "type": ["null", "bytes"], "default": None}
    assert put(rig, format="bytes").json() == made.json()
    assert rig.http.get("/v1/channels/raw/schemas").json()["items"][0]["version"] == 1


def test_a_channel_of_bytes_may_allow_tombstones_later(rig: Rig) -> None:
    made = put(rig, format="bytes", schema=record("bytes"))
    assert made.status_code == 201, made.text
    changed = put(rig, schema=record(["null", "bytes"]))
    assert changed.json()["status"]["schema"]["version"] == 2, changed.text
    assert code(put(rig, schema=record("bytes"), compatibility="full")) == "schema_incompatible"


def test_another_schema_for_bytes_is_refused(rig: Rig) -> None:
    refused = put(rig, format="bytes", schema=SCHEMA)
    assert (refused.status_code, code(refused)) == (422, "invalid_schema")
    assert "leave spec.schema out" in refused.json()["detail"]
    assert rig.http.get("/v1/channels/raw").status_code == 404
    put(rig, format="bytes")
    assert code(put(rig, schema=SCHEMA, compatibility="none")) == "invalid_schema"


@pytest.mark.sample
@pytest.mark.parametrize("format_", ["avro", "arrow"])
def test_channels_of_other_formats_need_a_schema(rig: Rig, format_: str) -> None:
    refused = put(rig, format=format_)
    assert code(refused) == "invalid_request"
    assert "or the format bytes" in refused.json()["detail"]
    assert code(put(rig)) == "invalid_request"


def test_the_format_of_a_channel_is_immutable(rig: Rig) -> None:
    rig.put("raw")
    assert code(put(rig, format="bytes")) == "immutable_field"
