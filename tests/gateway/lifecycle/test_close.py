import httpx
import pytest

from gateways import SCHEMA, Rig, code
from sluiceway_gateway.channels.model import Phase

PATH = "/v1/channels/flights"


def close(rig: Rig, uid: str, **headers: str) -> httpx.Response:
    return rig.http.post(f"{PATH}/close", json={"uid": uid}, headers=headers)


@pytest.fixture
def uid(rig: Rig) -> str:
    """The uid of a channel that is ready."""
    made: str = rig.put().json()["metadata"]["uid"]
    rig.observe("flights", Phase.READY)
    return made


def test_a_closed_channel_is_readable_and_not_writable(rig: Rig, uid: str) -> None:
    response = close(rig, uid)
    assert response.status_code == 200, response.text
    status = response.json()["status"]
    assert status["phase"] == "closed"
    assert {
        (condition["type"], condition["status"], condition["reason"])
        for condition in status["conditions"]
    } >= {("Ready", "True", "Closed")}
    connection = f"{PATH}/connection"
    assert rig.http.get(connection, params={"access": "read"}).status_code == 200
    refused = rig.http.get(connection, params={"access": "write"})
    assert (refused.status_code, code(refused)) == (409, "channel_closed")


def test_closing_again_changes_nothing(rig: Rig, uid: str) -> None:
    first = close(rig, uid)
    again = close(rig, uid)
    assert (again.status_code, again.content) == (200, first.content)
    assert again.headers["etag"] == first.headers["etag"]


def test_a_repeat_with_the_same_key_gets_the_same_response(rig: Rig, uid: str) -> None:
    key = {"Idempotency-Key": "one"}
    first = close(rig, uid, **key)
    rig.http.delete(PATH, params={"uid": uid})
    assert close(rig, uid, **key).content == first.content
    assert code(close(rig, uid)) == "channel_deleting"


def test_only_the_given_incarnation_is_closed(rig: Rig, uid: str) -> None:
    assert code(close(rig, "0" * 32)) == "uid_mismatch"
    assert rig.http.get(PATH).json()["status"]["phase"] == "ready"
    assert code(rig.http.post("/v1/channels/absent/close", json={"uid": uid})) == (
        "channel_not_found"
    )
    assert code(rig.http.post(f"{PATH}/close", json={})) == "invalid_request"


def test_a_channel_without_a_topic_cannot_be_closed(rig: Rig) -> None:
    uid = rig.put().json()["metadata"]["uid"]
    response = close(rig, uid)
    assert (response.status_code, code(response)) == (409, "channel_not_ready")
    assert "Wait until it is" in response.json()["detail"]


def test_a_closed_channel_can_only_be_deleted(rig: Rig, uid: str) -> None:
    close(rig, uid)
    relabelled = rig.http.put(PATH, json={"metadata": {"labels": {"a": "b"}}})
    assert relabelled.json()["status"]["phase"] == "closed"
    assert rig.http.delete(PATH, params={"uid": uid}).json()["status"]["phase"] == "deleting"


def test_a_closed_channel_whose_topic_vanished_cannot_be_read(rig: Rig, uid: str) -> None:
    close(rig, uid)
    lost = rig.observe("flights", Phase.CLOSED).with_condition(
        "Ready", "False", "TopicMissing", "The topic vanished; delete the channel.", rig.clock()
    )
    rig.observe("flights", Phase.CLOSED, conditions=lost.conditions)
    response = rig.http.get(f"{PATH}/connection", params={"access": "read"})
    assert (response.status_code, code(response)) == (409, "channel_not_ready")
    assert "The topic vanished; delete the channel." in response.json()["detail"]


def test_closing_needs_the_manage_scope(rig: Rig, uid: str) -> None:
    admin, writer = rig.token("admin"), rig.token("write")
    assert code(close(rig, uid, **writer)) == "forbidden"
    assert close(rig, uid, **admin).status_code == 200
    assert rig.http.put(PATH, json={"spec": {"schema": SCHEMA}}, headers=admin).status_code == 200
