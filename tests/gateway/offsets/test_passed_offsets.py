"""Waiting until a group has committed past offsets."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from endpoints import Site, fresh_id, site
from gateways import TOPIC_ID, Rig, code
from waiting import until


@pytest.fixture
def flights(shared_rig: Rig) -> Site:
    return site(shared_rig, f"flights-{fresh_id()}", partitions=4)


def asked(
    flights: Site, offsets: dict[str, int], *, group: str = "g", wait: float = 0, **body: Any
) -> httpx.Response:
    content = {"uid": flights.uid, "topic_id": TOPIC_ID, "offsets": offsets} | body
    path = f"{flights.offsets_path(group)}/passed"
    return flights.rig.http.post(path, json=content, params={"wait": wait} if wait else None)


def test_missing_messages_are_returned_by_partition(flights: Site) -> None:
    reader = flights.member()
    flights.commit(reader, 1, (0, 5, 0), (1, 9, 0))
    response = asked(flights, {"0": 5, "1": 12, "2": 1})
    assert response.json() == {
        "passed": False,
        "known": True,
        "lacking": 2,
        "missing": [
            {"index": None, "partition": 1, "committed": 9, "wanted": 12},
            {"index": None, "partition": 2, "committed": None, "wanted": 1},
        ],
    }
    assert asked(flights, {"0": 5, "1": 9}).json()["passed"]
    # A position within the last message does not pass it.
    flights.commit(reader, 2, (0, 6, 3))
    assert not asked(flights, {"0": 7}).json()["passed"]
    # A known group has passed all offsets that were never written.
    assert asked(flights, {}).json()["passed"]


def test_positions_of_another_topic_are_ignored(flights: Site) -> None:
    flights.commit(flights.member(), 1, (0, 5, 0))
    response = asked(flights, {"0": 1}, topic_id="another").json()
    assert [partition["committed"] for partition in response["missing"]] == [None]


def test_each_member_of_a_broadcast_group_has_to_pass(flights: Site) -> None:
    first = flights.member(0, 2, mode="broadcast")
    flights.commit(first, 1, (0, 5, 0))
    response = asked(flights, {"0": 5}).json()
    assert response["missing"] == [{"index": 1, "partition": 0, "committed": None, "wanted": 5}]
    second = flights.member(1, 2, mode="broadcast")
    flights.commit(second, 1, (0, 6, 0))
    assert asked(flights, {"0": 5}).json()["passed"]


def test_a_wait_ends_with_the_awaited_commit_and_not_before(flights: Site) -> None:
    reader = flights.member()
    changes = flights.rig.app.state.parts.changes
    with ThreadPoolExecutor() as pool:
        waits = [pool.submit(asked, flights, {"0": 5}, wait=60) for _ in range(3)]
        until(lambda: changes.waiting == 3)
        flights.commit(reader, 1, (0, 4, 0))
        assert not any(future.done() for future in waits)
        flights.commit(reader, 2, (0, 5, 0))
        assert all(future.result(30).json()["passed"] for future in waits)
    assert changes.waiting == 0


def test_a_group_without_members_can_be_awaited(flights: Site) -> None:
    response = asked(flights, {"0": 1}, group="later", wait=0.1)
    assert response.json() == {"passed": False, "known": False, "lacking": 0, "missing": []}
    changes = flights.rig.app.state.parts.changes
    with ThreadPoolExecutor() as pool:
        wait = pool.submit(asked, flights, {"0": 1}, group="later", wait=60)
        until(lambda: changes.waiting == 1)
        flights.commit(flights.member(group="later"), 1, (0, 1, 0))
        assert wait.result(30).json()["passed"]


def test_a_disconnected_client_no_longer_waits(flights: Site) -> None:
    changes = flights.rig.app.state.parts.changes
    gone = threading.Event()

    def give_up() -> None:
        path = f"{flights.rig.url}{flights.offsets_path('g')}/passed?wait=60"
        body = {"uid": flights.uid, "topic_id": TOPIC_ID, "offsets": {"0": 1}}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(path, json=body, timeout=0.3)
        gone.set()

    with ThreadPoolExecutor() as pool:
        pool.submit(give_up).result(30)
    until(lambda: gone.is_set() and changes.waiting == 0)


def test_acknowledgement_is_of_one_incarnation_of_the_channel(flights: Site) -> None:
    response = asked(flights, {"0": 1}, uid=fresh_id())
    assert (response.status_code, code(response)) == (409, "uid_mismatch")


@pytest.mark.parametrize("offsets", [{"0": -1}, {"0": 2**63}, {"00": 1}, {"a": 1}, {"0": "1"}, []])
def test_invalid_offsets_are_refused(flights: Site, offsets: Any) -> None:
    response = asked(flights, offsets)
    assert (response.status_code, code(response)) == (422, "invalid_request")
