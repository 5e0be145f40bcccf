"""Expensive requests are refused cheaply, and not read without authentication."""

import json
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from endpoints import fresh_id
from gateways import SCHEMA, Rig, code, served
from sluiceway_gateway.api.auth import PUBLIC
from sluiceway_gateway.api.strict_json import loads

JSON = {"Content-Type": "application/json"}
MOST_SHOWN = 20
#: Processor time. The expensive way takes many times as long, the right one a fraction.
SOON_S = 2.0


@pytest.fixture
def soon() -> Iterator[None]:
    started_s = time.process_time()
    yield
    assert time.process_time() - started_s < SOON_S


@pytest.mark.long
@pytest.mark.usefixtures("soon")
def test_a_duplicate_among_many_names_is_found_fast() -> None:
    names = [f'"{number:x}":0' for number in range(40_000)]
    body = f"{{{','.join([*names, names[-1]])}}}".encode()
    with pytest.raises(Exception, match="the name '9c3f' twice"):
        loads(body)


@pytest.mark.long
def test_unknown_fields_are_counted_beyond_the_first_twenty(shared_rig: Rig) -> None:
    body = {f"{number:x}": 0 for number in range(70_000)}
    response = shared_rig.http.put("/v1/channels/flights", json=body)
    assert (response.status_code, code(response)) == (422, "invalid_request")
    assert len(response.json()["errors"]) == MOST_SHOWN
    assert response.json()["detail"].endswith("; and 69,980 more.")
    assert len(response.content) < 8000


@pytest.mark.usefixtures("soon")
def test_unknown_settings_are_refused_fast_and_named_up_to_a_limit(shared_rig: Rig) -> None:
    config = {f"segment.byte{number}": "1" for number in range(20_000)}
    response = shared_rig.put("flights", config=config)
    assert (response.status_code, code(response)) == (422, "invalid_request")
    assert [error["pointer"] for error in response.json()["errors"]] == ["/spec/config"]


@pytest.mark.parametrize("where", ["field", "setting"])
def test_an_unknown_name_is_shown_shortened(shared_rig: Rig, where: str) -> None:
    name = "n" * 500_000
    body: dict[str, Any] = {"spec": {"schema": SCHEMA, "config": {name: "1"}}}
    response = shared_rig.http.put(
        "/v1/channels/flights", json=body if where == "setting" else {name: 1}
    )
    assert response.status_code == 422
    assert "nnn" in response.json()["errors"][0]["pointer"]
    assert len(response.content) < 3000


def test_unknown_parameters_are_counted_beyond_the_first_twenty(shared_rig: Rig) -> None:
    query = "&".join(f"{number:x}=" for number in range(1000))
    response = shared_rig.http.get(f"/v1/channels?{query}")
    assert (response.status_code, code(response)) == (422, "invalid_request")
    assert len(response.json()["errors"]) == MOST_SHOWN
    assert response.json()["detail"].endswith("; and 980 more.")


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "null", "http://a]b"])
def test_an_invalid_origin_is_refused(shared_rig: Rig, origin: str) -> None:
    response = shared_rig.http.get("/v1/channels", headers={"Origin": origin})
    assert (response.status_code, code(response)) == (403, "forbidden")


def routes(rig: Rig) -> list[tuple[str, str]]:
    """Return the method and path of each non-public route, with valid names."""
    names = {"name": "flights", "group": "g", "id": "0" * 32}
    return [
        (method, re.sub("{(.+?)}", lambda match: names.get(match[1], "1"), str(route.path_format)))
        for method, route in served(rig.app)
        if route.path not in PUBLIC
    ]


def head(rig: Rig, method: str, path: str, **headers: str) -> socket.socket:
    """Send the head of a request without its body."""
    host = httpx.URL(rig.url)
    assert host.port is not None
    sent = socket.create_connection((host.host, host.port), timeout=60)
    sent_headers = {"Host": host.netloc.decode(), "Content-Length": "1000", **JSON, **headers}
    lines = [
        f"{method} {path} HTTP/1.1",
        *(f"{name}: {value}" for name, value in sent_headers.items()),
    ]
    sent.sendall("\r\n".join([*lines, "", "{"]).encode())
    return sent


def status(sent: socket.socket) -> int:
    with sent, sent.makefile("rb") as response:
        return int(response.readline().split()[1])


@pytest.mark.sample
@pytest.mark.parametrize("token", [None, "slw_" + "0" * 16 + "_" + "0" * 64, "x"])
def test_no_route_reads_the_body_of_an_unauthenticated_request(rig: Rig, token: str | None) -> None:
    rig.token("admin")
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    all_routes = routes(rig)
    assert ("PUT", "/v1/channels/flights/groups/g/offsets") in all_routes
    answered = [(path, status(head(rig, method, path, **headers))) for method, path in all_routes]
    assert answered == [(path, 401) for _, path in all_routes]


def test_the_body_of_a_request_with_a_revoked_token_is_not_read(rig: Rig) -> None:
    assert rig.put("flights").status_code == 201
    token = rig.token("admin")
    beat = {"session": fresh_id(), "beat": 1, "endpoints": []}
    for _ in range(2):
        assert rig.http.post("/v1/heartbeats", json=beat, headers=token).status_code == 200
    with head(rig, "POST", "/v1/heartbeats", **token) as connection:
        connection.sendall(b" " * 999)
        assert status(connection) == 400
    rig.tokens.revoke(token["Authorization"].split("_")[1])
    assert rig.http.post("/v1/heartbeats", json=beat, headers=token).status_code == 401
    assert status(head(rig, "POST", "/v1/heartbeats", **token)) == 401


def test_a_client_that_disconnects_while_sending_is_not_a_gateway_error(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    for path in ("/v1/channels/flights", "/v1/channels/flights/groups/g/offsets"):
        head(rig, "PUT", path).close()
    counted = 'sluiceway_http_requests_total{method="PUT"'
    deadline_s = time.monotonic() + 60
    while rig.http.get("/metrics").text.count(counted) < 2:
        assert time.monotonic() < deadline_s
    metrics = [line for line in rig.http.get("/metrics").text.splitlines() if counted in line]
    assert all('status="422"' in line for line in metrics), metrics
    assert "request failed" not in caplog.text


@pytest.mark.long
def test_the_openapi_document_has_the_exact_largest_integer(shared_rig: Rig) -> None:
    served = shared_rig.http.get("/openapi.json")
    assert b'"maximum":9223372036854775807' in served.content
    bounds: list[Any] = []

    def look(part: Any) -> None:
        for child in part.values() if isinstance(part, dict) else part:
            if isinstance(child, dict | list):
                look(child)
        if isinstance(part, dict) and part.get("type") == "integer":
            bounds.extend(part[keyword] for keyword in ("minimum", "maximum") if keyword in part)

    look(json.loads(served.content))
    assert {type(bound) for bound in bounds} == {int}
    assert max(bounds) == 2**63 - 1
