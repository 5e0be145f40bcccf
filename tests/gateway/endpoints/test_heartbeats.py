from datetime import UTC, datetime
from typing import Any

import pytest

from endpoints import Site, fresh_id, report, site
from gateways import Rig, code
from sluiceway_gateway.status.sample_store import channels_in_use, reader_snapshots


@pytest.fixture
def flights(rig: Rig) -> Site:
    return site(rig, partitions=4, heartbeat={"interval_ms": 700, "timeout_ms": 5000})


@pytest.mark.long
def test_a_heartbeat_stores_states_and_counters_and_returns_counterparts(flights: Site) -> None:
    reader, writer = flights.member(), flights.attach("writer")
    response = flights.send(
        report(reader, "started", counters={"records": 12, "seconds": 0.5}, seen=None),
        report(writer, payload={"batch": [1, None]}, seen=None),
    ).json()
    assert response["next_ms"] == 700
    first, second = response["endpoints"]
    assert first == {
        "id": reader["id"],
        "status": "ok",
        "reason": None,
        "health": "healthy",
        "asked": None,
        "endpoints_revision": 3,
        "generation": 1,
        "partitions": 4,
        "counterparts": [
            {
                "id": writer["id"],
                "role": "writer",
                "group": None,
                "index": 0,
                "size": None,
                "state": "opened",
                "health": "healthy",
                "cause": None,
                "payload": {"batch": [1, None]},
                "ends": None,
                "lost_at": None,
                "number": writer["number"],
                "settled": None,
            }
        ],
    }
    assert [counterpart["id"] for counterpart in second["counterparts"]] == [reader["id"]]
    stored = flights.get(reader)
    assert (stored["state"], stored["counters"]) == ("started", {"records": 12, "seconds": 0.5})
    assert [event["state"] for event in stored["events"]] == ["opened", "started"]


def test_counterparts_are_sent_on_change_to_listening_endpoints(flights: Site) -> None:
    reader, writer = flights.attach(), flights.attach("writer")
    revision = flights.beat(report(reader))[0]["endpoints_revision"]

    def told() -> Any:
        return flights.beat(report(reader, seen=revision))[0]["counterparts"]

    assert flights.beat(report(reader))[0]["counterparts"] is None
    assert told() is None
    flights.beat(report(writer, counters={"records": 5}))
    assert told() is None
    flights.beat(report(writer, payload={}, counters={"records": 5}))
    assert [counterpart["payload"] for counterpart in told()] == [{}]
    flights.beat(report(writer, "started", payload={}))
    assert [counterpart["state"] for counterpart in told()] == ["started"]
    flights.detach(writer, ends={"1": 5})
    assert [(counterpart["state"], counterpart["ends"]) for counterpart in told()] == [
        ("closed", {"1": 5})
    ]
    flights.rig.http.delete(f"{flights.path}/endpoints/{writer['id']}", params={"uid": flights.uid})
    assert [(counterpart["id"] == writer["id"], counterpart["ends"]) for counterpart in told()] == [
        (False, {"1": 5})
    ]


def test_reported_positions_stay_until_the_next_report(flights: Site) -> None:
    reader, rig = flights.member(), flights.rig

    def reached() -> Any:
        with rig.database.read() as tx:
            (snapshot,) = reader_snapshots(tx, channels_in_use(tx), now=datetime.now(UTC)).values()
        return snapshot.readers[0].positions

    flights.beat(report(reader, positions={"0": [120, 3], "3": [7, 0]}))
    assert reached() == {0: 120, 3: 7}
    flights.beat(report(reader, "started", counters={"n": 1}))
    flights.beat(report(reader, "started", counters={"n": 1}, positions=None))
    assert reached() == {0: 120, 3: 7}
    # With a change that others see, and back, which is the reader's to say.
    flights.beat(report(reader, "stopped", counters={"n": 2}, positions={"0": [5, 0]}))
    assert (reached(), flights.get(reader)["counters"]) == ({0: 5}, {"n": 2})
    flights.beat(report(reader, "stopped", positions={"0": [9, 0]}), beat=1)
    assert reached() == {0: 5}


def test_repeated_and_late_and_reordered_heartbeats_change_nothing(flights: Site) -> None:
    reader = flights.attach()
    flights.beat(report(reader, "started", counters={"n": 1}), beat=5)
    for number in (5, 4, 1):
        (reply,) = flights.beat(report(reader, "error", counters={"n": 9}), beat=number)
        assert (reply["status"], reply["health"]) == ("ok", "healthy")
    assert flights.get(reader)["state"] == "started"
    assert flights.get(reader)["counters"] == {"n": 1}
    flights.beat(report(reader, "stopped", counters={"n": 2}), beat=1_000_000)
    assert flights.get(reader)["counters"] == {"n": 2}


def test_an_error_of_one_endpoint_does_not_affect_the_others(flights: Site) -> None:
    reader, old, gone = flights.attach(), flights.member(), fresh_id()
    flights.member()
    stranger = Site(rig=flights.rig, name=flights.name, uid=flights.uid).attach()
    replies = flights.beat(
        report(old, "started"),
        report({"id": gone, "epoch": 1}, "started"),
        report(stranger, "started"),
        report(reader | {"epoch": reader["epoch"] + 1}, "stopped"),
    )
    assert [reply["status"] for reply in replies] == ["fenced", "gone", "gone", "fenced"]
    assert all(reply["reason"] and reply["counterparts"] is None for reply in replies)
    (reply, _) = flights.beat(report(reader, "started"), report(old))
    assert reply["status"] == "ok"
    assert {endpoint["state"] for endpoint in flights.listed()} == {"opened", "started"}
    assert flights.get(old)["state"] == "opened"


def test_a_fenced_endpoint_gets_the_reason_without_its_successors_id(flights: Site) -> None:
    taken, dismissed, resized = flights.member(), flights.attach(), flights.member(group="r")
    new = flights.member()
    path = f"{flights.path}/endpoints/{dismissed['id']}"
    flights.rig.http.delete(path, params={"uid": flights.uid})
    flights.resize(2, 1, group="r")
    replies = flights.beat(report(taken), report(dismissed), report(resized))
    for reply, words in zip(
        replies,
        (
            "another instance took that place at 20",
            "loopback dismissed it at 20",
            "the group was resized from 1 to 2",
        ),
        strict=True,
    ):
        assert reply["status"] == "fenced"
        assert words in reply["reason"]
    refused = flights.commit(taken, 1, (0, 1, 0))
    assert "another instance took that place" in refused.json()["detail"]
    assert new["id"] not in refused.text + str(replies)


def test_an_illegal_transition_is_refused_and_the_rest_of_the_heartbeat_counts(
    flights: Site,
) -> None:
    reader = flights.attach()
    flights.beat(report(reader, "stopped"))
    for state, words in (("started", "is stopped and cannot become started"), ("closed", "detach")):
        (reply,) = flights.beat(report(reader, state, counters={"n": 3}, payload={"a": 1}))
        assert (reply["status"], reply["health"]) == ("refused", "healthy")
        assert words in reply["reason"]
    stored = flights.get(reader)
    assert (stored["state"], stored["counters"], stored["payload"]) == (
        "stopped",
        {"n": 3},
        {"a": 1},
    )


def test_a_failed_endpoint_may_open_again(flights: Site) -> None:
    reader = flights.attach()
    flights.detach(reader, "error", cause="no memory")
    assert flights.beat(report(reader, "opened"))[0]["status"] == "ok"
    stored = flights.get(reader)
    assert (stored["state"], stored["cause"]) == ("opened", None)


def test_a_closed_endpoint_is_unchanged_by_heartbeats(flights: Site) -> None:
    reader = flights.attach()
    gone = flights.detach(reader, counters={"n": 1}).json()
    assert flights.beat(report(reader, "closed", counters={"n": 2}))[0]["status"] == "ok"
    assert flights.beat(report(reader, "error", payload={}))[0]["status"] == "refused"
    assert flights.listed() == [gone]


def test_endpoints_of_a_closing_or_deleted_channel_are_asked_to_finish(
    flights: Site,
) -> None:
    reader, writer = flights.attach(), flights.attach("writer")
    both = (report(reader), report(writer))
    assert [reply["asked"] for reply in flights.beat(*both)] == [None, None]
    for force in (False, True):
        flights.rig.http.post(f"{flights.path}/close", json={"uid": flights.uid, "force": force})
        assert [reply["asked"] for reply in flights.beat(*both)] == ["finish", "finish"]
    flights.rig.http.delete(flights.path, params={"uid": flights.uid, "force": True})
    assert [reply["asked"] for reply in flights.beat(*both)] == ["finish", "finish"]


def test_a_heartbeat_needs_the_scope_of_each_endpoint(flights: Site) -> None:
    reader, writer = flights.attach(), flights.attach("writer")
    flights.rig.http.headers.update(flights.rig.token("read"))
    replies = flights.beat(report(reader, "started"), report(writer, "started", seen=None))
    assert [reply["status"] for reply in replies] == ["ok", "refused"]
    assert "a token with the scope write does" in replies[1]["reason"]
    assert flights.get(writer)["state"] == "opened"


def test_a_heartbeat_without_endpoints_is_accepted(flights: Site) -> None:
    response = flights.send(session=fresh_id()).json()
    assert response == {"next_ms": 2000, "beat": 0, "endpoints": []}


@pytest.mark.sample
@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"session": "x"}, "/session"),
        ({"beat": 0}, "/beat"),
        ({"beat": -1}, "/beat"),
        ({"beat": 2**63}, "/beat"),
        ({"beat": "1"}, "/beat"),
        ({"beat": 1.5}, "/beat"),
        ({"endpoints": None}, "/endpoints"),
        ({"more": 1}, "/more"),
    ],
    ids=str,
)
def test_an_invalid_field_of_a_heartbeat_is_named(
    flights: Site, body: dict[str, Any], pointer: str
) -> None:
    response = flights.send(**body)
    assert (response.status_code, code(response)) == (422, "invalid_request")
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"epoch": None}, "/epoch"),
        ({"epoch": 0}, "/epoch"),
        ({"state": "lost"}, "/state"),
        ({"seen": -1}, "/seen"),
        ({"counters": {"n": -1}}, "/counters"),
        ({"counters": {"": 1}}, "/counters"),
        ({"counters": {"n": True}}, "/counters"),
        ({"counters": {str(number): 1 for number in range(33)}}, "/counters"),
        ({"payload": {"text": "ü" * 2048}}, "/payload"),
        ({"payload": []}, "/payload"),
        ({"positions": []}, "/positions"),
        ({"positions": {"x": [1, 0]}}, "/positions"),
        ({"positions": {"0": [1]}}, "/positions"),
        ({"positions": {"0": [1, 0, 0]}}, "/positions"),
        ({"positions": {"0": [-1, 0]}}, "/positions"),
        ({"positions": {"0": [2**63, 0]}}, "/positions"),
        ({"positions": {str(partition): [0, 0] for partition in range(10_001)}}, "/positions"),
        ({"offsets": {}}, "/offsets"),
    ],
    ids=lambda parameter: str(parameter)[:40],
)
def test_an_invalid_field_of_a_report_is_named(
    flights: Site, body: dict[str, Any], pointer: str
) -> None:
    reader = flights.attach()
    response = flights.send(report(reader, "started") | body)
    assert (response.status_code, code(response)) == (422, "invalid_request")
    assert response.json()["errors"][0]["pointer"].startswith(f"/endpoints/0{pointer}")
    assert flights.get(reader)["state"] == "opened"


def test_an_endpoint_is_at_most_once_in_a_heartbeat(flights: Site) -> None:
    reader = flights.attach()
    assert code(flights.send(report(reader), report(reader, "started"))) == "invalid_request"


def test_a_payload_of_maximum_size_is_relayed(flights: Site) -> None:
    writer, reader = flights.attach("writer"), flights.attach()
    payload = {"text": "x" * (4096 - len('{"text":""}'))}
    flights.beat(report(writer, payload=payload))
    (reply,) = flights.beat(report(reader, seen=None))
    assert reply["counterparts"][0]["payload"] == payload
