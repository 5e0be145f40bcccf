"""The partitioner of a channel: fixed at creation, shown, and required to be known by writers."""

from typing import Any

import httpx
import pytest

from endpoints import fresh_id
from gateways import SCHEMA, Rig, code
from sluiceway import Gateway
from sluiceway.kafka.partitioner import PARTITIONERS
from sluiceway_gateway.channels.model import KeyPartitioner, Phase

KNOWN = {"Sluiceway-Features": "exactly-once, partitioners"}
PATH = "/v1/channels/flights"


def ready(rig: Rig, **spec: Any) -> str:
    """Create a channel, and return its uid."""
    made = rig.put(**spec)
    assert made.status_code == 201, made.text
    rig.observe("flights", Phase.READY)
    uid: str = made.json()["metadata"]["uid"]
    return uid


def test_client_and_gateway_have_the_same_partitioners() -> None:
    assert PARTITIONERS.keys() == set(KeyPartitioner)


def test_the_default_is_murmur2_and_every_read_shows_the_partitioner(rig: Rig) -> None:
    ready(rig, partitioner="consistent_random")
    rig.put("plain")
    listed = rig.http.get("/v1/channels").json()["items"]
    assert [item["spec"]["partitioner"] for item in listed] == ["consistent_random", "murmur2"]
    connection = rig.http.get(f"{PATH}/connection", params={"access": "write"}, headers=KNOWN)
    assert connection.json()["partitioner"] == "consistent_random"
    with Gateway(rig.url) as gateway:
        opened = gateway.channel("flights", SCHEMA, partitioner="consistent_random")
        assert opened.partitioner == "consistent_random"
        assert opened.connection("write").partitioner == "consistent_random"
        with pytest.warns(UserWarning, match="partitioner='consistent_random', not 'murmur2'"):
            gateway.channel("flights", partitioner="murmur2")


def test_the_partitioner_cannot_be_changed(rig: Rig) -> None:
    rig.put(partitioner="fnv1a")
    assert rig.put(partitioner="fnv1a").status_code == 200
    assert rig.put(partitions=2).json()["spec"]["partitioner"] == "fnv1a"
    response = rig.put(partitioner="murmur2")
    assert (response.status_code, code(response)) == (409, "immutable_field")
    assert "The partitioner of the channel 'flights' is fnv1a" in response.json()["detail"]


def test_an_unknown_partitioner_is_refused(shared_rig: Rig) -> None:
    response = shared_rig.put(partitioner="random")
    assert (response.status_code, code(response)) == (422, "invalid_request")
    assert response.json()["errors"][0]["pointer"] == "/spec/partitioner"


def test_an_older_client_reads_but_does_not_write_with_another_hash(rig: Rig) -> None:
    uid = ready(rig, partitioner="consistent_random")

    def connect(access: str, headers: dict[str, str]) -> httpx.Response:
        return rig.http.get(f"{PATH}/connection", params={"access": access}, headers=headers)

    def attach(access: str, headers: dict[str, str]) -> httpx.Response:
        role = {"read": "reader", "write": "writer"}[access]
        body = {"uid": uid, "id": fresh_id(), "session": fresh_id(), "role": role}
        return rig.http.post(f"{PATH}/endpoints", json=body, headers=headers)

    for request in (connect, attach):
        assert request("read", {}).status_code in (200, 201)
        assert request("write", KNOWN).status_code in (200, 201)
        response = request("write", {"Sluiceway-Features": "exactly-once"})
        assert (response.status_code, code(response)) == (409, "client_outdated")
        assert "the partitioner consistent_random" in response.json()["detail"]
