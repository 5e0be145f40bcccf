"""Heartbeat timeouts of members, and members that keep their places over restarts."""

from typing import Any

import pytest

from endpoints import Site, fresh_id, report, site
from gateways import Rig, code
from sluiceway_gateway.endpoints.liveness import Reaper


@pytest.fixture
def flights(rig: Rig) -> Site:
    return site(rig, partitions=4, heartbeat={"interval_ms": 2000, "timeout_ms": 60_000})


def asked(flights: Site, **heartbeat: int) -> Any:
    return flights.post_attach(group="d", dynamic=True, heartbeat=heartbeat)


@pytest.mark.long
def test_the_interval_is_a_sixth_of_the_timeout_and_at_most_the_channels(flights: Site) -> None:
    for timeout_ms, interval_ms in ((300, 100), (3000, 500), (30_000, 2000), (60_000, 2000)):
        response = asked(flights, timeout_ms=timeout_ms).json()
        times = {"interval_ms": interval_ms, "timeout_ms": timeout_ms}
        assert response["heartbeat"] == response["endpoint"]["heartbeat"] == times
        assert flights.get(response["endpoint"])["heartbeat"] == times
    assert asked(flights, interval_ms=5000).json()["heartbeat"]["timeout_ms"] == 60_000
    assert flights.join()["heartbeat"] == {"interval_ms": 2000, "timeout_ms": 60_000}


def test_times_outside_the_channels_bounds_are_refused_and_attach_nothing(flights: Site) -> None:
    for heartbeat, advice in (
        ({"timeout_ms": 60_001}, "the channel's, which is 60000 ms. Request at most that"),
        ({"timeout_ms": 3000, "interval_ms": 1001}, "Request at most 1000 ms"),
    ):
        refused = asked(flights, **heartbeat)
        assert (refused.status_code, code(refused)) == (409, "patience_out_of_bounds")
        assert advice in refused.json()["detail"]
    for heartbeat in ({"timeout_ms": 299}, {"interval_ms": 99}, {"timeout_ms": 3_600_001}):
        assert asked(flights, **heartbeat).status_code == 422
    assert flights.listed() == []


def test_a_session_has_the_shortest_interval_of_its_endpoints(flights: Site) -> None:
    usual = flights.join()
    assert flights.send(report(usual)).json()["next_ms"] == 2000
    brisk = asked(flights, timeout_ms=3000).json()["endpoint"]
    assert flights.send(report(usual), report(brisk)).json()["next_ms"] == 500


def test_each_member_is_lost_after_its_own_timeout(rig: Rig, flights: Site) -> None:
    now_s = 0.0
    reaper = Reaper(database=rig.database, clock=rig.clock, monotonic=lambda: now_s)
    usual = flights.join()
    brisk = asked(flights, timeout_ms=3000).json()["endpoint"]
    healths = []
    while now_s < 7:
        pause_s = reaper.run_once().pause_s
        healths.append((now_s, flights.get(usual)["health"], flights.get(brisk)["health"]))
        now_s += pause_s
    changes = {sample[1:]: sample[0] for sample in reversed(healths)}
    assert changes == {
        ("healthy", "healthy"): 0,
        ("healthy", "suspect"): pytest.approx(1.5, abs=0.3),
        ("healthy", "lost"): pytest.approx(3, abs=0.3),
        ("suspect", "lost"): pytest.approx(6, abs=0.3),
    }


def test_a_lower_timeout_of_the_channel_holds_for_members_with_a_higher_one(
    rig: Rig, flights: Site
) -> None:
    patient = asked(flights, timeout_ms=30_000).json()["endpoint"]
    rig.put("flights", heartbeat={"interval_ms": 1000, "timeout_ms": 10_000})
    times = {"interval_ms": 1000, "timeout_ms": 10_000}
    assert flights.get(patient)["heartbeat"] == times
    assert flights.send(report(patient)).json()["next_ms"] == 1000
    status = rig.http.get(f"{flights.path}/status").json()
    assert [reader["heartbeat"] for reader in status["readers"]] == [times]


def shares(flights: Site, *members: Any) -> list[list[int]]:
    for member in members:
        generation = flights.sync(member).json()["generation"]
        has = flights.sync(member).json()["has"]
        assert flights.sync(member, take=generation, has=has).json()["taken"]
    return [flights.sync(member).json()["held"] for member in members]


@pytest.mark.long
def test_a_restart_with_the_same_static_id_takes_index_and_partitions_at_once(
    flights: Site,
) -> None:
    first, second = flights.join(static_id="a"), flights.join(static_id="b")
    assert shares(flights, first, second) == [[0, 2], [1, 3]]
    again = flights.join(static_id="a")
    assert (again["index"], again["static_id"]) == (first["index"], "a")
    assert again["epoch"] > second["epoch"]
    assert shares(flights, again) == [[0, 2]]
    assert flights.sync(second).json()["held"] == [1, 3]
    refused = flights.sync(first)
    assert (refused.status_code, code(refused)) == (409, "fenced")
    assert flights.beat(report(first))[0]["status"] == "fenced"
    assert shares(flights, second, again) == [[1, 3], [0, 2]]


@pytest.mark.long
@pytest.mark.parametrize("end", ["closed", "error", "lost", "removed"])
def test_a_static_id_keeps_its_index_and_the_ended_instance_stays_fenced(
    rig: Rig, flights: Site, end: str
) -> None:
    first = flights.join(static_id="a")
    second = flights.join(session=fresh_id(), static_id="b")
    if end == "lost":
        now_s = 0.0
        reaper = Reaper(database=rig.database, clock=rig.clock, monotonic=lambda: now_s)
        while flights.get(first)["health"] != "lost":
            now_s += reaper.run_once().pause_s
    elif end == "removed":
        path = f"{flights.path}/endpoints/{first['id']}"
        assert rig.http.delete(path, params={"uid": flights.uid}).status_code == 200
    else:
        assert flights.detach(first, end).status_code == 200
    again = flights.join(session=fresh_id(), static_id="a")
    assert again["index"] == first["index"]
    assert shares(flights, again)[0][0] == 0
    assert flights.beat(report(first, "started"))[0]["status"] == "fenced"
    assert flights.get(first)["superseded"]
    if end != "lost":
        assert shares(flights, second, again) == [[1, 3], [0, 2]]


def test_static_ids_are_scoped_to_a_dynamic_group(flights: Site) -> None:
    first, other = flights.join(static_id="a"), flights.join("e", static_id="a")
    assert first["index"] == other["index"] == 0
    assert not flights.get(first)["superseded"]
    for place in ({}, {"group": "g", "index": 0, "size": 1}):
        assert flights.post_attach(static_id="a", **place).status_code == 422
    for wrong in ("", "a\n", "x" * 250):
        assert flights.post_attach(group="d", dynamic=True, static_id=wrong).status_code == 422
    reused = flights.post_attach(id=first["id"], group="d", dynamic=True, static_id="b")
    assert (reused.status_code, code(reused)) == (409, "endpoint_id_reused")
