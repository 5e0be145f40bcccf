"""Commits over HTTP: malformed requests, tokens, and use of the write connection."""

import json
from typing import Any

import pytest
from sqlalchemy import select

from endpoints import Site, fresh_id, site
from gateways import TOPIC_ID, Rig
from sluiceway_gateway.endpoints.tables import positions

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def flights(shared_rig: Rig) -> Site:
    return site(shared_rig, f"flights-{fresh_id()}", partitions=4)


def send(
    flights: Site, endpoint: Any, change: Any = None, headers: dict[str, str] | None = None
) -> Any:
    """Send a commit; `change` replaces the body, or changes the body or the path."""
    body = {
        "uid": flights.uid,
        "id": endpoint["id"],
        "epoch": endpoint["epoch"],
        "generation": endpoint["generation"],
        "topic_id": TOPIC_ID,
        "number": 1,
        "positions": [{"partition": 0, "offset": 5, "record": 0}],
    }
    path = flights.offsets_path("g")
    if callable(change):
        path = change(body, path) or path
    content = change if isinstance(change, bytes) else json.dumps(body)
    return flights.rig.http.put(path, content=content, headers=JSON | (headers or {}))


def changed(**fields: Any) -> Any:
    return lambda body, _path: body.update(fields)


@pytest.mark.sample
@pytest.mark.parametrize(
    ("change", "status"),
    [
        (changed(), 200),
        (changed(number=0), 422),
        (changed(number="1"), 422),
        (changed(unknown=1), 422),
        (changed(positions=[]), 422),
        (changed(positions=[{"partition": 0, "offset": -1, "record": 0}]), 422),
        (changed(positions=[{"partition": 0, "offset": 2**63, "record": 0}]), 422),
        (changed(epoch=7), 409),
        (changed(id=fresh_id()), 404),
        (changed(uid=fresh_id()), 409),
        (lambda _body, path: path.replace("flights", "nowhere-"), 404),
        (lambda _body, path: path.replace("flights", "NOT%20A%20NAME"), 422),
        (lambda _body, path: path.replace("/g/", "/%07/"), 422),
        (lambda _body, path: f"{path}?wait=3", 422),
        (b"{", 400),
        (b'{"uid": NaN}', 400),
        (b'{"uid": "a", "uid": "b"}', 422),
        (b"\xff", 400),
        (b"", 400),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, bytes | int) else "",
)
def test_an_invalid_commit_is_answered_with_its_error(
    flights: Site, change: Any, status: int
) -> None:
    response = send(flights, flights.member(), change)
    assert response.status_code == status, response.text
    if status != 200:
        assert response.headers["content-type"] == "application/problem+json"
        assert flights.committed() == []


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json; charset=utf-8", 200),
        ("Application/JSON", 200),
        ("text/plain", 415),
        ("", 415),
    ],
)
def test_a_body_requires_a_json_content_type(flights: Site, content_type: str, status: int) -> None:
    response = send(flights, flights.member(), headers={"Content-Type": content_type})
    assert response.status_code == status


def test_all_violations_of_the_query_the_path_or_the_body_are_reported(flights: Site) -> None:
    def invalid_path(body: Any, path: str) -> str:
        body.update(number=0, unknown=1)
        return path.replace("/g/", "/%07/").replace("flights", "NOT%20A%20NAME")

    for change, expected in (
        (lambda _body, path: f"{path}?a=1&a=2&b=3", ["query:a", "query:b"]),
        (invalid_path, ["path:name", "path:group"]),
        (changed(number=0, unknown=1), ["/number", "/unknown"]),
    ):
        errors = send(flights, flights.member(), change).json()["errors"]
        assert [error["pointer"] for error in errors] == expected


def test_a_commit_needs_a_token_that_may_read_the_channel(rig: Rig) -> None:
    flights = site(rig)
    reader = flights.member()
    good = rig.token("read:flights")
    refused = [
        ({}, 401),
        ({"Authorization": "Bearer x"}, 401),
        ({"Authorization": "Basic eA=="}, 401),
        (rig.token("write:flights"), 403),
        (rig.token("read:others"), 403),
    ]
    for headers, status in refused:
        # The body is not read, so the response does not mention it.
        for body in (None, b"{", changed(number=0)):
            assert send(flights, reader, body, headers).status_code == status
    assert send(flights, reader, headers=good).status_code == 200


def test_a_bad_token_never_opens_a_write_transaction(rig: Rig) -> None:
    flights = site(rig)
    reader, good = flights.member(), rig.token("read:flights")
    assert send(flights, reader, headers=good).status_code == 200
    unknown = {"Authorization": f"Bearer slw_{'0' * 16}_{'0' * 64}"}
    with rig.database.write():
        # SQLite has one writer: other writes are refused after a timeout.
        for headers in ({}, unknown, {"Authorization": "Bearer x"}):
            assert send(flights, reader, headers=headers).status_code == 401


@pytest.mark.long
def test_a_revoked_token_commits_nothing(rig: Rig) -> None:
    flights = site(rig)
    reader, token = flights.member(), rig.token("read:flights")
    assert send(flights, reader, headers=token).status_code == 200
    rig.tokens.revoke(token["Authorization"].split("_")[1])
    later = changed(number=2, positions=[{"partition": 0, "offset": 9, "record": 0}])
    for _ in range(2):
        assert send(flights, reader, later, token).status_code == 401
    with rig.database.read() as tx:
        (row,) = tx.execute(select(positions)).all()
    assert row.next_offset == 5


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}], ids=str
)
def test_a_gateway_without_tokens_serves_only_loopback(
    flights: Site, headers: dict[str, str]
) -> None:
    reader = flights.member()
    assert send(flights, reader, headers=headers).status_code == 403
    assert flights.committed() == []


def test_a_chunked_body_is_accepted_up_to_the_limit(flights: Site) -> None:
    reader = flights.member()
    path = flights.offsets_path("g")

    def pieces(*parts: bytes) -> Any:
        yield from parts

    cut = pieces(b'{"uid": "', flights.uid.encode(), b'"}')
    chunked = flights.rig.http.put(path, content=cut, headers=JSON)
    assert chunked.status_code == 422
    assert "/uid" not in [error["pointer"] for error in chunked.json()["errors"]]
    for content in (b" " * (1024 * 1024 + 1), pieces(*[b" " * 1024] * 1025)):
        large = flights.rig.http.put(path, content=content, headers=JSON)
        assert large.status_code == 413
    assert flights.commit(reader, 1, (0, 5, 0)).status_code == 200


def test_commits_are_counted_under_their_route(rig: Rig) -> None:
    flights = site(rig)
    reader = flights.member()
    send(flights, reader)
    send(flights, reader)
    text = rig.http.get("/metrics").text
    counted = 'method="PUT",route="/v1/channels/{name}/groups/{group}/offsets",status="200"'
    assert f"sluiceway_http_requests_total{{{counted}}} 2.0" in text
