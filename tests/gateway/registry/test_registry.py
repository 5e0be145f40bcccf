"""The HTTP interface of Confluent Schema Registry, with its clients."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema as RegistrySchema
from confluent_kafka.schema_registry import SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError
from sqlalchemy import event

from gateways import SCHEMA, Rig
from sluiceway.schema import Schema
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.core.auth.service import LOOPBACK
from sluiceway_gateway.provisioning.store import remove
from sluiceway_gateway.registry.service import Registry, SchemaType, TypedSchema

WIDER = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "b", "type": "string", "default": ""}]}  # type: ignore[misc]
OTHER = {**SCHEMA, "fields": [{"name": "z", "type": "string"}]}
MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


@pytest.fixture
def client(rig: Rig) -> Iterator[SchemaRegistryClient]:
    """A client without options, of a registry without tokens."""
    with SchemaRegistryClient({"url": f"{rig.url}/registry"}) as client:
        yield client


def channel_of(rig: Rig, name: str = "flights", **spec: Any) -> dict[str, Any]:
    """Create a channel with two versions of its schema."""
    rig.put(name, **spec)
    response = rig.http.put(f"/v1/channels/{name}", json={"spec": {"schema": WIDER}})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def topic_of(rig: Rig, name: str) -> str:
    topic: str = rig.http.get(f"/v1/channels/{name}").json()["status"]["topic"]["name"]
    return topic


def registry_schema(definition: Any) -> RegistrySchema:
    return RegistrySchema(json.dumps(definition), "AVRO")


def test_schemas_are_found_by_the_ids_of_messages(rig: Rig, client: SchemaRegistryClient) -> None:
    present = channel_of(rig)["status"]["schema"]["id"]
    schema = client.get_schema(present)
    assert (schema.schema_type, json.loads(schema.schema_str)) == ("AVRO", WIDER)
    raw = rig.http.get(f"/registry/schemas/ids/{present}/schema")
    assert raw.json() == WIDER
    assert raw.headers["content-type"] == MEDIA_TYPE


def test_documentation_aliases_and_attributes_are_served(
    rig: Rig, client: SchemaRegistryClient
) -> None:
    fields = [{**WIDER["fields"][0], "doc": "It.", "aliases": ["b"], "connect.name": "A"}]
    annotated = {**SCHEMA, "doc": "A record.", "fields": fields}
    rig.put(schema=annotated)
    latest = client.get_latest_version("flights-value")
    assert json.loads(latest.schema.schema_str) == annotated
    assert json.loads(client.get_schema(latest.schema_id).schema_str) == annotated
    (listed,) = rig.http.get("/registry/schemas", params={"subjectPrefix": "flights-"}).json()
    assert json.loads(listed["schema"]) == annotated
    # Clients that register the schema of their class find it.
    plain = client.lookup_schema("flights-value", registry_schema(SCHEMA))
    assert plain.schema_id == latest.schema_id


@pytest.mark.long
def test_subjects_are_channels_and_their_topics(rig: Rig, client: SchemaRegistryClient) -> None:
    channel_of(rig)
    rig.put("rows", format="arrow")
    rig.http.put("/v1/channels/raw", json={"spec": {"format": "bytes"}})
    subjects = sorted(["flights-value", f"{topic_of(rig, 'flights')}-value"])
    assert client.get_subjects() == subjects
    assert client.get_subjects(subject_prefix="flights-v") == ["flights-value"]
    for subject in subjects:
        assert client.get_versions(subject) == [1, 2]
        latest = client.get_latest_version(subject)
        assert (latest.subject, latest.version) == (subject, 2)
        assert json.loads(latest.schema.schema_str) == WIDER
        first = client.get_version(subject, 1)
        assert json.loads(first.schema.schema_str) == SCHEMA
    raw = rig.http.get("/registry/subjects/flights-value/versions/-1/schema")
    assert raw.json() == WIDER


@pytest.mark.long
def test_a_schema_names_its_subjects_and_versions(rig: Rig) -> None:
    second = channel_of(rig)["status"]["schema"]["id"]
    rig.put("landings", schema=WIDER)
    names = [
        f"{prefix}-value"
        for name in ("flights", "landings")
        for prefix in (name, topic_of(rig, name))
    ]
    path = f"/registry/schemas/ids/{second}"
    assert rig.http.get(f"{path}/subjects").json() == sorted(names)
    versions = {
        (entry["subject"], entry["version"]) for entry in rig.http.get(f"{path}/versions").json()
    }
    assert versions == {(name, 2 if index < 2 else 1) for index, name in enumerate(names)}


def test_after_a_return_to_an_older_version_that_one_is_the_latest(
    rig: Rig, client: SchemaRegistryClient
) -> None:
    channel_of(rig)
    rig.http.put("/v1/channels/flights", json={"spec": {"schema": SCHEMA}})
    assert client.get_latest_version("flights-value").version == 1


def test_lookups_find_the_version_with_a_schema(rig: Rig, client: SchemaRegistryClient) -> None:
    channel_of(rig)
    spaced = RegistrySchema(json.dumps(SCHEMA, indent=3), "AVRO")
    assert client.lookup_schema("flights-value", spaced).version == 1
    with pytest.raises(SchemaRegistryError, match="None of the 2 versions") as failure:
        client.lookup_schema("flights-value", registry_schema(OTHER))
    assert (failure.value.http_status_code, failure.value.error_code) == (404, 40403)


def test_registering_a_schema_of_the_channel_returns_its_id(
    rig: Rig, client: SchemaRegistryClient
) -> None:
    present = channel_of(rig)["status"]["schema"]["id"]
    assert client.register_schema("flights-value", registry_schema(WIDER)) == present


@pytest.mark.sample
@pytest.mark.parametrize("subject", ["flights-value", "unknown-value"])
def test_new_schemas_are_refused_with_advice(
    rig: Rig, client: SchemaRegistryClient, subject: str
) -> None:
    channel_of(rig)
    with pytest.raises(SchemaRegistryError, match=r"channel\.update") as failure:
        client.register_schema(subject, registry_schema(OTHER))
    assert (failure.value.http_status_code, failure.value.error_code) == (422, 42205)


def test_schemas_of_keys_are_refused_with_advice(rig: Rig, client: SchemaRegistryClient) -> None:
    channel_of(rig)
    with pytest.raises(SchemaRegistryError, match="keys of a channel are text or bytes") as failure:
        client.register_schema("flights-key", registry_schema("string"))
    assert (failure.value.http_status_code, failure.value.error_code) == (422, 42205)
    assert "channel.update" not in str(failure.value)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (RegistrySchema('{"type": "object"}', "JSON"), "has schemas of the type 'AVRO'"),
        (RegistrySchema('syntax = "proto3";', "PROTOBUF"), "of the type 'PROTOBUF'"),
        (
            RegistrySchema(json.dumps(WIDER), "AVRO", [SchemaReference("com.x.Y", "y-value", 1)]),
            "has references",
        ),
    ],
)
def test_schemas_of_other_types_and_references_are_refused(
    rig: Rig, client: SchemaRegistryClient, schema: RegistrySchema, words: str
) -> None:
    channel_of(rig)
    for call in (client.register_schema, client.lookup_schema):
        with pytest.raises(SchemaRegistryError, match=words) as failure:
            call("flights-value", schema)
        assert (failure.value.http_status_code, failure.value.error_code) == (422, 42201)


def test_changes_are_refused_with_advice(rig: Rig, client: SchemaRegistryClient) -> None:
    channel_of(rig)
    for change in (
        lambda: client.delete_subject("flights-value"),
        lambda: client.delete_version("flights-value", 1),
        lambda: client.set_compatibility("flights-value", "NONE"),
    ):
        with pytest.raises(SchemaRegistryError, match="read-only") as failure:
            change()
        assert (failure.value.http_status_code, failure.value.error_code) == (422, 42205)
    assert client.get_versions("flights-value") == [1, 2]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/subjects/nope-value/versions", 404, 40401),
        ("/subjects/flights/versions", 404, 40401),
        ("/subjects/a%00b-value/versions", 404, 40401),
        ("/subjects/flights-key/versions/latest", 404, 40401),
        ("/subjects/flights-value/versions/9", 404, 40402),
        ("/subjects/flights-value/versions/2147483647", 404, 40402),
        ("/subjects/flights-value/versions/2147483648", 422, 42202),
        ("/subjects/flights-value/versions/0", 422, 42202),
        ("/subjects/flights-value/versions/newest", 422, 42202),
        ("/schemas/ids/999", 404, 40403),
        ("/schemas/ids/x", 422, 422),
        ("/config/nope-value", 404, 40401),
        ("/exporters", 404, 404),
    ],
)
def test_errors_have_the_form_of_the_registry(rig: Rig, path: str, status: int, code: int) -> None:
    channel_of(rig)
    response = rig.http.get(f"/registry{path}")
    assert (response.status_code, response.json()["error_code"]) == (status, code)
    assert response.json().keys() == {"error_code", "message"}
    assert response.headers["content-type"] == MEDIA_TYPE


def test_an_invalid_schema_is_refused(rig: Rig) -> None:
    channel_of(rig)
    response = rig.http.post(
        "/registry/subjects/flights-value",
        content=json.dumps({"schema": '{"type": "nonsense"}'}),
        headers={"Content-Type": MEDIA_TYPE},
    )
    assert (response.status_code, response.json()["error_code"]) == (422, 42201)


@pytest.mark.sample
@pytest.mark.parametrize(
    ("rule", "level", "compatible"),
    [
        ("backward", "BACKWARD_TRANSITIVE", False),
        ("forward", "FORWARD_TRANSITIVE", False),
        ("full", "FULL_TRANSITIVE", False),
        ("none", "NONE", True),
    ],
)
def test_compatibility_is_that_of_the_channel(
    rig: Rig, client: SchemaRegistryClient, rule: str, level: str, compatible: bool
) -> None:
    rig.put(compatibility=rule)
    assert rig.http.get("/registry/config/flights-value").json() == {"compatibilityLevel": level}
    assert client.test_compatibility("flights-value", registry_schema(WIDER))
    assert client.test_compatibility("flights-value", registry_schema(OTHER)) is compatible
    everything = "/registry/compatibility/subjects/flights-value/versions"
    body = {"schema": json.dumps(OTHER)}
    response = rig.http.post(everything, json=body, params={"verbose": "true"}).json()
    assert response["is_compatible"] is compatible
    assert bool(response["messages"]) is not compatible


def test_a_version_added_meanwhile_does_not_hide_an_incompatibility(rig: Rig) -> None:
    rig.put()
    registry = Registry(rig.database)
    other = TypedSchema(text=json.dumps(OTHER), type=SchemaType.AVRO)
    generations: list[int] = []

    def add_version(_connection: Any, _cursor: Any, statement: str, *_: object) -> None:
        if not generations and "channel_schemas" in statement:
            changed = rig.http.put("/v1/channels/flights", json={"spec": {"schema": WIDER}})
            generations.append(changed.json()["metadata"]["generation"])

    event.listen(rig.database.engine, "after_cursor_execute", add_version)
    assert registry.incompatibilities("flights-value", "latest", other, LOOPBACK)
    assert generations == [2]
    assert registry.version("flights-value", "latest", LOOPBACK).version == 2


def test_parameters_for_other_registries_are_ignored(rig: Rig) -> None:
    present = channel_of(rig)["status"]["schema"]["id"]
    response = rig.http.get(
        f"/registry/schemas/ids/{present}", params={"subject": "x", "fetchMaxId": "true"}
    )
    assert Schema.parse(response.json()["schema"]) == Schema.parse(WIDER)


@pytest.mark.long
def test_lists_are_returned_in_parts_and_nothing_is_soft_deleted(rig: Rig) -> None:
    present = channel_of(rig)["status"]["schema"]["id"]
    for path in (
        "/subjects",
        "/subjects/flights-value/versions",
        f"/schemas/ids/{present}/subjects",
        f"/schemas/ids/{present}/versions",
    ):
        every = rig.http.get(f"/registry{path}").json()
        assert len(every) == 2, path
        for query, expected in (
            ({"offset": 1}, every[1:]),
            ({"limit": 1}, every[:1]),
            ({"offset": 1, "limit": 5}, every[1:]),
            ({"offset": 2}, []),
            ({"limit": -1, "deleted": "true"}, every),
            ({"deletedOnly": "true"}, []),
        ):
            assert rig.http.get(f"/registry{path}", params=query).json() == expected, (path, query)


@pytest.mark.long
def test_all_schemas_are_listed_with_their_subjects(rig: Rig) -> None:
    channel_of(rig)
    rig.http.put("/v1/channels/flights", json={"spec": {"schema": SCHEMA}})
    rig.put("secret", schema=OTHER)
    rig.put("rows", format="arrow")

    def listed(headers: Any = None, **query: Any) -> list[tuple[str, int]]:
        schemas = rig.http.get("/registry/schemas", params=query, headers=headers).json()
        for schema in schemas:
            by_id = rig.http.get(f"/registry/schemas/ids/{schema['id']}", headers=headers).json()
            assert by_id["schema"] == schema["schema"]
        return [(schema["subject"], schema["version"]) for schema in schemas]

    topic = f"{topic_of(rig, 'flights')}-value"
    secret = {("secret-value", 1), (f"{topic_of(rig, 'secret')}-value", 1)}
    flights = {(name, version) for name in ("flights-value", topic) for version in (1, 2)}
    every = listed()
    assert every == sorted(flights | secret)
    assert listed(subjectPrefix=":*:flights-v") == [("flights-value", 1), ("flights-value", 2)]
    # The version in use is the first one again.
    assert listed(latestOnly="true", subjectPrefix="flights-v") == [("flights-value", 1)]
    assert listed(offset=2, limit=3) == every[2:5]
    assert listed(rig.token("read:fl")) == sorted(flights)


@pytest.mark.long
def test_a_recreated_channel_begins_with_its_first_version(
    rig: Rig, client: SchemaRegistryClient
) -> None:
    before = channel_of(rig)["status"]["schema"]["id"]
    uid = rig.http.get("/v1/channels/flights").json()["metadata"]["uid"]
    with rig.database.write() as tx:
        assert remove(tx, uid, from_phases=tuple(Phase))
    with pytest.raises(SchemaRegistryError) as gone:
        client.get_versions("flights-value")
    assert gone.value.error_code == 40401
    rig.put(schema=OTHER)
    assert client.get_latest_version("flights-value").version == 1
    # Messages of a kept topic may still have the id.
    assert json.loads(client.get_schema(before).schema_str) == WIDER


def test_the_highest_id_is_that_of_the_schemas_that_a_token_may_see(rig: Rig) -> None:
    present = channel_of(rig)["status"]["schema"]["id"]
    other = rig.put("secret", schema=OTHER).json()["status"]["schema"]["id"]
    path, query = f"/registry/schemas/ids/{present}", {"fetchMaxId": "true"}
    assert rig.http.get(path, params=query).json()["maxId"] == other > present
    assert "maxId" not in rig.http.get(path).json()
    hers = rig.token("read:fl")
    assert rig.http.get(path, params=query, headers=hers).json()["maxId"] == present


def test_probes_of_consoles_are_answered(rig: Rig) -> None:
    for path, body in {
        "": {},
        "/": {},
        "/contexts": ["."],
        "/schemas/types": ["AVRO", "JSON", "PROTOBUF"],
        "/mode": {"mode": "READONLY"},
        "/mode/flights-value": {"mode": "READONLY"},
        "/config": {"compatibilityLevel": "BACKWARD_TRANSITIVE"},
        "/subjects": [],
    }.items():
        assert rig.http.get(f"/registry{path}").json() == body


def test_a_token_is_the_password_of_basic_authentication(rig: Rig) -> None:
    channel_of(rig)
    rig.put("secret")
    token = rig.token("read:fl")["Authorization"].split()[1]
    options = {"url": f"{rig.url}/registry", "basic.auth.user.info": f"console:{token}"}
    with SchemaRegistryClient(options) as client:
        assert "flights-value" in client.get_subjects()
        assert not any("secret" in subject for subject in client.get_subjects())
        with pytest.raises(SchemaRegistryError) as hidden:
            client.get_versions("secret-value")
        assert hidden.value.error_code == 40401
    other = f"{token[:-1]}{int(token[-1], 16) ^ 1:x}"
    wrong = {"url": f"{rig.url}/registry", "basic.auth.user.info": f"console:{other}"}
    with SchemaRegistryClient(wrong) as client, pytest.raises(SchemaRegistryError) as refused:
        client.get_subjects()
    assert (refused.value.http_status_code, refused.value.error_code) == (401, 40101)
    assert rig.http.get("/registry/subjects", auth=("console", token)).status_code == 200
    assert rig.http.get("/v1/channels", auth=("console", token)).status_code == 401


@pytest.mark.sample
@pytest.mark.parametrize("credentials", ["x", "dXNlcg==", "dXNlcjo=", "/w=="])
def test_malformed_credentials_are_refused(rig: Rig, credentials: str) -> None:
    rig.token("admin")
    response = rig.http.get("/registry/subjects", headers={"Authorization": f"Basic {credentials}"})
    assert (response.status_code, response.json()["error_code"]) == (401, 40101)
    assert response.headers["www-authenticate"] == 'Basic realm="sluiceway"'
