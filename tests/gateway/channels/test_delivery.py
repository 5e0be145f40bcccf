"""The delivery of a channel: fixed at creation, shown, and required to be known by clients."""

from typing import Any

import httpx
import pytest

from endpoints import fresh_id
from gateways import SCHEMA, Rig, code
from sluiceway import Gateway
from sluiceway_gateway.channels.model import Phase

KNOWN = {"Sluiceway-Features": "exactly-once"}
PATH = "/v1/channels/flights"


def ready(rig: Rig, **spec: Any) -> str:
    """Create a channel with exactly-once delivery, and return its uid."""
    made = rig.put(delivery="exactly_once", **spec)
    assert made.status_code == 201, made.text
    rig.observe("flights", Phase.READY)
    uid: str = made.json()["metadata"]["uid"]
    return uid


def test_every_read_shows_the_delivery(rig: Rig) -> None:
    ready(rig)
    rig.put("plain")
    assert rig.http.get(PATH).json()["spec"]["delivery"] == "exactly_once"
    listed = rig.http.get("/v1/channels").json()["items"]
    assert [channel["spec"]["delivery"] for channel in listed] == ["exactly_once", "at_least_once"]
    connection = rig.http.get(f"{PATH}/connection", params={"access": "read"}, headers=KNOWN)
    assert connection.json()["delivery"] == "exactly_once"


@pytest.mark.parametrize("was", ["exactly_once", "at_least_once"])
def test_the_delivery_cannot_be_changed(rig: Rig, was: str) -> None:
    rig.put(delivery=was)
    assert rig.put(delivery=was).status_code == 200
    assert rig.put().json()["spec"]["delivery"] == was
    other = {"exactly_once": "at_least_once", "at_least_once": "exactly_once"}[was]
    response = rig.put(delivery=other)
    assert (response.status_code, code(response)) == (409, "immutable_field")
    assert f"The delivery of the channel 'flights' is {was}" in response.json()["detail"]


@pytest.mark.sample
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "compact,delete"),
        ("message.timestamp.type", "CreateTime"),
        ("min.insync.replicas", "1"),
    ],
)
def test_settings_that_could_lose_uncommitted_records_are_refused(
    rig: Rig, setting: str, value: str
) -> None:
    changed_spec = {"config": {setting: value}}
    response = rig.put(delivery="exactly_once", **changed_spec)
    assert (response.status_code, code(response)) == (422, "invalid_request")
    assert response.json()["errors"][0]["pointer"] == f"/spec/config/{setting}"
    assert "at_least_once" in response.json()["detail"]
    ready(rig)
    assert code(rig.put(**changed_spec)) == "invalid_request"
    assert rig.put("plain", **changed_spec).status_code == 201


def test_an_unknown_delivery_is_refused(shared_rig: Rig) -> None:
    response = shared_rig.put(delivery="at_most_once")
    assert (response.status_code, code(response)) == (422, "invalid_request")


@pytest.mark.sample
@pytest.mark.parametrize("features", [{}, {"Sluiceway-Features": "other"}])
@pytest.mark.parametrize("access", ["read", "write"])
def test_a_client_without_the_feature_gets_no_connection(
    rig: Rig, features: dict[str, str], access: str
) -> None:
    uid = ready(rig)

    def connect(headers: dict[str, str]) -> httpx.Response:
        return rig.http.get(f"{PATH}/connection", params={"access": access}, headers=headers)

    def attach(headers: dict[str, str]) -> httpx.Response:
        role = {"read": "reader", "write": "writer"}[access]
        body = {"uid": uid, "id": fresh_id(), "session": fresh_id(), "role": role}
        return rig.http.post(f"{PATH}/endpoints", json=body, headers=headers)

    for ask in (connect, attach):
        response = ask(features)
        assert (response.status_code, code(response)) == (409, "client_outdated")
        assert "Upgrade sluiceway" in response.json()["detail"]
        assert not response.json()["retriable"]
        assert ask({"Sluiceway-Features": "other, exactly-once"}).status_code in (200, 201)


def test_an_older_client_uses_channels_without_it(rig: Rig) -> None:
    rig.put()
    rig.observe("flights", Phase.READY)
    response = rig.http.get(f"{PATH}/connection", params={"access": "read"})
    assert (response.status_code, response.json()["delivery"]) == (200, "at_least_once")


def test_the_client_asks_for_the_delivery_and_shows_it(rig: Rig) -> None:
    ready(rig)
    with Gateway(rig.url) as gateway:
        made = gateway.channel("flights", SCHEMA, delivery="exactly_once")
        assert made.delivery == "exactly_once"
        with pytest.warns(UserWarning, match="delivery"):
            assert gateway.channel("flights", delivery="at_least_once").delivery == "exactly_once"
