from datetime import timedelta

import pytest

from gateways import SCHEMA, Rig, code
from sluiceway_gateway.provisioning.store import remove

KEY = {"Idempotency-Key": "one"}
BODY = {"spec": {"schema": SCHEMA}}
PATH = "/v1/channels/flights"


def test_a_repeated_creation_gets_its_response_after_the_channel_is_deleted(rig: Rig) -> None:
    first = rig.http.put(PATH, json=BODY, headers=KEY)
    assert first.status_code == 201
    uid = first.json()["metadata"]["uid"]
    rig.http.delete(PATH, params={"uid": uid})
    with rig.database.write() as tx:
        remove(tx, uid)
    again = rig.http.put(PATH, json=BODY, headers=KEY)
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["etag"] == first.headers["etag"]
    assert rig.http.get(PATH).status_code == 404, "the late repeat made no channel"


def test_a_repeated_deletion_gets_its_response_after_the_channel_is_deleted(rig: Rig) -> None:
    uid = rig.put().json()["metadata"]["uid"]
    first = rig.http.delete(PATH, params={"uid": uid}, headers=KEY)
    with rig.database.write() as tx:
        remove(tx, uid)
    again = rig.http.delete(PATH, params={"uid": uid}, headers=KEY)
    assert (again.status_code, again.content) == (202, first.content)


def test_a_key_belongs_to_one_request(rig: Rig) -> None:
    rig.http.put(PATH, json=BODY, headers=KEY)
    other_name = rig.http.put("/v1/channels/other", json=BODY, headers=KEY)
    assert (other_name.status_code, code(other_name)) == (409, "idempotency_key_reused")
    other_body = rig.http.put(PATH, json={"spec": {"partitions": 2}}, headers=KEY)
    assert code(other_body) == "idempotency_key_reused"
    other_condition = rig.http.put(PATH, json=BODY, headers={**KEY, "If-Match": "*"})
    assert code(other_condition) == "idempotency_key_reused"


def test_a_refused_request_leaves_its_key_free(rig: Rig) -> None:
    refused = rig.http.put(PATH, json={"spec": {"partitions": 2}}, headers=KEY)
    assert refused.status_code == 422
    assert rig.http.put(PATH, json=BODY, headers=KEY).status_code == 201


def test_a_key_belongs_to_the_tokens_of_a_label(rig: Rig) -> None:
    before, after = rig.token("manage"), rig.token("manage")
    first = rig.http.put(PATH, json=BODY, headers={**KEY, **before})
    assert first.status_code == 201
    again = rig.http.put(PATH, json=BODY, headers={**KEY, **after})
    assert (again.status_code, again.content) == (201, first.content)
    others = rig.token("manage", label="others")
    assert rig.http.put(PATH, json=BODY, headers={**KEY, **others}).status_code == 200


def test_a_key_expires_after_a_day(rig: Rig) -> None:
    assert rig.http.put(PATH, json=BODY, headers=KEY).status_code == 201
    rig.clock.advance(timedelta(hours=25))
    assert rig.http.put(PATH, json=BODY, headers=KEY).status_code == 200


@pytest.mark.parametrize("key", ["", "with space", "x" * 201, "é"])
def test_an_invalid_key_is_refused(shared_rig: Rig, key: str) -> None:
    response = shared_rig.http.put(
        PATH, json=BODY, headers={"Idempotency-Key": key.encode("latin-1")}
    )
    assert (response.status_code, code(response)) == (422, "invalid_request")
