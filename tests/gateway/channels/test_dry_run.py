from typing import Any

import pytest
from sqlalchemy import select

from gateways import SCHEMA, Rig, code
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.core.db.tables import requests
from sluiceway_gateway.schemas.tables import schemas

PATH = "/v1/channels/flights"
DRY = {"dry_run": "true"}
OTHER_SCHEMA = {**SCHEMA, "fields": [{"name": "b", "type": "string"}]}


def _stored(rig: Rig) -> tuple[int, int]:
    """Return the numbers of schemas and of stored responses."""
    with rig.database.read() as tx:
        return tuple(len(tx.execute(select(table)).all()) for table in (schemas, requests))  # type: ignore[return-value]


def test_a_dry_creation_returns_the_channel_and_stores_nothing(rig: Rig) -> None:
    body = {"metadata": {"labels": {"team": "ops"}}, "spec": {"schema": SCHEMA, "partitions": 3}}
    dry = rig.http.put(
        PATH, json=body, params=DRY, headers={"If-None-Match": "*", "Idempotency-Key": "k"}
    )
    assert (dry.status_code, "etag" in dry.headers) == (201, False)
    assert rig.http.get(PATH).status_code == 404
    assert _stored(rig) == (0, 0)
    made = rig.http.put(PATH, json=body, headers={"Idempotency-Key": "k"})
    assert made.status_code == 201
    assert made.json()["spec"] == dry.json()["spec"]
    assert made.json()["metadata"]["labels"] == dry.json()["metadata"]["labels"]


def test_a_dry_change_returns_the_next_generation_and_stores_nothing(rig: Rig) -> None:
    made = rig.put(partitions=2)
    gate = {"name": "gate", "type": "string", "default": ""}
    wanted = {"spec": {"partitions": 4, "schema": {**SCHEMA, "fields": [*SCHEMA["fields"], gate]}}}
    dry = rig.http.put(PATH, json=wanted, params=DRY, headers={"If-Match": made.headers["etag"]})
    assert (dry.status_code, dry.json()["metadata"]["generation"]) == (200, 2)
    assert dry.json()["status"]["schema"]["version"] == 2
    response = rig.http.get(PATH)
    assert (response.json(), response.headers["etag"]) == (made.json(), made.headers["etag"])
    assert _stored(rig)[0] == 1
    assert rig.http.put(PATH, json=wanted).json()["spec"] == dry.json()["spec"]


@pytest.mark.sample
@pytest.mark.parametrize(
    "spec",
    [
        {"partitions": 1},
        {"format": "arrow"},
        {"delivery": "exactly_once"},
        {"replication": 2},
        {"schema": OTHER_SCHEMA},
        {"schema": {"type": "record"}},
        {"config": {"retention.ms": "1"}},
        {"heartbeat": {"interval_ms": 60_000}},
        {"partition": 4},
    ],
)
def test_a_dry_run_is_refused_exactly_as_the_request_would_be(
    rig: Rig, spec: dict[str, Any]
) -> None:
    rig.put(partitions=2)
    responses = [rig.http.put(PATH, json={"spec": spec}, params=params) for params in (DRY, {})]
    problems = [response.json() | {"request_id": None} for response in responses]
    assert responses[0].status_code in (409, 422)
    assert problems[0] == problems[1]


def test_a_dry_run_checks_the_preconditions(rig: Rig) -> None:
    old = rig.put().headers["etag"]
    rig.put(partitions=2)
    for headers in ({"If-Match": old}, {"If-None-Match": "*"}):
        dry = rig.http.put(PATH, json={"spec": {}}, params=DRY, headers=headers)
        assert (dry.status_code, code(dry)) == (412, "precondition_failed")


def test_a_dry_run_needs_the_permission_of_the_change(rig: Rig) -> None:
    mine = rig.token("manage:team-")
    body = {"spec": {"schema": SCHEMA}}
    uid = {"uid": "0" * 32}
    assert rig.http.put("/v1/channels/team-a", json=body, params=DRY, headers=mine).is_success
    assert rig.http.put(PATH, json=body, params=DRY, headers=mine).status_code == 403
    assert rig.http.delete(PATH, params=DRY | uid, headers=mine).status_code == 403
    adopting = {"spec": {"schema": SCHEMA, "topic": {"name": "flights"}}}
    asked = rig.http.put("/v1/channels/team-a", json=adopting, params=DRY, headers=mine)
    assert asked.status_code == 403


def test_a_dry_deletion_deletes_nothing(rig: Rig) -> None:
    uid = rig.put().json()["metadata"]["uid"]
    rig.observe("flights", Phase.READY)
    dry = rig.http.delete(PATH, params={"uid": uid, **DRY})
    assert (dry.status_code, dry.json()["status"]["phase"]) == (202, "deleting")
    assert rig.http.get(PATH).json()["status"]["phase"] == "ready"
    wrong = rig.http.delete(PATH, params={"uid": "0" * 32, **DRY})
    assert (wrong.status_code, code(wrong)) == (409, "uid_mismatch")


def test_without_kafka_an_if_empty_deletion_is_refused(rig: Rig) -> None:
    uid = rig.put().json()["metadata"]["uid"]
    rig.observe("flights", Phase.READY)
    asked = rig.http.delete(PATH, params={"uid": uid, "if_empty": "true"})
    assert (asked.status_code, code(asked)) == (503, "kafka_unavailable")
    kept = rig.http.delete(PATH, params={"uid": uid, "if_empty": "true", "topic": "keep"})
    assert kept.status_code == 202
