"""Adopting topics of a real broker; the loops are off, or run by the test."""

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from confluent_kafka.admin import AdminClient

from gateways import SCHEMA, UNREACHABLE, Rig, code, running
from shared_kafka import SharedKafka
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.ledger.pruning import delete_history
from sluiceway_gateway.provisioning.reconciler import Reconciler
from topics import Topics
from waiting import until

WIDER = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "b", "type": "string", "default": ""}]}  # type: ignore[misc]


@pytest.fixture
def near(database: Database, database_url: str, kafka: SharedKafka) -> Iterator[Rig]:
    """A gateway with Kafka and without loops."""
    servers = kafka.bootstrap_servers
    with running(
        database, database_url, kafka_bootstrap_servers=servers, kafka_timeout_ms=20_000
    ) as rig:
        yield rig


@pytest.fixture(scope="module")
def operator(kafka: SharedKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers})


@pytest.fixture
def topic(kafka: SharedKafka) -> str:
    """The name of an existing topic."""
    name = f"Somebodys_{uuid.uuid4().hex[:8]}"
    config = {"retention.ms": "60000", "max.message.bytes": "2000", "flush.ms": "9000"}
    Topics(kafka.bootstrap_servers).create(name, 3, config)
    return name


@pytest.fixture
def reconciler(near: Rig, kafka: SharedKafka) -> Iterator[Reconciler]:
    admin = KafkaAdmin(kafka.bootstrap_servers)
    yield Reconciler(
        database=near.database,
        kafka=admin,
        clock=near.clock,
        resync_s=0,
        delete_history=delete_history,
        wait=time.sleep,
    )
    admin.close()


def adopt(rig: Rig, topic: str, name: str = "flights", **spec: Any) -> httpx.Response:
    return rig.put(name, topic={"name": topic}, **spec)


@pytest.mark.sample
def test_a_topic_is_not_adopted_with_exactly_once_delivery(near: Rig, topic: str) -> None:
    response = adopt(near, topic, delivery="exactly_once")
    assert (response.status_code, code(response)) == (409, "channel_adopted")
    assert "spec.delivery" in response.json()["detail"]
    assert adopt(near, topic).json()["spec"]["delivery"] == "at_least_once"
    assert code(near.put(delivery="exactly_once")) == "immutable_field"


def test_an_adopted_topic_is_observed_and_unchanged(
    near: Rig, topic: str, reconciler: Reconciler
) -> None:
    response = adopt(near, topic)
    assert response.status_code == 201, response.text
    spec = response.json()["spec"]
    assert (spec["partitions"], spec["replication"]) == (3, 1)
    assert spec["retention"] == {"ms": 60_000, "bytes": None}
    assert spec["config"] == {"max.message.bytes": "2000"}, "what channels cannot set is left out"
    assert spec["topic"] == {"name": topic}
    counts = reconciler.run_once()
    assert (counts.checked, counts.configured, counts.grown, counts.created) == (1, 0, 0, 0)
    status = near.http.get("/v1/channels/flights").json()["status"]
    assert (status["phase"], status["topic"]["partitions"]) == ("ready", 3)
    connection = near.http.get("/v1/channels/flights/connection", params={"access": "write"})
    assert connection.json()["topic"]["max_message_bytes"] == 2000
    again = adopt(near, topic, partitions=3)
    assert (again.status_code, again.json()["metadata"]["generation"]) == (200, 1)


@pytest.mark.sample
@pytest.mark.parametrize(
    "spec",
    [
        {"partitions": 4},
        {"partitions": 2},
        {"replication": 2},
        {"retention": {"ms": 1}},
        {"retention": {"bytes": 1}},
        {"config": {}},
    ],
)
def test_changes_of_an_adopted_topic_are_refused(
    near: Rig, topic: str, spec: dict[str, Any]
) -> None:
    making = adopt(near, topic, **spec)
    assert (making.status_code, code(making)) == (409, "channel_adopted")
    assert near.http.get("/v1/channels/flights").status_code == 404
    adopt(near, topic)
    changing = near.http.put("/v1/channels/flights", json={"spec": spec})
    assert (changing.status_code, code(changing)) == (409, "channel_adopted")
    assert "Kafka's own tools" in changing.json()["detail"]


def test_a_topic_belongs_to_one_channel(near: Rig, topic: str, reconciler: Reconciler) -> None:
    owned = near.put("owner").json()["status"]["topic"]["name"]
    reconciler.run_once()
    until(lambda: reconciler.kafka.describe_topic(owned))
    adopt(near, topic)
    for taken, owner in ((topic, "flights"), (owned, "owner")):
        response = adopt(near, taken, "second")
        assert (response.status_code, code(response)) == (409, "topic_taken")
        assert repr(owner) in response.json()["detail"]
    other = adopt(near, owned)
    assert (other.status_code, code(other)) == (409, "immutable_field")


def test_of_concurrent_adoptions_one_succeeds(near: Rig, topic: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        responses = list(pool.map(lambda n: adopt(near, topic, f"c{n}"), range(4)))
    assert sorted(response.status_code for response in responses) == [201, 409, 409, 409]
    refused = {code(response) for response in responses if response.status_code == 409}
    assert refused <= {"topic_taken", "concurrent_change"}


def test_a_missing_topic_cannot_be_adopted(near: Rig) -> None:
    response = adopt(near, "nowhere")
    assert (response.status_code, code(response)) == (409, "topic_not_found")
    assert near.http.get("/v1/channels/flights").status_code == 404


@pytest.mark.parametrize("name", ["__consumer_offsets", "..", "a b", "", "x" * 250])
def test_reserved_topic_names_are_refused(shared_rig: Rig, name: str) -> None:
    response = adopt(shared_rig, name)
    assert (response.status_code, code(response)) == (422, "invalid_request")
    assert response.json()["errors"][0]["pointer"] == "/spec/topic/name"


def test_adopting_waits_for_kafka(shared_rig: Rig) -> None:
    assert shared_rig.app.state.parts.settings.kafka_bootstrap_servers == UNREACHABLE
    response = adopt(shared_rig, "topic")
    assert (response.status_code, code(response)) == (503, "kafka_unavailable")


def test_adopting_needs_the_scope_for_all_channels(shared_rig: Rig, rig: Rig) -> None:
    mine = rig.token("manage:team-")
    body = {"spec": {"schema": SCHEMA, "topic": {"name": "anybodys"}}}
    response = rig.http.put("/v1/channels/team-a", json=body, headers=mine)
    assert (response.status_code, code(response)) == (403, "forbidden")
    assert "without a prefix" in response.json()["detail"]


@pytest.mark.sample
@pytest.mark.parametrize("asked", ["delete", "keep"])
def test_deleting_the_channel_leaves_the_topic_with_its_schemas(
    near: Rig, topic: str, reconciler: Reconciler, operator: AdminClient, asked: str
) -> None:
    first = adopt(near, topic, format="arrow").json()
    near.http.put("/v1/channels/flights", json={"spec": {"schema": WIDER}})
    reconciler.run_once()
    uid = first["metadata"]["uid"]
    near.http.delete("/v1/channels/flights", params={"uid": uid, "topic": asked})
    assert reconciler.run_once().removed == 1
    assert near.http.get("/v1/channels/flights").status_code == 404
    assert topic in operator.list_topics(timeout=30).topics

    wrong = adopt(near, topic, "again", format="avro")
    assert (wrong.status_code, code(wrong)) == (409, "immutable_field")
    clash = {**SCHEMA, "fields": [{"name": "a", "type": "string"}]}
    refused = adopt(near, topic, "again", schema=clash)
    assert (refused.status_code, code(refused)) == (409, "schema_incompatible")
    body = {"spec": {"topic": {"name": topic}}}
    again = near.http.put("/v1/channels/again", json=body)
    assert again.status_code == 201, again.text
    assert (again.json()["spec"]["schema"], again.json()["spec"]["format"]) == (WIDER, "arrow")
    items = near.http.get("/v1/channels/again/schemas").json()["items"]
    assert [(schema["version"], schema["definition"]) for schema in items] == [
        (1, SCHEMA),
        (2, WIDER),
    ]


def test_a_channel_of_the_topic_goes_on_with_the_numbers_of_protobuf(
    near: Rig, topic: str, reconciler: Reconciler
) -> None:
    first = adopt(near, topic, format="protobuf").json()
    near.http.put("/v1/channels/flights", json={"spec": {"schema": WIDER}})
    reconciler.run_once()
    near.http.delete("/v1/channels/flights", params={"uid": first["metadata"]["uid"]})
    assert reconciler.run_once().removed == 1

    text = {"type": "string", "default": ""}
    fields = [*SCHEMA["fields"], {"name": "new", **text}]  # type: ignore[misc]
    number = {"protobuf": {"number": 2}}
    clash = {**SCHEMA, "fields": [{"name": "a", "type": "long", **number}]}
    refused = adopt(near, topic, "again", schema=clash, compatibility="none")
    assert code(refused) == "schema_incompatible"
    again = adopt(near, topic, "again", schema={**SCHEMA, "fields": fields})
    assert again.status_code == 201, again.text
    numbers = {f["name"]: f["protobuf"]["number"] for f in again.json()["spec"]["schema"]["fields"]}
    assert numbers == {"a": 1, "new": 3}


def test_a_foreign_topic_needs_a_schema(near: Rig, topic: str) -> None:
    response = near.http.put("/v1/channels/flights", json={"spec": {"topic": {"name": topic}}})
    assert (response.status_code, code(response)) == (422, "invalid_request")
    assert response.json()["errors"][0]["pointer"] == "/spec/schema"
