"""Endpoints of a gateway with running loops and a real broker."""

import time
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from endpoints import fresh_id
from gateways import SCHEMA
from shared_kafka import SharedKafka


@pytest.fixture
def channel(gateway_url: str) -> Any:
    """A ready channel with a short heartbeat timeout."""
    name = f"endpoints-{fresh_id()[:8]}"
    with httpx.Client(base_url=gateway_url, timeout=60) as http:
        spec = {"schema": SCHEMA, "partitions": 2}
        heartbeat = {"interval_ms": 250, "timeout_ms": 750}
        response = http.put(f"/v1/channels/{name}", json={"spec": {**spec, "heartbeat": heartbeat}})
        deadline = time.monotonic() + 180
        while response.json()["status"]["phase"] != "ready":
            assert time.monotonic() < deadline, response.json()
            tag = response.headers["etag"]
            path = f"/v1/channels/{name}"
            response = http.get(path, params={"wait": 30}, headers={"If-None-Match": tag})
            if response.status_code == 304:
                response = http.get(path)
        yield http, response.json()


def attach(channel: Any, **body: Any) -> httpx.Response:
    http, resource = channel
    metadata = resource["metadata"]
    request_body = {
        "uid": metadata["uid"],
        "id": fresh_id(),
        "session": fresh_id(),
        "role": "reader",
    }
    response: httpx.Response = http.post(
        f"/v1/channels/{metadata['name']}/endpoints", json=request_body | body
    )
    return response


def until_list(channel: Any, holds: Any) -> Any:
    """Wait, as clients do, until the list of endpoints matches."""
    http, resource = channel
    path = f"/v1/channels/{resource['metadata']['name']}/endpoints"
    deadline, tag = time.monotonic() + 180, '"none"'
    while True:
        response = http.get(path, params={"wait": 20}, headers={"If-None-Match": tag})
        if response.status_code == 200:
            tag, items = response.headers["etag"], response.json()["items"]
            if holds(items):
                return items
        assert time.monotonic() < deadline, items


def test_a_dead_writer_is_lost_with_the_watermarks_as_its_end_offsets(
    channel: Any, kafka: SharedKafka
) -> None:
    topic = channel[1]["status"]["topic"]["name"]
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for _ in range(3):
        producer.produce(topic, b"x", partition=1)
    producer.flush(30)
    session = fresh_id()
    writer = attach(channel, role="writer", session=session).json()["endpoint"]
    (lost,) = until_list(channel, lambda items: items[0]["lost_at"] is not None)
    assert (lost["health"], lost["state"]) == ("lost", "opened")
    assert lost["lost_at"] == {"0": 0, "1": 3}
    # The endpoint was only slow.
    report = {"id": writer["id"], "epoch": writer["epoch"], "state": "started"}
    request_body = {"session": session, "beat": 1, "endpoints": [report]}
    (reply,) = channel[0].post("/v1/heartbeats", json=request_body).json()["endpoints"]
    assert (reply["status"], reply["health"]) == ("ok", "healthy")
    (event,) = [
        entry
        for entry in channel[0]
        .get(f"/v1/channels/{writer['channel']['name']}/endpoints/{writer['id']}")
        .json()["events"]
        if entry["state"] == "started" and entry["cause"] == "its session sends heartbeats again"
    ]
    assert event["health"] == "healthy"


def test_dismissing_a_lost_writer_keeps_all_its_records(channel: Any, kafka: SharedKafka) -> None:
    http, resource = channel
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    session = fresh_id()
    writer = attach(channel, role="writer", session=session).json()["endpoint"]
    until_list(channel, lambda items: items[0]["lost_at"] is not None)
    # The writer continued without the gateway's knowledge.
    producer.produce(resource["status"]["topic"]["name"], b"x", partition=1)
    producer.flush(30)
    path = f"/v1/channels/{resource['metadata']['name']}/endpoints"
    uid = resource["metadata"]["uid"]
    assert http.delete(f"{path}/{writer['id']}", params={"uid": uid}).status_code == 200
    (stand_in,) = http.get(path).json()["items"]
    assert (stand_in["state"], stand_in["health"], stand_in["ends"]) == (
        "closed",
        "healthy",
        {"1": 1},
    )
    # The writer learns that it is fenced.
    report = {"id": writer["id"], "epoch": writer["epoch"], "state": "started"}
    request_body = {"session": session, "beat": 1, "endpoints": [report]}
    (reply,) = http.post("/v1/heartbeats", json=request_body).json()["endpoints"]
    assert reply["status"] == "fenced"


def test_a_group_larger_than_its_channel_gets_a_partition_each_after_growth(
    channel: Any,
) -> None:
    request_body = {"group": "g", "index": 4, "size": 5, "id": fresh_id(), "session": fresh_id()}
    http, resource = channel
    path = f"/v1/channels/{resource['metadata']['name']}"
    deadline = time.monotonic() + 180
    while (response := attach(channel, **request_body)).status_code == 409:
        assert response.json()["code"] == "channel_not_ready"
        assert time.monotonic() < deadline
        tag = http.get(path).headers["etag"]
        if http.get(path).json()["status"]["topic"]["partitions"] < 5:
            http.get(path, params={"wait": 5}, headers={"If-None-Match": tag})
    body = response.json()
    assert body["endpoint"]["partitions"] == [4]
    assert body["connection"]["topic"]["partitions"] == 5
