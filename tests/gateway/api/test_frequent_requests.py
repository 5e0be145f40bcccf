"""Attaching, heartbeats and statuses over HTTP: malformed requests and tokens."""

import json
from typing import Any

import pytest

from endpoints import Site, fresh_id, report, site
from gateways import Rig


@pytest.fixture
def flights(shared_rig: Rig) -> Site:
    return site(shared_rig, f"flights-{fresh_id()}", partitions=4)


def post(flights: Site, path: str, body: Any, headers: dict[str, str] | None = None) -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body)
    json_headers = {"Content-Type": "application/json"} | (headers or {})
    return flights.rig.http.post(path, content=content, headers=json_headers)


def asking(flights: Site, **changes: Any) -> Any:
    request_body = {"uid": flights.uid, "id": fresh_id(), "session": flights.session}
    return request_body | {"role": "reader"} | changes


MEMBER: dict[str, Any] = {"group": "g", "index": 0, "size": 2}
DYNAMIC: dict[str, Any] = {"group": "d", "dynamic": True}


@pytest.mark.sample
@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, 201),
        (MEMBER, 201),
        ({"role": "writer", "title": "the writer"}, 201),
        (DYNAMIC, 201),
        ({**MEMBER, "group": "b", "mode": "broadcast"}, 201),
        ({**MEMBER, "size": 5, "group": "larger"}, 409),
        ({"uid": "0" * 32}, 409),
        ({"role": "sniffer"}, 422),
        ({"unknown": 1}, 422),
        ({"id": "x"}, 422),
        ({"group": "g"}, 422),
        ({**MEMBER, "index": 2}, 422),
        ({**MEMBER, "index": "0"}, 422),
        ({**MEMBER, "group": "g\n"}, 422),
        ({"title": ""}, 422),
    ],
    ids=str,
)
def test_an_invalid_attach_is_answered_with_its_error(
    flights: Site, changes: Any, status: int
) -> None:
    response = post(flights, f"{flights.path}/endpoints", asking(flights, **changes))
    assert response.status_code == status
    if status == 201:
        assert response.headers["cache-control"] == "no-store"
        assert response.json()["connection"]["schema"]["definition"]["name"] == "R"


@pytest.mark.sample
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b'{"uid": NaN}', 400),
        (b"\xff", 400),
        (b"", 400),
        (b'{"a": 1, "a": 2}', 422),
        (b"[]", 422),
    ],
)
@pytest.mark.parametrize("path", ["endpoints", "heartbeats"])
def test_a_body_that_is_not_an_object_in_json_is_refused(
    flights: Site, path: str, body: bytes, status: int
) -> None:
    where = "/v1/heartbeats" if path == "heartbeats" else f"{flights.path}/endpoints"
    assert post(flights, where, body).status_code == status


def test_an_unknown_listener_is_refused(flights: Site) -> None:
    path = f"{flights.path}/endpoints?listener=nowhere"
    assert post(flights, path, asking(flights)).status_code == 422
    assert flights.listed() == []


def test_an_attach_returns_the_current_connection(flights: Site) -> None:
    before = flights.post_attach().json()["connection"]
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
    schema["fields"].append({"name": "b", "type": "long", "default": 0})  # type: ignore[attr-defined]
    flights.rig.put(flights.name, schema=schema, partitions=4)
    after = flights.post_attach().json()["connection"]
    assert [schema_version["version"] for schema_version in before["schemas"]] == [1]
    assert [schema_version["version"] for schema_version in after["schemas"]] == [1, 2]
    direct = flights.rig.http.get(f"{flights.path}/connection", params={"access": "read"})
    assert direct.json() == after


@pytest.mark.sample
@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, 200),
        ({"beat": 0}, 422),
        ({"beat": "1"}, 422),
        ({"session": "x"}, 422),
        ({"endpoints": [{}]}, 422),
        ({"unknown": 1}, 422),
        ({"keeps": True}, 200),
    ],
    ids=str,
)
def test_an_invalid_heartbeat_is_answered_with_its_error(
    flights: Site, changes: Any, status: int
) -> None:
    here, gone = flights.attach(), {"id": fresh_id(), "epoch": 1, "state": "started"}
    reports = [report(here, "started", counters={"records": 5}, positions={"0": [3, 0]}), gone]
    body = {"session": flights.session, "beat": 1, "endpoints": reports} | changes
    response = post(flights, "/v1/heartbeats", body)
    assert response.status_code == status
    if status == 200:
        assert [endpoint["status"] for endpoint in response.json()["endpoints"]] == ["ok", "gone"]


def test_a_heartbeat_is_stored(flights: Site) -> None:
    endpoint = flights.attach()
    assert flights.beat(report(endpoint, "started", counters={"records": 7}))[0]["status"] == "ok"
    stored = flights.get(endpoint)
    assert (stored["state"], stored["counters"]) == ("started", {"records": 7})


@pytest.mark.long
def test_attaching_and_heartbeats_need_their_scopes(rig: Rig) -> None:
    flights = site(rig)
    reader = flights.attach()
    numbers = iter(range(1, 100))

    def heartbeat(headers: dict[str, str]) -> Any:
        body = {"session": flights.session, "beat": next(numbers), "endpoints": [report(reader)]}
        return post(flights, "/v1/heartbeats", body, headers)

    attach = f"{flights.path}/endpoints"
    good = rig.token("read:flights")
    for headers, status in (
        ({}, 401),
        ({"Authorization": "Bearer x"}, 401),
        ({"Authorization": "Basic eA=="}, 401),
        (rig.token("write:flights"), 403),
        (rig.token("read:others"), 403),
    ):
        assert post(flights, attach, asking(flights), headers).status_code == status
        response = heartbeat(headers)
        # The permission to report is checked for each endpoint.
        assert response.status_code == (401 if status == 401 else 200)
        if status == 403:
            assert response.json()["endpoints"][0]["status"] == "refused"
        if status == 401:
            assert post(flights, attach, b"{", headers).status_code == 401
            assert post(flights, "/v1/heartbeats", b"{", headers).status_code == 401
    assert post(flights, attach, asking(flights), good).status_code == 201
    assert heartbeat(good).json()["endpoints"][0]["status"] == "ok"


def test_a_revoked_token_is_refused_at_once(rig: Rig) -> None:
    flights = site(rig)
    attach, status = f"{flights.path}/endpoints", f"{flights.path}/status"
    beat = {"session": flights.session, "beat": 1, "endpoints": []}
    requests: list[tuple[Any, int]] = [
        (lambda token: post(flights, attach, asking(flights), token), 201),
        (lambda token: post(flights, attach, asking(flights, **DYNAMIC), token), 201),
        (lambda token: post(flights, "/v1/heartbeats", beat, token), 200),
        (lambda token: rig.http.get(status, headers=token), 200),
    ]
    for request, expected in requests:
        token = rig.token("read:flights")
        assert request(token).status_code == expected
        # A known endpoint of an earlier request is checked again.
        rig.tokens.revoke(token["Authorization"].split("_")[1])
        assert request(token).status_code == 401


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}], ids=str
)
def test_a_gateway_without_tokens_serves_only_loopback(
    flights: Site, headers: dict[str, str]
) -> None:
    body = {"session": flights.session, "beat": 1, "endpoints": []}
    attach = f"{flights.path}/endpoints"
    assert post(flights, attach, asking(flights), headers).status_code == 403
    assert post(flights, "/v1/heartbeats", body, headers).status_code == 403
    assert flights.listed() == []


def test_requests_are_counted_under_their_route(rig: Rig) -> None:
    flights = site(rig)
    post(flights, f"{flights.path}/endpoints", asking(flights))
    flights.beat()
    text = rig.http.get("/metrics").text
    for route, status in (("/v1/channels/{name}/endpoints", 201), ("/v1/heartbeats", 200)):
        counted = f'method="POST",route="{route}",status="{status}"'
        assert f"sluiceway_http_requests_total{{{counted}}} 1.0" in text


def test_a_status_is_read_by_its_etag(flights: Site) -> None:
    flights.member()
    http, path = flights.rig.http, f"{flights.path}/status"
    first = http.get(path)
    assert first.status_code == 200
    for tag, status in ((first.headers["etag"], 304), ('"another"', 200), ("*", 304)):
        for query in ({}, {"wait": 0}):
            response = http.get(path, headers={"If-None-Match": tag}, params=query)
            assert response.status_code == status
            assert response.headers["etag"] == first.headers["etag"]
            assert response.content == (first.content if status == 200 else b"")
    assert http.get("/v1/channels/nowhere/status").status_code == 404
    assert http.get("/v1/channels/NOT=A=NAME/status").status_code == 422
    assert http.get(path, params={"unknown": 1}).status_code == 422
    # The body of a request that takes none is ignored.
    assert http.request("GET", path, content=b"{}").status_code == 200


def test_a_status_needs_a_token_that_may_view_the_channel(rig: Rig) -> None:
    flights = site(rig)
    path = f"{flights.path}/status"
    for headers, status in (
        (rig.token("read:flights"), 200),
        (rig.token("read:others"), 403),
        ({}, 401),
        ({"Authorization": "Bearer x"}, 401),
    ):
        assert rig.http.get(path, headers=headers).status_code == status


def test_a_status_shows_the_current_state_of_each_endpoint(flights: Site) -> None:
    def is_shown() -> None:
        status = flights.rig.http.get(f"{flights.path}/status").json()
        for endpoint in status["readers"]:
            assert endpoint.pop("progress", None) is None
            assert endpoint.pop("lag_messages", None) is None
        for endpoint in (*status["readers"], *status["writers"]):
            # Only the status has it, so a heartbeat without changes leaves a list unchanged.
            del endpoint["last_heartbeat_at"]
        listed = flights.listed()
        for role in ("reader", "writer"):
            shown = status[f"{role}s"]
            assert shown == [entry for entry in listed if entry["role"] == role]
        (group,) = status["groups"]
        assert group["members"] == sum(reader["state"] == "opened" for reader in status["readers"])

    writer = flights.attach("writer")
    members = [flights.member(index, size=2) for index in (0, 1)]
    is_shown()
    # Changes of counters only are shown after the next other change.
    flights.beat(*(report(endpoint, counters={"records": 3}) for endpoint in (writer, *members)))
    flights.beat(report(writer, "started", payload={"at": 1}), report(members[0]))
    is_shown()
    flights.member(1, size=2, title="the next one")
    is_shown()
    flights.detach(members[0], "error", cause="why")
    is_shown()
    flights.detach(writer, ends={"0": 7})
    is_shown()
