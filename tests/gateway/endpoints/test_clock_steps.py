"""Steps of the wall clock by an hour change no outcome."""

from datetime import timedelta

import pytest

from endpoints import Site, report
from sluiceway_gateway.endpoints.session_store import MAX_BEATS_AHEAD


@pytest.mark.long
@pytest.mark.parametrize("hours", [1, -1])
def test_attach_heartbeat_commit_and_reset_survive_clock_steps(flights: Site, hours: int) -> None:
    clock, key = flights.rig.clock, {"Idempotency-Key": "a-reset"}
    reader = flights.member()
    assert flights.commit(reader, 1, (0, 5, 0)).status_code == 200
    clock.advance(timedelta(hours=hours))
    # Late repeats of earlier requests, and new ones.
    assert flights.member(id=reader["id"])["epoch"] == reader["epoch"]
    assert flights.commit(reader, 1, (0, 3, 0)).json()["positions"][0]["offset"] == 5
    assert flights.commit(reader, 2, (0, 9, 0)).status_code == 200
    assert flights.beat(report(reader, "started"))[0]["status"] == "ok"
    assert flights.beat(report(reader, "opened"), beat=1)[0]["status"] == "ok"
    assert flights.get(reader)["state"] == "started"
    successor = flights.member()
    assert successor["epoch"] == reader["epoch"] + 1
    assert flights.commit(reader, 3, (0, 10, 0)).status_code == 409
    assert flights.detach(successor).status_code == 200
    first = flights.reset((0, 2, 0), headers=key)
    clock.advance(timedelta(hours=-2 * hours))
    again = flights.reset((0, 2, 0), headers=key)
    assert (again.status_code, again.json()) == (200, first.json())
    assert flights.committed() == [(0, 2, 0)]
    assert flights.commit(flights.member(), 1, (0, 4, 0)).status_code == 200


def test_a_heartbeat_from_the_future_affects_only_its_own_session(flights: Site) -> None:
    reader, other = flights.attach(), Site(rig=flights.rig, name=flights.name, uid=flights.uid)
    bystander = other.attach()
    flights.beat(report(reader, "started"), beat=MAX_BEATS_AHEAD)
    # Every later heartbeat is outdated, whatever its number.
    assert flights.beat(report(reader, "stopped"), beat=1)[0]["status"] == "ok"
    assert flights.get(reader)["state"] == "started"
    assert other.beat(report(bystander, "started"))[0]["status"] == "ok"
    assert flights.get(bystander)["state"] == "started"
    # It can still leave.
    assert flights.detach(reader).json()["state"] == "closed"
