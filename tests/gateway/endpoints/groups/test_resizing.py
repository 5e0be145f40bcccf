"""Changing the size of a group while its members read."""

import pytest

from endpoints import Site, fresh_id, site
from gateways import Rig, code


@pytest.fixture
def flights(shared_rig: Rig) -> Site:
    return site(shared_rig, f"flights-{fresh_id()}", partitions=4)


def test_a_running_group_is_resized_and_its_members_are_fenced(flights: Site) -> None:
    first, second = flights.member(0, 2), flights.member(1, 2)
    flights.commit(first, 1, (0, 5, 0), (2, 7, 0))
    done = flights.resize(4, 1)
    assert (done.status_code, done.json()) == (200, {"group": "g", "size": 4, "generation": 2})
    for old in (first, second):
        refused = flights.commit(old, 2, (old["index"], 9, 0))
        assert (refused.status_code, code(refused)) == (409, "fenced")
        assert flights.get(old)["events"][-1]["cause"] == "the group was resized from 2 to 4"
    assert flights.listed() == []
    new = flights.post_attach(group="g", index=2, size=4).json()
    assert (new["endpoint"]["partitions"], new["endpoint"]["generation"]) == ([2], 2)
    assert [(e["partition"], e["offset"]) for e in new["positions"]] == [(2, 7)]
    assert code(flights.post_attach(group="g", index=0, size=2)) == "group_size"


def test_a_repeated_resize_changes_nothing_and_an_outdated_one_is_refused(flights: Site) -> None:
    flights.member(0, 2)
    first = flights.resize(3, 1)
    member = flights.member(0, 3)
    assert flights.resize(3, 1).json() == first.json()
    assert not flights.get(member)["superseded"]
    assert flights.resize(2, 2).json()["generation"] == 3
    late = flights.resize(3, 1)
    assert (late.status_code, code(late)) == (409, "stale_generation")


def test_closed_members_keep_their_places(flights: Site) -> None:
    closed, open_ = flights.member(1, 2), flights.member(0, 2)
    flights.detach(closed)
    flights.resize(1, 1)
    assert [endpoint["id"] for endpoint in flights.listed()] == [closed["id"]]
    assert flights.get(open_)["superseded"]


@pytest.mark.long
def test_groups_of_one_channel_have_independent_sizes(flights: Site) -> None:
    others = [flights.member(index, 3, group="h") for index in range(3)]
    flights.member(0, 2)
    flights.resize(4, 1)
    assert [member["partitions"] for member in others] == [[0, 3], [1], [2]]
    for member in others:
        assert flights.commit(member, 1, (member["index"], 1, 0)).status_code == 200
    assert [member["partitions"] for member in (flights.member(1, 4), flights.member(3, 4))] == [
        [1],
        [3],
    ]


def test_a_resize_of_an_unsuitable_group_is_refused(flights: Site) -> None:
    assert code(flights.resize(2, 1)) == "group_not_found"
    flights.join()
    assert code(flights.resize(2, 2, group="d")) == "group_size"
    flights.member(0, 2)
    assert code(flights.resize(3, 1, uid=fresh_id())) == "uid_mismatch"
    for size in (0, 10_001, 1.0):
        response = flights.resize(size, 1)  # type: ignore[arg-type]
        assert (response.status_code, code(response)) == (422, "invalid_request")


def test_a_pinned_channel_refuses_a_larger_group(shared_rig: Rig) -> None:
    pinned = site(shared_rig, f"pinned-{fresh_id()}", partitions=2, pinned=True)
    pinned.member(0, 2)
    response = pinned.resize(3, 1)
    assert (response.status_code, code(response)) == (409, "group_larger_than_pinned")
    pinned.member(0, 2, group="maps", mode="broadcast")
    assert pinned.resize(3, 1, group="maps").status_code == 200
