from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gateways import SCHEMA, Rig, code
from sluiceway_gateway.channels.model import Phase

OTHER_SCHEMA = {**SCHEMA, "fields": [{"name": "b", "type": "string"}]}


def test_a_channel_is_created_with_defaults(rig: Rig) -> None:
    response = rig.put()
    assert response.status_code == 201
    body = response.json()
    uid = body["metadata"]["uid"]
    assert response.headers["etag"] == f'"{uid[:8]}.1.1"'
    assert body["metadata"] == {
        "name": "flights",
        "uid": uid,
        "labels": {},
        "generation": 1,
        "created_at": "2030-01-01T00:00:00.000Z",
    }
    assert body["spec"] == {
        "schema": SCHEMA,
        "compatibility": "backward",
        "format": "avro",
        "partitions": 1,
        "pinned": False,
        "max_partitions": None,
        "replication": None,
        "retention": {"ms": None, "bytes": None},
        "config": {},
        "heartbeat": {"interval_ms": 2000, "timeout_ms": 120_000},
        "delivery": "at_least_once",
        "partitioner": "murmur2",
        "idle_ms": None,
        "mirrored": False,
        "topic": None,
    }
    status = body["status"]
    assert (status["phase"], status["observed_generation"]) == ("provisioning", 0)
    assert status["topic"] == {
        "name": f"sluiceway.flights-{uid[:8]}",
        "id": None,
        "partitions": None,
    }
    assert status["schema"] == {"id": 1, "version": 1}
    assert rig.http.get("/v1/channels/flights").json() == body


def test_every_field_is_stored(rig: Rig) -> None:
    spec: dict[str, Any] = {
        "compatibility": "full",
        "format": "arrow",
        "partitions": 4,
        "pinned": True,
        "max_partitions": 16,
        "replication": 1,
        "retention": {"ms": 3_600_000, "bytes": -1},
        "config": {"max.message.bytes": "2000000", "cleanup.policy": "delete"},
        # The longest ones: an hour, and ten years.
        "heartbeat": {"interval_ms": 500, "timeout_ms": 3_600_000},
        "delivery": "exactly_once",
        "partitioner": "fnv1a",
        "idle_ms": 315_360_000_000,
        "mirrored": True,
    }
    body = rig.put(metadata={"labels": {"team": "a"}}, **spec).json()
    assert body["spec"] == {"schema": SCHEMA, **spec, "topic": None}
    assert body["metadata"]["labels"] == {"team": "a"}


def test_an_equal_put_changes_nothing(rig: Rig) -> None:
    first = rig.put(partitions=2)
    again = rig.put(partitions=2)
    assert (again.status_code, again.json()) == (200, first.json())
    assert again.headers["etag"] == first.headers["etag"]


def test_omitted_fields_keep_their_values(rig: Rig) -> None:
    first = rig.put(partitions=2, retention={"ms": 5, "bytes": 6}, metadata={"labels": {"a": "b"}})
    body = rig.http.put("/v1/channels/flights", json={"spec": {"retention": {"ms": None}}}).json()
    assert body["spec"] == {**first.json()["spec"], "retention": {"ms": None, "bytes": 6}}
    assert body["metadata"]["labels"] == {"a": "b"}
    assert body["metadata"]["generation"] == 2
    again = rig.http.put("/v1/channels/flights", json={})
    assert (again.status_code, again.json()) == (200, body)


def test_a_ready_channel_stays_ready_while_it_grows(rig: Rig) -> None:
    rig.put()
    rig.observe("flights", Phase.READY)
    status = rig.put(partitions=3).json()["status"]
    assert status["phase"] == "ready"
    assert (status["observed_generation"], status["topic"]["partitions"]) == (1, 1)


@pytest.mark.sample
@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"partitions": 1}, "partitions_shrink"),
        ({"partitions": 3}, "channel_pinned"),
        ({"format": "arrow"}, "immutable_field"),
        ({"replication": 1}, "immutable_field"),
        ({"schema": OTHER_SCHEMA}, "schema_incompatible"),
        ({"topic": {"name": "t"}}, "immutable_field"),
    ],
)
def test_a_change_that_would_lose_records_is_refused(
    rig: Rig, spec: dict[str, Any], expected: str
) -> None:
    before = rig.put(partitions=2, pinned=True)
    response = rig.http.put("/v1/channels/flights", json={"spec": spec})
    assert (response.status_code, code(response)) == (409, expected)
    assert rig.http.get("/v1/channels/flights").headers["etag"] == before.headers["etag"]


def test_a_new_channel_needs_a_schema(shared_rig: Rig) -> None:
    response = shared_rig.http.put("/v1/channels/flights", json={"spec": {"partitions": 2}})
    assert (response.status_code, code(response)) == (422, "invalid_request")
    assert response.json()["errors"][0]["pointer"] == "/spec/schema"


LEG = {
    "type": "record",
    "name": "Leg",
    "fields": [
        {"name": "x", "type": "int"},
        {"name": "d", "type": {"type": "enum", "name": "E", "symbols": [True]}},
    ],
}


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ([{"name": "a", "type": "long"}, {"name": "b", "type": "lang"}], "/fields/1"),
        ([{"name": "a", "type": "long"}, {"name": "a", "type": "int"}], "/fields/1"),
        ([{"name": "a.b", "type": "long"}], ""),
        ([{"name": "a", "type": {"type": "array"}}], "/fields/0"),
        (
            [{"name": "legs", "type": ["null", {"type": "array", "items": LEG}]}],
            "/fields/0/type/1/items/fields/1",
        ),
        (
            [{"name": "legs", "type": {"type": "map", "values": LEG}}],
            "/fields/0/type/values/fields/1",
        ),
        ([], ""),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_with_the_place_of_the_field(
    shared_rig: Rig, fields: list[Any], pointer: str
) -> None:
    response = shared_rig.put(schema={"type": "record", "name": "R", "fields": fields})
    assert (response.status_code, code(response)) == (422, "invalid_schema")
    assert [error["pointer"] for error in response.json()["errors"]] == [f"/spec/schema{pointer}"]


def test_a_uid_selects_its_incarnation(rig: Rig) -> None:
    gone = rig.put(metadata={"uid": "0" * 32})
    assert (gone.status_code, code(gone)) == (404, "channel_not_found")
    uid = rig.put().json()["metadata"]["uid"]
    assert rig.put(metadata={"uid": uid}).status_code == 200
    other = rig.put(metadata={"uid": "0" * 32})
    assert (other.status_code, code(other)) == (409, "uid_mismatch")


def test_a_deleting_channel_refuses_changes(rig: Rig) -> None:
    uid = rig.put().json()["metadata"]["uid"]
    rig.http.delete("/v1/channels/flights", params={"uid": uid})
    response = rig.put()
    assert (response.status_code, code(response)) == (409, "channel_deleting")
    assert response.json()["retriable"]


def test_preconditions_hold_or_nothing_happens(rig: Rig) -> None:
    path, body = "/v1/channels/flights", {"spec": {"schema": SCHEMA}}
    assert rig.http.put(path, json=body, headers={"If-Match": "*"}).status_code == 412
    first = rig.http.put(path, json=body, headers={"If-None-Match": "*"})
    assert first.status_code == 201
    taken = rig.http.put(path, json=body, headers={"If-None-Match": "*"})
    assert (taken.status_code, code(taken)) == (412, "precondition_failed")

    rig.observe("flights", Phase.READY)
    grown = rig.http.put(
        path, json={"spec": {"partitions": 2}}, headers={"If-Match": first.headers["etag"]}
    )
    assert grown.status_code == 200, "what the gateway observes fails nobody's change"
    late = rig.http.put(
        path, json={"spec": {"partitions": 3}}, headers={"If-Match": first.headers["etag"]}
    )
    assert late.status_code == 412
    assert rig.http.get(path).json()["spec"]["partitions"] == 2


def test_only_equal_schemas_share_an_id(rig: Rig) -> None:
    first = rig.put("a").json()["status"]["schema"]
    assert rig.put("b").json()["status"]["schema"] == first
    assert rig.put("c", schema=OTHER_SCHEMA).json()["status"]["schema"]["id"] > first["id"]


def test_more_replicas_than_brokers_are_accepted_without_kafka(rig: Rig) -> None:
    # Kafka decides when it is back; the row has the result.
    assert rig.put(replication=9).status_code == 201


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"retention.ms": "5"}, "spec.retention.ms"),
        ({"max.mesage.bytes": "5000"}, "did you mean max.message.bytes"),
        ({"max.message.bytes": "many"}, "whole number"),
        ({"plugin.library.paths": "/x"}, "not a topic setting"),
    ],
)
def test_unlisted_topic_settings_are_refused_by_name(
    shared_rig: Rig, config: dict[str, str], said: str
) -> None:
    response = shared_rig.put(config=config)
    assert (response.status_code, code(response)) == (422, "config_not_allowed")
    (error,) = response.json()["errors"]
    assert error["pointer"] == f"/spec/config/{next(iter(config))}"
    assert said in error["message"]
    assert shared_rig.http.get("/v1/channels/flights").status_code == 404


def test_a_broken_schema_is_refused_with_its_path(shared_rig: Rig) -> None:
    response = shared_rig.put(schema={**SCHEMA, "fields": [{"name": "a", "type": "lnog"}]})
    assert (response.status_code, code(response)) == (422, "invalid_schema")
    assert "lnog" in response.json()["detail"]


def test_of_concurrent_creations_one_creates_and_all_return_the_channel(rig: Rig) -> None:
    with ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(lambda _: rig.put(partitions=2), range(8)))
    assert sorted(response.status_code for response in responses) == [200] * 7 + [201]
    assert len({response.json()["metadata"]["uid"] for response in responses}) == 1


def test_each_concurrent_change_is_counted(rig: Rig) -> None:
    rig.put()
    with ThreadPoolExecutor(8) as pool:
        changes = [{"metadata": {"labels": {"n": str(n)}}} for n in range(8)]
        path = "/v1/channels/flights"
        responses = list(pool.map(lambda body: rig.http.put(path, json=body), changes))
    assert {response.status_code for response in responses} == {200}
    assert {response.json()["metadata"]["generation"] for response in responses} == set(
        range(2, 10)
    )
