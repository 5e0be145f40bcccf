"""Owners of sessions: tokens with the label of the session's first token."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest

from endpoints import Site, fresh_id, report, site
from gateways import Rig, code
from sluiceway_gateway.endpoints.session_store import MAX_BEATS_AHEAD

HIGHEST = 2**63 - 1


@pytest.fixture
def flights(rig: Rig) -> Site:
    """A channel, and a session with a token of the label `job`."""
    flights = site(rig, partitions=4)
    become(rig, "job")
    return flights


def become(rig: Rig, label: str, *scopes: str) -> None:
    """Use a new token from now on."""
    rig.http.headers.update(rig.token(*(scopes or ("admin",)), label=label))


def refused(response: httpx.Response) -> None:
    assert (response.status_code, code(response)) == (403, "forbidden")
    assert "another owner" in response.json()["detail"]


def task(endpoint: Any) -> Any:
    return {"endpoint": endpoint["id"], "task": "0", "attempt": 0, "state": "running"}


def seen(flights: Site, endpoint: Any) -> Any:
    current = flights.get(endpoint)
    return {name: current[name] for name in ("state", "health", "counters", "epoch", "events")}


ASKED: dict[str, Callable[[Site, Any], httpx.Response]] = {
    "the highest heartbeat": lambda flights, _: flights.send(beat=HIGHEST),
    "an old heartbeat": lambda flights, _: flights.send(beat=1),
    "a heartbeat for all": lambda flights, _: flights.send(beat=2, keeps=True),
    "a heartbeat for one": lambda flights, reader: flights.send(report(reader, "error"), beat=2),
    "a task": lambda flights, reader: flights.send(beat=2, tasks=[task(reader)]),
    "an attach": lambda flights, _: flights.post_attach(),
    "an attach to a group": lambda flights, _: flights.post_attach(group="h", index=0, size=1),
    "an attach again": lambda flights, reader: flights.post_attach(
        id=reader["id"], group="g", index=0, size=1
    ),
    "an attach of a member": lambda flights, _: flights.post_attach(group="d", dynamic=True),
    "a commit": lambda flights, reader: flights.commit(reader, 1, (0, 5, 0)),
    "a detach": lambda flights, reader: flights.detach(reader),
}


@pytest.mark.sample
@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED.keys())
def test_another_owner_is_refused_and_changes_nothing(
    flights: Site, ask: Callable[[Site, Any], httpx.Response]
) -> None:
    reader = flights.member()
    flights.beat(report(reader, "started"))
    before, endpoints = seen(flights, reader), len(flights.listed())

    become(flights.rig, "another job")
    refused(ask(flights, reader))

    become(flights.rig, "job")
    assert (seen(flights, reader), len(flights.listed())) == (before, endpoints)
    assert flights.beat(report(reader, "started", counters={"records": 3}))[0]["status"] == "ok"
    assert flights.get(reader)["counters"] == {"records": 3}
    assert flights.commit(reader, 1, (0, 5, 0)).status_code == 200
    assert flights.committed() == [(0, 5, 0)]


def test_only_the_owner_can_take_an_assignment(flights: Site) -> None:
    member = flights.join()
    become(flights.rig, "another job")
    refused(flights.sync(member, take=member["generation"]))
    become(flights.rig, "job")
    assert flights.sync(member, take=member["generation"]).status_code == 200


def test_tasks_of_another_owner_are_refused_one_by_one(flights: Site) -> None:
    theirs = flights.attach("writer")
    become(flights.rig, "another job")
    own = Site(rig=flights.rig, name=flights.name, uid=flights.uid)
    mine = own.attach("writer")
    tasks = [task(theirs), task(mine)]
    response = own.send(beat=1, session=fresh_id(), tasks=tasks).json()
    replies = {reply["endpoint"]: reply for reply in response["tasks"]}
    assert replies[mine["id"]]["status"] == "ok"
    assert replies[theirs["id"]]["status"] == "refused"
    assert "another owner" in replies[theirs["id"]]["reason"]
    assert flights.get(theirs)["state"] == "opened"


def test_processes_of_one_owner_share_an_endpoint_with_different_tokens(
    flights: Site,
) -> None:
    endpoint = flights.attach("writer")
    become(flights.rig, "job", "write:flights")
    response = flights.send(beat=1, session=fresh_id(), tasks=[task(endpoint)]).json()
    assert [reply["status"] for reply in response["tasks"]] == ["ok"]
    # The request of Spark's planning process for the driver.
    assert flights.post_attach("writer").status_code == 201


def test_a_job_continues_with_a_new_token_of_the_same_label(flights: Site) -> None:
    reader = flights.member()
    flights.rig.clock.advance(timedelta(days=1))
    become(flights.rig, "job", "read:flights")
    assert flights.beat(report(reader, "started"))[0]["status"] == "ok"
    assert flights.commit(reader, 1, (0, 5, 0)).status_code == 200
    assert flights.detach(reader).status_code == 200


def test_a_session_from_open_mode_belongs_to_its_first_user(rig: Rig) -> None:
    flights = site(rig)
    reader = flights.member()
    flights.beat(report(reader, "started"))
    become(rig, "job")
    assert flights.beat(report(reader, "started"))[0]["status"] == "ok"
    become(rig, "another job")
    refused(flights.send(beat=HIGHEST))


def test_a_heartbeat_far_ahead_is_refused_and_the_next_one_counts(rig: Rig) -> None:
    flights = site(rig)
    reader = flights.member()
    flights.beat(report(reader, "started"), beat=3)
    for beat in (HIGHEST, 4 + MAX_BEATS_AHEAD):
        response = flights.send(report(reader, "stopped"), beat=beat)
        assert (response.status_code, code(response)) == (422, "invalid_request")
        assert response.json()["errors"][0]["pointer"] == "/beat"
    assert flights.get(reader)["state"] == "started"
    assert flights.send(report(reader, "stopped"), beat=4).json()["beat"] == 4
    assert flights.get(reader)["state"] == "stopped"


def test_an_outdated_heartbeat_gets_the_number_of_the_last_one(rig: Rig) -> None:
    flights = site(rig)
    reader = flights.member()
    assert flights.send(report(reader, "started"), beat=MAX_BEATS_AHEAD).status_code == 200
    late = flights.send(report(reader, "stopped"), beat=2).json()
    assert late["beat"] == MAX_BEATS_AHEAD
    assert flights.get(reader)["state"] == "started"
    flights.send(report(reader, "stopped"), beat=late["beat"] + 1)
    assert flights.get(reader)["state"] == "stopped"
