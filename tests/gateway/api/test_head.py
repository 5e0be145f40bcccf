"""HEAD: the headers of the response to a GET, and no body."""

import socket
from urllib.parse import urlsplit

import pytest

from endpoints import site
from gateways import Rig, served

#: Different in each response.
VARYING = {"date", "x-request-id"}


def request(rig: Rig, method: str, path: str, *headers: str) -> tuple[int, dict[str, str], bytes]:
    """Return all data until the gateway closes the connection."""
    address = urlsplit(rig.url)
    lines = [f"{method} {path} HTTP/1.1", f"Host: {address.netloc}", "Connection: close", *headers]
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        head, _, body = b"".join(iter(lambda: connection.recv(65_536), b"")).partition(b"\r\n\r\n")
    status, *fields = head.decode().split("\r\n")
    response_headers = {
        name.lower(): value for name, value in (field.split(": ", 1) for field in fields)
    }
    return (
        int(status.split()[1]),
        {k: v for k, v in response_headers.items() if k not in VARYING},
        body,
    )


@pytest.fixture
def paths(rig: Rig) -> list[str]:
    """The path of each route that takes GET."""
    flights = site(rig)
    reader = flights.member()
    parameters = {"name": "flights", "id": reader["id"], "group": "g", "schema_id": "1"}
    parameters |= {"topic": "absent", "broker_id": "1", "file": "start.js"}
    parameters |= {"subject": "flights-value", "version": "1", "path": "absent"}
    return [
        str(route.path_format).format_map(parameters)
        for method, route in served(rig.app)
        if method == "GET" and not str(route.path).endswith(("/events", "/metrics", "/search"))
    ]


def test_every_path_that_takes_get_takes_head(rig: Rig, paths: list[str]) -> None:
    assert len(paths) > 15
    for path in paths:
        status, headers, body = request(rig, "GET", path)
        assert body, path
        assert status != 405
        of_head = request(rig, "HEAD", path)
        if status == 503:
            # The text says what librdkafka has met, which may differ from one to the next.
            assert int(headers.pop("content-length")) == len(body)
            assert of_head[1].pop("content-length") != "0"
        assert of_head == (status, headers, b""), path


def test_the_head_of_the_metrics_has_no_body(rig: Rig) -> None:
    status, headers, body = request(rig, "HEAD", "/metrics")
    assert (status, body) == (200, b"")
    assert headers["content-type"].startswith("text/plain")
    assert int(headers["content-length"]) > 1000


def test_the_head_of_an_event_stream_ends_at_once(rig: Rig) -> None:
    site(rig)
    for path in ("/v1/status/events", "/v1/channels/flights/status/events"):
        status, headers, body = request(rig, "HEAD", path)
        assert (status, body) == (200, b"")
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["cache-control"] == "no-store"
    assert rig.app.state.parts.changes.waiting == 0


def test_a_head_knows_preconditions_and_problems(rig: Rig) -> None:
    site(rig)
    path = "/v1/channels/flights"
    _, headers, _ = request(rig, "HEAD", path)
    status, again, body = request(rig, "HEAD", path, f"If-None-Match: {headers['etag']}")
    assert (status, again["etag"], body) == (304, headers["etag"], b"")
    status, headers, body = request(rig, "HEAD", "/v1/channels/absent")
    assert (status, headers["content-type"], body) == (404, "application/problem+json", b"")


def test_a_path_without_get_takes_no_head(rig: Rig) -> None:
    status, headers, _ = request(rig, "HEAD", "/v1/heartbeats")
    assert (status, headers["allow"]) == (405, "POST")


@pytest.mark.long
def test_the_document_of_the_interface_has_no_head(rig: Rig) -> None:
    document = rig.http.get("/openapi.json").json()
    assert all("head" not in operations for operations in document["paths"].values())
    assert "get" in document["paths"]["/v1/status"]
