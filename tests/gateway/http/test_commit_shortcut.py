"""The short way for commits answers as the ordinary route does."""

import json
from typing import Any

import pytest
from attaching import TOPIC_ID, Site, fresh_id, site
from gateway_rig import Rig

ORDINARY = "application/json; charset=utf-8"
"""What the short way leaves to the route."""


@pytest.fixture
def flights(shared_rig: Rig) -> Site:
    return site(shared_rig, f"flights-{fresh_id()}", partitions=4)


def both(flights: Site, endpoint: Any, change: Any, headers: dict[str, str]) -> list[Any]:
    """Send a commit by the short way and by the ordinary one; return status and problem of each."""
    answers = []
    for content_type in ("application/json", ORDINARY):
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
        answer = flights.rig.http.put(
            path, content=content, headers={"Content-Type": content_type} | headers
        )
        problem = answer.json()
        told = {name: problem.get(name) for name in ("code", "errors", "retriable", "number")}
        answers.append((answer.status_code, told, answer.headers["content-type"]))
    return answers


def changed(**fields: Any) -> Any:
    return lambda body, _path: body.update(fields)


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
        (changed(positions=[{"partition": 9, "offset": 5, "record": 0}]), 409),
        (changed(epoch=7), 409),
        (changed(generation=7), 409),
        (changed(topic_id="another"), 409),
        (changed(id=fresh_id()), 404),
        (changed(uid=fresh_id()), 409),
        (lambda _body, path: path.replace("flights", "nowhere-"), 404),
        (lambda _body, path: path.replace("flights", "NOT-A-NAME"), 422),
        (lambda _body, path: path.replace("/g/", "/-g/"), 422),
        (lambda _body, path: f"{path}?wait=3", 422),
        (b"{", 422),
        (b'{"uid": NaN}', 422),
        (b'{"uid": "a", "uid": "b"}', 422),
        (b"\xff", 422),
        (b"", 422),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, bytes | int) else "",
)
def test_both_ways_give_the_same_answer(flights: Site, change: Any, status: int) -> None:
    short, ordinary = both(flights, flights.member(), change, {})
    assert short == ordinary
    assert short[0] == status


def test_both_ways_ask_for_a_token_that_may_read_the_channel(rig: Rig) -> None:
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
        short, ordinary = both(flights, reader, changed(), headers)
        assert short == ordinary
        assert short[0] == status
        # Whoever may not commit is not told what is wrong with the commit.
        short, ordinary = both(flights, reader, b"{", headers)
        assert short == ordinary
        assert short[0] == (401 if status == 401 else 422)
    assert both(flights, reader, changed(), good)[0][0] == 200


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}], ids=str
)
def test_a_gateway_without_tokens_serves_its_own_machine_alone(
    flights: Site, headers: dict[str, str]
) -> None:
    reader = flights.member()
    short, ordinary = both(flights, reader, changed(), headers)
    assert short == ordinary
    assert short[0] == 403
    assert flights.committed() == []


def test_a_body_without_a_length_or_beyond_the_limit_goes_the_ordinary_way(flights: Site) -> None:
    reader = flights.member()

    def pieces() -> Any:
        yield b'{"uid": "'
        yield flights.uid.encode()
        yield b'"}'

    path = flights.offsets_path("g")
    headers = {"Content-Type": "application/json"}
    chunked = flights.rig.http.put(path, content=pieces(), headers=headers)
    assert chunked.status_code == 422
    large = flights.rig.http.put(path, content=b" " * (1024 * 1024 + 1), headers=headers)
    assert large.status_code == 413
    assert flights.commit(reader, 1, (0, 5, 0)).status_code == 200


def test_commits_are_counted_under_their_route(rig: Rig) -> None:
    flights = site(rig)
    both(flights, flights.member(), changed(), {})
    text = rig.http.get("/metrics").text
    counted = 'method="PUT",route="/v1/channels/{name}/groups/{group}/offsets",status="200"'
    assert f"sluiceway_http_requests_total{{{counted}}} 2.0" in text
