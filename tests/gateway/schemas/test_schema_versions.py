import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from gateways import SCHEMA, Rig, code
from sluiceway.schema import Schema
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.schemas import tables
from sluiceway_gateway.schemas.model import MAX_SCHEMA_CHARACTERS, MAX_SCHEMA_VERSIONS

PATH = "/v1/channels/flights"


def schema(**fields: Any) -> dict[str, Any]:
    """Return SCHEMA with further fields; the default `...` stands for none."""
    more = [
        {"name": name, "type": "string"} | ({} if default is ... else {"default": default})
        for name, default in fields.items()
    ]
    return {**SCHEMA, "fields": [*SCHEMA["fields"], *more]}  # type: ignore[misc]


WIDER = schema(b="none")


def update(rig: Rig, **spec: Any) -> httpx.Response:
    return rig.http.put(PATH, json={"spec": spec})


def versions(rig: Rig) -> list[tuple[int, dict[str, Any]]]:
    items = rig.http.get(f"{PATH}/schemas").json()["items"]
    return [(item["version"], item["definition"]) for item in items]


@pytest.mark.long
def test_a_schema_that_reads_the_old_records_is_a_new_version(rig: Rig) -> None:
    first = rig.put().json()
    response = update(rig, schema=WIDER)
    assert response.status_code == 200, response.text
    body = response.json()
    assert body["spec"]["schema"] == WIDER
    assert body["metadata"]["generation"] == 2
    assert body["status"]["schema"] == {"id": 2, "version": 2}
    assert versions(rig) == [(1, SCHEMA), (2, WIDER)]
    again = update(rig, schema=WIDER)
    assert again.headers["etag"] == response.headers["etag"]
    assert first["status"]["schema"] == {"id": 1, "version": 1}


def annotated(doc: str) -> dict[str, Any]:
    fields = [{**field, "aliases": ["old"], "doc": doc} for field in SCHEMA["fields"]]  # type: ignore[attr-defined]
    return {**SCHEMA, "fields": fields, "owner": "ops"}


def test_annotations_are_kept_with_the_version(rig: Rig) -> None:
    rig.put(schema=annotated("one"))
    assert versions(rig) == [(1, annotated("one"))]
    assert rig.http.get(PATH).json()["spec"]["schema"] == annotated("one")
    # Such as the schema of a dataframe.
    assert update(rig, schema=SCHEMA).json()["metadata"]["generation"] == 1
    body = update(rig, schema=annotated("two")).json()
    assert body["metadata"]["generation"] == 2
    assert body["status"]["schema"] == {"id": 1, "version": 1}
    assert versions(rig) == [(1, annotated("two"))]
    update(rig, schema=WIDER)
    assert versions(rig) == [(1, annotated("two")), (2, WIDER)]
    assert rig.http.get("/v1/schemas/1").json()["definition"] == annotated("two")


def test_defaults_and_annotations_may_contain_zero_bytes(rig: Rig) -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
    texts = {"name": "texts", "type": {"type": "map", "values": "string"}}
    fields = [
        {"name": "price", "type": decimal, "default": "\0", "doc": "a\0b"},
        {**texts, "default": {"a\0": "\0b"}},
    ]
    schema = {"type": "record", "name": "R", "fields": fields, "x\0": [{"\0": "\0"}]}
    response = rig.put(schema=schema)
    assert response.status_code == 201, response.text
    assert rig.http.get(PATH).json()["spec"]["schema"] == schema
    assert versions(rig) == [(1, schema)]
    changed = {**schema, "fields": [fields[0], {**fields[1], "default": {}}]}
    assert update(rig, schema=changed).json()["spec"]["schema"] == changed
    registered = rig.http.get("/registry/subjects/flights-value/versions/2").json()
    assert json.loads(registered["schema"]) == changed


def test_a_renamed_field_is_compatible_by_its_alias(rig: Rig) -> None:
    def one(name: str, **more: Any) -> dict[str, Any]:
        return {"type": "record", "name": "R", "fields": [{"name": name, "type": "int", **more}]}

    rig.put(schema=one("old"))
    assert code(update(rig, schema=one("new"))) == "schema_incompatible"
    assert update(rig, schema=one("new", aliases=["old"])).status_code == 200


def test_a_connection_names_all_versions(rig: Rig) -> None:
    rig.put()
    update(rig, schema=WIDER)
    rig.observe("flights", Phase.READY)
    body = rig.http.get(f"{PATH}/connection", params={"access": "read"}).json()
    assert body["schema"] == {"id": 2, "version": 2, "definition": WIDER}
    assert [(entry["id"], entry["version"]) for entry in body["schemas"]] == [(1, 1), (2, 2)]


def test_an_older_version_becomes_the_newest_again_without_a_new_row(rig: Rig) -> None:
    rig.put()
    update(rig, schema=WIDER)
    back = update(rig, schema=SCHEMA)
    assert back.json()["status"]["schema"] == {"id": 1, "version": 1}
    assert versions(rig) == [(1, SCHEMA), (2, WIDER)]
    third = update(rig, schema=schema(b="none", c="none"))
    assert third.json()["status"]["schema"]["version"] == 3


NEEDY = schema(b=...)
EMPTIER = {**SCHEMA, "fields": [{"name": "b", "type": "string", "default": ""}]}
RETYPED = {**SCHEMA, "fields": [{"name": "a", "type": "string"}]}


@pytest.mark.parametrize(
    ("compatibility", "changed", "said"),
    [
        ("backward", NEEDY, ["records of version 1 cannot be read with it"]),
        ("forward", EMPTIER, ["its records cannot be read with version 1"]),
        ("full", NEEDY, ["records of version 1 cannot be read with it"]),
        ("full", EMPTIER, ["its records cannot be read with version 1"]),
        ("full", RETYPED, ["records of version 1", "its records cannot be read with version 1"]),
    ],
)
def test_each_broken_rule_is_reported_and_nothing_is_stored(
    shared_rig: Rig, compatibility: str, changed: dict[str, Any], said: list[str]
) -> None:
    shared_rig.put(compatibility="none")
    shared_rig.http.put(PATH, json={"spec": {"compatibility": compatibility}})
    before = versions(shared_rig)
    response = update(shared_rig, schema=changed)
    assert (response.status_code, code(response)) == (409, "schema_incompatible")
    errors = response.json()["errors"]
    assert [error["pointer"] for error in errors] == ["/spec/schema"] * len(said)
    for error, words in zip(errors, said, strict=True):
        assert words in error["message"]
        assert "field" in error["message"]
    assert versions(shared_rig) == before


@pytest.mark.sample
@pytest.mark.parametrize(
    ("compatibility", "changed"), [("none", RETYPED), ("forward", NEEDY), ("backward", EMPTIER)]
)
def test_compatible_schemas_are_accepted(
    rig: Rig, compatibility: str, changed: dict[str, Any]
) -> None:
    rig.put(compatibility=compatibility)
    assert update(rig, schema=changed).status_code == 200


def test_compatibility_is_checked_against_every_version(rig: Rig) -> None:
    rig.put(schema=NEEDY, compatibility="none")
    update(rig, schema=SCHEMA)
    # The first version has a field b that a long could not read; the newest has none.
    clash = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "b", "type": "long", "default": 0}]}  # type: ignore[misc]
    response = update(rig, schema=clash, compatibility="backward")
    assert (response.status_code, code(response)) == (409, "schema_incompatible")
    assert "version 1" in response.json()["errors"][0]["message"]
    assert rig.http.get(PATH).json()["spec"]["compatibility"] == "none", "all of it or nothing"


def test_of_two_conflicting_concurrent_updates_one_is_refused(rig: Rig) -> None:
    rig.put()
    clash = [
        {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "b", "type": type_, "default": default}]}  # type: ignore[misc]
        for type_, default in (("string", "x"), ("long", 0))
    ]
    with ThreadPoolExecutor(2) as pool:
        responses = list(pool.map(lambda definition: update(rig, schema=definition), clash))
    assert sorted(response.status_code for response in responses) == [200, 409]
    refused = next(response for response in responses if response.status_code == 409)
    assert code(refused) == "schema_incompatible"
    assert len(versions(rig)) == 2


@pytest.mark.long
def test_concurrent_registrations_of_one_schema_make_one_version(rig: Rig) -> None:
    rig.put()
    with ThreadPoolExecutor(6) as pool:
        responses = list(pool.map(lambda _: update(rig, schema=WIDER), range(6)))
    assert {response.status_code for response in responses} == {200}
    assert [version for version, _ in versions(rig)] == [1, 2]


def test_a_schema_of_too_many_fields_is_refused_with_the_limit(shared_rig: Rig) -> None:
    wide = [{"name": f"f{number}", "type": "int"} for number in range(10_001)]
    response = shared_rig.put("wide", schema={**SCHEMA, "fields": wide})
    assert (response.status_code, code(response)) == (422, "invalid_schema")
    assert "10000 fields" in response.json()["detail"]


def fill(rig: Rig, count: int, definition: Callable[[int], dict[str, Any]]) -> None:
    """Give the channel this number of versions, by inserting rows except for the last ones."""
    with rig.database.write() as tx:
        channel = channels_store.hold(tx, "flights")
        assert channel is not None
        made = {
            number: Schema.parse(definition(number))
            for number in range(channel.schema_version + 1, count + 1)
        }
        rows = [
            {"fingerprint": parsed.fingerprint, "definition": parsed.canonical}
            for parsed in made.values()
        ]
        now = {"created_at": rig.clock.now}
        tx.execute(tables.schemas.insert().values(now), rows)
        of = tx.execute(select(tables.schemas.c.fingerprint, tables.schemas.c.id))
        ids = {row.fingerprint: row.id for row in of}
        versions = [
            {"version": number, "schema_id": ids[parsed.fingerprint]}
            for number, parsed in made.items()
        ]
        mine = {"channel_uid": channel.uid, **now}
        tx.execute(tables.channel_schemas.insert().values(mine), versions)


@pytest.mark.long
def test_a_channel_has_at_most_a_thousand_versions(rig: Rig) -> None:
    rig.put()
    fill(rig, MAX_SCHEMA_VERSIONS - 1, lambda number: schema(**{f"b{number}": ""}))
    assert update(rig, schema=schema(last="")).status_code == 200
    rig.observe("flights", Phase.READY)
    refused = update(rig, schema=schema(more=""))
    assert (refused.status_code, code(refused)) == (409, "too_many_schemas")
    assert "1000 versions" in refused.json()["detail"]
    assert "create another channel" in refused.json()["detail"]
    again = update(rig, schema=schema(b7=""))
    assert again.json()["status"]["schema"]["version"] == 7, "what is kept can be used"
    body = rig.http.get(f"{PATH}/connection", params={"access": "read"}).json()
    assert [entry["version"] for entry in body["schemas"]] == list(range(1, 1001))
    assert len(versions(rig)) == 1000


def test_the_total_size_of_versions_is_limited(rig: Rig) -> None:
    wide = MAX_SCHEMA_CHARACTERS // 20
    rig.put()
    fill(rig, 22, lambda number: {**SCHEMA, "name": f"R{number}", **padded(wide)})
    refused = update(rig, schema=schema(more=""), compatibility="none")
    assert (refused.status_code, code(refused)) == (409, "too_many_schemas")
    assert "16777216 characters" in refused.json()["detail"]


def padded(characters: int) -> dict[str, Any]:
    """Return fields with a definition of about this many characters."""
    symbols = [f"s{number:098d}" for number in range(characters // 100)]
    kind = {"type": "enum", "name": "E", "symbols": symbols}
    return {"fields": [{"name": "e", "type": kind}]}


def test_a_schema_is_found_by_its_message_id(rig: Rig) -> None:
    rig.put()
    update(rig, schema=WIDER)
    assert rig.http.get("/v1/schemas/1").json() == {"id": 1, "definition": SCHEMA}
    assert rig.http.get("/v1/schemas/2").json() == {"id": 2, "definition": WIDER}
    for unknown in ("3", "0", "x", "99999999999"):
        response = rig.http.get(f"/v1/schemas/{unknown}")
        assert code(response) == ("not_found" if unknown == "3" else "invalid_request")


def test_a_schema_is_visible_with_one_of_its_channels(rig: Rig) -> None:
    rig.put("team-a")
    rig.put("other", schema=WIDER)
    mine = rig.token("write:team-")
    assert rig.http.get("/v1/schemas/1", headers=mine).status_code == 200
    assert code(rig.http.get("/v1/schemas/2", headers=mine)) == "not_found"
    assert rig.http.get("/v1/channels/team-a/schemas", headers=mine).status_code == 200
    assert rig.http.get("/v1/channels/other/schemas", headers=mine).status_code == 403


def test_a_missing_channel_has_no_schemas(shared_rig: Rig) -> None:
    response = shared_rig.http.get("/v1/channels/absent/schemas")
    assert (response.status_code, code(response)) == (404, "channel_not_found")


def test_unions_of_several_types_are_compared_by_their_branches(rig: Rig) -> None:
    def spec(*branches: str, **more: str) -> dict[str, Any]:
        fields = [{"name": "value", "type": ["null", *branches]}]
        return {"schema": {"type": "record", "name": "Mixed", "fields": fields}, **more}

    def put(**body: Any) -> Any:
        return rig.http.put("/v1/channels/mixed", json={"spec": body})

    refused = put(**spec("int", "string", format="arrow"))
    assert (refused.status_code, code(refused)) == (422, "invalid_schema")
    assert "'value' is a union of several types" in refused.json()["detail"]
    made = put(**spec("int", "string"))
    assert made.status_code == 201, made.text
    assert made.json()["spec"]["schema"]["fields"][0]["type"] == ["null", "int", "string"]
    wider = put(**spec("string", "long", "boolean"))
    assert wider.json()["status"]["schema"]["version"] == 2, wider.text
    narrower = put(**spec("string", "boolean"))
    assert (narrower.status_code, code(narrower)) == (409, "schema_incompatible")
    assert "cannot be read as any branch of the union of string, boolean" in narrower.text
