"""The short ways for attaching and for beats answer as the ordinary routes do."""

import json
from typing import Any

import pytest
from attaching import Site, fresh_id, report, site
from gateway_rig import Rig

SHORT, ORDINARY = "application/json", "application/json; charset=utf-8"
"""The content types of the short way, and of what it leaves to the route."""
VARIES = {
    "beat",
    "id",
    "epoch",
    "attached_at",
    "changed_at",
    "index",
    "generation",
    "endpoints_revision",
}


@pytest.fixture
def flights(shared_rig: Rig) -> Site:
    return site(shared_rig, f"flights-{fresh_id()}", partitions=4)


def told(answer: Any) -> Any:
    """Return what an answer says, but for what is another's in each."""

    def alike(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: alike(each) for name, each in value.items() if name not in VARIES}
        return [alike(each) for each in value] if isinstance(value, list) else value

    body = alike(answer.json())
    if answer.status_code >= 400:
        body = {name: body.get(name) for name in ("code", "errors", "retriable")}
    kept = ("content-type", "cache-control")
    return answer.status_code, body, {name: answer.headers.get(name) for name in kept}


def both(flights: Site, path: str, bodies: Any, headers: dict[str, str] | None = None) -> Any:
    """Send each of two bodies, which differ in ids alone, one by each way; compare the answers."""
    answers = []
    for content_type in (SHORT, ORDINARY):
        body = bodies()
        content = body if isinstance(body, bytes) else json.dumps(body)
        answers.append(
            flights.rig.http.post(
                path, content=content, headers={"Content-Type": content_type} | (headers or {})
            )
        )
    short, ordinary = map(told, answers)
    assert short == ordinary
    return answers[0]


def asking(flights: Site, **changes: Any) -> Any:
    def body() -> Any:
        asked = {"uid": flights.uid, "id": fresh_id(), "session": flights.session}
        return asked | {"role": "reader"} | changes

    return body


MEMBER: dict[str, Any] = {"group": "g", "index": 0, "size": 2}


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, 201),
        (MEMBER, 201),
        ({"role": "writer", "title": "the writer"}, 201),
        ({"group": "d", "dynamic": True}, 201),
        ({**MEMBER, "group": "b", "mode": "broadcast"}, 201),
        ({**MEMBER, "size": 5, "group": "larger"}, 409),
        ({"uid": "0" * 32}, 409),
        ({"role": "sniffer"}, 422),
        ({"unknown": 1}, 422),
        ({"id": "x"}, 422),
        ({"group": "g"}, 422),
        ({**MEMBER, "index": 2}, 422),
        ({**MEMBER, "index": "0"}, 422),
        ({**MEMBER, "group": "-g"}, 422),
        ({"title": ""}, 422),
    ],
    ids=str,
)
def test_both_ways_attach_alike(flights: Site, changes: Any, status: int) -> None:
    answer = both(flights, f"{flights.path}/endpoints", asking(flights, **changes))
    assert answer.status_code == status
    if status == 201:
        assert answer.headers["cache-control"] == "no-store"
        assert answer.json()["connection"]["schema"]["definition"]["name"] == "R"


@pytest.mark.parametrize("body", [b"{", b'{"uid": NaN}', b'{"a": 1, "a": 2}', b"\xff", b"", b"[]"])
@pytest.mark.parametrize("path", ["endpoints", "heartbeats"])
def test_both_ways_refuse_what_is_not_json_alike(flights: Site, path: str, body: bytes) -> None:
    where = "/v1/heartbeats" if path == "heartbeats" else f"{flights.path}/endpoints"
    assert both(flights, where, lambda: body).status_code == 422


def test_what_names_a_listener_goes_the_ordinary_way(flights: Site) -> None:
    path = f"{flights.path}/endpoints?listener=nowhere"
    assert both(flights, path, asking(flights)).status_code == 422


def test_a_connection_is_told_as_it_is_now(flights: Site) -> None:
    before = flights.ask().json()["connection"]
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
    schema["fields"].append({"name": "b", "type": "long", "default": 0})  # type: ignore[attr-defined]
    flights.rig.put(flights.name, schema=schema, partitions=4)
    after = flights.ask().json()["connection"]
    assert [each["version"] for each in before["schemas"]] == [1]
    assert [each["version"] for each in after["schemas"]] == [1, 2]
    direct = flights.rig.http.get(f"{flights.path}/connection", params={"access": "read"})
    assert direct.json() == after


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
def test_both_ways_take_beats_alike(flights: Site, changes: Any, status: int) -> None:
    def body() -> Any:
        own = Site(rig=flights.rig, name=flights.name, uid=flights.uid)
        here, gone = own.attach(), {"id": fresh_id(), "epoch": 1, "state": "started"}
        reports = [report(here, "started", counters={"records": 5}, positions={"0": [3, 0]}), gone]
        return {"session": own.session, "beat": 1, "endpoints": reports} | changes

    answer = both(flights, "/v1/heartbeats", body)
    assert answer.status_code == status
    if status == 200:
        assert [each["status"] for each in answer.json()["endpoints"]] == ["ok", "gone"]


def test_a_beat_by_the_short_way_is_written_down(flights: Site) -> None:
    endpoint = flights.attach()
    assert flights.beat(report(endpoint, "started", counters={"records": 7}))[0]["status"] == "ok"
    found = flights.get(endpoint)
    assert (found["state"], found["counters"]) == ("started", {"records": 7})


def test_both_ways_ask_for_a_token_that_may(rig: Rig) -> None:
    flights = site(rig)
    reader = flights.attach()
    beats = iter(range(1, 100))

    def beating() -> Any:
        return {"session": flights.session, "beat": next(beats), "endpoints": [report(reader)]}

    attach = f"{flights.path}/endpoints"
    good = rig.token("read:flights")
    for headers, status in (
        ({}, 401),
        ({"Authorization": "Bearer x"}, 401),
        ({"Authorization": "Basic eA=="}, 401),
        (rig.token("write:flights"), 403),
        (rig.token("read:others"), 403),
    ):
        assert both(flights, attach, asking(flights), headers).status_code == status
        beaten = both(flights, "/v1/heartbeats", beating, headers)
        # What a token does not allow is told of each endpoint.
        assert beaten.status_code == (401 if status == 401 else 200)
        if status == 403:
            assert beaten.json()["endpoints"][0]["status"] == "refused"
        # Whoever may not ask is not told what is wrong with the request.
        assert both(flights, attach, lambda: b"{", headers).status_code == (
            401 if status == 401 else 422
        )
    assert both(flights, attach, asking(flights), good).status_code == 201
    beaten = both(flights, "/v1/heartbeats", beating, good)
    assert beaten.json()["endpoints"][0]["status"] == "ok"


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}], ids=str
)
def test_a_gateway_without_tokens_serves_its_own_machine_alone(
    flights: Site, headers: dict[str, str]
) -> None:
    def beating() -> Any:
        return {"session": flights.session, "beat": 1, "endpoints": []}

    attach = f"{flights.path}/endpoints"
    assert both(flights, attach, asking(flights), headers).status_code == 403
    assert both(flights, "/v1/heartbeats", beating, headers).status_code == 403
    assert flights.listed() == []


def test_what_goes_the_short_way_is_counted_under_its_route(rig: Rig) -> None:
    flights = site(rig)
    both(flights, f"{flights.path}/endpoints", asking(flights))
    flights.beat()
    text = rig.http.get("/metrics").text
    for route, status, count in (
        ("/v1/channels/{name}/endpoints", 201, "2.0"),
        ("/v1/heartbeats", 200, "1.0"),
    ):
        counted = f'method="POST",route="{route}",status="{status}"'
        assert f"sluiceway_http_requests_total{{{counted}}} {count}" in text


def test_both_ways_tell_a_status_alike(flights: Site) -> None:
    flights.member()
    http, path = flights.rig.http, f"{flights.path}/status"
    short, ordinary = http.get(path), http.get(path, params={"wait": 0})
    assert short.status_code == ordinary.status_code == 200
    assert short.json() == ordinary.json()
    assert short.headers["etag"] == ordinary.headers["etag"]
    for tag, status in ((short.headers["etag"], 304), ('"another"', 200), ("*", 304)):
        headers = {"If-None-Match": tag}
        same = [http.get(path, headers=headers, params=query) for query in ({}, {"wait": 0})]
        assert [each.status_code for each in same] == [status, status]
        assert same[0].content == same[1].content
    for name in ("nowhere", "NOT-A-NAME"):
        path = f"/v1/channels/{name}/status"
        assert told(http.get(path)) == told(http.get(path, params={"wait": 0}))
    # A body, of which nobody knows what it is for.
    odd = http.request("GET", f"{flights.path}/status", content=b"{}")
    assert odd.status_code == 200


def test_a_status_is_shown_to_those_who_may_see_it(rig: Rig) -> None:
    flights = site(rig)
    path = f"{flights.path}/status"
    for headers, status in (
        (rig.token("read:flights"), 200),
        (rig.token("read:others"), 403),
        ({}, 401),
        ({"Authorization": "Bearer x"}, 401),
    ):
        short, ordinary = (rig.http.get(path, headers=headers, params=q) for q in ({}, {"wait": 0}))
        assert short.status_code == ordinary.status_code == status
        assert status == 200 or told(short) == told(ordinary)


def test_a_status_shows_each_endpoint_as_it_is_now(flights: Site) -> None:
    def is_shown() -> None:
        found = flights.rig.http.get(f"{flights.path}/status").json()
        for each in found["readers"]:
            assert each.pop("progress", None) is None
            assert each.pop("lag_messages", None) is None
        listed = flights.listed()
        for role in ("reader", "writer"):
            shown = found[f"{role}s"]
            assert shown == [each for each in listed if each["role"] == role]
        (group,) = found["groups"]
        assert group["members"] == sum(each["state"] == "opened" for each in found["readers"])

    writer = flights.attach("writer")
    members = [flights.member(index, size=2) for index in (0, 1)]
    is_shown()
    # Counters alone are shown with the next thing that changes.
    flights.beat(*(report(each, counters={"records": 3}) for each in (writer, *members)))
    flights.beat(report(writer, "started", payload={"at": 1}), report(members[0]))
    is_shown()
    flights.member(1, size=2, title="the next one")
    is_shown()
    flights.depart(members[0], "error", cause="why")
    is_shown()
    flights.depart(writer, ends={"0": 7})
    is_shown()
